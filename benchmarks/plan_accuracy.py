"""Compare predictions made from inputs only with the paper's figures of its runs A, B, C and D.

    python -m benchmarks.plan_accuracy [--constants]

`--constants` prints the rows of analysis/planning/predictor_constants.csv, derived from A-2 and B only. docs/prediction.md
explains the table. The predictor never reads `experiments/published.csv`; this program does.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.planning.prediction import Prediction, constants, known_communication_s, predict
from cloud.networks import Network
from experiments.catalog import Published, models, published_runs, step_time
from experiments.parse import find, load_all
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots

COLUMNS: list[str] = ["name", "value", "unit", "source", "how"]
_FITTED = ("A-2", "B-2", "B-4", "B-6", "B-8")
_GOALS = {"A": 0.05, "CV": 0.05, "D": 0.05}  # the largest error of samples/s; others 15 %, median 7 %
_COVERAGE = ("sps", "calc_s", "comm_s", "granularity")


@dataclass(frozen=True)
class Row:
    """One run: published figures, prediction and the naive formula's samples/s and communication seconds."""

    published: Published
    prediction: Prediction
    naive_sps: float
    naive_comm_s: float

    @property
    def section(self) -> str:
        """For example "B NLP"."""
        letter, kind = self.published.run[0], self.published.run.split()[-1]
        return f"{letter} {kind}"

    @property
    def fitted(self) -> bool:
        """Whether a constant of the predictor was derived from this run."""
        return self.published.run.split()[0] in (*_FITTED, "A-1")

    def error(self, figure: str) -> float | None:
        """Return predicted / published - 1. None: one of them is unknown."""
        want = getattr(self.published, "granularity_wall" if figure == "granularity" else figure)
        got = getattr(self.prediction, figure)
        return None if want is None or got is None else got.value / want - 1

    def covered(self, figure: str) -> bool | None:
        """Whether the 90 % interval holds the published figure."""
        want = getattr(self.published, "granularity_wall" if figure == "granularity" else figure)
        got = getattr(self.prediction, figure)
        return None if want is None or got is None else got.low <= want <= got.high


def specs() -> dict[str, ExperimentSpec]:
    """Return the library's experiments of A, B, C and D by name."""
    files = [n for n in published_runs() if n.startswith(("geo-a", "geo-b", "geo-c"))]
    return {
        s.name: s
        for f in (*files, "geo-d1", "geo-d2", "geo-d3")
        for s in load_all(str(find(f, shipped=True)))
    }


def rows() -> list[Row]:
    """Predict each run of A to D that has a published figure."""
    found: list[Row] = []
    for name, spec in specs().items():
        published = published_runs()[name]
        naive_comm_s, naive_sps = naive(spec)
        found.append(Row(published, predict(spec), naive_sps, naive_comm_s))
    return found


def naive(spec: ExperimentSpec) -> tuple[float, float]:
    """Return communication seconds and samples/s by the formula 2 (n - 1) / n bytes over the slowest pair's iperf figure."""
    assert spec.model is not None
    model, places = models()[spec.model], [slot.places[0] for slot in slots(spec)]
    rates = 0.0
    for place in places:
        step = step_time(spec.model, place.accelerators, plain=True)
        assert step is not None
        rates += step.batch_size / step.step_s
    n = len(places)
    network = Network.load(spec.emulation.network if spec.emulation is not None else "study-2023-04")
    slowest = min(
        (network.path(a.infra, b.infra).stream_bps for a, b in itertools.permutations(places, 2)),
        default=float("inf"),
    )
    comm_s = 2 * (n - 1) / n * model.parameters * 2 * 8 / slowest
    return comm_s, spec.swarm.target_batch_size / (spec.swarm.target_batch_size / rates + comm_s)


def fit() -> dict[str, float]:
    """Derive the constants from the published communication seconds of A-2 and B.

    What transfer, spells and the VM's work do not explain is taken as wait = base + per peer x (n - 1), by the line of
    Theil and Sen (median slope, median remainder), which one round with an unusual spell does not move. The spread is
    1.4826 x the median absolute deviation from it.
    """
    points: list[tuple[int, float]] = []
    for name, spec in specs().items():
        published = published_runs()[name]
        if published.run.split()[0] in _FITTED and published.comm_s is not None:
            points.append((published.vms - 1, published.comm_s - known_communication_s(spec)))
    slope = statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x1 != x2
    )
    base = statistics.median(y - slope * x for x, y in points)
    left = [abs(y - base - slope * x) for x, y in points]
    return {
        "wait_base_s": base,
        "wait_per_peer_s": slope,
        "wait_spread_s": 1.4826 * statistics.median(left),
    }


