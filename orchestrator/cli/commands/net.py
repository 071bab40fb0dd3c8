"""`orch net check`: the emulated network measured from inside, beside what its file wishes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

_net = typer.Typer(name="net", no_args_is_help=True, help="The emulated network.")

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
    """The emulated network."""


@_net.command("check")
def _check(
    network: Annotated[str, typer.Option(help="Network file, by name.")] = "study-2023-04",
    places: Annotated[
        str, typer.Option(help="Locations, separated by commas: two emulated VMs are started in each.")
    ] = ",".join(_PLACES),
    bytes_scale: Annotated[
        float, typer.Option(min=1, help="Rates are divided by this; the figures shown are multiplied back.")
    ] = 100,
    windows: Annotated[
        Literal["paced", "kernel"],
        typer.Option(
            help="What limits a stream; kernel: the VMs' TCP windows, at their own scale.", show_choices=True
        ),
    ] = "paced",
    tuning: Annotated[
        Literal["default", "wan"],
        typer.Option(help="With kernel windows: network_tuning of the VMs.", show_choices=True),
    ] = "default",
    form: Annotated[Format, typer.Option("-o", "--output", help="Output.", show_choices=True)] = Format.table,
) -> None:
    """Measure round trip and single-stream rate of every ordered pair of places inside the emulation.

    Takes about a minute for four places. A VM's own limit caps the rate wished inside a region. Some pairs are
    measured with data both ways on one connection too.

    JSON: {"schema_version", "pairs": [{"from", "to", "rtt_ms", "wished_rtt_ms", "mbps", "both_ways_mbps" or
    null, "wished_mbps", "worst_error_pct"}]}
    """
    from cloud.local.check.pairs import check_network
    from cloud.local.options import LocalOptions
    from cloud.networks import Network
    from cloud.networks.windows import kernel_bytes_scale

    chosen = [place.strip() for place in places.split(",") if place.strip()]
    if not chosen or len(set(chosen)) != len(chosen):
        raise typer.BadParameter("name each place once", param_hint="--places")
    known = Network.load(network)
    for source in chosen:
        for target in chosen:
            known.path(source, target)  # says what is wrong before anything is started
    if tuning != "default" and windows != "kernel":
        raise typer.BadParameter(
            "needs --windows kernel: paced streams have the file's rate", param_hint="--tuning"
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
    say(f"measuring {len(chosen)} places of network '{network}' at bytes_scale {bytes_scale:g} ...")
    with tempfile.TemporaryDirectory(prefix="orch-net-") as folder:
        rows = check_network(Path(folder), options, chosen)
    shown = [
        {
            "from": row.source,
            "to": row.target,
            "rtt_ms": round(row.rtt_s * 1e3, 1),
            "wished_rtt_ms": round(row.wished_rtt_s * 1e3, 1),
            "mbps": round(row.bps / 1e6, 1),
            "both_ways_mbps": None if row.both_bps is None else round(row.both_bps / 1e6, 1),
            "wished_mbps": round(row.wished_bps / 1e6, 1),
            "worst_error_pct": round(row.worst_error * 100, 1),
        }
        for row in rows
    ]
    typer.echo(rows_text("pairs", shown, _COLUMNS, form), nl=False)
