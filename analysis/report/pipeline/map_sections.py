"""The section on a map: native functions of each operation."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from analysis.charts import pipeline as figures
from analysis.report.files import FigureFolder
from analysis.report.page import Section, table
from metrics.readable import number

FUNCTIONS_OF_OP = 4
"""Functions of an operation that the figure shows."""
_LEAST_PERCENT = 1.0


def map_sections(mapped: Mapping[str, Any], files: FigureFolder) -> list[Section]:
    """Return the section of a map that `orch pipeline map` wrote."""
    rows = function_rows(mapped)
    if not rows:
        return []
    sampled = mapped["unit"] == "samples"
    how = (
        f"perf took {mapped['frequency_hz']:,} samples/s of the process for {number(mapped['seconds'])} s; each belongs to the "
        "operation that ran at its time. Lines: 95 % intervals."
        if sampled
        else "Instructions, counted by callgrind."
    )
    lead = (
        f"{how} Shown are at most {FUNCTIONS_OF_OP} functions of each operation, from {_LEAST_PERCENT:g} % of it. A library "
        "without symbols is named in place of its functions."
    )
    html = table(_op_table(mapped), "Operations", text=["operation", "first function", "library"])
    for event, reason in mapped["unknown_events"].items():
        html += f'<p class="soft">{escape(event)}: unknown ({escape(reason)}).</p>'
    if (lotus := mapped["lotus"]) and lotus["error"] is not None and lotus["unmapped"] is not None:
        html += (
            f'<p class="soft">LotusMap\'s method, which runs each operation alone, attributes {100 * lotus["error"]:.1f} % of '
            f"the samples otherwise and {100 * lotus['unmapped']:.1f} % to no operation.</p>"
        )
    return [files.section("map", "Native functions by operation", lead, rows, figures.functions(rows), html)]


def function_rows(mapped: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first functions of each operation, in the order of operations; shares in per cent of the operation."""
    rows: list[dict[str, Any]] = []
    for op in mapped["ops"]:
        own = [row for row in mapped["functions"] if row["op"] == op["op"]]
        own.sort(key=lambda row: -row["count"])
        rows += [
            {
                "op": row["op"],
                "function": row["function"],
                "library": row["library"],
                "count": row["count"],
                "share_percent": 100 * row["share"],
                "low_percent": None if row["low"] is None else 100 * row["low"],
                "high_percent": None if row["high"] is None else 100 * row["high"],
            }
            for row in own[:FUNCTIONS_OF_OP]
            if 100 * row["share"] >= _LEAST_PERCENT
        ]
    return rows


def _op_table(mapped: Mapping[str, Any]) -> list[dict[str, Any]]:
    events = tuple(dict.fromkeys(event for op in mapped["ops"] for event in op["events"]))
    first = {row["op"]: row for row in reversed(function_rows(mapped))}
    return [
        {
            "operation": op["op"],
            "calls": f"{op['calls']:,}",
            mapped["unit"]: f"{op['count']:,}",
            "share of all": f"{100 * op['share']:.1f} %",
            "wall, ms": "-" if op["wall_ns"] is None else number(op["wall_ns"] / 1e6),
            "first function": first[op["op"]]["function"] if op["op"] in first else "-",
            "library": first[op["op"]]["library"] if op["op"] in first else "-",
            **{
                event: None if op["events"].get(event) is None else f"{op['events'][event]:,}"
                for event in events
            },
        }
        for op in mapped["ops"]
    ]
