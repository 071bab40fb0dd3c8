"""What `orch pipeline plan` prints without an experiment: policies for running operations next to the storage."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.cli.commands.pipeline.offload_input import compared
from orchestrator.cli.commands.pipeline.offload_options import OffloadOptions
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

COLUMNS = (
    "policy",
    "epoch_s",
    "trainer_s",
    "client_s",
    "server_s",
    "network_s",
    "gb",
    "offloaded",
    "usd_per_1m",
    "verdict",
)
_CACHED = ("client_cached", "server_cached")


def offload_plan(options: OffloadOptions, *, json: bool) -> None:
    """Compare the policies and print them. Raises UsageError, typer.BadParameter, RunFailedError."""
    from analysis.pipeline.offload.compare import least_bytes, shrinking, shrinking_by_op

    found, rows = compared(options)
    profile, machines = found.profile, found.machines
    count, shrink = len(profile.keys), shrinking(profile)
    if json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "samples": count,
            "shrinking": shrink,
            "shrinking_by_op": shrinking_by_op(profile),
            "least_bytes": least_bytes(profile),
            "stage_1": found.stage_1,
            "machines": {
                "trainer_s": machines.trainer_s,
                "bandwidth_mbps": machines.bandwidth_bps / 1e6,
                "client_cores": machines.client_cores,
                "storage_cores": machines.storage_cores,
                "server_speed": found.speed_of(profile.ops),
            },
            "policies": {row.policy: row.to_json() for row in rows},
        }
        typer.echo(as_json(document), nl=False)
        return
    typer.echo(
        f"{shrink:,} of {count:,} samples ({shrink / count:.1%}) are smaller after an operation than they are stored.\n"
    )
    cells = [_cells(row) for row in rows]
    cached = any(row["client_cached"] or row["server_cached"] for row in cells)
    columns = (*COLUMNS[:-2], *(_CACHED if cached else ()), *COLUMNS[-2:])
    typer.echo(rows_text("policies", cells, columns, Format.table), nl=False)
    for row in rows:
        typer.echo(f"{row.policy}: {row.why}.")
    if found.stage_1 is not None:
        typer.echo(found.stage_1["text"])


def _cells(row: Any) -> dict[str, Any]:
    shown = row.to_json()

    def rounded(value: float | None, by: float = 1.0) -> str | None:
        return None if value is None else f"{value / by:.4g}"

    return {
        "policy": row.policy,
        "epoch_s": rounded(shown["epoch_s"]),
        "trainer_s": rounded(shown["t_g_s"]),
        "client_s": rounded(shown["t_cc_s"]),
        "server_s": rounded(shown["t_cs_s"]),
        "network_s": rounded(shown["t_net_s"]),
        "gb": rounded(shown["bytes"], 1e9),
        "offloaded": shown["offloaded"],
        "client_cached": shown["client_cached"],
        "server_cached": shown["server_cached"],
        "usd_per_1m": rounded(shown["usd_per_1m_samples"]),
        "verdict": row.verdict.replace("_", " "),
    }
