"""How much a figure rests on: the number of epochs, the warm-up epoch, and the figure that was claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding
from metrics.epochs.throughput import measured, throughput_epoch_mean, throughput_phase_timed
from metrics.stats import mean_interval

# Below this Student's factor is 4.3 and more: one odd epoch decides what the interval is.
FEW_EPOCHS = 4
# The differences that the study discusses (one place against two, one cloud against another) are 2 to 25 %:
# an interval of a tenth to each side can tell none of the small ones.
HALF_WIDTH_DOUBT = 0.10
# The warm-up epoch holds peers joining, caches filling and the first compilation.
FIRST_EPOCH_DOUBT = 0.05
FIRST_EPOCH_NOTE = 0.01  # left out, but a reader who compares with a mean that has it must know
# The study prints three to four digits: a figure that its own logs miss by more is not from these epochs.
PUBLISHED_DOUBT = 0.01


def few_epochs(e: Evidence) -> list[Finding]:
    """n, the 95 % interval of the epochs' mean rate and its relative half-width."""
    if e.baseline:
        return []
    mean = throughput_epoch_mean(e.run.study)
    if mean is None:
        sentence = (
            "No epoch ended after the warm-up: there is no throughput, granularity or epoch time to claim."
        )
        return [e.finding("few-epochs", "error", sentence, "epochs", 0, FEW_EPOCHS, 0)]
    if mean.low is None or mean.high is None:
        sentence = (
            f"{rounded(mean.value)} sps is a single epoch: nothing says how far another would be from it."
        )
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
    """The first epoch's rate, from its wall time or else as the watcher logged it; None: not known, or 0."""
    epoch = e.run.study[0] if e.run.study else None
    if epoch is None:
        return None
    if epoch.duration_s:
        return epoch.samples / epoch.duration_s or None
    return next((w.sps for w in e.watched if w.epoch == epoch.epoch), None) or None


def _rates(e: Evidence) -> list[float]:
    return [epoch.samples / epoch.duration_s for epoch in measured(e.run.study) if epoch.duration_s]


def first_epoch(e: Evidence) -> list[Finding]:
    """What including the warm-up epoch does, or would do, to the throughput."""
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
            f"The first epoch, in which peers join and caches fill, is in the mean: without it "
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
        f"The first epoch ran at {rounded(first)} sps, the others at {rounded(mean.value)}: a mean that includes "
        f"it would be {rounded(both)} sps ({change:+.1%})"
        f"{', outside the 95 % interval' if outside else ''}; it is left out."
    )
    return [e.finding("first-epoch", "note", sentence, "change_of_sps", change, FIRST_EPOCH_NOTE, mean.n)]


def claimed(e: Evidence) -> list[Finding]:
    """The claimed throughput against the measured epochs' mean, and where it comes from when it is another."""
    if e.claimed_sps is None:
        return []
    claim, row = e.claimed_sps, e.row
    if e.baseline:
        wall, timed = row.figures.get("sps_wall"), row.figures.get("sps_phase_timed")
        others = [_Other("by the phase timers", timed.value if timed else None, by_timers=True)]
        return _claim(
            e, claim, wall.value if wall else None, "by wall clock it did", others, wall.n if wall else 0
        )
    rates, first = _rates(e), _first_rate(e)
    mean = sum(rates) / len(rates) if rates else None
    with_first = None if first is None else (first + sum(rates)) / (1 + len(rates))
    timed = throughput_phase_timed(e.run.study)
    by_timers = timed.value if timed else None
    others = [
        _Other("with the first epoch", with_first),
        _Other("by the phase timers, without averaging,", by_timers, by_timers=True),
    ]
    return _claim(e, claim, mean, "the measured epochs' mean is", others, len(rates))


class _Other(NamedTuple):
    """Another throughput that a claim may be."""

    words: str
    sps: float | None
    by_timers: bool = False


def _claim(
    e: Evidence, claim: float, ours: float | None, basis: str, others: Sequence[_Other], n: int
) -> list[Finding]:
    if not ours or abs(claim / ours - 1) <= PUBLISHED_DOUBT:
        return []
    sentence = f"Published are {rounded(claim)} sps, {basis} {rounded(ours)} ({claim / ours - 1:+.1%} off)"
    severity = "doubt"
    for other in others:
        if other.sps and abs(claim / other.sps - 1) <= PUBLISHED_DOUBT:
            sentence += f"; {other.words} it is {rounded(other.sps)}: that is what was published"
            severity = "error" if other.by_timers else "doubt"
            break
    return [e.finding("published", severity, sentence + ".", "sps", claim, ours, n)]
