"""The sections of a run's report on its input, for runs with a trace (`data.trace`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.charts import input as figures
from analysis.report.files import FigureFolder
from analysis.report.page import Section, table
from metrics.input_sums import BatchInput, OpInput, RunInput
from metrics.readable import number, size
from metrics.run import RunNumbers

_UNKNOWN = "unknown"


def input_sections(run: RunNumbers, files: FigureFolder) -> list[Section]:
    """Return the time by operation, and waits, delays and stalls. Empty without a trace."""
    found = run.input
    if found is None:
        return []
    sections: list[Section] = []
    if found.ops:
        rows = [_op_row(one) for one in found.ops]
        sections.append(
            files.section(
                "input_operations",
                "Input: time by operation",
                "Traced operations on the samples of all VMs, as measured, in the order in which a sample passes them. Bytes "
                f"are those of a sample after the operation, in memory.{_incomplete(found)}",
                rows,
                figures.operations(rows),
                table(_op_table(found.ops), "Operations", text=["operation"]),
            )
        )
    epochs = [{"epoch": epoch} | _row(one) for epoch, one in found.epochs if epoch is not None]
    if epochs:
        sections.append(
            files.section(
                "input_waiting",
                "Input: waits, delays and stalls",
                "Wait: the training asks for a batch until it gets it. Delay: a batch is ready until the training gets it. "
                "Stall: the load seconds of the steps. As measured; batches count in the epoch in which the training used "
                f"them.{_incomplete(found)}",
                epochs,
                figures.waiting(epochs),
                "<details><summary>By VM</summary>"
                + table(_vm_table(run, found), "Batches by VM", text=["VM"])
                + "</details>",
            )
        )
    return sections


def _op_row(one: OpInput) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__} | {"mean_wall_ms": 1e3 * one.wall_s / one.n}


def _row(one: BatchInput) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def _op_table(ops: Sequence[OpInput]) -> list[dict[str, Any]]:
    return [
        {
            "operation": one.op,
            "samples": f"{one.n:,}",
            "mean, ms": number(1e3 * one.wall_s / one.n),
            "wall s": number(one.wall_s),
            "CPU s": number(one.cpu_s),
            "bytes a sample": _UNKNOWN if one.bytes_out is None else size(one.bytes_out / one.n),
        }
        for one in ops
    ]


def _vm_table(run: RunNumbers, found: RunInput) -> list[Mapping[str, Any]]:
    files = {row.vm: row for row in found.traces}
    return [
        {
            "VM": run.slot(vm),
            "batches": f"{one.batches:,}",
            "fetch s": number(one.fetch_s),
            "collate s": number(one.collate_s),
            "wait s": number(one.wait_s),
            "delay s": number(one.delay_s),
            "stall s": number(one.stall_s),
            "out of order": one.out_of_order,
            "dropped events": f"{files[vm].dropped:,}",
            "damaged files": f"{files[vm].damaged} of {files[vm].files}",
        }
        for vm, one in found.vms
    ]


def _incomplete(found: RunInput) -> str:
    dropped, damaged = (sum(getattr(row, name) for row in found.traces) for name in ("dropped", "damaged"))
    if not dropped and not damaged:
        return ""
    return f" The trace is incomplete: {dropped:,} events were dropped, {damaged} files are damaged."
