"""The sections of the study report: for each its rows, its words and how to draw it. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.compare.paper import ONE_CLOCK, STUDY, published_costs, references
from analysis.compare.rows import (
    Row,
    cost_rows,
    difference_rows,
    difference_table,
    link_rows,
    peer_rows,
    phase_rows,
    place_rows,
    place_table,
    published_cost_rows,
    scatter_rows,
)
from analysis.compare.run_figures import StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BASES = ((STUDY, "the study's basis"), (ONE_CLOCK, "one clock"))
_FAMILIES = (("CV", "cost-cv", "Figure 1"), ("NLP", "cost-nlp", "Figure 15"))
_SCATTER_LEAD = (
    "Up and to the left is dear and slow. A point's line is the 95 % interval of its rate; an arrow says that it leaves the "
    "figure. Dollars are the VMs' price and the egress; the training data, which costs every system the same by the sample, "
    "is left out here, as in the study's figures. "
)


@dataclass(frozen=True)
class Drawn:
    """One section with a figure. `name`: of its files; `rows`: its CSV; `draw`: makes the figure."""

    name: str
    heading: str
    lead: str
    rows: Sequence[Row]
    draw: Callable[[], Figure]
    table: Sequence[Row] = ()  # shown openly; the rows themselves are behind a fold
    caption: str = ""


def sections(runs: Sequence[StudyRun], paper: bool) -> list[Drawn]:
    """The sections that these runs have something for, in the page's order."""
    found = [*(_paper_costs(runs) if paper else _costs(runs)), *_against_peers(runs, paper)]
    found += [
        _phases(runs),
        *(_paper_stacks(runs) if paper else _stacks(runs)),
        _links(runs),
        _places(runs),
        _beside(runs),
    ]
    return [section for section in found if section.rows]


