"""Builds the report on an input: the page, and each figure as PNG, SVG and CSV."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from html import escape
from pathlib import Path

from analysis.charts.style import figure_style
from analysis.report.files import FigureFolder
from analysis.report.input_sections import input_sections
from analysis.report.page import Card, Section, render
from analysis.report.pipeline.map_sections import function_rows, map_sections
from analysis.report.pipeline.offload_sections import offload_cards, offload_sections
from analysis.report.pipeline.parts import Parts
from analysis.report.pipeline.plan_sections import plan_sections
from analysis.report.pipeline.profile_sections import profile_sections
from analysis.report.pipeline.trace_sections import trace_sections
from metrics.readable import number, usd

PAGE = "report.html"
_FIGURES = (
    *("operations", "waiting", "map", "strategies", "options", "input_operations", "input_waiting"),
    *("shrinking", "benefit", "policies", "cores", "bill"),
)
_NAMES = {PAGE} | {f"{name}.{kind}" for name in _FIGURES for kind in ("csv", "png", "svg")}
"""All files that a report may have."""


def build(parts: Parts, folder: Path) -> Path:
    """Write the page and its figures into `folder`, replacing an older report there, and return the page's path.

    Raises OSError if it cannot be written, or holds anything but a report of this kind.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and (others := sorted({path.name for path in folder.iterdir()} - _NAMES)):
        raise FileExistsError(
            errno.EEXIST, f"it holds {others[0]}, which is not of such a report", str(folder)
        )
    fresh = Path(tempfile.mkdtemp(prefix=".report-", dir=folder.parent))
    try:
        with figure_style():
            page = page_html(parts, FigureFolder(fresh, prefix="", dpi=150, newline="\r\n"))
        (fresh / PAGE).write_text(page, encoding="utf-8")
        fresh.chmod(0o755)
        for name in _NAMES if folder.exists() else ():
            (folder / name).unlink(missing_ok=True)
        os.replace(fresh, folder)  # an empty folder is replaced
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder / PAGE


def page_html(parts: Parts, files: FigureFolder) -> str:
    """Render the page and write its figures' files."""
    sections: list[Section] = []
    if parts.run is not None:
        sections += input_sections(parts.run, files)
    elif parts.trace is not None:
        sections += trace_sections(parts.trace, files)
    if parts.map is not None:
        sections += map_sections(parts.map, files)
    if parts.profile is not None:
        sections += profile_sections(parts.profile, files)
    if parts.plan is not None:
        sections += plan_sections(parts.plan, files)
    if parts.offload is not None:
        sections += offload_sections(parts.offload, files)
    if parts.missing:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in parts.missing)
        sections.append(Section("Not measured", "These parts are missing.", html=f"<ul>{items}</ul>"))
    return render(
        f"The input of {parts.target}",
        "Where its time goes, what each remedy delivers, and what it pays."
        if parts.offload is None
        else "Which samples shrink, and what it pays to run their first operations next to the storage.",
        _basis(parts),
        parts.warnings,
        _cards(parts),
        sections,
    )


def _basis(parts: Parts) -> str:
    """Where and when each part was measured."""
    if parts.offload is not None:
        return f"A profile of {len(parts.offload.profile.keys):,} samples. Passes and dollars are predicted."
    found: list[str] = []
    if parts.run is not None:
        found.append(f"trace of the run {parts.run.meta.run_id}")
    for name, document in (("trace", parts.trace), ("map", parts.map)):
        if document is not None:
            found.append(f"{name} on {document['machine']}, {document['measured_at']}")
    if (profile := parts.profile) is not None:
        made = ", generated samples" if profile.generated else ""
        found.append(f"profile on {profile.machine} ({profile.cores} cores), {profile.measured_at}{made}")
    return f"Measured: {'; '.join(found)}. Dollars are predicted." if found else "Nothing was measured."


def _cards(parts: Parts) -> list[Card]:
    cards: list[Card] = [] if parts.offload is None else offload_cards(parts.offload)
    if parts.trace is not None and parts.run is None:
        known = [one for one in parts.trace["traces"] if one["samples_per_s"] is not None]
        if known:
            best = max(known, key=lambda one: one["samples_per_s"])
            limits = best["samples_per_s_interval"]
            more = (
                "interval unknown" if limits is None else f"{number(limits[0])} to {number(limits[1])} (95 %)"
            )
            cards.append(
                Card(
                    "Input delivers",
                    f"{number(best['samples_per_s'])} samples/s",
                    f"{'1 worker' if best['workers'] == 1 else str(best['workers']) + ' workers'}; {more}",
                )
            )
            alone = min(parts.trace["traces"], key=lambda one: one["workers"])
            if alone["ops"]:
                slow = max(alone["ops"], key=lambda op: op["mean_ms"])
                cards.append(
                    Card("Slowest operation", slow["name"], f"{number(slow['mean_ms'])} ms a sample")
                )
    if parts.map is not None and parts.map["ops"]:
        first = max(parts.map["ops"], key=lambda op: op["count"])
        functions = [row for row in function_rows(parts.map) if row["op"] == first["op"]]
        if functions:
            top = functions[0]
            cards.append(
                Card(
                    "First function",
                    top["function"],
                    f"{top['share_percent']:.0f} % of {first['op']}, {top['library']}",
                )
            )
    if parts.profile is not None:
        fastest = max(parts.profile.measurements, key=lambda m: m.delivered_sps.value)
        where = f"stored after {fastest.after}" if fastest.after else "nothing stored"
        cards.append(
            Card(
                "Fastest strategy",
                fastest.strategy.label,
                f"{number(fastest.delivered_sps.value)} samples/s, {where}",
            )
        )
    for best in () if parts.plan is None else parts.plan.plan.best:
        passes = "1 pass" if best.row.cost.passes == 1 else f"{best.row.cost.passes} passes"
        price = (
            "unknown" if best.row.usd_per_1m is None else f"{usd(best.row.usd_per_1m.value)} per 1M samples"
        )
        nothing = best.row is best.baseline
        cards.append(Card(f"{passes}, cheapest", price, "nothing pays" if nothing else best.row.label))
    return cards