def constant_rows() -> list[dict[str, str]]:
    """Return the rows of predictor_constants.csv."""
    how = {
        "wait_base_s": "median remainder of that line",
        "wait_per_peer_s": "slope, a further peer, of the line of Theil and Sen through what transfer, spells and the "
        "VM's work leave of the communication time",
        "wait_spread_s": "1.4826 x median absolute deviation from that line",
    }
    source = "comm_s of A-2 and B-2 to B-8 (experiments/published.csv, authors' logs of arXiv 2306.03163)"
    return [
        {"name": name, "value": f"{value:.3g}", "unit": "s", "source": source, "how": how[name]}
        for name, value in fit().items()
    ]


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Kendall's tau of (published, predicted); None with fewer than two pairs."""
    signs = [(1 if (a - c) * (b - d) > 0 else -1) for (a, b), (c, d) in itertools.combinations(pairs, 2)]
    return statistics.mean(signs) if signs else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def table(found: Iterable[Row]) -> list[str]:
    """Return the lines of the table, one run each: published, predicted [90 % interval], error in per cent."""
    lines = [
        "| run | sps published | predicted | error % | comm s published | predicted | error % | granularity error % "
        "| naive sps error % | naive comm error % | basis |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        want, got = row.published, row.prediction
        if got.sps is None:
            lines.append(f"| {want.run} | unknown: {'; '.join(got.unknown)} |" + " |" * 9)
            continue

        def shown(value: float | None) -> str:
            return "-" if value is None else f"{value:.1f}"

        comm = (
            "-"
            if got.comm_s is None
            else f"{got.comm_s.value:.1f} [{got.comm_s.low:.1f}, {got.comm_s.high:.1f}]"
        )
        naive_sps = None if want.sps is None else row.naive_sps / want.sps - 1
        naive_comm = None if want.comm_s is None else row.naive_comm_s / want.comm_s - 1
        cells = (
            want.run, shown(want.sps), f"{got.sps.value:.1f} [{got.sps.low:.1f}, {got.sps.high:.1f}]",
            _percent(row.error("sps")), shown(want.comm_s), comm, _percent(row.error("comm_s")),
            _percent(row.error("granularity")), _percent(naive_sps), _percent(naive_comm),
            "calibration" if row.fitted else "held out",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(found: Sequence[Row]) -> list[str]:
    """Return medians, worst errors, rank order and coverage, and which goals are missed."""
    lines = [
        "| runs | sps median % | worst | bias | naive median | naive worst | comm median % | worst | tau |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    groups = {
        section: [r for r in found if r.section == section]
        for section in dict.fromkeys(r.section for r in found)
    }
    groups["all, held out"] = [r for r in found if not r.fitted and r.published.same_as is None]
    missed: list[str] = []
    for name, own in groups.items():
        sps = [e for r in own if (e := r.error("sps")) is not None]
        comm = [e for r in own if (e := r.error("comm_s")) is not None]
        if not sps:
            continue
        old = [r.naive_sps / r.published.sps - 1 for r in own if r.published.sps is not None]
        pairs = [
            (r.published.sps, r.prediction.sps.value)
            for r in own
            if r.published.sps is not None and r.prediction.sps is not None
        ]
        tau = kendall(pairs)
        lines.append(
            f"| {name} (n = {len(sps)}) | {100 * _median(sps):.1f} | {100 * _worst(sps):.1f} | "
            f"{100 * statistics.mean(sps):+.1f} | {100 * _median(old):.1f} | {100 * _worst(old):.1f} | "
            f"{'-' if not comm else f'{100 * _median(comm):.1f}'} | {'-' if not comm else f'{100 * _worst(comm):.1f}'} | "
            f"{'-' if tau is None else f'{tau:.2f}'} |"
        )
        if name != "all, held out":
            limit = min(_GOALS.get(part, 0.15) for part in name.split())
            if _worst(sps) > limit or (limit == 0.15 and _median(sps) > 0.07):
                missed.append(f"samples/s of {name}")
            if comm and (_median(comm) > 0.15 or _worst(comm) > 0.35):
                missed.append(f"communication of {name}")
    lines.append("")
    for held_out in (False, True):
        own = [r for r in found if r.published.same_as is None and not (held_out and r.fitted)]
        counted = []
        for figure in _COVERAGE:
            hits = [c for r in own if (c := r.covered(figure)) is not None]
            counted.append(f"{figure} {sum(hits)} of {len(hits)}")
        lines.append(
            f"90 % intervals cover, {'held-out runs' if held_out else 'all runs'}: {', '.join(counted)}"
        )
    lines.append(f"goals missed: {'; '.join(missed) or 'none'}")
    return lines


def _median(errors: Sequence[float]) -> float:
    return statistics.median(abs(e) for e in errors)


def _worst(errors: Sequence[float]) -> float:
    return max(abs(e) for e in errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and its summary, or the constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constants", action="store_true", help="print predictor_constants.csv instead")
    if parser.parse_args(arguments).constants:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(constant_rows())
        return 0
    found = rows()
    print("\n".join([*table(found), "", *summary(found), ""]))
    for name, constant in constants().items():
        print(f"{name} = {constant.value:g} {constant.unit}: {constant.how}; from {constant.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
