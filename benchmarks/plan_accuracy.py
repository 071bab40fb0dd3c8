"""Compare predictions made from inputs only with the paper's figures of its runs A, B, C and D, and with emulated runs.

    python -m benchmarks.plan_accuracy [--logs ../shared/paper-traces] [--emulated HOME]
    python -m benchmarks.plan_accuracy --constants

Samples/s and seconds are compared with `experiments/published.csv`, bytes and dollars with the replay of the paper's logs
(runs without a log: with the published bytes, else unknown). `--emulated`: a folder like ORCH_HOME, whose runs are predicted
again and compared. `--constants` prints the rows of analysis/planning/predictor_constants.csv, derived from A-2 and B only.
docs/prediction.md explains the tables. The predictor reads neither published figures nor logs; this program does.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from analysis.importers.base import ImportFailed
from analysis.planning.advice import usd_of
from analysis.planning.constants import constants
from analysis.planning.prediction import (
    Prediction,
    Value,
    inputs_of,
    known_communication_s,
    predict,
)
from analysis.planning.round_time import transfer
from analysis.planning.sent_bytes import whole_packets
from analysis.replay import read_folder
from analysis.sources import opened
from benchmarks.calibrate import LATE_S, delays, read_rounds
from benchmarks.control_traffic import constant_rows as rows_of_logs
from benchmarks.emulated_accuracy import emulated_rows, emulated_tables
from cloud.networks import Network
from cloud.prices.book import load as load_book
from experiments.catalog import Published, models, published_runs, step_time
from experiments.parse import find, load_all
from experiments.parse.load import load
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from metrics.figures import FIGURES

BOOK = load_book("study-2023-04")
COLUMNS: list[str] = ["name", "value", "unit", "source", "how"]
_FITTED = ("A-2", "B-2", "B-4", "B-6", "B-8")
_GOALS = {"A": 0.05, "CV": 0.05, "D": 0.05}  # the largest error of samples/s; others 15 %, median 7 %
_BYTES, _USD = "egress_bytes_per_vm_epoch", "usd_per_1m_samples"
_MOST_BYTES, _MOST_USD = 0.03, 0.07  # the largest errors
_COVERAGE = ("sps", "calc_s", "comm_s", "granularity", _BYTES, _USD)
_OTHERS = (
    "Sailor's published errors, for comparison (other models and clusters; plans within one cluster, none across regions): "
    "samples/s 6 to 8.5 % median, 16 to 111 % worst"
)


@dataclass(frozen=True)
class Row:
    """One run: published and replayed figures, prediction, and the naive formula's figures."""

    published: Published
    prediction: Prediction
    naive_sps: float
    naive_comm_s: float
    spec: ExperimentSpec
    usd_per_1m: Value | None  # predicted, of VMs and egress
    naive_bytes: float = 0.0  # a VM and epoch
    naive_usd_per_1m: float | None = None
    replayed: Mapping[str, float] = field(default_factory=dict[str, float])  # by `FIGURES`; absent: unknown

    @property
    def section(self) -> str:
        """For example "B NLP"."""
        letter, kind = self.published.run[0], self.published.run.split()[-1]
        return f"{letter} {kind}"

    @property
    def fitted(self) -> bool:
        """Whether a constant of the predictor was derived from this run."""
        return self.published.run.split()[0] in (*_FITTED, "A-1")

    def found(self, figure: str) -> float | None:
        """Return what the paper's run had; None: neither published nor replayed. Bytes are of whole packets."""
        if figure == _BYTES:
            logged, beyond = self.logged_bytes, self.beyond_logs
            return None if logged is None or beyond is None else logged + beyond
        if figure == _USD:
            return self._found_usd()
        return getattr(self.published, "granularity_wall" if figure == "granularity" else figure)

    @property
    def logged_bytes(self) -> float | None:
        """A VM's bytes in an epoch by the logs, else by the published figure (two digits)."""
        known = self.published.egress_gb_per_vm_epoch
        return self.replayed.get(_BYTES, None if known is None else known * 1e9)

    @property
    def beyond_logs(self) -> float | None:
        """Return a VM's bytes in whole packets to other peers, less those that the logs count; None: unknown.

        The logs count whole network cards, which see segments of up to 64 kB before they are split into packets, and the
        acknowledgements of the data read from the store.
        """
        spec, n = self.spec, self.published.vms
        if self.prediction.egress_bytes_per_vm_epoch is None or spec.model is None:
            return None
        inputs, _ = inputs_of(spec)
        payload = inputs.bytes_of_a_peer().payload
        known, data = constants(), models()[spec.model].bytes_per_sample or 0
        headers = payload * (whole_packets() - 1 - known["card_share"].value)
        return headers - inputs.tbs / n * data * known["ack_share"].value

    def _found_usd(self) -> float | None:
        """Dollars of VMs and egress, from the run's samples/s, seconds and bytes, at the experiment's places.

        The logs name no zones, without which a VM's bytes to its own zone would be billed as to another one.
        """
        sent, spec = self.found(_BYTES), self.spec
        sps = self.replayed.get("sps", self.published.sps)
        epoch_s = self.replayed.get("epoch_s", self.published.epoch_s)
        if sent is None or sps is None or epoch_s is None:
            return None
        usd = egress_usd(spec, sent / (self.published.vms - 1))
        return None if usd is None else _vms_usd_per_1m(spec, sps) + usd / (sps * epoch_s) * 1e6

    def predicted(self, figure: str) -> Value | None:
        """Return a predicted figure with its interval; None: unknown."""
        return self.usd_per_1m if figure == _USD else getattr(self.prediction, figure)

    def error(self, figure: str) -> float | None:
        """Return predicted / found - 1. None: one of them is unknown."""
        want, got = self.found(figure), self.predicted(figure)
        return None if want is None or got is None else got.value / want - 1

    def covered(self, figure: str) -> bool | None:
        """Whether the 90 % interval holds what the run had."""
        want, got = self.found(figure), self.predicted(figure)
        return None if want is None or got is None else got.low <= want <= got.high


