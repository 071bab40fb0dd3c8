"""Checks of the logs: synchronising steps, network counters, clocks, gaps, and sample sums."""

from __future__ import annotations

from analysis.audit.evidence import Evidence, counted, percent
from analysis.audit.findings import Finding
from metrics.readable import size

# Peers report to the DHT about once per step, so the monitor may lag by one or two batches of each peer: below 1 %
# of the paper's target batch size.
SAMPLES_DOUBT = 0.02
# Peers finish their current step when the target is reached, so Hivemind overshoots it by a few batches.
TARGET_NOTE = 0.05

_RULES = {
    "opt_step": "the authors' rule",
    "epochs": "the advance of the epoch number",
    "bytes": "the bytes sent",
}


def sync_rule(e: Evidence) -> list[Finding]:
    """Compare the authors' rule for synchronising steps with the epochs that the peer counted."""
    found: list[Finding] = []
    for vm, noted in e.noted("sync").items():
        authors, ours, rule = noted.get("authors"), noted.get("found"), str(noted.get("rule"))
        basis = _RULES.get(rule, rule)
        if noted.get("agree") is False:
            other = ", but different ones" if authors == ours else ""
            sentence = (
                f"{vm}: the authors' rule (opt_step >= median + 2 std) finds {authors} synchronising steps, {basis} "
                f"{ours}{other}. The figures use the latter."
            )
            found.append(
                e.finding(
                    "sync-rule", "doubt", sentence, "synchronising_steps", _float(authors), _float(ours),
                    file=e.file(vm),
                )
            )  # fmt: skip
        elif noted.get("agree") is None and ours:
            sentence = f"{vm}: the log does not confirm its synchronising steps, which were found by {basis}."
            found.append(
                e.finding("sync-rule", "note", sentence, "synchronising_steps", _float(ours), file=e.file(vm))
            )
    return found


def doubled_counters(e: Evidence) -> list[Finding]:
    """Report network counters that count both a synthetic and an accelerated card."""
    found: list[Finding] = []
    for vm, noted in e.noted("nic").items():
        if not noted.get("doubled"):
            continue
        raw, kept = noted.get("raw_sent_bytes"), noted.get("sent_bytes")
        sentence = (
            f"{vm}: the network counters count each byte twice (a synthetic and an accelerated card): the log has "
            f"{_amount(raw)} sent, the figures use {_amount(kept)}."
        )
        found.append(
            e.finding(
                "doubled-counter", "doubt", sentence, "sent_bytes", _float(raw), _float(kept), file=e.file(vm)
            )
        )
    return found


def clocks_and_gaps(e: Evidence) -> list[Finding]:
    """Report clocks that jump, and gaps in the 1 Hz network counters."""
    found: list[Finding] = []
    for vm, noted in e.noted("clock").items():
        jumps = int(noted.get("jumps") or 0)
        if jumps:
            sentence = f"{vm}: its clock jumps {counted(jumps, 'time')}: durations across a jump are wrong."
            found.append(e.finding("clock", "doubt", sentence, "jumps", jumps, 0, file=e.file(vm)))
    for vm, noted in e.noted("nic").items():
        gaps = int(noted.get("gaps") or 0)
        if gaps:
            samples = int(noted.get("samples") or 0)
            sentence = (
                f"{vm}: {counted(gaps, 'gap')} of 3 s or more in its network counters ({samples} samples): "
                "the bytes in these gaps are missing from every sum."
            )
            found.append(e.finding("counter-gaps", "note", sentence, "gaps", gaps, 0, samples, e.file(vm)))
    if e.imported is not None:
        for row in e.run.vms:
            if not int(e.noted("nic").get(row.vm, {}).get("samples") or 0):
                sentence = f"{row.vm}: its log has no network counters, so its bytes are unknown."
                found.append(e.finding("counter-gaps", "note", sentence, "samples", 0, file=e.file(row.vm)))
    return found


def sample_sums(e: Evidence) -> list[Finding]:
    """Compare an epoch's samples by the monitor with the sum of the VMs' own, and with the target."""
    found: list[Finding] = []
    for epoch in e.run.raw:
        if epoch.watched_samples is None or not epoch.peers or not epoch.watched_samples:
            continue
        own = sum(p.samples for p in epoch.peers)
        off = own / epoch.watched_samples - 1
        if abs(off) > SAMPLES_DOUBT:
            sentence = (
                f"Epoch {epoch.epoch}: the VMs' logs add up to {own:,.0f} samples, the monitor's log has "
                f"{epoch.watched_samples:,.0f} ({off:+.1%})."
            )
            severity = "note" if epoch.warmup else "doubt"
            found.append(
                e.finding(
                    "samples", severity, sentence, "samples", own, epoch.watched_samples, file=e.monitor_file
                )
            )
    target = e.run.terms.raw_target
    for epoch in e.run.raw:
        if not target or epoch.warmup or not epoch.complete or not epoch.samples:
            continue
        off = epoch.samples / target - 1
        if abs(off) > TARGET_NOTE:
            word = "more" if off > 0 else "less"
            sentence = (
                f"Epoch {epoch.epoch} used {epoch.samples:,.0f} samples, {percent(abs(off))} {word} than the target "
                f"batch size of {target:,}."
            )
            found.append(e.finding("samples", "note", sentence, "samples", epoch.samples, target))
    return found


def importer_warnings(e: Evidence) -> list[Finding]:
    """Pass on the warnings of the importer, or of the controller of our own run, with the log each one names."""
    return [
        e.finding("warning", "note", text, "", None, file=e.named_file(text)) for text in e.run.meta.warnings
    ]


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _amount(count: object) -> str:
    return size(count if isinstance(count, int | float) else None)
