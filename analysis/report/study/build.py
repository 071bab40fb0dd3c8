"""Builds the study report: one page without external resources, and each figure as CSV, PNG and SVG."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from analysis.charts.style import figure_style
from analysis.compare.held_out import run_count
from analysis.compare.paper import PAPER_BASIS, Reference, printed_runs, references
from analysis.compare.rows import Row, difference_rows, unknown_rows
from analysis.compare.run_figures import COST_KINDS, StudyRun, distinct, study_run
from analysis.replay import ReadRun, read_folder, with_speedups
from analysis.report.files import FigureFolder, write
from analysis.report.page import Card, Section, render, table
from analysis.report.study.comparison import Compared, cards, comparison, unlike_published
from analysis.report.study.differences import (
    configuration_table,
    curves_section,
    difference_cards,
    difference_sections,
    long_rows,
)
from analysis.report.study.expectations import expected_section
from analysis.report.study.held_out import evaluation_rows, evaluation_section, held_out_section
from analysis.report.study.options import gain_cards, gain_section
from analysis.report.study.sections import AGAINST_PEERS, Drawn, sections
from analysis.report.study.terms import terms
from analysis.sources import opened
from cloud.prices.book import PriceBook
from cloud.prices.book import load as load_book
from metrics.more_peers import LEAST_GAIN, MorePeers
from metrics.readable import number, size, usd
from metrics.store.database import StoreError
from metrics.traffic import CLASS_WORDS

_DPI = 120
_NAMED = 12  # at most this many runs are named with a figure; beyond that they are counted
_PAPER_BOOK = "study-2023-04"


def load(
    targets: Sequence[Path],
    book: PriceBook,
    *,
    index: Path | None = None,
    only: Sequence[str] = (),
    paper: bool = False,
) -> tuple[list[StudyRun], tuple[str, ...]]:
    """Load the runs of folders of logs, exports or run folders; also returns the problems.

    `book` prices the VMs of imported logs; our own runs keep their book. `paper`: also compute dollars by the paper's
    assumptions. Raises ImportFailed if there is no run.
    """
    read: list[ReadRun] = []
    problems: list[str] = []
    with opened(targets, index=index, only=only, book=book) as found:
        problems += found.problems
        for source in found.runs:
            try:
                read.append(read_folder(source.folder))
            except StoreError as error:
                problems.append(f"{source.run_id}: {error}")
    paper_book = load_book(_PAPER_BOOK) if paper else None
    rows = with_speedups([one.row for one in read])
    runs = [study_run(row, one.run, paper_book) for row, one in zip(rows, read, strict=True)]
    return distinct(runs), tuple(problems)


def build(
    runs: Sequence[StudyRun],
    output: Path,
    book: PriceBook,
    *,
    paper: bool = False,
    problems: Sequence[str] = (),
    compared: Compared | None = None,
) -> Path:
    """Write the page `output` and its files in the folder `<output's stem>_files` next to it; returns `output`.

    `paper`: draw the paper's own comparisons, with its printed figures for runs without logs. `compared`: the
    comparison with the published figures, as the first section. Raises OSError if something cannot be written.
    """
    folder = output.with_name(f"{output.stem}_files")
    files = FigureFolder(folder, prefix=f"{folder.name}/", dpi=_DPI, newline="\n")
    every = _as_compared(runs, compared) if compared else list(runs)
    own = compared and compared.differences and not compared.published
    beside = () if own else references()  # your own runs are not shown with the paper's
    if paper:
        every = distinct([*runs, *printed_runs(book, runs)])
    first = _first(compared) if compared else None
    parts = [*([first] if first else []), *sections(every, paper, beside)]
    if not beside and len({run.peers for run in runs}) == 1:
        parts = [part for part in parts if part.name not in AGAINST_PEERS]
    folder.mkdir(parents=True, exist_ok=True)
    shown: list[Section] = []
    if compared and compared.differences:
        shown += difference_sections(compared.differences)
        files.table("differences", long_rows(compared.differences))
        files.table("configuration", configuration_table(compared.differences))
        parts = [*(one for one in (curves_section(compared.differences),) if one.rows), *parts]
        if unlike := unlike_published(compared):
            shown.append(Section("Not beside the paper", " ".join(unlike)))
        if not compared.published and compared.missing:  # else the comparison with the paper names them
            shown.append(
                Section("Left out", " ".join(f"{name}: {why}." for name, why in compared.missing.items()))
            )
    if compared and compared.held_out:
        shown.append(held_out_section(compared.held_out))
    if not (compared and compared.differences) and (evaluated := evaluation_section(runs)):
        shown.append(evaluated)
        files.table("held-out", evaluation_rows(runs))
    if compared and compared.gains and compared.gains.verdicts:
        shown.append(expected_section(compared.gains.verdicts))
    with figure_style(), warnings.catch_warnings():
        # Matplotlib's font lacks some letters of names: the page and the SVG show them, the PNG has boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        for part in parts:
            shown.append(_written(part, files, every))
    headlines: list[Card] = []
    if compared:
        headlines = gain_cards(compared.gains) if compared.gains else cards(compared)
    if compared and compared.differences:
        headlines = [*difference_cards(compared.differences), *(headlines if compared.published else ())]
    options = bool(compared and compared.gains)
    write(output, page_html(every, shown, paper, problems, headlines, options, beside).encode())
    return output


def _as_compared(runs: Sequence[StudyRun], compared: Compared) -> list[StudyRun]:
    """The runs, without published figures where the comparison has none: it alone decides which are the paper's."""
    without = {row.run_id for row in compared.rows if not row.published}
    return [replace(run, published=None) if run.run_id in without else run for run in runs]