def specs() -> dict[str, ExperimentSpec]:
    """Return the library's experiments of A, B, C and D by name."""
    files = [n for n in published_runs() if n.startswith(("geo-a", "geo-b", "geo-c"))]
    return {
        s.name: s
        for f in (*files, "geo-d1", "geo-d2", "geo-d3")
        for s in load_all(str(find(f, shipped=True)))
    }


def replayed(logs: Path) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    """Return bytes, samples/s and seconds of the logs' runs by label ("NLP B-8"), and the problems. Raises ImportFailed."""
    found: dict[str, dict[str, float]] = {}
    with opened([logs], book=BOOK) as runs:
        for source in runs.runs:
            run = read_folder(source.folder).run
            values = {key: FIGURES[key].value(run) for key in (_BYTES, "sps", "epoch_s")}
            if source.label:
                found[source.label] = {key: value for key, value in values.items() if value is not None}
        return found, runs.problems


def rows(logs: Mapping[str, Mapping[str, float]] | None = None) -> list[Row]:
    """Predict each run of A to D. `logs`: what `replayed` returns; None: bytes and dollars are unknown."""
    found: list[Row] = []
    for name, spec in specs().items():
        published = published_runs()[name]
        naive_comm_s, naive_sps = naive(spec)
        prediction = predict(spec, BOOK)
        sent, sent_usd = naive_egress(spec)
        letter, kind = published.run.split()
        found.append(
            Row(
                published,
                prediction,
                naive_sps,
                naive_comm_s,
                spec,
                usd_of(spec, prediction, BOOK)[1] if prediction.egress_usd_per_epoch is not None else None,
                sent,
                None
                if sent_usd is None
                else _vms_usd_per_1m(spec, naive_sps) + sent_usd / spec.swarm.target_batch_size * 1e6,
                (logs or {}).get(f"{kind} {letter}", {}),
            )
        )
    return found


def _vms_usd_per_1m(spec: ExperimentSpec, sps: float) -> float:
    prices = [
        BOOK.vm(one.infra, one.accelerators, one.use_spot) for one in (s.places[0] for s in slots(spec))
    ]
    return float(sum((price.usd for price in prices if price is not None), Decimal(0))) / 3600 / sps * 1e6


def naive_egress(spec: ExperimentSpec) -> tuple[float, float | None]:
    """Return a VM's bytes in an epoch by 2 (n - 1) / n gradients of two bytes a value, and all VMs' dollars for them."""
    assert spec.model is not None
    n = len(slots(spec))
    pair = 2 / n * models()[spec.model].parameters * 2
    return (n - 1) * pair, egress_usd(spec, pair)


