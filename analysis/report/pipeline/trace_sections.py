"""The sections on a trace: time by operation, waits and delays by workers, advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from analysis.charts import input as input_figures
from analysis.charts import pipeline as figures
from analysis.report.files import FigureFolder
from analysis.report.page import Section, table
from metrics.readable import number, size

Document = Mapping[str, Any]


def trace_sections(trace: Document, files: FigureFolder) -> list[Section]:
    """Return the sections of a trace that `orch pipeline trace` wrote. Operations are those with the fewest workers."""
    traces = trace["traces"]
    if not traces:
        return []
    fewest = min(traces, key=lambda one: one["workers"])
    sections: list[Section] = []
    if rows := operation_rows(fewest):
        lead = (
            f"{_workers(fewest)}, {_streams(fewest['streams'])}. The wall time of an operation holds what it waits for Python's "
            f"lock and for the CPU. {_data(trace)}"
        )
        figure = input_figures.operations(rows, "seconds of 1,000 samples")
        html = table(_operation_table(rows), "Operations", text=["operation"])
        sections.append(files.section("operations", "Time by operation", lead, rows, figure, html))
    rows = worker_rows(traces)
    lead = (
        "Wait: the consumer asks for a batch until it gets it. Delay: a batch is ready until the consumer gets it. The consumer "
        "does nothing else, so it waits nearly always, and there are no stalls of a training: a run's trace has these."
    )
    sections.append(
        files.section(
            "waiting",
            "Samples/s, waits and delays",
            lead,
            rows,
            figures.workers(rows),
            table(_worker_table(rows), "By workers", text=["workers"]) + _advice(trace["advice"]),
        )
    )
    return sections


def operation_rows(one: Document) -> list[dict[str, Any]]:
    """Rows of the operations of one trace; seconds are those of 1,000 samples, which are a sample's milliseconds."""
    return [
        {
            "op": op["name"],
            "n": op["n"],
            "wall_s": op["mean_ms"],
            "p90_s": op["p90_ms"],
            "cpu_s": None if op["cpu_s"] is None else 1e3 * op["cpu_s"] / op["n"],
            "share_below_10ms": op["share_below_10ms"],
            "share_below_100us": op["share_below_100us"],
            "mean_bytes_out": op["mean_bytes_out"],
        }
        for op in one["ops"]
    ]


def worker_rows(traces: Sequence[Document]) -> list[dict[str, Any]]:
    """One row per trace; wait and delay are means of a batch."""
    rows: list[dict[str, Any]] = []
    for one in traces:
        low, high = one["samples_per_s_interval"] or (None, None)
        batches = one["batches"]
        rows.append(
            {
                "name": _workers(one),
                "samples_per_s": one["samples_per_s"],
                "samples_per_s_low": low,
                "samples_per_s_high": high,
                "cpu_s": one["cpu_s"],
                "batches": batches["n"],
                "wait_s": _mean(batches["wait_s"], batches["n"]),
                "delay_s": _mean(batches["delay_s"], batches["n"]),
                "share_wait_over_500ms": batches["share_wait_over_500ms"],
                "share_delay_over_500ms": batches["share_delay_over_500ms"],
                "preprocess_mean_s": None if batches["mean_ms"] is None else batches["mean_ms"] / 1e3,
                "out_of_order": batches["out_of_order"],
            }
        )
    return rows


def _mean(total: float | None, n: int) -> float | None:
    return None if total is None or not n else total / n


def _workers(one: Document) -> str:
    kind = (
        one["worker_kind"]
        if one["workers"] == 1
        else {"process": "processes"}.get(one["worker_kind"], "threads")
    )
    return f"{one['workers']} {kind}{'' if one['in_order'] else ', not in order'}"


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _data(trace: Document) -> str:
    made = "Generated samples" if trace["generated"] else f"Samples of {trace['endpoint']}"
    link = trace["link"]
    over = "" if link is None else f", over {link['rate_mbps']:g} Mb/s a stream and {link['rtt_ms']:g} ms"
    return f"{made}{over}; {trace['batch_size']} a batch."


def _operation_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "operation": row["op"],
            "samples": f"{row['n']:,}",
            "mean, ms": number(row["wall_s"]),
            "P90, ms": number(row["p90_s"]),
            "CPU, ms": number(row["cpu_s"]),
            "under 10 ms": _percent(row["share_below_10ms"]),
            "under 100 us": _percent(row["share_below_100us"]),
            "bytes out": size(row["mean_bytes_out"]),
        }
        for row in rows
    ]


def _worker_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "workers": row["name"],
            "samples/s": number(row["samples_per_s"]),
            "95 %": "unknown"
            if row["samples_per_s_low"] is None
            else f"{number(row['samples_per_s_low'])} to {number(row['samples_per_s_high'])}",
            "batches": row["batches"],
            "preprocessing of a batch, s": number(row["preprocess_mean_s"]),
            "wait, s": number(row["wait_s"]),
            "delay, s": number(row["delay_s"]),
            "waits over 0.5 s": _percent(row["share_wait_over_500ms"]),
            "delays over 0.5 s": _percent(row["share_delay_over_500ms"]),
            "out of order": row["out_of_order"],
            "CPU s": number(row["cpu_s"]),
        }
        for row in rows
    ]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f} %"


def _advice(advice: Sequence[Document]) -> str:
    if not advice:
        return '<p class="soft">No advice: no rule applies.</p>'
    items = "".join(f"<li>{escape(_of(one) + one['sentence'])}</li>" for one in advice)
    return f"<p><strong>Advice</strong></p><ul>{items}</ul>"


def _of(advice: Document) -> str:
    return f"With {advice['of_workers']} workers: " if (advice["of_workers"] or 0) > 1 else ""