def _first(compared: Compared) -> Drawn | None:
    """The first section: what options gain if there is a baseline, otherwise the comparison with the paper."""
    return gain_section(compared.gains) if compared.gains else comparison(compared)


def page_html(
    runs: Sequence[StudyRun],
    shown: Sequence[Section],
    paper: bool,
    problems: Sequence[str],
    headlines: Sequence[Card] = (),
    options: bool = False,
    beside: Sequence[Reference] = (),
) -> str:
    """Render the page around the figures' sections, with `headlines` before its own cards.

    `options`: the runs use options that the paper did not use, so their difference from it is not a headline.
    `beside`: centralised systems, of which those of the runs' models are listed.
    """
    logs = [run for run in runs if run.origin != "printed"]
    title = "The paper, from its own logs" if paper else f"{run_count(len(logs))} compared"
    lead = (
        "The paper's comparisons: first on its own basis, then on one clock."
        if paper
        else "Every rate is by wall clock, every byte is billed by its destination."
    )
    extra = [
        _more_peers_section(runs),
        _unknown_section(runs, paper),
        _reference_section(runs, beside),
        _run_section(runs),
    ]
    cards = [*headlines, *_cards(runs, not options)]
    sections = [*shown, *(e for e in extra if e)]
    text = " ".join(
        [*(f"{c.name} {c.value} {c.more}" for c in cards)]
        + [f"{s.title} {s.lead} {s.svg} {s.html}" for s in sections]
    )
    return render(
        title,
        lead,
        _first_line(runs),
        list(problems),
        cards,
        sections,
        terms(runs, paper, text),
    )


def _written(part: Drawn, files: FigureFolder, runs: Sequence[StudyRun]) -> Section:
    """Draw a section's figure and write its three files."""
    lead = " ".join(text for text in (part.lead, _origins(part.rows, runs)) if text)
    numbers = table([_shown(row) for row in part.rows], f"{part.heading}: the numbers", text=_TEXT)
    html = table(part.table, part.caption, text=_TEXT) if part.table else ""
    if part.notes:
        html += f'<ul class="soft">{"".join(f"<li>{escape(note)}</li>" for note in part.notes)}</ul>'
    html += f"<details><summary>The numbers of this figure</summary>{numbers}</details>"
    label = f"{part.heading}. The numbers are in the table after the figure."
    return files.section(part.name, part.heading, lead, part.rows, part.draw(), html, label)


_TEXT = ("name", "panel", "group", "origin", "clock", "note", "kind", "source", "egress", "cost", "src", "dst", "figure", "places",
         "relative_to", "what", "why", "run", "model", "basis", "gpus", "judged", "host",
         "experiment", "label", "against", "run_ids", "ratio_n_of", "loss", "x_label", "run_id")  # fmt: skip


