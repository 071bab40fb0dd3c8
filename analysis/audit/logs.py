"""What the logs themselves are like: which step synchronises, counters, clocks, gaps, sums that do not agree."""

from __future__ import annotations

from analysis.audit.evidence import Evidence, amount, counted, percent
from analysis.audit.findings import Finding

# Peers report to the DHT each step or so: what the watcher sees may lag by a batch or two of each of them,
# below 1 % of the study's target.
SAMPLES_DOUBT = 0.02
# Peers finish the step they are in when the target is reached: an overshoot of a few batches is how Hivemind works.
TARGET_NOTE = 0.05

_RULES = {
    "opt_step": "the authors' rule",
    "epochs": "the advance of the epoch number",
    "bytes": "the bytes sent",
}


def sync_rule(e: Evidence) -> list[Finding]:
    """The authors' rule for the synchronising step against the epochs that the peer counted."""
    found: list[Finding] = []
    for vm, noted in e.noted("sync").items():
        authors, ours, rule = noted.get("authors"), noted.get("found"), str(noted.get("rule"))
        taken = _RULES.get(rule, rule)
        if noted.get("agree") is False:
            other = "; not the same ones" if authors == ours else ""
            sentence = (
                f"{vm}: the authors' rule (opt_step >= median + 2 std) finds {authors} synchronising steps, {taken} "
                f"{ours}{other}; the figures use the latter."
            )
            found.append(
                e.finding(
                    "sync-rule", "doubt", sentence, "synchronising_steps", _float(authors), _float(ours),
                    file=e.file(vm),
                )
            )  # fmt: skip
        elif noted.get("agree") is None and ours:
            sentence = f"{vm}: nothing in the log confirms its synchronising steps, found by {taken}."
            found.append(
                e.finding("sync-rule", "note", sentence, "synchronising_steps", _float(ours), file=e.file(vm))
            )
    return found


def doubled_counters(e: Evidence) -> list[Finding]:
    """Network counters that count a synthetic and an accelerated card both."""
    found: list[Finding] = []
    for vm, noted in e.noted("nic").items():
        if not noted.get("doubled"):
            continue
        raw, kept = noted.get("raw_sent_bytes"), noted.get("sent_bytes")
        sentence = (
            f"{vm}: the network counters count each byte twice (a synthetic and an accelerated card): "
            f"logged as {_amount(raw)} sent, taken as {_amount(kept)}."
        )
        found.append(
            e.finding(
                "doubled-counter", "doubt", sentence, "sent_bytes", _float(raw), _float(kept), file=e.file(vm)
            )
        )
    return found


def clocks_and_gaps(e: Evidence) -> list[Finding]:
    """Clocks that jump, and seconds that the 1 Hz counters did not log."""
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
                "the bytes of these seconds are in no sum."
            )
            found.append(e.finding("counter-gaps", "note", sentence, "gaps", gaps, 0, samples, e.file(vm)))
    if e.imported is not None:
        for row in e.run.vms:
            if not int(e.noted("nic").get(row.vm, {}).get("samples") or 0):
                sentence = f"{row.vm}: no network counters in its log: its bytes are unknown."
                found.append(e.finding("counter-gaps", "note", sentence, "samples", 0, file=e.file(row.vm)))
    return found


def sample_sums(e: Evidence) -> list[Finding]:
    """Samples of an epoch by the watcher against the sum of the peers' own, and against the target."""
    found: list[Finding] = []
    for epoch in e.run.raw:
        if epoch.watched_samples is None or not epoch.peers or not epoch.watched_samples:
            continue
        own = sum(p.samples for p in epoch.peers)
        off = own / epoch.watched_samples - 1
        if abs(off) > SAMPLES_DOUBT:
            sentence = (
                f"Epoch {epoch.epoch}: the VMs' own logs add up to {own:,.0f} samples, the monitor's says "
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
                f"Epoch {epoch.epoch} averaged {epoch.samples:,.0f} samples, {percent(abs(off))} {word} than the target "
                f"batch size of {target:,}."
            )
            found.append(e.finding("samples", "note", sentence, "samples", epoch.samples, target))
    return found


def importer_warnings(e: Evidence) -> list[Finding]:
    """What the importer (or the controller of a run of ours) noted, with the log that the sentence names."""
    return [
        e.finding("warning", "note", text, "", None, file=e.named_file(text)) for text in e.run.meta.warnings
    ]


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _amount(count: object) -> str:
    return "unknown" if not isinstance(count, int | float) else amount(count)
