"""Checks of the throughput: the number of epochs behind it, the warm-up epoch, and the published figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding
from metrics.epochs.throughput import measured, throughput_epoch_mean, throughput_phase_timed
from metrics.stats import mean_interval

# With fewer epochs Student's factor is 4.3 or more, and one outlier determines the interval.
FEW_EPOCHS = 4
# The differences that the paper discusses (one place against two, one cloud against another) are 2 to 25 %.
# An interval of ±10 % cannot resolve the small ones.
HALF_WIDTH_DOUBT = 0.10
# The warm-up epoch includes peers joining, caches filling and the first compilation.
FIRST_EPOCH_DOUBT = 0.05
FIRST_EPOCH_NOTE = 0.01  # excluded, but relevant when comparing with a mean that includes it
# The paper prints three to four digits: a larger difference means that the figure is not from these epochs.
PUBLISHED_DOUBT = 0.01


def few_epochs(e: Evidence) -> list[Finding]:
    """Report n, the 95 % interval of the epochs' mean rate and its relative half-width."""
    if e.baseline:
        return []
    mean = throughput_epoch_mean(e.run.study)
    if mean is None:
        sentence = (
            "No epoch finished after the warm-up, so throughput, granularity and epoch time are unknown."
        )
        return [e.finding("few-epochs", "error", sentence, "epochs", 0, FEW_EPOCHS, 0)]
    if mean.low is None or mean.high is None:
        sentence = f"{rounded(mean.value)} sps comes from a single epoch, so its variation is unknown."
        return [e.finding("few-epochs", "doubt", sentence, "epochs", 1, FEW_EPOCHS, 1)]
    half = (mean.high - mean.low) / 2 / mean.value
    if mean.n >= FEW_EPOCHS and half <= HALF_WIDTH_DOUBT:
        return []
    sentence = (
        f"{rounded(mean.value)} sps is the mean of {counted(mean.n, 'epoch')}: the 95 % interval is "
        f"{rounded(mean.low)} to {rounded(mean.high)} (±{percent(half)})."
    )
    severity = "doubt" if half > HALF_WIDTH_DOUBT else "note"
    return [
        e.finding("few-epochs", severity, sentence, "relative_half_width", half, HALF_WIDTH_DOUBT, mean.n)
    ]


def _first_rate(e: Evidence) -> float | None:
    """The first epoch's rate from its wall time, otherwise as the monitor logged it; None: unknown or 0."""
    epoch = e.run.study[0] if e.run.study else None
    if epoch is None:
        return None
    if epoch.duration_s:
        return epoch.samples / epoch.duration_s or None
    return next((w.sps for w in e.watched if w.epoch == epoch.epoch), None) or None


def _rates(e: Evidence) -> list[float]:
    return [epoch.samples / epoch.duration_s for epoch in measured(e.run.study) if epoch.duration_s]


def first_epoch(e: Evidence) -> list[Finding]:
    """Report how including the warm-up epoch changes, or would change, the throughput."""
    if e.baseline or not e.run.study:
        return []
    rates, first = _rates(e), _first_rate(e)
    if first is None or not rates:
        return []
    if not e.run.study[0].warmup:
        if len(rates) == 1:
            return []
        without = mean_interval(rates[1:])
        assert without is not None
        change = sum(rates) / len(rates) / without.value - 1
        severity = "doubt" if abs(change) > FIRST_EPOCH_DOUBT else "note"
        sentence = (
            f"The mean includes the first epoch, in which peers join and caches fill: without it "
            f"{rounded(sum(rates) / len(rates))} sps would be {rounded(without.value)} sps."
        )
        return [
            e.finding(
                "first-epoch", severity, sentence, "change_of_sps", change, FIRST_EPOCH_DOUBT, len(rates)
            )
        ]
    mean = mean_interval(rates)
    assert mean is not None
    both = (first + sum(rates)) / (1 + len(rates))
    change = both / mean.value - 1
    outside = mean.low is not None and mean.high is not None and not mean.low <= both <= mean.high
    if not outside and abs(change) <= FIRST_EPOCH_NOTE:
        return []
    sentence = (
        f"The first epoch ran at {rounded(first)} sps, the others at {rounded(mean.value)}: a mean that included "
        f"it would be {rounded(both)} sps ({change:+.1%})"
        f"{', outside the 95 % interval' if outside else ''}. It is excluded."
    )
    return [e.finding("first-epoch", "note", sentence, "change_of_sps", change, FIRST_EPOCH_NOTE, mean.n)]


def claimed(e: Evidence) -> list[Finding]:
    """Compare the published throughput with the measured epochs' mean, and find what it is if they differ."""
    if e.claimed_sps is None:
        return []
    claim, row = e.claimed_sps, e.row
    if e.baseline:
        wall, timed = row.figures.get("sps_wall"), row.figures.get("sps_phase_timed")
        others = [_Other("the rate by phase timers", timed.value if timed else None, by_timers=True)]
        return _claim(
            e, claim, wall.value if wall else None, "the rate by wall clock is", others, wall.n if wall else 0
        )
    rates, first = _rates(e), _first_rate(e)
    mean = sum(rates) / len(rates) if rates else None
    with_first = None if first is None else (first + sum(rates)) / (1 + len(rates))
    timed = throughput_phase_timed(e.run.study)
    by_timers = timed.value if timed else None
    others = [
        _Other("the mean with the first epoch", with_first),
        _Other("the rate by phase timers, without averaging", by_timers, by_timers=True),
    ]
    return _claim(e, claim, mean, "the measured epochs' mean is", others, len(rates))


class _Other(NamedTuple):
    """Another throughput that the published one may be."""

    words: str
    sps: float | None
    by_timers: bool = False


def _claim(
    e: Evidence, claim: float, ours: float | None, basis: str, others: Sequence[_Other], n: int
) -> list[Finding]:
    if not ours or abs(claim / ours - 1) <= PUBLISHED_DOUBT:
        return []
    sentence = f"The published throughput is {rounded(claim)} sps, but {basis} {rounded(ours)} ({claim / ours - 1:+.1%})"
    severity = "doubt"
    for other in others:
        if other.sps and abs(claim / other.sps - 1) <= PUBLISHED_DOUBT:
            sentence += f"; it matches {other.words}, {rounded(other.sps)}"
            severity = "error" if other.by_timers else "doubt"
            break
    return [e.finding("published", severity, sentence + ".", "sps", claim, ours, n)]
