"""The operations of an input pipeline and its trace as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.words import counted

_LONGEST = 60  # characters of the parameters in the table
_FINGERPRINT = 12
_PLURAL = {"thread": "threads", "process": "processes"}


def operations_text(document: Mapping[str, Any]) -> str:
    """What `orch pipeline show` prints."""
    rows = document["operations"]
    lines = [f"{_title(document)}: {counted(len(rows), 'operation')}{_first_storable(document)}"]
    if document["samples"]:
        made = ", generated" if document["generated"] else ""
        lines.append(
            f"A sample has {_bytes(document['mean_bytes_stored'])} bytes in its shard "
            f"(mean of {document['samples']}{made})."
        )
    if document["bad_samples"]:
        lines.append(f"Left out: {counted(document['bad_samples'], 'bad sample')} (data.bad_samples: skip).")
    measured = bool(document["samples"])
    shown = [
        {
            "operation": row["name"],
            "field": row["field"] if row["into"] == row["field"] else f"{row['field']} to {row['into']}",
            "takes": row["takes"],
            "gives": row["gives"],
            "random": row["random"],
            "storable": _storable(row),
            "bytes_out": _bytes(row["mean_bytes_out"]),
            "fingerprint": row["fingerprint"][:_FINGERPRINT],
        }
        for row in rows
    ]
    columns = [
        "operation",
        "field",
        "takes",
        "gives",
        "random",
        "storable",
        *(["bytes_out"] if measured else []),
        "fingerprint",
    ]
    lines += ["", rows_text("", shown, columns, Format.table)]
    made_of = [
        {
            "operation": row["name"],
            "parameters": _parameters(row),
            "libraries": " ".join(f"{name} {version}" for name, version in row["libraries"].items()) or "-",
        }
        for row in rows
    ]
    lines.append(rows_text("", made_of, ("operation", "parameters", "libraries"), Format.table))
    return "\n".join(lines)


def trace_text(document: Mapping[str, Any]) -> str:
    """What `orch pipeline trace` prints."""
    lines = [_title(document), *_what(document)]
    for one in document["traces"]:
        lines += ["", _heading(one, document), ""]
        lines.append(rows_text("", _ops(one), _OP_COLUMNS, Format.table))
        lines += _batch_lines(one["batches"])
        if one["busy_share"] is not None:
            share = _percent(one["busy_share"])
            rest = "; in the rest they waited for samples to be read or taken" if share != "100" else ""
            lines.append(f"Workers spent {share} % of the time in operations{rest}.")
    if len(document["traces"]) > 1:
        rows = [
            {
                "workers": one["workers"],
                "samples/s": one["samples_per_s"],
                "cpu_s": one["cpu_s"],
                "batch_mean_ms": one["batches"]["mean_ms"],
                "wait_s": one["batches"]["wait_s"],
                "out_of_order": one["batches"]["out_of_order"],
            }
            for one in document["traces"]
        ]
        lines += ["", "By number of workers:", "", rows_text("", rows, tuple(rows[0]), Format.table).rstrip()]
    lines += [
        "",
        *(
            [f"- {_of(a, document)}{a['sentence']}" for a in document["advice"]]
            or ["No advice: no rule applies."]
        ),
    ]
    return "\n".join(lines) + "\n"


_OP_COLUMNS = ("operation", "n", "mean_ms", "p90_ms", "<10_ms_%", "<100_us_%", "cpu_s", "bytes_out")


def _ops(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    timings = [*one["ops"], *([one["collate"]] if one["collate"] else [])]
    rows = [
        {
            "operation": timing["name"],
            "n": timing["n"],
            "mean_ms": _ms(timing["mean_ms"]),
            "p90_ms": _ms(timing["p90_ms"]),
            "<10_ms_%": _percent(timing["share_below_10ms"]),
            "<100_us_%": _percent(timing["share_below_100us"]),
            "cpu_s": None if timing["cpu_s"] is None else f"{timing['cpu_s']:.3f}",
            "bytes_out": _bytes(timing["mean_bytes_out"]),
        }
        for timing in timings
    ]
    if one["collate"]:
        rows[-1]["operation"] = "(collate, by batch)"
        rows[-1]["bytes_out"] = "-"
    return rows


def _batch_lines(batches: Mapping[str, Any]) -> list[str]:
    count = batches["n"]
    spread = "" if batches["sd_percent"] is None else f", sd {batches['sd_percent']:.1f} %"
    order = batches["out_of_order"]
    return [
        f"{'1 batch' if count == 1 else f'{count:,} batches'}: mean {_ms(batches['mean_ms'])} ms to preprocess{spread}, "
        f"IQR {_ms(batches['iqr_ms'])} ms, {counted(batches['outliers'], 'outlier')}; out of order: "
        f"{'unknown' if order is None else order}.",
        f"The consumer waited {_seconds(batches['wait_s'])} s, {_percent(batches['wait_share'])} % of the time; of the batches, "
        f"{_percent(batches['share_wait_over_500ms'])} % had a wait and {_percent(batches['share_delay_over_500ms'])} % a delay "
        "over 500 ms.",
    ]


def _title(document: Mapping[str, Any]) -> str:
    kind, name = document["kind"], document["target"]
    pipeline = document.get("pipeline")
    return f"{kind} {name}" if kind != "experiment" or not pipeline else f"{kind} {name}, pipeline {pipeline}"


def _what(document: Mapping[str, Any]) -> list[str]:
    if document["kind"] == "run":
        vms = document["vms"]
        return [f"Trace of {counted(len(vms), 'VM')}: {', '.join(vms[:8])}{', ...' if len(vms) > 8 else ''}."]
    shards = counted(document["shards"], "shard")
    made = (
        f"generated samples in {shards} of an embedded store"
        if document["generated"]
        else f"{shards} in {document['endpoint']}"
    )
    link = document["link"]
    over = "" if link is None else f", over {link['rate_mbps']:g} Mb/s a stream and {link['rtt_ms']:g} ms"
    lines = [
        "This is what the input can deliver to a consumer that does nothing.",
        f"Data: {made}{over}; {document['batch_size']} samples a batch, "
        f"{document['warm_up_batches']} batches before those counted.",
    ]
    if link is not None and document["generated"]:
        lines.append("Generated shards are small, so round trips count more than with shards of usual size.")
    return lines


def _heading(one: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    rate, limits = one["samples_per_s"], one["samples_per_s_interval"]
    text = "unknown" if rate is None else f"{rate:,.1f}"
    if limits is not None:
        text += f" (95 %: {limits[0]:,.1f} to {limits[1]:,.1f})"
    dropped = (
        f"; {one['dropped']:,} events were dropped, so the figures are of the rest" if one["dropped"] else ""
    )
    bad = f"; bad samples left out: {one['bad_samples']}" if one["bad_samples"] else ""
    cpu = f", {_seconds(one['cpu_s'])} CPU s"
    if document["kind"] == "run":
        return f"All VMs: {text} samples/s{cpu}{dropped}{bad}"
    kind = one["worker_kind"] if one["workers"] == 1 else _PLURAL[one["worker_kind"]]
    return (
        f"{one['workers']} {kind}{'' if one['in_order'] else ', not in order'}, "
        f"{counted(one['streams'], 'stream')}: {text} samples/s{cpu}{dropped}{bad}"
    )


def _first_storable(document: Mapping[str, Any]) -> str:
    most, count = document["storable_ops"], len(document["operations"])
    if most == count:
        return "; all can be stored"
    if not most:
        return "; none can be stored"
    return f"; the first{'' if most == 1 else f' {most}'} can be stored"


def _storable(row: Mapping[str, Any]) -> str:
    why = row["not_storable"]
    if why is None:
        return "yes"
    return "no: random" if why["code"] == "random" else f"no: behind {why['op']}"


def _parameters(row: Mapping[str, Any]) -> str:
    values: Sequence[str] = [f"{name}={json.dumps(value)}" for name, value in row["parameters"].items()]
    text = " ".join([*values, *(f"{name}={digest[:_FINGERPRINT]}" for name, digest in row["files"].items())])
    return (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...") or "-"


def _of(advice: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    workers = advice["of_workers"]
    return f"With {counted(workers, 'worker')}: " if workers and len(document["traces"]) > 1 else ""


def _bytes(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.3f}" if value < 100 else f"{value:,.1f}"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f}"
