"""Held-out figures in the study report: those of any name at the end of each run, and the comparison of one over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.compare.held_out import APART, HeldOutComparison, HeldOutRun, Side
from analysis.compare.published import ComparedRun
from analysis.compare.rows import Row
from analysis.compare.run_figures import StudyRun
from analysis.report.page import Section, table
from metrics.events.evaluation import figure_words
from metrics.provenance import all_marks
from metrics.readable import few

_IN_OTHER_TABLES = ("loss", "accuracy")


def evaluation_table(runs: Sequence[ComparedRun]) -> list[Row]:
    """Return one line per run: its held-out figures at the end. [] if there are none but loss and accuracy."""
    names = list(dict.fromkeys(name for run in runs for name in run.evaluation or ()))
    if not set(names).difference(_IN_OTHER_TABLES):
        return []
    return [
        {"held-out": run.experiment, "run": run.run_id, **_figure_cells(names, run.evaluation or {})}
        for run in runs
    ]


def evaluation_rows(runs: Sequence[StudyRun]) -> list[Row]:
    """Return one row per run and held-out figure at the end of the run, as in the file `held-out.csv`."""
    return [
        {
            "name": run.name,
            "run": run.run_id,
            "model": run.model,
            "epoch": one["epoch"],
            "samples_trained_raw": one["raw_trained_samples"],
            "heldout_samples": one["samples"],
            "figure": name,
            "value": value,
        }
        for run in runs
        if (one := run.evaluation) is not None
        for name, value in one["figures"].items()
    ]


def evaluation_section(runs: Sequence[StudyRun]) -> Section | None:
    """Return the section with the figures of each run's last evaluation, by name; None if no run was evaluated."""
    evaluated = [run for run in runs if run.evaluation is not None]
    if not evaluated:
        return None
    names = list(dict.fromkeys(row["figure"] for row in evaluation_rows(evaluated)))
    rows: list[Row] = []
    for run in evaluated:
        one = run.evaluation or {}
        trained = one["raw_trained_samples"]
        rows.append(
            {
                "run": run.name,
                "model": run.model,
                "epoch": one["epoch"],
                "after samples": None if trained is None else f"{trained:,.0f}",
                "held-out samples": one["samples"],
                **_figure_cells(names, one["figures"]),
            }
        )
    lead = (
        "Of each run's last evaluation, after the samples that it actually trained on. Figures of one name are comparable if "
        "the runs were evaluated on the same data."
    )
    others = [run.name for run in runs if run.evaluation is None and run.origin in ("own", "emulated")]
    if others:
        lead += f" Not evaluated: {few(others, 6, ', ')}."
    html = table(
        rows, "Held-out figures at the end of the runs; -: not one of the run's", text=("run", "model")
    )
    return Section("Held-out figures", lead, html=html)


def _figure_cells(names: Sequence[str], figures: Mapping[str, float | None]) -> dict[str, str]:
    return {name: figure_words(name, figures[name]) if name in figures else "-" for name in names}


def held_out_lines(found: HeldOutComparison | None) -> list[str]:
    """Return a heading, a line for each side, and the difference; [] if there is no comparison."""
    if found is None:
        return []
    return [f"held-out {found.figure}{_basis(found)}", *_sides(found), f"  {_verdict(found)}"]


def held_out_section(found: HeldOutComparison) -> Section:
    """Return the section: the same text with a table of the runs."""
    sides = "; ".join(" ".join(line.split()) for line in _sides(found))
    lead = f"Held-out {found.figure}{_basis(found)} {sides}. Means: {_verdict(found)}."
    rows: list[dict[str, Any]] = [
        {
            "experiment": run.experiment,
            "run": run.run_id,
            "seed": run.seed,
            found.figure: None if run.value is None else f"{run.value:.4f}",
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
        f"Held-out {found.figure}",
        lead,
        html=table(rows, "Runs", text=("experiment", "run", "on", "host", "judged")),
    )


def _basis(found: HeldOutComparison) -> str:
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


def _sides(found: HeldOutComparison) -> list[str]:
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


def _verdict(found: HeldOutComparison) -> str:
    apart = "unknown" if found.difference is None else f"{found.difference:+.4f}"
    text = f"difference {apart}, pooled standard deviation {_number(found.pooled_sd)}"
    if found.inside is None:
        return f"{text}: no verdict: {found.why}"
    verdict = "less than" if found.inside else "NOT less than"
    return f"{text}: {verdict} {APART:g} of them ({_number(found.limit)})"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
