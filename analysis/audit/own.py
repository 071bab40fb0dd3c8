"""Checks of runs of our own: the emulation, its host, Hivemind's rounds, meters against the switch."""

from __future__ import annotations

from analysis.audit.evidence import Evidence, counted, percent
from analysis.audit.findings import Finding
from metrics.epochs.throughput import dropped_rounds
from metrics.host_load import told
from metrics.warnings import AGREEMENT_LIMIT


def own_run(e: Evidence) -> list[Finding]:
    """What makes a run of ours doubtful; nothing for an imported one."""
    if e.imported is not None:
        return []
    return [*_ending(e), *_emulation(e), *_rounds(e), *_meters(e)]


def _ending(e: Evidence) -> list[Finding]:
    status = e.run.meta.status
    if status in ("done", None):
        return []
    if status == "running":
        return [e.finding("ended", "note", "The run has not ended: the figures are those so far.", "", None)]
    error = e.run.meta.error
    sentence = f"The run ended as '{status}'{f': {error}' if error else ''}."
    return [e.finding("ended", "doubt", sentence, "", None)]


def _emulation(e: Evidence) -> list[Finding]:
    if not e.run.meta.emulated:
        return []
    scales = e.run.terms.scales
    shrunk = f"bytes 1/{scales.bytes:g}, time 1/{scales.time:g}, samples 1/{scales.samples:g}: figures are multiplied back"
    sentence = f"Emulated on one machine; {'not scaled' if scales.none else shrunk}."
    found = [e.finding("emulated", "note", sentence, "bytes_scale", scales.bytes, 1)]
    host = e.run.meta.host
    if host is not None and host.contended:
        sentence = f"The machine was too busy to keep the emulation's clock honest: {told(host.to_json())}."
        found.append(e.finding("host", "doubt", sentence, "", None))
    elif host is None or host.contended is None:
        sentence = "Whether the machine kept the emulation's clock honest was not watched."
        found.append(e.finding("host", "note", sentence, "", None))
    return found


def _rounds(e: Evidence) -> list[Finding]:
    bad = dropped_rounds(e.run.raw)
    if not bad:
        return []
    numbers = ", ".join(str(epoch.epoch) for epoch in bad)
    sentence = f"Hivemind lost part of {counted(len(bad), 'round')} (epochs {numbers}): these did not average all peers' gradients."
    return [e.finding("dropped-rounds", "doubt", sentence, "rounds", len(bad), 0, len(e.run.raw))]


def _meters(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    both = e.run.agreement
    if both is not None and both.difference is not None and abs(both.difference) > AGREEMENT_LIMIT:
        word = "more" if both.difference > 0 else "less"
        sentence = (
            f"The VMs' meters counted {percent(abs(both.difference))} {word} than the switch between them."
        )
        found.append(e.finding("agreement", "doubt", sentence, "bytes", both.meter_bytes, both.switch_bytes))
    lost = sum(int(n) for n in e.run.meta.rejected.values())
    if lost:
        sentence = f"The monitor dropped {counted(lost, 'record')} of peers: what they held is in no figure."
        found.append(e.finding("dropped-records", "note", sentence, "records", lost, 0))
    if e.run.tails:
        tail = sum(e.run.tails.values())
        sentence = f"VMs that died sent {tail:,} bytes after their last report: they are in no sum."
        found.append(e.finding("after-death", "note", sentence, "bytes", tail, 0))
    return found