def egress_usd(spec: ExperimentSpec, pair: float) -> float | None:
    """Return the dollars of as many bytes on each directed pair of VMs; None: no price."""
    places = [slot.places[0].infra for slot in slots(spec)]
    usd = [BOOK.egress(a, b, round(pair)) for a, b in itertools.permutations(places, 2)]
    known = [float(u) for u in usd if u is not None]
    return sum(known) if len(known) == len(usd) else None


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


def points(logs: Path) -> list[tuple[str, int, float]]:
    """Return (run, other peers, communication seconds that only waiting explains) of A-2 and B.

    The delay by slow spells is what the logs of B show of it, not its expectation: few rounds have spells, and what most
    rounds lack of the expectation is no shorter waiting. Raises FileNotFoundError, and ValueError for a log without rounds.
    """
    delayed = spell_delays(logs)
    found: list[tuple[str, int, float]] = []
    for name, spec in specs().items():
        published = published_runs()[name]
        letter, kind = published.run.split()
        if letter in _FITTED and published.comm_s is not None:
            spells_s = delayed.get(f"{kind} {letter}", 0.0)  # of A-2 none: its VMs are in one place
            found.append(
                (published.run, published.vms - 1, published.comm_s - known_communication_s(spec) - spells_s)
            )
    return found


def spell_delays(logs: Path) -> dict[str, float]:
    """Return the mean delay by slow spells in the measured rounds of B's runs, by label ("NLP B-8")."""
    rounds = read_rounds(logs)
    late = [delay if delay > LATE_S else 0.0 for delay in delays(rounds)]
    labels = dict.fromkeys(r.label for r in rounds)
    own = {label: [d for r, d in zip(rounds, late, strict=True) if r.label == label] for label in labels}
    return {label: statistics.mean(found[1:]) for label, found in own.items()}  # the first is warm-up


def fit(found: Sequence[tuple[str, int, float]]) -> dict[str, float]:
    """Derive the constants from the communication seconds of A-2 and B (`points`).

    What transfer, slow spells and the VM's work do not explain is taken as wait = base + per peer x (n - 1), by the line of
    Theil and Sen (median slope, median remainder), which one unusual run does not move. The spread is 1.4826 x the median
    absolute deviation from it.
    """
    at = [(x, y) for _, x, y in found]
    slope = statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(at, 2) if x1 != x2
    )
    base = statistics.median(y - slope * x for x, y in at)
    left = [abs(y - base - slope * x) for x, y in at]
    return {
        "wait_base_s": base,
        "wait_per_peer_s": slope,
        "wait_spread_s": 1.4826 * statistics.median(left),
    }


@dataclass(frozen=True)
class LeftOut:
    """A calibration run predicted with the waiting time of all others: errors, and whether the intervals hold."""

    run: str
    comm_error: float
    sps_error: float
    comm_inside: bool
    sps_inside: bool


def left_out(found: Sequence[Row], at: Sequence[tuple[str, int, float]]) -> list[LeftOut]:
    """Predict each run of A-2 and B with the waiting time fitted to the others; the interval moves with it.

    The step times of A-2 and the path model of B stay those of all.
    """
    known = constants()
    made: list[LeftOut] = []
    for row in found:
        want, p, others = row.published, row.prediction, row.published.vms - 1
        if not any(run == want.run for run, _, _ in at):
            continue
        assert p.comm_s is not None
        assert p.epoch_s is not None
        assert want.comm_s is not None
        assert want.sps is not None
        without = fit([point for point in at if point[0] != want.run])
        moved_s = sum(
            (without[name] - known[name].value) * times
            for name, times in (("wait_base_s", 1), ("wait_per_peer_s", others))
        )
        samples = row.spec.swarm.target_batch_size
        sps = samples / (p.epoch_s.value + moved_s)
        made.append(
            LeftOut(
                want.run,
                (p.comm_s.value + moved_s) / want.comm_s - 1,
                sps / want.sps - 1,
                p.comm_s.low + moved_s <= want.comm_s <= p.comm_s.high + moved_s,
                samples / (p.epoch_s.high + moved_s) <= want.sps <= samples / (p.epoch_s.low + moved_s),
            )
        )
    return made