_KIND_WORDS = {**CLASS_WORDS, **COST_KINDS}
_BASIS_WORDS = {PAPER_BASIS: "the paper's"}


def _shown(row: Row) -> dict[str, Any]:
    """Format a row for the page's table: short numbers, each interval in one cell."""
    cells: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("_high"):
            continue
        if key.endswith("_low"):
            low, high = value, row[f"{key.removesuffix('_low')}_high"]
            name = f"{key.removesuffix('_low')}, 95 %"
            cells[name] = "-" if low is None or high is None else f"{number(low)} to {number(high)}"
        elif key in ("difference", "relative"):
            cells[key] = None if value is None else f"{value:+.2%}"
        elif key == "n":
            cells[key] = "-" if value is None else value
        elif key in ("kind", "class"):
            cells["cost" if key == "kind" else "egress"] = _KIND_WORDS.get(value, value)
        elif key == "basis":
            cells[key] = _BASIS_WORDS.get(value, value)
        elif key == "bytes":
            cells["sent"] = size(value)
        elif key in ("usd", "usd_per_h", "usd_per_vm_h", "usd_per_1m"):
            cells[key] = None if value is None else usd(value)
        elif isinstance(value, bool):
            cells[key] = "yes" if value else ""
        else:
            cells[key] = number(value) if isinstance(value, float) else value
    return cells


def _origins(rows: Sequence[Row], runs: Sequence[StudyRun]) -> str:
    """Say how many of a figure's runs have which origin: `Emulated: 2 runs; as printed: 8.`"""
    counted: dict[str, set[str]] = {}
    for row in rows:
        if origin := row.get("origin"):
            name = str(row.get("name") or row.get("experiment"))
            counted.setdefault(str(origin), set()).update(str(row.get("run_ids") or "").split() or [name])
    if not counted:  # rows of all runs together
        for run in runs:
            if run.origin != "printed":
                counted.setdefault(run.origin, set()).add(run.name)
    words = {
        "emulated": "emulated",
        "own": "measured on rented VMs",
        "log": "from logs",
        "printed": "as printed",
        "recomputed": "recomputed from the paper's logs",
    }
    text = "; ".join(
        f"{said}: {run_count(len(counted[origin]))}" for origin, said in words.items() if origin in counted
    )
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _range(scales: Sequence[float]) -> str:
    """Format a range of scales: `1/8`, or `1/2.46 to 1/64`."""
    low, high = min(scales), max(scales)
    return f"1/{low:g}" if low == high else f"1/{low:.3g} to 1/{high:.3g}"


def _first_line(runs: Sequence[StudyRun]) -> str:
    """Return the page's first line: which runs were emulated, measured, replayed or only printed."""
    count = {
        origin: [run for run in runs if run.origin == origin]
        for origin in ("emulated", "own", "log", "printed")
    }
    sentences: list[str] = []
    if count["emulated"]:
        used = [run.scales for run in count["emulated"]]
        scales = ", ".join(
            f"{name} {_range([getattr(s, name) for s in used])}" for name in ("bytes", "samples", "time")
        )
        names = [run.name for run in count["emulated"]]
        who = "all" if len(names) == len(runs) > _NAMED else ", ".join(names)
        sentences.append(f"Emulated: {who} (scales {scales}; times, bytes and dollars are at full scale).")
    late = [f"{run.name} ({run.too_busy})" for run in runs if run.too_busy]
    if late:
        sentences.append(
            f"The machine was too busy during {'; '.join(late)}: times of these runs may be wrong."
        )
    if count["own"]:
        sentences.append(f"Measured on rented VMs: {run_count(len(count['own']))}.")
    if count["log"]:
        sentences.append(f"Replayed from imported logs, not run by orch: {run_count(len(count['log']))}.")
    if count["printed"]:
        sentences.append(f"As printed in the paper, without logs: {run_count(len(count['printed']))}.")
    return " ".join(sentences)


