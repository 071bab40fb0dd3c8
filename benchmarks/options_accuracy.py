"""Compare predictions of the study `beyond-c8` with what was measured of it on the emulated cloud.

    python -m benchmarks.options_accuracy

The measured figures are those of docs/study-run.md, "What options gain"; nothing is fitted to them. docs/prediction.md has
the resulting table.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.planning.advice import usd_of
from analysis.planning.prediction import predict
from cloud.places import continent
from cloud.prices.book import load_for
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from experiments.study_file.baseline import meant
from experiments.study_file.expectations import of_row
from experiments.study_file.load import load_study

STUDY, PAGE = "beyond-c8", Path(__file__).parents[1] / "docs" / "study-run.md"
_A8 = "A-8, one zone"  # the page's name of the row without a label
_FULL = ("delayed", "best")  # of NLP: compared with `full` instead of the study's baseline


@dataclass(frozen=True, slots=True)
class Option:
    """Figures of one row of the study. GB: between continents in an epoch."""

    sps: float
    comm_s: float
    usd_per_1m: float
    gb: float


Options = dict[tuple[str, str], Option]
"""By ("NLP" or "CV", row)."""


@cache
def measured() -> Options:
    """Read the two tables of docs/study-run.md."""
    found: Options = {}
    kind = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 8 or not line.startswith("|"):
            kind = ""
        elif cells[1] == "samples/s" and cells[3] == "comm., s":
            kind = cells[0]
        elif kind and not cells[0].startswith("---"):
            sps, comm_s, usd, gb = (float(cells[k].split()[0]) for k in (1, 3, 4, 5))
            found[kind, cells[0]] = Option(sps, comm_s, usd, gb)
    return found


@cache
def predicted() -> Options:
    """Predict each row of the study with its price book."""
    found: Options = {}
    for member in load_study(STUDY).members:
        spec = member.spec
        row = _key(spec, member.label)
        if row not in found:
            found[row] = _option(spec)
    return found


def _key(spec: ExperimentSpec, label: str) -> tuple[str, str]:
    name = label.replace("powersgd", spec.swarm.compression)
    return "NLP" if spec.name.endswith("-nlp") else "CV", name or _A8


def _option(spec: ExperimentSpec) -> Option:
    book = load_for(spec.prices, rented=False)
    p = predict(spec, book)
    assert p.sps is not None, p.unknown
    assert p.comm_s is not None
    where = {slot.name: continent(slot.places[0].infra) for slot in slots(spec)}
    far = (pair.bytes_per_epoch for pair in p.egress or () if where[pair.src] != where[pair.dst])
    return Option(p.sps.value, p.comm_s.value, usd_of(spec, p, book)[1].value, sum(far) / 1e9)


def baseline_of(kind: str, row: str) -> str:
    """Return the row with which the study compares this one."""
    return "full" if kind == "NLP" and row in _FULL else "kernel"


def gain(options: Options, kind: str, row: str) -> float:
    """Return the ratio of samples/s to the row that it is compared with."""
    return options[kind, row].sps / options[kind, baseline_of(kind, row)].sps


def table() -> list[str]:
    """Return the lines of the table, one row of the study each."""
    lines = [
        "| row | sps measured | predicted | error % | gain measured | predicted | comm s measured | predicted | error % "
        "| GB measured | predicted | $/1M measured | predicted |",
        "|---|" + "---|" * 12,
    ]
    for (kind, row), want in measured().items():
        got = predicted()[kind, row]
        cells = (
            f"{kind} {row}", f"{want.sps:.0f}", f"{got.sps:.0f}", _percent(got.sps / want.sps),
            f"{gain(measured(), kind, row):.2f}", f"{gain(predicted(), kind, row):.2f}",
            f"{want.comm_s:.1f}", f"{got.comm_s:.1f}", _percent(got.comm_s / want.comm_s),
            f"{want.gb:.2f}", f"{got.gb:.2f}", f"{want.usd_per_1m:.2f}", f"{got.usd_per_1m:.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def errors() -> dict[tuple[str, str], tuple[float, float]]:
    """Return the relative errors of samples/s and of the gain in samples/s by row."""
    return {
        row: (
            predicted()[row].sps / want.sps - 1,
            gain(predicted(), *row) / gain(measured(), *row) - 1,
        )
        for row, want in measured().items()
    }


@dataclass(frozen=True, slots=True)
class Expected:
    """An expectation of the study, and the predicted ratio of the row's figure to the other row's."""

    row: tuple[str, str]
    against: str
    figure: str
    limit: str
    ratio: float
    met: bool


def expected() -> list[Expected]:
    """Judge the study's expectations with a limit, of samples/s, bytes and dollars, by the predictions."""
    study = load_study(STUDY)
    rows = {(m.spec.name, m.label): _key(m.spec, m.label) for m in study.members}
    models = {(m.spec.name, m.label): m.spec.trains for m in study.members}
    figures = {"sps": "sps", "usd_per_1m": "usd_per_1m", "intercontinental_bytes": "gb"}
    found: list[Expected] = []
    for one in study.spec.compare.expect:
        limits = (one.within, one.at_least, one.at_most, one.times_lower)
        if one.figure not in figures or not any(limit is not None for limit in limits):
            continue
        for key in of_row(models, one):
            kind, row = rows[key]
            others = meant(models, key[0], models[key], one.against) if one.against else []
            against = rows[others[0]][1] if others else baseline_of(kind, row)
            ratio = getattr(predicted()[kind, row], figures[one.figure])
            ratio /= getattr(predicted()[kind, against], figures[one.figure])
            met = (
                (one.within is None or abs(ratio - 1) <= one.within)
                and (one.at_least is None or ratio >= one.at_least)
                and (one.at_most is None or ratio <= one.at_most)
                and (one.times_lower is None or 1 / ratio >= one.times_lower)
            )
            found.append(Expected((kind, row), against, one.figure, one.words, ratio, met))
    return found


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _summary(found: Sequence[float]) -> str:
    return (
        f"median {100 * statistics.median(map(abs, found)):.1f} %, worst {100 * max(found, key=abs):+.1f} %"
    )


def main() -> int:
    """Print the table and the errors."""
    print("\n".join(table()))
    every = errors().values()
    print(f"\nsamples/s: {_summary([sps for sps, _ in every])} (n = {len(every)})")
    print(f"gains: {_summary([of for _, of in every if of])}")
    for one in expected():
        verdict = "met" if one.met else "missed"
        kind, row = one.row
        print(f"{kind} {row} against {one.against}: {one.figure} x{one.ratio:.3g}, {one.limit}: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
