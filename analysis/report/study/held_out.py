"""The comparison of held-out accuracies as text lines and as a section of the study report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from analysis.compare.accuracy import APART, AccuracyComparison, HeldOutRun, Side
from analysis.report.page import Section, table
from metrics.provenance import all_marks


def accuracy_lines(found: AccuracyComparison | None) -> list[str]:
    """Return a heading, a line for each side, and the difference; [] if there is no comparison."""
    if found is None:
        return []
    return [f"held-out accuracy{_basis(found)}", *_sides(found), f"  {_verdict(found)}"]


def accuracy_section(found: AccuracyComparison) -> Section:
    """Return the section: the same text with a table of the runs."""
    sides = "; ".join(" ".join(line.split()) for line in _sides(found))
    lead = f"Held-out accuracy{_basis(found)} {sides}. Means: {_verdict(found)}."
    rows: list[dict[str, Any]] = [
        {
            "experiment": run.experiment,
            "run": run.run_id,
            "seed": run.seed,
            "accuracy": None if run.accuracy is None else f"{run.accuracy:.4f}",
            "loss": None if run.loss is None else f"{run.loss:.4f}",
            "updates": run.updates,
            "target batch size": run.target_batch_size,
            "samples trained on": run.samples,
            "held-out samples": run.heldout_samples,
            "dropped rounds": run.dropped_rounds,
            "on": run.origin,
            "host": run.host,
            "judged": "" if side.counts(run) else "not counted: the host was too busy",
        }
        for side in (found.of, found.against)
        for run in side.runs
    ]
    return Section(
        "Held-out accuracy",
        lead,
        html=table(rows, "Runs", text=("experiment", "run", "on", "host", "judged")),
    )


def _basis(found: AccuracyComparison) -> str:
    """Describe what the runs have in common if they are comparable."""
    runs = [*found.of.counted, *found.against.counted]
    if found.inside is None or not runs:
        return ":"
    first: HeldOutRun = runs[0]
    seeds = ", ".join(str(run.seed) for run in found.of.counted)
    return (
        f" after {first.updates} updates of {first.target_batch_size} samples ({first.heldout_samples} held out, "
        f"seeds {seeds}):"
    )


def _sides(found: AccuracyComparison) -> list[str]:
    width = max(len(side.experiment) for side in (found.of, found.against))
    return [f"  {side.experiment:<{width}}  {_side(side)}" for side in (found.of, found.against)]


def _side(side: Side) -> str:
    single = ", ".join(f"{value:.4f}" for value in side.values)
    mean = f"mean {_number(side.mean)}, standard deviation {_number(side.sd)}, n {len(side.values)}"
    dropped = side.dropped_rounds
    lost = "" if dropped == 0 else f"; dropped rounds: {'unknown' if dropped is None else dropped}"
    return f"{mean}{f' ({single})' if single else ''}{_marks(side)}{lost}"


def _marks(side: Side) -> str:
    """Describe what the counted runs ran on, and for how many the host was too busy or unknown."""
    origin = all_marks(run.origin for run in side.counted)
    hosts = host_marks([run.host for run in side.counted])
    return "".join(f"; {mark}" for mark in (origin, *hosts) if mark)


def host_marks(hosts: Sequence[str]) -> list[str]:
    """Describe for how many runs, given by their `host`, the host was too busy or its load is unknown."""
    count = Counter(hosts)
    return [
        f"host {mark} in {count[mark]} of {len(hosts)}" for mark in ("TOO BUSY", "unknown") if count[mark]
    ]


def _verdict(found: AccuracyComparison) -> str:
    apart = "unknown" if found.difference is None else f"{found.difference:+.4f}"
    text = f"difference {apart}, pooled standard deviation {_number(found.pooled_sd)}"
    if found.inside is None:
        return f"{text}: no verdict: {found.why}"
    verdict = "less than" if found.inside else "NOT less than"
    return f"{text}: {verdict} {APART:g} of them ({_number(found.limit)})"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