def _cards(runs: Sequence[StudyRun], with_paper: bool) -> list[Card]:
    """Headlines: the number of runs, the largest speed-up on both bases, the largest difference from the paper."""
    cards = [Card("Runs", str(len(runs)), ", ".join(sorted({run.model for run in runs})))]
    for model in sorted({run.model for run in runs}):
        best = max(
            (r for r in runs if r.model == model and r.value("speedup")),
            key=lambda r: r.value("speedup") or 0,
            default=None,
        )
        if best is not None:
            timed = best.value("speedup_phase_timed")
            more = "" if timed is None else f"; against the phase-timed rate {timed:.3g}"
            cards.append(
                Card(
                    f"Speed-up, {model}",
                    f"{best.value('speedup'):.3g}",
                    f"{best.name}: {best.peers} peers, one clock{more}",
                )
            )
    known = [r for r in difference_rows(runs) if r["difference"] is not None] if with_paper else []
    if known:
        worst = max(known, key=lambda r: abs(r["difference"]))
        cards.append(
            Card(
                "Largest difference from the paper",
                f"{worst['difference']:+.2%}",
                f"{worst['name']}: {worst['figure']}",
            )
        )
    return cards


def _more_peers_section(runs: Sequence[StudyRun]) -> Section | None:
    known = [(run, run.more_peers) for run in runs if run.more_peers is not None]
    if not known:
        return None
    rows = [
        {
            "run": run.name,
            "peers": more.peers,
            "granularity": number(more.granularity, 3),
            "samples/s with twice the peers": "-" if more.factor is None else f"{more.factor:.2f} times",
            "more stop paying at, peers": "unknown" if more.by == "unknown" else _stops(more),
            "by": more.by,
        }
        for run, more in known
    ]
    lead = (
        "Granularity g is mean calculation / mean communication. With twice the peers calculation takes half as long and, by the "
        "paper's rule, a round as long as before: (g + 1) / (g / 2 + 1) times the samples/s. More stop paying where a doubling "
        f"gives less than {100 * LEAST_GAIN:.0f} %: by the prediction of a run's plan, otherwise by the rule, which leaves "
        "out that a round of many peers takes longer."
    )
    return Section("More peers", lead, html=table(rows, "What more peers would give", text=_TEXT))


def _stops(more: MorePeers) -> str:
    return f"more than {more.most}" if more.stops_at is None else str(more.stops_at)


def _unknown_section(runs: Sequence[StudyRun], paper: bool) -> Section | None:
    found: dict[tuple[str, str], list[str]] = {}
    for row in unknown_rows(runs, paper):
        found.setdefault((row["what"], row["why"]), []).append(row["run"])
    if not found:
        return None
    rows = [{"run": ", ".join(names), "what": what, "why": why} for (what, why), names in found.items()]
    lead = "Figures that these runs' records do not give are not drawn and never counted as 0."
    return Section("Not known", lead, html=table(rows, "Unknown figures and why", text=_TEXT))


def _reference_section(runs: Sequence[StudyRun], beside: Sequence[Reference]) -> Section | None:
    models = {run.model for run in runs}
    rows = [
        {"name": r.name, "model": r.model, "gpus": r.gpus, "$/h": str(r.usd_per_h), "samples/s": f"{r.sps:g}",
         "clock": r.clock, "basis": _BASIS_WORDS.get(r.basis, r.basis), "$/1M": f"{r.usd_per_1m:.3f}",
         "note": r.note, "source": r.source}
        for r in beside if r.model in models
    ]  # fmt: skip
    if not rows:
        return None
    lead = "The paper's figures of centralised systems, each with the clock of its rate and what its price includes."
    return Section("Centralised baselines", lead, html=table(rows, "Centralised baselines", text=_TEXT))


def _run_section(runs: Sequence[StudyRun]) -> Section:
    rows = [
        {"run": run.name, "run id": run.run_id, "model": run.model, "gpus": f"{run.peers} x {run.accelerator}",
         "places": run.spread, "origin": run.origin, "prices": run.cost_basis, "warnings": len(run.warnings)}
        for run in runs
    ]  # fmt: skip
    said: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.warnings:
            said.setdefault(warning, []).append(run.name)
    warned = "".join(
        f"<li>{escape(warning)} <span class='soft'>({escape(', '.join(names))})</span></li>"
        for warning, names in said.items()
    )
    html = table(rows, "The runs", text=(*_TEXT, "run id", "prices"))
    if warned:
        html += f"<details><summary>Warnings, each with its runs</summary><ul>{warned}</ul></details>"
    return Section("Runs", "The origin of each point, and the warnings from reading the records.", html=html)
