"""Builds `report/` in a run's folder from run.db: the page, and each figure as PNG, SVG and CSV."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from analysis.charts import run as figures
from analysis.charts.style import figure_style
from analysis.report import content
from analysis.report.files import FigureFolder
from analysis.report.input_sections import input_sections
from analysis.report.page import Section, render, table
from cloud.targets import target_of
from metrics import tables
from metrics.records import EpochRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from metrics.warnings import sentences


def build(run_folder: Path) -> Path:
    """Write `<run_folder>/report/`, replacing an older one, and return the page's path.

    The run may still be in progress. Raises metrics.store.database.StoreError if the run cannot be read, OSError if
    the report cannot be written.
    """
    with RunStore.open_reader(run_folder / "run.db") as store:
        run = RunNumbers.of(store)
        records: list[EpochRecord] = store.records("epochs")
        summary = summarise(run)
        provenance = {
            "versions": run.meta.versions,
            "plan": run.meta.plan,
            "experiment": run.meta.experiment,
        }
    target = run_folder / "report"
    fresh = Path(tempfile.mkdtemp(prefix=".report-", dir=run_folder))
    try:
        with figure_style():
            files = FigureFolder(fresh, prefix="", dpi=150, newline="\r\n")
            page = _page(run, records, summary, provenance, files)
        (fresh / "report.html").write_text(page, encoding="utf-8")
        (fresh / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        fresh.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target / "report.html"


def _page(
    run: RunNumbers,
    records: Sequence[EpochRecord],
    summary: dict[str, Any],
    provenance: dict[str, Any],
    files: FigureFolder,
) -> str:
    epochs, traffic, bill = tables.per_epoch(run), tables.traffic(run), tables.cost_lines(run)
    vms, rounds, losses = content.timeline_rows(run, records)
    learned = content.learning_rows(run, records)
    compared = content.comparison_rows(summary)
    costs = content.cost_rows(bill)
    imported = target_of(summary["target"]).from_logs
    counted = "IP bytes that left each VM, read from the kernel's socket counters"
    if imported:
        counted = "Bytes that left each VM according to its log"

    sections: list[Section] = []
    if compared:
        shown = [
            {
                "what": r["what"],
                "paper": f"{r['study']:.4g}",
                "this run": f"{r['ours']:.4g}",
                "difference": f"{r['ratio'] - 1:+.1%}",
            }
            for r in compared
        ]
        sections.append(
            files.section(
                "comparison",
                "Compared with the paper",
                "The published figures of this experiment, on their own basis (wall clock; "
                "the mean of two epochs), and this run's.",
                compared,
                figures.comparison(compared),
                table(shown, "The paper's figures and this run's", text=["what"]),
            )
        )
    if predicted := content.predicted_rows(summary):
        sections.append(
            Section(
                "Predicted before the run",
                "What the plan said of the epochs, at full scale, and what was measured. Dollars are those of VMs and of "
                "egress between peers; the prediction assumes no preemptions.",
                html=table(predicted, "Predicted and measured figures", text=["figure"]),
            )
        )
    elif summary["not_predicted"]:
        sections.append(
            Section("Predicted before the run", f"Nothing: {'; '.join(summary['not_predicted'])}.")
        )
    if vms:
        sections.append(
            files.section(
                "timeline",
                "Peers over time",
                "Each slot's VMs from request to end, and their averaging rounds, "
                f"by the clock of {'the logs' if imported else 'this machine'}.",
                [*vms, *rounds, *losses],
                figures.timeline(vms, rounds, losses),
                table(_peer_rows(summary), "Peers", text=["slot", "location"]),
            )
        )
    if epochs:
        sections.append(
            files.section(
                "epochs",
                "Calculation and communication",
                "Mean over the peers of each hivemind epoch, at full scale. Granularity is calculation time / communication "
                f"time; without stalls, it is that without the time in which steps waited for data."
                f"{content.more_peers_note(summary)}{content.samples_note(epochs, summary['target_batch_size'])}",
                epochs,
                figures.calc_comm(epochs),
                table(content.epoch_table(epochs), "Hivemind epochs", text=["remarks"]),
            )
        )
    if traffic:
        sections.append(
            files.section(
                "traffic",
                "Egress by destination",
                f"{counted}, at full scale.{_agreement(summary)}{content.traffic_note(traffic)}",
                traffic,
                figures.traffic_matrix(traffic),
                "<details><summary>Bytes and dollars by link</summary>"
                + table(content.traffic_table(traffic), "Bytes by link", text=["from", "to", "egress"])
                + "</details>",
            )
        )
    if costs:
        sections.append(
            files.section(
                "cost",
                "Cost",
                f"By the price book {summary['cost']['price_book']}, which is stored with the run. A sum with an "
                f"unknown price is unknown.{content.budget_line(summary)}",
                bill,
                figures.cost_stack(costs),
                "<details><summary>All lines of the bill</summary>"
                + table(content.bill_table(bill), "The bill", text=["kind", "what", "from", "to", "price"])
                + "</details>",
            )
        )
    if used := content.utilisation_rows(run):
        sections.append(
            files.section(
                "utilisation",
                "Utilisation of the VMs",
                content.utilisation_lead(run),
                used,
                figures.utilisation(used),
                "<details><summary>By VM</summary>"
                + table(content.utilisation_table(run), "Utilisation by VM", text=["VM"])
                + "</details>",
            )
        )
    sections += input_sections(run, files)
    if (covered := run.coverage) is not None:
        rows = tables.coverage(run)
        files.table("coverage", rows)
        sections.append(
            Section(
                "Coverage of the training data",
                content.coverage_lead(covered),
                html=table(content.coverage_table(covered), "Coverage", text=[])
                + '<p class="soft">Download the numbers: <a href="coverage.csv">CSV</a>.</p>',
            )
        )
    if joined := tables.joins(run):
        files.table("joins", joined)
        sections.append(
            Section(
                "Joins",
                content.JOINS,
                html=table(content.join_table(joined), "Joins", text=["slot", "from"])
                + '<p class="soft">Download the numbers: <a href="joins.csv">CSV</a>.</p>',
            )
        )
    if summary["preemptions"]["count"] or summary["pauses"]["count"] or summary["lost_work"]["restarts"]:
        taken = tables.preemptions(run)
        files.table("preemptions", taken)
        sections.append(
            Section(
                "Cost of preemptions",
                content.preemption_line(summary),
                html=table(content.preemption_table(taken), "Preemptions", text=["slot", "replaced by"])
                + '<p class="soft">Download the numbers: <a href="preemptions.csv">CSV</a>.</p>',
            )
        )
    noted = tables.checkpoints(run)
    if noted:
        files.table("checkpoints", noted)
        sections.append(
            Section(
                "Checkpoints",
                content.CHECKPOINTS,
                html=table(content.checkpoint_table(noted), "Checkpoints", text=["what", "slot", "name"])
                + '<p class="soft">Download the numbers: <a href="checkpoints.csv">CSV</a>.</p>',
            )
        )
    if learned:
        sections.append(
            files.section(
                "learning",
                "Learning",
                content.learning_lead(summary),
                learned,
                figures.learning(learned, summary["accuracy"]),
            )
        )
    if evaluated := content.evaluation_rows(summary):
        sections.append(_evaluation(summary, evaluated, files))
    if task := content.task_table(summary):
        sections.append(
            Section("Task", content.task_lead(summary), html=table(task, "Task", text=["what", "value"]))
        )
    sections.append(_provenance(summary, provenance))
    lead = (
        f"{len(summary['peers'])} peers, target batch size {summary['target_batch_size']:,}; "
        f"{summary['epochs']['measured']} measured epochs after {summary['epochs']['warmup']} of warm-up; "
        f"status: {summary['status']}{content.ended_by(summary)}{content.started_from(summary)}."
        if summary["target_batch_size"]
        else f"Status: {summary['status']}."
    )
    return render(
        content.title(summary),
        lead,
        content.basis_line(summary),
        sentences(run, basis=False),  # the page's first line is the basis
        content.cards(summary),
        sections,
    )


def _evaluation(summary: dict[str, Any], rows: list[dict[str, Any]], files: FigureFolder) -> Section:
    """The held-out figures: the last and the best of each; curves if more than one epoch was evaluated."""
    title = "Evaluation on held-out data"
    lead = "Figures of the task's evaluation, means over the peers that evaluated the epoch."
    lead += content.target_line(summary)
    html = table(content.evaluation_table(summary), "Held-out figures", text=["figure", "better is"])
    if len({row["epoch"] for row in rows}) > 1:
        lead += content.curve_note(summary)
        drawn = figures.evaluation(rows, summary["target_reached"])
        return files.section("evaluation", title, lead, rows, drawn, html)
    files.table("evaluation", rows)
    download = '<p class="soft">Download the numbers: <a href="evaluation.csv">CSV</a>.</p>'
    return Section(title, f"{lead} One epoch was evaluated.", html=html + download)


def _peer_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"slot": p["slot"], "location": p["location"], "VMs": p["vms"], "preemptions": p["preemptions"]}
        for p in summary["peers"]
    ]


def _agreement(summary: dict[str, Any]) -> str:
    both = summary["agreement"]
    if not both or both["difference"] is None:
        return ""
    return f" The switch's count differs by {abs(both['difference']):.2%}."


def _provenance(summary: dict[str, Any], provenance: dict[str, Any]) -> Section:
    dump = escape(json.dumps({"summary": summary, **provenance}, indent=1, default=str))
    return Section(
        "Provenance",
        "The resolved experiment, the plan, the versions and all numbers of this page, as JSON.",
        html=f'<details><summary>Show</summary><pre tabindex="0">{dump}</pre></details>',
    )
