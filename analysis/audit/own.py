"""Checks of our own runs: status, emulation and its host, Hivemind's rounds, meters against the switch."""

from __future__ import annotations

from analysis.audit.evidence import Evidence, counted, percent
from analysis.audit.findings import Finding
from metrics.epochs.throughput import dropped_rounds
from metrics.host_load import describe_host
from metrics.warnings import AGREEMENT_LIMIT


def own_run(e: Evidence) -> list[Finding]:
    """Run the checks that apply to our own runs only; no findings for an imported run."""
    if e.imported is not None:
        return []
    return [*_ending(e), *_emulation(e), *_rounds(e), *_meters(e)]


def _ending(e: Evidence) -> list[Finding]:
    status = e.run.meta.status
    if status in ("done", None):
        return []
    if status == "running":
        return [
            e.finding(
                "ended", "note", "The run has not ended: the figures cover its epochs so far.", "", None
            )
        ]
    error = e.run.meta.error
    sentence = f"The run ended with status '{status}'{f': {error}' if error else ''}."
    return [e.finding("ended", "doubt", sentence, "", None)]


def _emulation(e: Evidence) -> list[Finding]:
    if not e.run.meta.emulated:
        return []
    scales = e.run.terms.scales
    shrunk = f"bytes 1/{scales.bytes:g}, time 1/{scales.time:g}, samples 1/{scales.samples:g}; figures are at full scale"
    sentence = f"Emulated on one machine; {'not scaled' if scales.none else shrunk}."
    found = [e.finding("emulated", "note", sentence, "bytes_scale", scales.bytes, 1)]
    host = e.run.meta.host
    if host is not None and host.contended:
        sentence = f"The machine was too busy for the emulation's timing to be accurate: {describe_host(host.to_json())}."
        found.append(e.finding("host", "doubt", sentence, "", None))
    elif host is None or host.contended is None:
        sentence = (
            "The load of the machine was not recorded, so the accuracy of the emulation's timing is unknown."
        )
        found.append(e.finding("host", "note", sentence, "", None))
    return found


def _rounds(e: Evidence) -> list[Finding]:
    bad = dropped_rounds(e.run.raw)
    if not bad:
        return []
    numbers = ", ".join(str(epoch.epoch) for epoch in bad)
    sentence = f"{counted(len(bad), 'averaging round')} (epochs {numbers}) did not average all peers' gradients: part was lost."
    return [e.finding("dropped-rounds", "doubt", sentence, "rounds", len(bad), 0, len(e.run.raw))]


def _meters(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    both = e.run.agreement
    if both is not None and both.difference is not None and abs(both.difference) > AGREEMENT_LIMIT:
        word = "more" if both.difference > 0 else "fewer"
        sentence = f"The VMs' meters counted {percent(abs(both.difference))} {word} bytes than the switch between them."
        found.append(e.finding("agreement", "doubt", sentence, "bytes", both.meter_bytes, both.switch_bytes))
    lost = sum(int(n) for n in e.run.meta.rejected.values())
    if lost:
        sentence = f"The monitor rejected {counted(lost, 'record')} of peers: their content is missing from every figure."
        found.append(e.finding("dropped-records", "note", sentence, "records", lost, 0))
    if e.run.tails:
        tail = sum(e.run.tails.values())
        sentence = f"Lost VMs sent {tail:,} bytes after their last report, which are missing from every sum."
        found.append(e.finding("after-death", "note", sentence, "bytes", tail, 0))
    return found
