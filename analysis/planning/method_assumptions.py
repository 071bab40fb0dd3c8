"""What the predictions of an averaging method and of a network setting rest on, besides the constants. Pure."""

from __future__ import annotations

from cloud.networks import PathModel
from experiments.averaging.flat import FLAT
from experiments.averaging.records import AveragingMethod

AVERAGING, OVERLAP, ROUNDS, TUNING = "averaging", "overlap", "all-reduces of a round", "network tuning"
_COMPARED = (
    "compared with one emulated run each of CV and NLP C-8 (docs/prediction.md), with no rented VMs yet"
)


def method_assumptions(
    method: AveragingMethod, path: PathModel, further_trips_s: float
) -> list[tuple[str, str, str]]:
    """Return name, value and source of each. `further_trips_s`: for which all-reduces wait for each other."""
    found: list[tuple[str, str, str]] = []
    if method.exchange is not FLAT:
        found.append(
            (
                AVERAGING,
                f"{method.exchange.name}: all levels at the same time, agreement in no time",
                f"docs/averaging.md; {_COMPARED}",
            )
        )
    if method.schedule.overlaps_rounds:
        found.append(
            (
                OVERLAP,
                f"{method.schedule.name}: calculation as fast during a round as without it",
                f"experiments/averaging/overlap.py; {_COMPARED}",
            )
        )
    if method.compression.exchanges > 1:
        found.append(
            (
                ROUNDS,
                f"{method.compression.exchanges} in one group, one matchmaking, {further_trips_s:.2g} s of round trip "
                "between them, factors calculated in no time",
                f"docs/averaging.md; {_COMPARED}",
            )
        )
    if path.window_factor != 1:
        found.append(
            (
                TUNING,
                f"{path.window_bytes * path.window_factor / 1e6:.0f} MB TCP window",
                f"cloud/networks/tuning.py; {_COMPARED}",
            )
        )
    return found
