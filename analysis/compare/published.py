"""Compares published, replayed and emulated figures of runs. Pure.

Differences are (ours - published) / published. The rank correlation is Kendall's tau-b of throughput: concordant minus
discordant pairs of runs, divided by the geometric mean of the numbers of pairs that are untied in each ranking (Kendall
1945, Biometrika 33).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from statistics import median
from typing import Any

from experiments.study_file.limits import FIGURES as COMPARED
from experiments.study_file.limits import Limit
from metrics.more_peers import MorePeers
from metrics.provenance import host_mark, origin_mark, scales_mark

KEYS = ("sps", "comm_s", "epoch_s", "granularity", "egress_bytes_per_vm_epoch")
"""The figures of a run in the JSON document."""
SCHEMA_VERSION = 1
Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class ComparedRun:
    """One run and what it is compared with. Figures by name (COMPARED), at full scale; None: unknown."""

    experiment: str  # "NLP C-8", or the experiment's own name (and its label)
    run_id: str
    published: Figures  # {}: nothing was published for such a run
    emulated: Figures
    replayed: Figures | None  # from the logs of the published run; None: not available
    host_contended: bool | None  # None: unknown, as for rented VMs; the run counts
    dropped_rounds: int | None
    attempts: int
    epoch_sps: tuple[
        float, ...
    ] = ()  # rates of the published epochs, if known; their mean is the published sps
    not_judged: str = ""  # why it is shown but does not count, apart from the host; "": it counts
    target: str | None = None  # a name of `cloud.targets`
    is_emulated: bool | None = None
    scales: Mapping[str, float] | None = None  # bytes, time, samples; None: unknown, or not scaled
    evaluation: Figures | None = (
        None  # figures on held-out data after the last evaluated epoch; None: not evaluated
    )
    predicted: tuple[Mapping[str, Any], ...] = ()  # `metrics.predicted.pairs`
    more_peers: MorePeers | None = None  # None: no granularity was measured

    @property
    def origin(self) -> str:
        """What its figures were measured on: see `metrics.provenance.origin_mark`."""
        return origin_mark(self.target, self.is_emulated)

    @property
    def host(self) -> str:
        """The load of its host: see `metrics.provenance.host_mark`."""
        return host_mark(self.host_contended, self.target)


@dataclass(frozen=True, slots=True)
class Check:
    """A limit and the figure compared with it. `experiment`: "" for the median and the study; `inside` None: unknown."""

    scope: str
    experiment: str
    run_id: str
    figure: str
    low: float | None  # bounds of the figure itself; None: unbounded on this side
    high: float | None
    found: float | None
    inside: bool | None
    why: str


def comparable(rows: Iterable[ComparedRun], include_contended: bool = False) -> list[ComparedRun]:
    """Return the runs that are ranked and judged."""
    return [row for row in rows if not why_not(row, include_contended)]


def why_not(row: ComparedRun, include_contended: bool = False) -> str:
    """Return why a run is neither ranked nor judged; "" if it is."""
    if row.not_judged or include_contended or not row.host_contended:
        return row.not_judged
    return "the host was too busy"


def difference(row: ComparedRun, figure: str, of: Figures | None = None) -> float | None:
    """Compute (ours - published) / published for the emulated figure (or that of `of`); None: unknown."""
    ours, published = (row.emulated if of is None else of).get(figure), row.published.get(figure)
    return None if ours is None or not published else (ours - published) / published


def kendall_tau_b(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Compute Kendall's tau-b with ties; None for fewer than two pairs, or if all values of one side are equal."""
    concordant = discordant = tied_first = tied_second = 0
    for (a, x), (b, y) in combinations(pairs, 2):
        product = (a > b) - (a < b), (x > y) - (x < y)
        tied_first += product[0] == 0
        tied_second += product[1] == 0
        concordant += product[0] * product[1] > 0
        discordant += product[0] * product[1] < 0
    every = len(pairs) * (len(pairs) - 1) // 2
    scale = math.sqrt((every - tied_first) * (every - tied_second))
    return (concordant - discordant) / scale if scale else None


def kendall_tau(rows: Iterable[ComparedRun]) -> float | None:
    """Compute Kendall's tau of published and emulated throughput over the rows that have both."""
    known = ((row.published.get("sps"), row.emulated.get("sps")) for row in rows)
    return kendall_tau_b([(a, b) for a, b in known if a is not None and b is not None])


