"""Checks of the swarm's monitor: how precisely its log gives the end of an epoch."""

from __future__ import annotations

from statistics import median

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding

# The end of an epoch is known to within one scrape. At 2 % of an epoch the error of its rate equals the smallest
# differences between the paper's places.
PERIOD_DOUBT = 0.02
# A gap: no scrape for this many periods and at least this many seconds (the log's clock is in whole seconds).
GAP_PERIODS, GAP_S = 5.0, 5.0


def monitor_missing(e: Evidence) -> list[Finding]:
    """Report imported runs without a log of the monitor."""
    if e.imported is None or e.baseline or e.imported.monitor:
        return []
    sentence = "There is no monitor log, so the epochs' times and samples are taken from the VMs' logs."
    return [e.finding("monitor-missing", "note", sentence, "monitor", 0)]


def _period_s(e: Evidence) -> float | None:
    known = e.run.meta.logs.monitor_period_s
    if known:
        return float(known)
    gaps = [b.at_s - a.at_s for a, b in zip(e.progress, e.progress[1:], strict=False)]
    return median(gaps) if gaps else None


def monitor_period(e: Evidence) -> list[Finding]:
    """Compare the time between two scrapes with the length of an epoch."""
    period_s, epoch_s = _period_s(e), e.epoch_s
    if e.imported is None or not e.watched or not period_s or not epoch_s:
        return []
    share = period_s / epoch_s
    if share <= PERIOD_DOUBT:
        return []
    sentence = (
        f"The monitor scrapes every {rounded(period_s)} s and an epoch takes {rounded(epoch_s)} s, so the end of an epoch "
        f"is known only to {percent(share)} of its length."
    )
    return [
        e.finding(
            "monitor-period",
            "doubt",
            sentence,
            "period_s",
            period_s,
            PERIOD_DOUBT * epoch_s,
            file=e.monitor_file,
        )
    ]


def skipped_epochs(e: Evidence) -> list[Finding]:
    """Report epochs that are missing from the monitor's log, and epochs with the rate 0."""
    if e.imported is None:
        return []
    found: list[Finding] = []
    zero = sorted(
        {int(n) for n in e.imported.zero_rate_epochs or ()} | {w.epoch for w in e.watched if w.sps == 0}
    )
    if zero:
        sentence = (
            f"The monitor logged the rate 0 for {'epoch' if len(zero) == 1 else 'epochs'} {', '.join(map(str, zero))}: not "
            "measured, and a mean that included it would be too low."
        )
        found.append(e.finding("zero-rate", "doubt", sentence, "epochs", len(zero), 0, file=e.monitor_file))
    numbers = sorted(w.epoch for w in e.watched)
    missing = sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers)) if numbers else []
    if missing:
        sentence = (
            f"The monitor's log skips {'epoch' if len(missing) == 1 else 'epochs'} {', '.join(map(str, missing))}: wall time "
            "and samples of the next one may include those of the skipped one."
        )
        found.append(
            e.finding("skipped-epochs", "doubt", sentence, "epochs", len(missing), 0, file=e.monitor_file)
        )
    return found


def monitor_gaps(e: Evidence) -> list[Finding]:
    """Report gaps in the monitor's log; a doubt if an epoch ended in one."""
    period_s = _period_s(e)
    if e.imported is None or not period_s:
        return []
    limit_s = max(GAP_S, GAP_PERIODS * period_s)
    gaps = [
        (a.at_s, b.at_s)
        for a, b in zip(e.progress, e.progress[1:], strict=False)
        if b.at_s - a.at_s > limit_s
    ]
    if not gaps:
        return []
    longest_s = max(b - a for a, b in gaps)
    hit = sorted(w.epoch for w in e.watched for a, b in gaps if a < w.ended_s <= b)
    tail = f"; the end of epoch {', '.join(map(str, hit))} is in such a gap" if hit else ""
    sentence = (
        f"The monitor logged nothing for more than {rounded(limit_s)} s {counted(len(gaps), 'time')}, at most "
        f"{rounded(longest_s)} s{tail}."
    )
    severity = "doubt" if hit else "note"
    return [
        e.finding(
            "monitor-gaps", severity, sentence, "longest_gap_s", longest_s, limit_s, len(gaps), e.monitor_file
        )
    ]