def _costs(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.scatter import scatter

    known = {run.model for run in runs}
    rows = scatter_rows(runs, [r for r in references() if r.model in known], ONE_CLOCK)
    panels = [(model, [r for r in rows if r["panel"] == model]) for model in sorted(known)]
    panels = [p for p in panels if any(r["sps"] and r["usd_per_1m"] for r in p[1])] or panels[:1]
    lead = (
        _SCATTER_LEAD
        + "The centralised systems are the study's, with the clock and the price that its figures have."
    )
    return [Drawn("cost-throughput", "Cost against throughput", lead, rows, lambda: scatter(panels))]


def _paper_costs(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.scatter import scatter

    found: list[Drawn] = []
    for family, name, figure in _FAMILIES:
        own = [run for run in runs if run.family == family]
        models = {run.model for run in own}
        beside = [r for r in references() if r.model in models]
        both = [(title, scatter_rows(own, beside, basis)) for basis, title in _BASES]
        rows = [row for _, part in both for row in part]
        lead = (
            f"The study's {figure}, on its own basis and on one clock. {_SCATTER_LEAD}On the study's basis a GPU alone "
            "has its phase timers' rate, a swarm its epochs' by wall clock, and egress is billed by assumed shares. On one "
            "clock every rate is by wall clock and the measured epochs' bytes are billed to where they go; systems "
            "whose wall-clock rate nobody knows carry a dagger."
        )
        found.append(
            Drawn(name, f"Cost against throughput: {family}", lead, rows, lambda both=both: scatter(both))
        )
    return found


def _against_peers(runs: Sequence[StudyRun], paper: bool) -> list[Drawn]:
    from analysis.charts.lines import against_peers

    figures = "The study's Figures 7 (A), 8 (B) and 9 (C). " if paper else ""
    alone = (
        "A GPU alone reads differently on the two clocks; swarms do not."
        if paper
        else "Samples over wall time."
    )
    bases = _BASES if paper else _BASES[1:]

    def made(
        names: dict[str, tuple[str, str]], which: Sequence[tuple[str, str]]
    ) -> tuple[list[Row], list[tuple[str, list[Row]]]]:
        rows: list[Row] = []
        panels: list[tuple[str, list[Row]]] = []
        for model in sorted({run.model for run in runs}):
            for basis, title in which:
                swarm, single = names[basis]
                part = peer_rows([run for run in runs if run.model == model], swarm, basis, single)
                panels.append((f"{model}, {title}" if len(which) > 1 else model, part))
                rows += part
        empty = {basis for basis, _ in which if not any(row["basis"] == basis for row in rows)}
        if empty and len(which) > 1:
            return made(names, [(basis, title) for basis, title in which if basis not in empty])
        some = {title.split(",")[0] for title, part in panels if part}
        return rows, [(title, part) for title, part in panels if title.split(",")[0] in some]

    rates = {STUDY: ("sps_epoch_mean", "sps_phase_timed"), ONE_CLOCK: ("sps", "sps")}
    ratio = {STUDY: ("granularity_phase_timed", ""), ONE_CLOCK: ("granularity", "")}
    speed = {STUDY: ("speedup_phase_timed", ""), ONE_CLOCK: ("speedup", "")}
    rate_rows, rate_panels = made(rates, bases)
    ratio_rows, ratio_panels = made(ratio, bases)
    speed_rows, speed_panels = made(speed, _BASES)
    return [
        Drawn(
            "throughput", "Throughput against peers", f"{figures}{alone}", rate_rows,
            lambda: against_peers(rate_panels, "throughput (samples/s)", together=True),
        ),
        Drawn(
            "granularity", "Granularity against peers",
            f"{figures}Calculation time over communication time of a VM's epoch. The study's has phase timers above the "
            "line, which miss the wait for the GPU; by wall clock it is higher.", ratio_rows,
            lambda: against_peers(ratio_panels, "granularity", log=True, together=True),
        ),
        Drawn(
            "speedup", "Speed-up on both bases",
            "Throughput over that of one GPU of the same kind alone. The study divides a wall-clock rate by a phase-timed "
            "one; on one clock both are wall clock.", speed_rows,
            lambda: against_peers(speed_panels, "speed-up", ideal=True, together=True),
        ),
    ]  # fmt: skip


def _phases(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import phases

    rows = phase_rows(runs)
    lead = "Wall time of a VM's epoch outside and inside the synchronising optimizer step, mean over VMs and epochs."
    return Drawn("phases", "Calculation and communication", lead, rows, lambda: phases(rows))


def _stacks(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.bars import costs

    rows = cost_rows(runs)
    lead = "What an hour of one VM costs while it trains: its price, the bytes it sends, the data it reads."
    return [Drawn("cost-kinds", "Dollars an hour by kind", lead, rows, lambda: costs([("", rows)]))]


def _paper_stacks(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.bars import costs

    printed = published_cost_rows(published_costs())
    both = [
        ("as the study bills it", [r for r in printed if r["basis"] == STUDY]),
        ("the same rates, each byte where it goes", [r for r in printed if r["basis"] != STUDY]),
    ]
    bars = {r["name"] for _, part in both for r in part}
    lead = (
        "The study's Figure 11 and what its Figures 1 and 15 charge 8 T4s, all as printed. It bills egress by assumed shares "
        '(C-8: 8/20, 6/20, 6/20) or by another run\'s; averaging sends to every VM alike. Its "GB" is 1.024e9 bytes, over the '
        "whole run. What is on the left only was not recomputed: the destinations are not known."
    )
    rows = [r for _, part in both for r in part]
    found = [Drawn("cost-study", "The study's cost stack", lead, rows, lambda: costs(both))] if bars else []
    study, ours = cost_rows(runs, STUDY), cost_rows(runs)
    if study:
        panels = [("the study's assumptions", study), ("each byte where it goes", ours)]
        text = (
            "What an hour of one VM costs. Left: the study's assumptions on each run's own records. Right: the measured epochs' "
            "bytes at the price book's price of their way; for printed runs the printed bytes in equal parts to every other VM."
        )
        found.append(
            Drawn("cost-kinds", "Dollars an hour by kind", text, [*study, *ours], lambda: costs(panels), ())
        )
    else:
        found += _stacks(runs)
    return found


def _links(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.run import traffic_matrix

    rows = link_rows(runs)
    cells: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (str(row["src"]), str(row["dst"]))
        cells[key] = cells.get(key, 0.0) + float(row["bytes"])
    merged = [{"src": src, "dst": dst, "bytes": size} for (src, dst), size in cells.items()]
    lead = (
        "Bytes from VM to VM by region, all runs that have records together, whole runs. Logs count a VM's whole network card: "
        "their bytes are split equally over the other VMs, as averaging sends them."
    )
    return Drawn("egress", "Egress between regions", lead, rows, lambda: traffic_matrix(merged))


def _places(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import places

    rows = place_rows(runs)
    panels = [(m, [r for r in rows if r["panel"] == m]) for m in sorted({r["panel"] for r in rows})]
    lead = "Throughput by wall clock with equally many VMs in different places, relative to the first series that has as many."
    return Drawn(
        "places",
        "Places compared at equal peers",
        lead,
        rows,
        lambda: places(panels),
        place_table(rows),
        "Samples/s of each series, and relative to the first",
    )


def _beside(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import differences

    rows = difference_rows(runs)
    lead = (
        "The study's published figures of the same runs and ours, each on the published figure's own basis. "
        "Its figures are rounded: what reads 0.6 may be 0.55 or 0.65."
    )
    return Drawn(
        "beside-the-study",
        "Beside the study",
        lead,
        rows,
        lambda: differences(rows),
        difference_table(rows),
        "The study's figure | ours (difference)",
    )
