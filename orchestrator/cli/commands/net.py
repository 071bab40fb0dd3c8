"""`orch net check`: measure the emulated network from inside and compare it with its file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

_net = typer.Typer(name="net", no_args_is_help=True, help="Measure the emulated network.")

_PLACES = ("gcp/us-central1", "gcp/europe-west1", "gcp/asia-east1", "gcp/australia-southeast1")
_COLUMNS = (
    "from",
    "to",
    "rtt_ms",
    "wished_rtt_ms",
    "mbps",
    "both_ways_mbps",
    "wished_mbps",
    "worst_error_pct",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_net)


@_net.callback()
def _group() -> None:
    """Measure the emulated network."""


@_net.command("check")
def _check(
    network: Annotated[str, typer.Option(help="Name of the network file.")] = "study-2023-04",
    places: Annotated[
        str, typer.Option(help="Comma-separated locations; two emulated VMs are started in each.")
    ] = ",".join(_PLACES),
    bytes_scale: Annotated[
        float,
        typer.Option(
            min=1, help="Factor by which rates are scaled down; the figures shown are scaled back up."
        ),
    ] = 100,
    windows: Annotated[
        Literal["paced", "kernel"],
        typer.Option(
            help="What limits a stream: pacing, or (kernel) the TCP windows of the VMs, at their own scale.",
            show_choices=True,
        ),
    ] = "paced",
    tuning: Annotated[
        Literal["default", "wan"],
        typer.Option(help="network_tuning of the VMs; needs --windows kernel.", show_choices=True),
    ] = "default",
    form: Annotated[
        Format, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = Format.table,
) -> None:
    """Measure the round-trip time and single-stream rate between all pairs of places in the emulation.

    Takes about a minute for four places. The expected values are in the wished_ columns; inside a region the
    expected rate is capped by the limit of a VM. Some pairs are also measured with data in both directions on
    one connection.

    JSON: {"schema_version", "pairs": [{"from", "to", "rtt_ms", "wished_rtt_ms", "mbps", "both_ways_mbps" or
    null, "wished_mbps", "worst_error_pct"}]}
    """
    from cloud.local.check.pairs import check_network
    from cloud.local.options import LocalOptions
    from cloud.networks import Network
    from cloud.networks.windows import kernel_bytes_scale

    chosen = [place.strip() for place in places.split(",") if place.strip()]
    if not chosen or len(set(chosen)) != len(chosen):
        raise typer.BadParameter("give at least one place, and each place only once", param_hint="--places")
    known = Network.load(network)
    for source in chosen:
        for target in chosen:
            known.path(source, target)  # reports errors before anything is started
    if tuning != "default" and windows != "kernel":
        raise typer.BadParameter(
            "needs --windows kernel: paced streams have the rate of the network file", param_hint="--tuning"
        )
    if windows == "kernel":
        bytes_scale = kernel_bytes_scale()
    options = LocalOptions(
        network=network,
        bytes_scale=bytes_scale,
        windows=windows,
        network_tuning=tuning,
        mode="namespaces",
        preload=(),
        lease_s=120,
    )
    say(f"measuring network '{network}' between {len(chosen)} places at bytes_scale {bytes_scale:g} ...")
    with tempfile.TemporaryDirectory(prefix="orch-net-") as folder:
        rows = check_network(Path(folder), options, chosen)
    shown = [
        {
            "from": row.source,
            "to": row.target,
            "rtt_ms": round(row.rtt_s * 1e3, 1),
            "wished_rtt_ms": round(row.expected_rtt_s * 1e3, 1),
            "mbps": round(row.bps / 1e6, 1),
            "both_ways_mbps": None if row.both_bps is None else round(row.both_bps / 1e6, 1),
            "wished_mbps": round(row.expected_bps / 1e6, 1),
            "worst_error_pct": round(row.worst_error * 100, 1),
        }
        for row in rows
    ]
    typer.echo(rows_text("pairs", shown, _COLUMNS, form), nl=False)
