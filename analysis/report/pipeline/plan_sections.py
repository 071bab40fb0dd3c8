"""The section on a plan: dollars of each strategy in an experiment, and what pays."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from analysis.charts import pipeline as figures
from analysis.pipeline.plan import PART_WORDS, PARTS, VERDICT_WORDS, Row
from analysis.report.files import FigureFolder
from analysis.report.page import Section, table
from analysis.report.pipeline.parts import PlanPart
from analysis.report.pipeline.profile_sections import MOST_BARS
from metrics.readable import number, usd


def plan_sections(part: PlanPart, files: FigureFolder) -> list[Section]:
    """Return the section of a plan."""
    rows = option_rows(part.plan.rows)
    panels: list[tuple[str, Sequence[dict[str, Any]]]] = []
    shown = len(rows)
    for passes, group in groupby(rows, key=lambda row: row["passes"]):
        own = list(group)
        first = sorted(own, key=_cheapest)[:MOST_BARS]
        first += [row for row in own if row["verdict"] == "baseline" and row not in first]
        shown -= len(own) - len(first)
        title = "1 pass over the data set" if passes == 1 else f"{passes} passes over the data set"
        panels.append((title, [row for row in own if row in first]))
    lead = (
        f"Predicted for {part.experiment} by its prices and the measured strategies; averaging between peers, its time and its "
        "egress, is not in it. Lines: 95 % intervals that follow from T4's. Bars with an arrow are cut."
    )
    if shown < len(rows):
        lead += f" Each panel shows at most the {MOST_BARS} cheapest; the files have all {len(rows)} rows."
    best = "".join(f"<li>{escape(sentence)}</li>" for sentence in part.best)
    assumed = "".join(f"<li>{escape(sentence)}</li>" for sentence in part.assumptions)
    html = (
        f"<ul>{best}</ul><details><summary>All options</summary>"
        + table(_table(part.plan.rows), "Options", text=["strategy", "limited by", "verdict"])
        + f'</details><details><summary>What the figures rest on</summary><ul class="soft">{assumed}</ul></details>'
    )
    return [
        files.section("options", "Dollars by option", lead, rows, figures.dollars(panels, PART_WORDS), html)
    ]


def option_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row per number of passes and strategy; dollars are those of a million samples, None: unknown."""
    return [
        {
            "passes": row.cost.passes,
            "strategy": row.label,
            "sps": row.sps.value,
            "sps_low": row.sps.low,
            "sps_high": row.sps.high,
            "bound": row.bound,
            "usd_per_1m": None if row.usd_per_1m is None else row.usd_per_1m.value,
            "usd_per_1m_low": None if row.usd_per_1m is None else row.usd_per_1m.low,
            "usd_per_1m_high": None if row.usd_per_1m is None else row.usd_per_1m.high,
            **{part: _number(row.cost.part_usd_per_1m(part)) for part in PARTS},
            "one_off_usd": _number(row.cost.one_off_usd),
            "break_even_passes": row.break_even_passes,
            "verdict": row.verdict,
            "score": row.score,
        }
        for row in rows
    ]


def _cheapest(row: dict[str, Any]) -> float:
    return float("inf") if row["usd_per_1m"] is None else row["usd_per_1m"]


def _number(amount: Any) -> float | None:
    return None if amount is None else float(amount)


def _table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "passes": row.cost.passes,
            "strategy": row.label,
            "samples/s": number(row.sps.value),
            "limited by": row.bound,
            "$/1M": None if row.usd_per_1m is None else usd(row.usd_per_1m.value),
            "95 %": "unknown"
            if row.usd_per_1m is None or row.usd_per_1m.low is None
            else f"{usd(row.usd_per_1m.low)} to {usd(row.usd_per_1m.high)}",
            "once": None if row.cost.one_off_usd is None else usd(row.cost.one_off_usd),
            "cheaper from pass": row.break_even_passes or "-",
            "verdict": VERDICT_WORDS[row.verdict],
            "score": None if row.score is None else f"{row.score:.3f}",
        }
        for row in rows
    ]
