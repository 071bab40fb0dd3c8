"""The rows of each figure of the study report: flat dicts of plain values, None for unknown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from analysis.compare.paper import ONE_CLOCK, PAPER_BASIS, PublishedCost, Reference, single_gpu_sps
from analysis.compare.run_figures import COST_KINDS, Link, StudyRun, natural, sum_known
from metrics.figures import FIGURES, PAPER
from metrics.stats import Estimate

Row = dict[str, Any]
_PER_1M = 1e6 / 3600  # $/h / 3600 / sps x 10^6
_SINGLE = (
    ("sps", ONE_CLOCK, "one GPU by wall clock (samples/s)"),
    ("sps_phase_timed", PAPER_BASIS, "one GPU by phase timers (samples/s)"),
)
"""Figures of a single GPU: key, basis of the paper's rate, and text."""


def scatter_rows(runs: Iterable[StudyRun], references: Iterable[Reference], basis: str) -> list[Row]:
    """Return cost and throughput, one row per run or reference; `front`: it is on the Pareto front.

    On one clock the rate is samples over time. On the paper's basis it is the mean of the epochs' rates, and the rate
    by phase timers for a single GPU. The interval of the dollars follows from that of the rate. The training data is
    excluded, as in the paper's figures: its cost per sample is the same for every system.
    """
    rows: list[Row] = []
    for run in runs:
        rate, clock = _rate(run, basis)
        per_h = run.paper_training_usd_per_h if basis == PAPER_BASIS else run.training_usd_per_h
        rows.append(
            {
                "panel": run.model,
                "basis": basis,
                "name": run.name,
                "group": run.series,
                "peers": run.peers,
                "origin": run.origin,
                "clock": clock,
                **_estimate("sps", rate, run.baseline),
                "usd_per_h": None if per_h is None else float(per_h),
                **_per_million(per_h, rate),
                "note": "the paper's assumptions" if basis == PAPER_BASIS else run.cost_basis,
            }
        )
    singles = {row["panel"] for row in rows if row["peers"] == 1 and row["usd_per_1m"] is not None}
    every = list(references)
    recomputed = {(r.name, r.model) for r in every if r.basis == ONE_CLOCK}
    for r in every:
        if r.basis != basis and (basis == PAPER_BASIS or (r.name, r.model) in recomputed):
            continue
        if r.gpus == "1 T4" and r.model in singles:
            continue  # the run itself is shown
        rate = Estimate(r.sps, None, None, 0)
        rows.append(
            {
                "panel": r.model,
                "basis": basis,
                "name": r.name,
                "group": "centralised",
                "peers": int(r.gpus.split()[0]),
                "origin": "printed",
                "clock": r.clock,
                **_estimate("sps", rate),
                "usd_per_h": float(r.usd_per_h),
                **_per_million(r.usd_per_h, rate),
                "note": f"{r.note} ({r.source})",
            }
        )
    rows.sort(key=lambda row: (row["panel"], row["group"] == "centralised", natural(row["name"])))
    for panel in {row["panel"] for row in rows}:
        inside = [row for row in rows if row["panel"] == panel]
        best = pareto([(r["sps"], r["usd_per_1m"]) if comparable(r, basis) else (None, None) for r in inside])
        for row, on_front in zip(inside, best, strict=True):
            row["front"] = on_front
    return rows


def comparable(row: Row, basis: str) -> bool:
    """Whether a row's rate can be compared on this basis: on one clock only rates by wall clock."""
    return basis != ONE_CLOCK or row["clock"] == "wall"