def judge(
    rows: Sequence[ComparedRun], limits: Sequence[Limit], include_contended: bool = False, whole: bool = True
) -> list[Check]:
    """Apply all limits to the runs that count; figures that were not published are not judged.

    `whole`: the rows are all that the limits are for. A limit on a median or on the study needs them all: without, its
    figure is computed and not judged.
    """
    counted = comparable(rows, include_contended)
    found: list[Check] = []
    for row in counted:
        decided: set[str] = set()
        for limit in limits:
            if (
                limit.scope == "each"
                and limit.figure not in decided
                and fnmatchcase(row.experiment, limit.experiments)
            ):
                decided.add(limit.figure)
                check = _each(row, limit)
                if check is not None:
                    found.append(check)
    for limit in limits:
        if limit.scope == "median":
            found.append(_median([r for r in counted if fnmatchcase(r.experiment, limit.experiments)], limit))
        elif limit.scope == "study":
            found.append(_study(rows, counted, limit))
    return found if whole else [one if one.scope == "each" else replace(one, inside=None) for one in found]


def compare_document(
    study: str | None,
    rows: Sequence[ComparedRun],
    limits: Sequence[Limit] = (),
    missing: Mapping[str, str] | None = None,
    include_contended: bool = False,
    whole: bool = True,
) -> dict[str, Any]:
    """Return what `orch compare -o json` prints. `missing`: why an experiment of the study has no row, by its name.

    `whole`: see `judge`.
    """
    counted = comparable(rows, include_contended)
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "rows": [
            {
                "experiment": row.experiment,
                "run_id": row.run_id,
                "published": _json(row.published) if row.published else None,
                "emulated": _json(row.emulated),
                "replayed": None if row.replayed is None else _json(row.replayed),
                "host_contended": row.host_contended,
                "dropped_rounds": row.dropped_rounds,
                "attempts": row.attempts,
                "target": row.target,
                "origin": row.origin,
                "scales": None if row.scales is None else dict(row.scales),
                "evaluation": None if row.evaluation is None else dict(row.evaluation),
                "predicted": [dict(pair) for pair in row.predicted],
                "more_peers": None if row.more_peers is None else row.more_peers.to_json(),
            }
            for row in rows
        ],
        "kendall_tau": kendall_tau(counted),
        "compared": len(counted),
        "checks": [
            {name: getattr(check, name) for name in Check.__dataclass_fields__ if name != "why"}
            for check in judge(rows, limits, include_contended, whole)
        ],
        "whole": whole,
        "left_out": [
            {"experiment": row.experiment, "run_id": row.run_id, "why": why}
            for row in rows
            if (why := why_not(row, include_contended))
        ],
        "missing": [{"experiment": name, "why": why} for name, why in (missing or {}).items()],
    }


def long_rows(rows: Iterable[ComparedRun], checks: Iterable[Check] = ()) -> list[dict[str, Any]]:
    """Return one row per run and figure with a known value: published, replayed, emulated, difference, verdict."""
    judged = {(c.run_id, c.figure): c for c in checks if c.scope == "each"}
    found: list[dict[str, Any]] = []
    for row in rows:
        for figure in COMPARED:
            replayed = row.replayed.get(figure) if row.replayed else None
            values = (row.published.get(figure), replayed, row.emulated.get(figure))
            if any(value is not None for value in values):
                check = judged.get((row.run_id, figure))
                found.append(
                    {
                        "experiment": row.experiment,
                        "run_id": row.run_id,
                        "figure": figure,
                        "published": values[0],
                        "replayed": values[1],
                        "emulated": values[2],
                        "difference": difference(row, figure),
                        "inside": check.inside if check else None,
                        "host_contended": row.host_contended,
                        "dropped_rounds": row.dropped_rounds,
                        "attempts": row.attempts,
                        "target": row.target,
                        "origin": row.origin,
                        "scales": scales_mark(row.scales),
                    }
                )
    return found


def _each(row: ComparedRun, limit: Limit) -> Check | None:
    published, ours = row.published.get(limit.figure), row.emulated.get(limit.figure)
    if published is None:
        return None
    spanned = row.epoch_sps if limit.around == "epochs" and row.epoch_sps else (published,)
    low, high = min(spanned) * (1 - limit.limit), max(spanned) * (1 + limit.limit)
    inside = None if ours is None else low <= ours <= high
    return Check("each", row.experiment, row.run_id, limit.figure, low, high, ours, inside, limit.why)


def _median(rows: Iterable[ComparedRun], limit: Limit) -> Check:
    values = [abs(d) for row in rows if (d := difference(row, limit.figure)) is not None]
    found = median(values) if values else None
    inside = None if found is None else found <= limit.limit
    return Check("median", "", "", limit.figure, None, limit.limit, found, inside, limit.why)


def _study(rows: Sequence[ComparedRun], counted: Sequence[ComparedRun], limit: Limit) -> Check:
    if limit.figure == "kendall_tau":
        tau = kendall_tau(counted)
        inside = None if tau is None else tau >= limit.limit
        return Check("study", "", "", limit.figure, limit.limit, None, tau, inside, limit.why)
    contended = sum(1 for row in rows if row.host_contended and not row.not_judged)
    return Check(
        "study", "", "", limit.figure, None, limit.limit, contended, contended <= limit.limit, limit.why
    )


def _json(figures: Figures) -> dict[str, float | None]:
    return {key: figures.get(key) for key in KEYS}
