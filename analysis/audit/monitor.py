"""The watcher of the swarm: how well it can know when an epoch ended."""

from __future__ import annotations

from statistics import median

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding

# An epoch's end is known to one scrape at each side: at 2 % of the epoch its rate has as much error as the
# differences between the study's places.
PERIOD_DOUBT = 0.02
# A gap is no scrape for this many periods, and for at least this long (the log's clock is in whole seconds).
GAP_PERIODS, GAP_S = 5.0, 5.0


def monitor_missing(e: Evidence) -> list[Finding]:
    """Imported runs without a log of the monitor: epochs from the peers alone."""
    if e.imported is None or e.baseline or e.imported.monitor:
        return []
    sentence = "There is no log of the monitor: the epochs' times and samples are the VMs' own."
    return [e.finding("monitor-missing", "note", sentence, "monitor", 0)]


def _period_s(e: Evidence) -> float | None:
    known = e.run.meta.logs.monitor_period_s
    if known:
        return float(known)
    gaps = [b.at_s - a.at_s for a, b in zip(e.progress, e.progress[1:], strict=False)]
    return median(gaps) if gaps else None


def monitor_period(e: Evidence) -> list[Finding]:
    """The time between two scrapes, relative to an epoch."""
    period_s, epoch_s = _period_s(e), e.epoch_s
    if e.imported is None or not e.watched or not period_s or not epoch_s:
        return []
    share = period_s / epoch_s
    if share <= PERIOD_DOUBT:
        return []
    sentence = (
        f"The monitor looks every {rounded(period_s)} s and an epoch takes {rounded(epoch_s)} s: its end is known no better than "
        f"{percent(share)} of it."
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
    """Epochs that the monitor never saw end, and those it gave the rate 0."""
    if e.imported is None:
        return []
    found: list[Finding] = []
    zero = sorted(
        {int(n) for n in e.imported.zero_rate_epochs or ()} | {w.epoch for w in e.watched if w.sps == 0}
    )
    if zero:
        sentence = (
            f"The monitor gave {'epoch' if len(zero) == 1 else 'epochs'} {', '.join(map(str, zero))} the rate 0: not "
            "measured, and a mean that kept it would be too low."
        )
        found.append(e.finding("zero-rate", "doubt", sentence, "epochs", len(zero), 0, file=e.monitor_file))
    numbers = sorted(w.epoch for w in e.watched)
    missing = sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers)) if numbers else []
    if missing:
        sentence = (
            f"The monitor's log skips {'epoch' if len(missing) == 1 else 'epochs'} {', '.join(map(str, missing))}: the next "
            "one's wall time and samples may hold both."
        )
        found.append(
            e.finding("skipped-epochs", "doubt", sentence, "epochs", len(missing), 0, file=e.monitor_file)
        )
    return found


def monitor_gaps(e: Evidence) -> list[Finding]:
    """Times in which the monitor logged nothing; worse where an epoch ended in one."""
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
    tail = f"; the end of epoch {', '.join(map(str, hit))} falls into one" if hit else ""
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
