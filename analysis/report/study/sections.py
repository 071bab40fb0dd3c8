"""The sections of the study report: rows, texts and the function that draws each figure. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.compare.paper import ONE_CLOCK, PAPER_BASIS, Reference, published_costs, references
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

_BASES = ((PAPER_BASIS, "the paper's basis"), (ONE_CLOCK, "one clock"))
_FAMILIES = (("CV", "cost-cv", "Figure 1"), ("NLP", "cost-nlp", "Figure 15"))
_GRANULARITY = "The paper's phase timers miss the wait for the GPU, so it is higher by wall clock."
_MEAN_OF_RATIOS = "Mean of the epochs' ratios of calculation to communication."
AGAINST_PEERS = ("throughput", "granularity", "speedup")
"""Names of the sections that need several numbers of peers."""
_SCATTER_LEAD = (
    "Up and to the left is expensive and slow. Dollars are the VMs and the egress, without the training data, whose cost per "
    "sample is the same for every system."
)


@dataclass(frozen=True)
class Drawn:
    """One section with a figure. `name`: of its files; `rows`: its CSV; `draw`: creates the figure."""

    name: str
    heading: str
    lead: str
    rows: Sequence[Row]
    draw: Callable[[], Figure]
    table: Sequence[Row] = ()  # always visible, while the rows are in a collapsed block
    caption: str = ""
    notes: Sequence[str] = ()  # how to read the table, a sentence each


def sections(runs: Sequence[StudyRun], paper: bool, beside: Sequence[Reference]) -> list[Drawn]:
    """Return the sections for which these runs have rows, in the page's order. `beside`: centralised systems."""
    found = [*(_paper_costs(runs) if paper else _costs(runs, beside)), *_against_peers(runs, paper)]
    found += [
        _phases(runs),
        *(_paper_stacks(runs) if paper else _stacks(runs)),
        _links(runs),
        _places(runs),
        _against_paper(runs),
    ]
    return [section for section in found if section.rows]


def _costs(runs: Sequence[StudyRun], beside: Sequence[Reference]) -> list[Drawn]:
    from analysis.charts.scatter import scatter

    known = {run.model for run in runs}
    rows = scatter_rows(runs, [r for r in beside if r.model in known], ONE_CLOCK)
    panels = [(model, [r for r in rows if r["panel"] == model]) for model in sorted(known)]
    panels = [p for p in panels if any(r["sps"] and r["usd_per_1m"] for r in p[1])] or panels[:1]
    return [Drawn("cost-throughput", "Cost against throughput", _SCATTER_LEAD, rows, lambda: scatter(panels))]


def _paper_costs(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.scatter import scatter

    found: list[Drawn] = []
    for family, name, figure in _FAMILIES:
        own = [run for run in runs if run.family == family]
        models = {run.model for run in own}
        beside = [r for r in references() if r.model in models]
        both = [(title, scatter_rows(own, beside, basis)) for basis, title in _BASES]
        rows = [row for _, part in both for row in part]
        lead = f"The paper's {figure} and the same on one clock. {_SCATTER_LEAD}"
        found.append(
            Drawn(name, f"Cost against throughput: {family}", lead, rows, lambda both=both: scatter(both))
        )
    return found


def _against_peers(runs: Sequence[StudyRun], paper: bool) -> list[Drawn]:
    from analysis.charts.lines import against_peers

    figures = "The paper's Figures 7 (A), 8 (B) and 9 (C). " if paper else ""
    alone = (
        "Only a single GPU's rate differs between the two bases."
        if paper
        else "Samples per second of wall time."
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

    rates = {PAPER_BASIS: ("sps_epoch_mean", "sps_phase_timed"), ONE_CLOCK: ("sps", "sps")}
    ratio = {PAPER_BASIS: ("granularity_phase_timed", ""), ONE_CLOCK: ("granularity", "")}
    speed = {PAPER_BASIS: ("speedup_phase_timed", ""), ONE_CLOCK: ("speedup", "")}
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
            f"{figures}{_GRANULARITY if paper else _MEAN_OF_RATIOS}", ratio_rows,
            lambda: against_peers(ratio_panels, "granularity, mean of ratios", log=True, together=True),
        ),
        Drawn(
            "speedup", "Speed-up on both bases",
            "Throughput relative to a single GPU of the same kind. The paper divides rates of two clocks.", speed_rows,
            lambda: against_peers(speed_panels, "speed-up", ideal=True, together=True),
        ),
    ]  # fmt: skip


def _phases(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import phases

    rows = phase_rows(runs)
    lead = "Wall time of a VM's epoch outside and inside its averaging round, mean over VMs and epochs."
    return Drawn("phases", "Calculation and communication", lead, rows, lambda: phases(rows))


def _stacks(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.bars import costs

    rows = cost_rows(runs)
    lead = "The cost of one VM-hour of training: the VM's price, the bytes it sends, the data it reads."
    return [Drawn("cost-kinds", "Dollars an hour by kind", lead, rows, lambda: costs([("", rows)]))]


def _paper_stacks(runs: Sequence[StudyRun]) -> list[Drawn]:
    from analysis.charts.bars import costs

    printed = published_cost_rows(published_costs())
    both = [
        ("as the paper bills it", [r for r in printed if r["basis"] == PAPER_BASIS]),
        ("same rates, billed by destination", [r for r in printed if r["basis"] != PAPER_BASIS]),
    ]
    bars = {r["name"] for _, part in both for r in part}
    lead = (
        "The paper's Figure 11, and what its Figures 1 and 15 charge for 8 T4s. It bills egress by assumed shares, although "
        "averaging sends equally to every VM. Right: the same bytes by destination, where that is known."
    )
    rows = [r for _, part in both for r in part]
    found = [Drawn("cost-study", "The paper's cost stack", lead, rows, lambda: costs(both))] if bars else []
    assumed, ours = cost_rows(runs, PAPER_BASIS), cost_rows(runs)
    if assumed:
        panels = [("the paper's assumptions", assumed), ("billed by destination", ours)]
        text = (
            "The cost of one VM-hour: left by the paper's assumptions, right by where each byte went (printed runs: in equal "
            "parts to every other VM)."
        )
        found.append(
            Drawn("cost-kinds", "Dollars an hour by kind", text, [*assumed, *ours], lambda: costs(panels), ())
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
    lead = "Bytes from VM to VM, summed over all runs with records."
    if any(src == dst for src, dst in cells):
        lead += " A cell from a region to itself is traffic between VMs inside that region."
    if any(run.origin == "log" for run in runs):
        lead += " Logs do not say where bytes went: they are split equally over the other VMs."
    return Drawn("egress", "Egress between regions", lead, rows, lambda: traffic_matrix(merged))


def _places(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import places

    rows = place_rows(runs)
    panels = [(m, [r for r in rows if r["panel"] == m]) for m in sorted({r["panel"] for r in rows})]
    lead = "Equally many VMs in different places, relative to the first series of that size."
    return Drawn(
        "places",
        "Places compared at equal peers",
        lead,
        rows,
        lambda: places(panels),
        place_table(rows),
        "Samples/s of each series, and relative to the first",
    )


def _against_paper(runs: Sequence[StudyRun]) -> Drawn:
    from analysis.charts.bars import differences

    rows = difference_rows(runs)
    lead = "Each on the published figure's own basis. Published figures are rounded: 0.6 may be anything from 0.55 to 0.65."
    return Drawn(
        "beside-the-study",
        "Compared with the paper",
        lead,
        rows,
        lambda: differences(rows),
        difference_table(rows),
        "The paper's figure | ours (difference)",
    )
