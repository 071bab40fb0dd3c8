"""HTML of runs and studies for notebooks: a short table, preceded by a note on emulation, and the warnings.

Pure. All text from files is escaped; colours are left to the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from metrics.events.evaluation import evaluation_words
from metrics.figures import FIGURES, headlines
from metrics.readable import number, usd

_UNKNOWN = "unknown"
_GRANULARITY = FIGURES["granularity"].heading


def run_html(summary: Mapping[str, Any]) -> str:
    """A run: its main numbers with their intervals."""
    cost = summary["cost"]
    epochs = summary["epochs"]
    names = dict.fromkeys(str(name) for name in (summary["experiment"], summary["run_id"]) if name)
    rows = [
        ("status", str(summary["status"] or _UNKNOWN)),
        ("peers", str(len(summary["peers"]))),
        ("epochs", f"{epochs['measured']} measured, {epochs['warmup']} of warm-up"),
        *((figure.name, _estimate(known, figure.unit_of_run)) for figure, known in headlines(summary)),
        *([("held-out data", evaluation_words(summary["evaluation"]))] if summary["evaluation"] else []),
        ("cost", usd(cost["total_usd"])),
        ("cost of 1M samples", usd(summary["usd_per_1m_samples"])),
    ]
    warnings: list[str] = summary["warnings"]
    emulated = _emulated(warnings[0]) if summary["emulated"] and warnings else ""
    body = "".join(f'<tr><th scope="row">{escape(a)}</th><td>{escape(b)}</td></tr>' for a, b in rows)
    others = warnings[1:] if emulated else warnings
    return f"<div>{emulated}<table><caption>{escape(': '.join(names))}</caption>{body}</table>{_list('warning', others)}</div>"


def study_html(rows: Sequence[Mapping[str, Any]], emulated: Sequence[str], problems: Sequence[str]) -> str:
    """A study: one row per run. `emulated`: the names of emulated runs."""
    first = _emulated(f"Emulated: {', '.join(emulated)}.") if emulated else ""
    names = ("run", "model", "peers", "samples/s", "95 % interval", _GRANULARITY, "speed-up", "warnings")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _study_cells(row)) + "</tr>" for row in rows
    )
    return (
        f"<div>{first}<table><caption>{len(rows)} runs</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{_list('problem', problems)}</div>"
    )


def _study_cells(row: Mapping[str, Any]) -> list[str]:
    rate = row["sps"] if row["sps"] is not None else row["sps_wall"]
    interval = (
        _UNKNOWN if row["sps_low"] is None else f"{number(row['sps_low'])} to {number(row['sps_high'])}"
    )
    return [
        f"{row['label']} ({row['run_id']})" if row["label"] else str(row["run_id"]),
        str(row["model"] or _UNKNOWN),
        _UNKNOWN if row["peers"] is None else str(row["peers"]),
        number(rate),
        interval,
        number(row["granularity"]),
        number(row["speedup"]),
        str(len(row["warnings"])),
    ]


def _emulated(sentence: str) -> str:
    return f"<p><strong>{escape(sentence)}</strong></p>"


def _list(what: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return f"<p>No {what}.</p>"
    count = f"{len(sentences)} {what}{'' if len(sentences) == 1 else 's'}"
    items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
    return f"<details><summary>{escape(count)}</summary><ul>{items}</ul></details>"


def _estimate(estimate: Mapping[str, Any] | None, unit: str) -> str:
    if estimate is None:
        return _UNKNOWN
    value = f"{number(estimate['value'])} {unit}".strip()
    if estimate["low"] is None:
        return f"{value} (n = {estimate['n']}: no interval)"
    return f"{value} ({number(estimate['low'])} to {number(estimate['high'])}, n = {estimate['n']})"
