"""The page of `orch advise --report`: the predicted Pareto set, machines in one place, and runs that were measured."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

from analysis.charts.groups import ALONE, PROPOSALS
from analysis.charts.scatter import scatter
from analysis.charts.style import figure_style
from analysis.compare.measured import Measured, MeasuredRuns
from analysis.compare.paper import ONE_CLOCK
from analysis.compare.rows import Row, scatter_rows
from analysis.compare.run_figures import distinct
from analysis.planning.advice import Advice, Alternative, Proposal, why, yaml_of
from analysis.planning.advice_words import (
    REASONS,
    account_lines,
    against_words,
    clock_words,
    goal_words,
    peers_words,
    unmet_line,
)
from analysis.planning.prediction import Value
from analysis.report.files import FigureFolder, write
from analysis.report.page import Card, Section, render, table
from metrics.predicted import words
from metrics.readable import duration, number, usd

_DPI = 120
_MEASURED = "measured on this machine"
_FRONT = "Pareto set"
_SCATTER_LEAD = (
    "Up and to the left is expensive and slow. Crosses are predicted, with 90 % intervals of the samples/s; filled and half "
    "filled markers are measured, with 95 % intervals over epochs; stars are as the paper printed them, at its prices of 2023. "
    "Dollars are those of VMs and of egress between peers."
)


def build(advice: Advice, measured: MeasuredRuns, output: Path, made_on: date) -> Path:
    """Write the page `output` and its figure's files in the folder `<output's stem>_files` next to it; returns `output`.

    `measured`: runs of the experiment on this machine. Raises OSError if something cannot be written.
    """
    folder = output.with_name(f"{output.stem}_files")
    folder.mkdir(parents=True, exist_ok=True)
    files = FigureFolder(folder, prefix=f"{folder.name}/", dpi=_DPI, newline="\n")
    rows = rows_of(advice, measured.runs)
    with figure_style(), warnings.catch_warnings():
        # Matplotlib's font lacks some letters of names: the page and the SVG show them, the PNG has boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        drawn = scatter([(_model(advice), rows)], _FRONT)
        chart = files.section(
            "advice",
            "Cost against throughput",
            _SCATTER_LEAD,
            rows,
            drawn,
            label="Cost against throughput. The numbers are in the tables after the figure.",
        )
    files.table("proposals", [_numbers_row(k, p) for k, p in enumerate(advice.shown, 1)])
    sections = [
        chart,
        _proposals(advice),
        _alternatives(advice),
        _measured(measured),
        _search(advice),
        _assumptions(advice),
    ]
    html = render(
        f"Advice: {advice.experiment}",
        _lead(advice),
        _basis(advice, made_on),
        _warnings(advice, measured.runs),
        _cards(advice),
        sections,
    )
    write(output, html.encode())
    return output


def rows_of(advice: Advice, measured: Sequence[Measured]) -> list[Row]:
    """Return a row of the scatter plot for each proposal, machine in one place, and measured run.

    `front`: it is in the search's Pareto set. `group` and `origin` decide the marker: predicted figures are crosses.
    """
    panel = _model(advice)
    shared: Row = {"panel": panel, "basis": ONE_CLOCK, "n": None, "n_of": ""}
    rows: list[Row] = []
    for k, p in enumerate(advice.shown, 1):
        rows.append(
            {
                **shared,
                "name": f"a{k}",
                "group": PROPOSALS,
                "peers": sum(each.count for each in p.peers),
                "origin": "predicted",
                "clock": "wall",
                **_ends("sps", p.sps),
                "usd_per_h": p.usd_per_h.value,
                **_ends("usd_per_1m", p.usd_per_1m),
                "front": advice.unmet is None,
                "note": peers_words(p),
            }
        )
    for each in advice.alternatives:
        predicted = each.clock == "predicted"
        rows.append(
            {
                **shared,
                "name": each.short,
                "group": ALONE if predicted else "centralised",
                "peers": None,
                "origin": "predicted" if predicted else "printed",
                "clock": "wall" if predicted else each.clock,
                **_ends("sps", None),
                "sps": each.sps,
                "usd_per_h": float(each.usd_per_h),
                **_ends("usd_per_1m", None),
                "usd_per_1m": float(each.usd_per_1m),
                "front": False,
                "note": f"{each.name}: {each.note} ({each.source})",
            }
        )
    for row in scatter_rows(distinct([one.run for one in measured]), [], ONE_CLOCK):
        rows.append({**row, "panel": panel, "group": _MEASURED, "front": False})
    return rows


def _ends(name: str, value: Value | None) -> Row:
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def _model(advice: Advice) -> str:
    return advice.shown[0].spec.trains if advice.shown else advice.experiment


def _basis(advice: Advice, made_on: date) -> str:
    dated = "" if advice.prices_until is None else f", newest price of {advice.prices_until.isoformat()}"
    return (
        f"Predicted, not measured, on {made_on.isoformat()}: samples/s by the network {advice.network} and the path model "
        f"{advice.path_model}, dollars by the price book {advice.price_book}{dated}. Nothing was started. Only what is marked as "
        "measured or as printed is not predicted."
    )


def _lead(advice: Advice) -> str:
    goals = goal_words(advice)
    asked = f"Goals: {', '.join(goals)}" if goals else "No goals were given"
    return (
        f"{asked}. Of the combinations searched, none is both faster and cheaper per sample than one of these; "
        "the times are to "
        f"{advice.samples:,} samples. Intervals are 90 %; the goals are compared with the values, not with the ends."
    )


def _warnings(advice: Advice, measured: Sequence[Measured]) -> list[str]:
    found = [f"{unmet_line(advice)}."] if advice.unmet is not None else []
    found += account_lines(advice)[1:]
    shown = len(advice.shown)
    for each in advice.alternatives:
        if shown and len(each.better_than) == shown:
            found.append(f"{each.name} is {against_words(each, shown)}: see when not to do it.")
    late = [f"{one.run.run_id} ({one.run.too_busy})" for one in measured if one.run.too_busy]
    if late:
        found.append(
            f"The machine was too busy during {'; '.join(late)}: times of these measured runs may be wrong."
        )
    found.append(
        "Advice looks at speed and dollars only: not at how a compression or a schedule changes what is learned, not at "
        "preemptions, quotas or capacity. Reading the data and checkpoints are not in the dollars."
    )
    return found


def _cards(advice: Advice) -> list[Card]:
    if not advice.proposals:
        return []
    numbered = list(enumerate(advice.proposals, 1))
    fast = max(numbered, key=lambda one: one[1].sps.value)
    cheap = min(numbered, key=lambda one: one[1].usd_per_1m.value)
    cards = [
        Card(
            "Fastest proposal",
            f"{number(fast[1].sps.value, 3)} samples/s",
            f"a{fast[0]}: 90 % interval {number(fast[1].sps.low, 3)} to {number(fast[1].sps.high, 3)}",
        ),
        Card(
            "Cheapest proposal",
            f"{usd(cheap[1].usd_per_1m.value)}/1M samples",
            f"a{cheap[0]}: 90 % interval {usd(cheap[1].usd_per_1m.low)} to {usd(cheap[1].usd_per_1m.high)}",
        ),
    ]
    best = min(advice.alternatives, key=lambda each: each.usd_per_1m, default=None)
    if best is not None:
        cards.append(
            Card(
                "Cheapest in one place",
                f"{usd(best.usd_per_1m)}/1M samples",
                f"{best.name}: {number(best.sps, 3)} samples/s, rate by {clock_words(best)}",
            )
        )
    searched = "all" if advice.account.complete else "not all"
    cards.append(Card("Combinations", f"{advice.requested:,}", f"{searched} of them were accounted for"))
    return cards


def _numbers_row(number_of: int, p: Proposal) -> Row:
    return {
        "proposal": f"a{number_of}",
        "name": p.spec.name,
        "peers": peers_words(p),
        "option": p.option,
        **_ends("sps", p.sps),
        "granularity": p.granularity,
        **_ends("usd_per_h", p.usd_per_h),
        **_ends("usd_per_1m_samples", p.usd_per_1m),
        **_ends("time_to_samples_s", p.time_s),
        "egress_share": p.egress_share,
    }


def _proposals(advice: Advice) -> Section:
    shown = list(enumerate(advice.shown, 1))
    rows = [
        {
            "proposal": f"a{k}",
            "peers": peers_words(p),
            "option": p.option or "as in the file",
            "samples/s": _interval(p.sps),
            "granularity": number(p.granularity, 3),
            "$/h": _interval(p.usd_per_h),
            "$/1M samples": _interval(p.usd_per_1m),
            "time": f"{duration(p.time_s.value)} [{duration(p.time_s.low)}, {duration(p.time_s.high)}]",
        }
        for k, p in shown
    ]
    html = table(rows, "Predicted figures with 90 % intervals", text=["proposal", "peers", "option"])
    if advice.more:
        html += (
            f'<p class="soft">{advice.more} more of the Pareto set lie between these; --rows shows more.</p>'
        )
    for k, p in shown:
        html += (
            f"<p><strong>a{k}</strong> {escape(peers_words(p))}: {escape(why(p))}.</p>"
            f"<details><summary>{escape(p.spec.name)}.yaml, a file for orch launch</summary>"
            f'<pre tabindex="0">{escape(yaml_of(p.spec))}</pre></details>'
        )
    title = "Proposals" if advice.unmet is None else "The nearest combination"
    lead = "" if advice.unmet is None else f"{unmet_line(advice)}."
    return Section(
        title, lead or "The Pareto set, the fastest first, each with what decides its figures.", html=html
    )


def _alternatives(advice: Advice) -> Section:
    title = "When not to do it"
    if not advice.alternatives:
        return Section(title, f"No machine in one place has a known rate of {advice.experiment}'s model.")
    rows = [_alternative(advice, each) for each in advice.alternatives]
    lead = (
        "Machines in one place, without a swarm across places. Those of the paper are at its prices of 2023."
    )
    columns = ["machine", "against the proposals", "rate by", "note", "source"]
    if advice.unmet is not None:
        columns.append("meets the goals")
    return Section(title, lead, html=table(rows, "Machines in one place", text=columns))


def _alternative(advice: Advice, each: Alternative) -> Row:
    row: Row = {
        "machine": each.name,
        "against the proposals": against_words(each, len(advice.shown)) or "neither faster nor cheaper",
        "samples/s": f"{each.sps:.4g}",
        "$/h": f"{each.usd_per_h:.4g}",
        "$/1M samples": f"{each.usd_per_1m:.3f}",
    }
    if advice.unmet is not None:
        row["meets the goals"] = "yes" if each.meets_goals else "no"
    return {**row, "rate by": clock_words(each), "note": each.note, "source": each.source}


def _measured(found: MeasuredRuns) -> Section:
    title = "Measured on this machine"
    left = "".join(f"<li>{escape(run)}: {escape(reason)}</li>" for run, reason in found.left_out)
    html = f'<p class="soft">Left out:</p><ul class="soft">{left}</ul>' if left else ""
    if not found.runs:
        return Section(
            title, "No run of this experiment or of its proposals has a measured epoch here.", html=html
        )
    rows: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    for one in found.runs:
        sps, (drawn,) = one.run.figures["sps"], scatter_rows([one.run], [], ONE_CLOCK)
        ends = "" if sps.low is None or sps.high is None else f" [{sps.low:.4g}, {sps.high:.4g}]"
        rows.append(
            {
                "run": one.run.run_id,
                "experiment": one.experiment,
                "status": one.status,
                "peers": one.run.peers,
                "places": one.run.spread,
                "on": {"own": "rented VMs", "emulated": "this machine, emulated"}.get(
                    one.run.origin, one.run.origin
                ),
                "samples/s": f"{sps.value:.4g}{ends}",
                "epochs": sps.n,
                "$/1M samples": None if drawn["usd_per_1m"] is None else f"{drawn['usd_per_1m']:.4g}",
                "prices": one.run.cost_basis,
                "host": one.host,
            }
        )
        compared += [{"run": one.run.run_id, **words(pair)} for pair in one.predicted]
    html = (
        table(
            rows,
            "Measured figures with 95 % intervals, at full scale",
            text=["run", "experiment", "status", "places", "on", "prices", "host"],
        )
        + (
            table(compared, "What the plans of these runs predicted", text=["run", "figure"])
            if compared
            else ""
        )
        + html
    )
    lead = (
        "Runs of this experiment, and of proposals that were written with --write, with the same model and target batch size. "
        "Each was measured with its own places, prices and options."
    )
    return Section(title, lead, html=html)


def _search(advice: Advice) -> Section:
    rows = [
        {"why": REASONS[each.code], "what": each.what, "detail": each.detail}
        for code in REASONS
        for each in advice.left_out
        if each.code == code
    ]
    html = "".join(f"<p>{escape(line)}</p>" for line in account_lines(advice)[1:])
    html += table(rows, "Left out of the search", text=["why", "what", "detail"])
    return Section("What was searched, and what was not", account_lines(advice)[0], html=html)


def _assumptions(advice: Advice) -> Section:
    first = advice.shown[0].prediction if advice.shown else None
    rows = [
        {
            "input": each.name,
            "value": each.value,
            "source": each.source,
            "share of the interval": "" if each.share is None else f"{each.share:.0%}",
        }
        for each in (first.assumptions if first is not None else ())
    ]
    lead = "Inputs of the first proposal's prediction, and how much of the variance of its samples/s each explains."
    html = table(rows, "Inputs of the prediction", text=["input", "value", "source"])
    return Section("What the predictions rest on", lead, html=html)


def _interval(value: Value) -> str:
    return f"{value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"