def constant_rows(logs: Path) -> list[dict[str, str]]:
    """Return the rows of predictor_constants.csv. Raises FileNotFoundError, and ValueError for a log without rounds."""
    how = {
        "wait_base_s": "median remainder of that line",
        "wait_per_peer_s": "slope, a further peer, of the line of Theil and Sen through what transfer, slow spells as the "
        "logs of B show them and the VM's work leave of the communication time",
        "wait_spread_s": "1.4826 x median absolute deviation from that line",
    }
    source = "comm_s of A-2 and B-2 to B-8 (experiments/published.csv, authors' logs of arXiv 2306.03163)"
    waiting = [
        {"name": name, "value": f"{value:.3g}", "unit": "s", "source": source, "how": how[name]}
        for name, value in fit(points(logs)).items()
    ]
    return [*waiting, *rows_of_logs(logs)]


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


def money_table(found: Iterable[Row]) -> list[str]:
    """Return the lines of the table of bytes and dollars: replayed, predicted [90 % interval], error in per cent."""
    lines = [
        "| run | GB per VM and epoch, logs | in whole packets | predicted | error % | against logs as they are % "
        "| naive error % | $/1M samples, logs | predicted | error % | naive error % | basis |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sent, usd = row.predicted(_BYTES), row.usd_per_1m
        logged, want, paid = row.logged_bytes, row.found(_BYTES), row.found(_USD)
        naive_usd = None if row.naive_usd_per_1m is None or not paid else row.naive_usd_per_1m / paid - 1
        cells = (
            row.published.run, "-" if logged is None else f"{logged / 1e9:.3f}",
            "-" if want is None else f"{want / 1e9:.3f}", _interval(sent, 1e9),
            _percent(row.error(_BYTES)), _percent(_uncorrected(row)),
            _percent(None if not want or sent is None else row.naive_bytes / want - 1),
            "-" if paid is None else f"{paid:.2f}", _interval(usd, 1, 2), _percent(row.error(_USD)), _percent(naive_usd),
            "calibration" if row.fitted else "held out",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _uncorrected(row: Row) -> float | None:
    """Return the error against the logs' bytes as they are."""
    want, got = row.logged_bytes, row.predicted(_BYTES)
    return None if want is None or got is None else got.value / want - 1


def _interval(value: Value | None, unit: float, digits: int = 3) -> str:
    if value is None:
        return "-"
    low, middle, high = (f"{one / unit:.{digits}f}" for one in (value.low, value.value, value.high))
    return f"{middle} [{low}, {high}]"


def input_table(found: Iterable[Row]) -> list[str]:
    """Return the lines of the table of what each prediction was calculated from."""
    lines = [
        "| run | peers | step time | gradient MB | network | slowest pair | path model | constants fitted to it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        inputs, steps = inputs_of(row.spec)
        places = list(inputs.locations)
        slowest = "-"
        if len(places) > 1:
            where = transfer(
                places, inputs.gradient_bytes, inputs.network, inputs.path, inputs.vm.processing_bps
            ).where
            slowest = where if " to " in where else "none: each VM's processing"
            if " to " in where:
                path = inputs.network.path(*(f"{end}/any" for end in where.split(" to ")))
                slowest += f", {path.rtt_s * 1e3:.0f} ms, {path.stream_bps / 1e6:.0f} Mb/s"
        own = row.published.run.split()[0]
        fitted = {"A-1": "step time", "A-2": "step time, its spread, work, waiting, control traffic"}
        cells = (
            row.published.run,
            ", ".join(f"{places.count(place)} {place}" for place in dict.fromkeys(places)),
            ", ".join(sorted({f"{s.step_s:g} s on {s.accelerator}" for s in steps})),
            f"{inputs.gradient_bytes / 1e6:.1f}",
            inputs.network.name,
            slowest,
            inputs.path.name,
            fitted.get(own, "path model, its spread, waiting, control traffic" if row.fitted else "none"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(found: Sequence[Row], at: Sequence[tuple[str, int, float]] = ()) -> list[str]:
    """Return medians, worst errors, rank order and coverage, and which goals are missed.

    `at`: what `points` returns; without it no run is left out of the fit of the waiting time.
    """
    lines = [
        "| runs | sps median % | worst | bias | naive median | naive worst | comm median % | worst | tau "
        "| bytes median % | worst | against the logs as they are, worst | $/1M median % | worst |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
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
        sent = [e for r in own if (e := r.error(_BYTES)) is not None]
        logged = [e for r in own if (e := _uncorrected(r)) is not None]
        usd = [e for r in own if (e := r.error(_USD)) is not None]
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
            f"{'-' if tau is None else f'{tau:.2f}'} | {_median_and_worst(sent)} | "
            f"{f'{100 * _worst(logged):.1f}' if logged else '-'} | {_median_and_worst(usd)} |"
        )
        if name != "all, held out":
            limit = min(_GOALS.get(part, 0.15) for part in name.split())
            if _worst(sps) > limit or (limit == 0.15 and _median(sps) > 0.07):
                missed.append(f"samples/s of {name}")
            if comm and (_median(comm) > 0.15 or _worst(comm) > 0.35):
                missed.append(f"communication of {name}")
            if sent and _worst(sent) > _MOST_BYTES:
                missed.append(f"bytes of {name}")
            if usd and _worst(usd) > _MOST_USD:
                missed.append(f"$/1M of {name}")
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
    lines += [
        _left_out_line(left_out(found, at))
        if at
        else "left out one at a time: unknown without the logs of B",
        f"goals missed: {'; '.join(missed) or 'none'}",
        _OTHERS,
    ]
    return lines


def hybrid_table() -> list[str]:
    """Return the lines of the table of sections E and F, for which there is no goal: runs with published samples/s."""
    lines = [
        "| run | sps published | predicted | error % | comm s predicted | naive sps error % |",
        "|---|---|---|---|---|---|",
    ]
    for name, published in published_runs().items():
        if published.run[0] not in "EF" or published.sps is None:
            continue
        spec = load(name, shipped=True)
        p, (_, naive_sps) = predict(spec), naive(spec)
        if p.sps is None or p.comm_s is None:
            lines.append(f"| {published.run} | {published.sps:g} | unknown | - | - | - |")
            continue
        lines.append(
            f"| {published.run} | {published.sps:g} | {_interval(p.sps, 1, 1)} | "
            f"{100 * (p.sps.value / published.sps - 1):+.1f} | {_interval(p.comm_s, 1, 1)} | "
            f"{100 * (naive_sps / published.sps - 1):+.1f} |"
        )
    return lines


def _left_out_line(found: Sequence[LeftOut]) -> str:
    sps, comm = [one.sps_error for one in found], [one.comm_error for one in found]
    return (
        f"calibration runs, each left out of the waiting time's fit (n = {len(found)}): 90 % intervals cover sps "
        f"{sum(one.sps_inside for one in found)}, comm_s {sum(one.comm_inside for one in found)}; sps median error "
        f"{100 * _median(sps):.1f} %, worst {100 * _worst(sps):.1f} %; comm_s {100 * _median(comm):.1f} %, worst "
        f"{100 * _worst(comm):.1f} %"
    )


def _median_and_worst(errors: Sequence[float]) -> str:
    return f"{100 * _median(errors):.1f} | {100 * _worst(errors):.1f}" if errors else "- | -"


def _median(errors: Sequence[float]) -> float:
    return statistics.median(abs(e) for e in errors)


def _worst(errors: Sequence[float]) -> float:
    return max(abs(e) for e in errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and their summary, or the constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("ORCH_SHARED") or Path(__file__).parents[2] / "shared")
    parser.add_argument("--constants", action="store_true", help="print predictor_constants.csv instead")
    parser.add_argument("--logs", type=Path, default=shared / "paper-traces", help="the paper's logs")
    parser.add_argument(
        "--emulated", type=Path, help="a folder like ORCH_HOME: compare its emulated runs too"
    )
    given = parser.parse_args(arguments)
    if given.constants:
        try:
            known = constant_rows(given.logs)
        except (FileNotFoundError, ValueError) as error:
            print(f"{error}; give the folder of the paper's logs with --logs", file=sys.stderr)
            return 2
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(known)
        return 0
    logs: dict[str, dict[str, float]] = {}
    at: list[tuple[str, int, float]] = []
    try:
        logs, problems = replayed(given.logs)
        at = points(given.logs)
    except (ImportFailed, FileNotFoundError, ValueError) as error:
        problems = (
            f"no logs, so bytes and dollars of the paper's runs are those published, or unknown: {error}",
        )
    for problem in problems:
        print(problem, file=sys.stderr)
    found = rows(logs)
    for lines in (table(found), money_table(found), input_table(found), summary(found, at), hybrid_table()):
        print("\n".join([*lines, ""]))
    emulated, unreadable = ([], []) if given.emulated is None else emulated_rows(given.emulated, BOOK)
    print("\n".join([*emulated_tables(emulated), ""]))
    for line in unreadable:
        print(line, file=sys.stderr)
    for name, constant in constants().items():
        print(f"{name} = {constant.value:g} {constant.unit}: {constant.how}; from {constant.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