def pareto(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """For each (samples/s, $/1M) tell whether no other point is at least as fast and as cheap, and better in one."""
    known = [(x, y) for x, y in points if x is not None and y is not None]
    return [
        x is not None and y is not None and not any(a >= x and b <= y and (a > x or b < y) for a, b in known)
        for x, y in points
    ]


def peer_rows(runs: Iterable[StudyRun], name: str, basis: str, single_name: str = "") -> list[Row]:
    """Return a figure against the number of peers, one row per run that has it. `single_name`: a baseline's figure."""
    rows: list[Row] = []
    for run in runs:
        value = run.figures.get(single_name if run.baseline else name)
        if value is not None:
            rows.append(
                {
                    "panel": run.model,
                    "basis": basis,
                    "group": run.series,
                    "name": run.name,
                    "peers": run.peers,
                    "origin": run.origin,
                    **_estimate("value", value, run.baseline),
                }
            )
    return sorted(rows, key=lambda r: (r["panel"], r["group"], r["peers"], natural(r["name"])))


def phase_rows(runs: Iterable[StudyRun]) -> list[Row]:
    """Return calculation and communication of a VM's epoch, one row per run with both. `overlapped_s` is part of both.

    Granularity is their ratio, as in the report of a run (`granularity_of_means`).
    """
    return [
        {
            "name": run.name,
            "panel": run.model,
            "origin": run.origin,
            "calc_s": run.figures["calc_s"].value,
            **_estimate("comm_s", run.figures["comm_s"]),
            "overlapped_s": run.value("overlapped_s") or 0.0,
            "granularity": run.figures["calc_s"].value / comm_s
            if (comm_s := run.figures["comm_s"].value)
            else None,
        }
        for run in runs
        if "calc_s" in run.figures and "comm_s" in run.figures
    ]


def cost_rows(runs: Iterable[StudyRun], basis: str = ONE_CLOCK) -> list[Row]:
    """Return dollars per VM-hour by kind, one row per run and kind (usd None: unknown)."""
    amounts = [(run, run.paper_usd_per_vm_h if basis == PAPER_BASIS else run.usd_per_vm_h) for run in runs]
    return [
        {
            "name": run.name,
            "panel": run.model,
            "origin": run.origin,
            "basis": "the paper's assumptions" if basis == PAPER_BASIS else run.cost_basis,
            "kind": kind,
            "usd_per_vm_h": None if usd is None else float(usd),
        }
        for run, kinds in amounts
        for kind in COST_KINDS
        if kind in kinds
        for usd in (kinds[kind],)
    ]


def published_cost_rows(parts: Iterable[PublishedCost]) -> list[Row]:
    """Return the paper's dollars per VM-hour, and the same rates with each byte billed by its destination."""
    return [
        {
            "name": part.bar,
            "origin": "printed" if part.basis == PAPER_BASIS else "recomputed",
            "basis": part.basis,
            "kind": part.kind,
            "usd_per_vm_h": float(part.usd_per_h),
            "source": part.source,
        }
        for part in parts
    ]


def link_rows(runs: Iterable[StudyRun]) -> list[Row]:
    """Return bytes and dollars between regions, summed over all runs, one row per directed pair and class."""
    cells: dict[tuple[str, str, str], list[tuple[str, Link]]] = {}
    for run in runs:
        for link in run.links:
            cells.setdefault((link.src, link.dst, link.kind), []).append((run.run_id, link))
    rows: list[Row] = []
    for (src, dst, kind), links in sorted(cells.items()):
        usd = sum_known(link.usd for _, link in links)
        rows.append(
            {
                "src": src,
                "dst": dst,
                "class": kind,
                "runs": len({run_id for run_id, _ in links}),
                "bytes": sum(link.bytes for _, link in links),
                "usd": None if usd is None else float(usd),
            }
        )
    return rows


def place_rows(runs: Iterable[StudyRun], name: str = "sps") -> list[Row]:
    """Compare the throughput of series at equal numbers of peers, relative to the first series of that size.

    Numbers of peers with fewer than two series of one model are skipped. Several runs of one series and number have
    a row each.
    """
    found = [run for run in runs if name in run.figures and not run.baseline]
    groups: dict[tuple[str, str, int], list[StudyRun]] = {}
    for run in found:
        groups.setdefault((run.model, run.accelerator, run.peers), []).append(run)
    rows: list[Row] = []
    for (model, _, peers), same in sorted(groups.items()):
        if len({run.series for run in same}) < 2:
            continue
        same.sort(key=lambda run: (run.series, natural(run.name)))
        first = same[0].figures[name].value
        for run in same:
            value = run.figures[name]
            rows.append(
                {
                    "panel": model,
                    "peers": peers,
                    "group": run.series,
                    "places": run.spread,
                    "name": run.name,
                    "origin": run.origin,
                    **_estimate("sps", value),
                    "relative": value.value / first - 1 if first else None,
                    "relative_to": same[0].name,
                    "comm_s": run.value("comm_s"),
                    "usd_per_vm_h": None if run.usd_per_h is None else float(run.usd_per_h) / run.peers,
                }
            )
    return rows


def place_table(rows: Iterable[Row]) -> list[Row]:
    """Arrange `place_rows` with one row per model and number of peers and one column per series."""
    found = list(rows)
    groups = sorted({row["group"] for row in found})
    lines: dict[tuple[str, int], Row] = {}
    for row in found:
        line = lines.setdefault(
            (row["panel"], row["peers"]),
            {"model": row["panel"], "peers": row["peers"]} | dict.fromkeys(groups, ""),
        )
        relative = (
            ""
            if row["relative"] is None or row["name"] == row["relative_to"]
            else f" ({row['relative']:+.1%})"
        )
        cell = f"{row['sps']:.4g}{relative}"
        line[row["group"]] = f"{line[row['group']]}; {cell}" if line[row["group"]] else cell
    return list(lines.values())


def difference_rows(runs: Iterable[StudyRun]) -> list[Row]:
    """Compare the paper's figures with ours: (ours - paper) / paper, one row per run and figure.

    The phase-timed granularity is compared for logs only, because the phases of our own runs wait for the accelerator.
    A single GPU is compared with the paper's rate on each clock.
    """
    rows: list[Row] = []
    for run in runs:
        published = run.published or {}
        if isinstance(published.get("figures"), dict):
            published = published["figures"]
        pairs = [
            (key, FIGURES[key].words, _paper_figure(published, FIGURES[key].paper_column)) for key in PAPER
        ]
        if run.baseline and run.origin == "log":
            rates = single_gpu_sps(run.model, run.accelerator)
            pairs = [(key, words, rates.get(basis)) for key, basis, words in _SINGLE]
        for key, words, theirs in pairs:
            value = run.value(key)
            if not theirs or (key == "granularity_phase_timed" and run.origin != "log"):
                continue
            ours = None if value is None else value * FIGURES[key].shown_factor
            rows.append(
                {
                    "name": run.name,
                    "origin": run.origin,
                    "figure": words,
                    "study": theirs,
                    "ours": ours,
                    "difference": None if ours is None else (ours - theirs) / theirs,
                }
            )
    return rows


def _paper_figure(published: Mapping[str, Any], name: str) -> float | None:
    """A published figure. Wall-clock granularity is printed with one digit, so it is computed from the seconds."""
    calc_s, comm_s = _number(published.get("calc_s")), _number(published.get("comm_s"))
    if name == "granularity_wall" and calc_s and comm_s and published.get(name) is not None:
        return calc_s / comm_s
    return _number(published.get(name))


def difference_table(rows: Iterable[Row]) -> list[Row]:
    """Arrange `difference_rows` with one row per run and one column per figure: the paper's, ours, the difference."""
    found = list(rows)
    count = Counter(row["figure"] for row in found)
    figures = sorted(count, key=lambda figure: -count[figure])  # figures that few runs have come last
    lines: dict[str, Row] = {}
    for row in found:
        ours = "unknown" if row["ours"] is None else f"{row['ours']:.4g} ({row['difference']:+.1%})"
        line = lines.setdefault(row["name"], {"run": row["name"]} | dict.fromkeys(figures, ""))
        line[row["figure"]] = f"{row['study']:.4g} | {ours}"
    return list(lines.values())


def unknown_rows(runs: Iterable[StudyRun], paper: bool = False) -> list[Row]:
    """Return the figures that are not drawn because they are unknown, with the reason."""
    wanted = {"sps": "throughput", "granularity": "granularity", "comm_s": "communication time"}
    rows: list[Row] = []
    for run in runs:
        names = {"sps": "throughput"} if run.baseline else wanted
        for key, words in names.items():
            if key not in run.figures:
                why = next((w for w in run.warnings if key in w or words in w), "")
                rows.append({"run": run.name, "what": words, "why": why or "not in the records"})
        if paper and not run.paper_usd_per_vm_h:
            rows.append(
                {"run": run.name, "what": "dollars on the paper's basis", "why": "the paper printed none"}
            )
        if run.usd_per_h is None:
            why = "; ".join(run.cost_unknown) or "no price book"
            rows.append({"run": run.name, "what": "dollars", "why": why})
    return rows


def _rate(run: StudyRun, basis: str) -> tuple[Estimate | None, str]:
    if basis == PAPER_BASIS:
        if run.baseline:
            return run.figures.get("sps_phase_timed"), "phase-timed"
        return run.figures.get("sps_epoch_mean"), "wall"
    return run.figures.get("sps"), "wall"


def _estimate(name: str, value: Estimate | None, single: bool = False) -> Row:
    """The value as `name`, its interval, n and what n counts: parts of the log for a single GPU, otherwise epochs."""
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None, "n": None, "n_of": ""}
    n_of = "" if not value.n else "parts of the log" if single else "epochs"
    return {
        name: value.value,
        f"{name}_low": value.low,
        f"{name}_high": value.high,
        "n": value.n or None,
        "n_of": n_of,
    }


def _per_million(per_h: Decimal | None, rate: Estimate | None) -> Row:
    """Dollars per million samples; the high end of the rate's interval gives the low end of the cost."""

    def at(sps: float | None) -> float | None:
        return None if per_h is None or sps is None or sps <= 0 else float(per_h) * _PER_1M / sps

    low, value, high = (rate.high, rate.value, rate.low) if rate else (None, None, None)
    return {"usd_per_1m": at(value), "usd_per_1m_low": at(low), "usd_per_1m_high": at(high)}


def _number(value: Any) -> float | None:
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError):
        return None
