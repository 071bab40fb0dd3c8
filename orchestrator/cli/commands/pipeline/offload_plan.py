"""What `orch pipeline plan` prints without an experiment: policies for running operations next to the storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

_LEAST, _MOST = 1e-3, 1e9  # of numbers of the options
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


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """The options of the command, None if not given. Texts are as typed."""

    profile: str
    times: str | None
    bandwidth_mbps: float | None
    client_cores: float | None
    storage_cores: float | None
    server_speed: float | None
    trainer_s: float | None
    objective: str
    prefix: int
    codecs: tuple[str, ...]
    usd_per_h: str | None
    usd_per_gb: str | None


def offload_plan(options: OffloadOptions, *, json: bool) -> None:
    """Compare the policies and print them. Raises UsageError, typer.BadParameter."""
    from analysis.pipeline.offload.best import SolverError
    from analysis.pipeline.offload.compare import compare_policies, least_bytes, shrinking, shrinking_by_op
    from analysis.pipeline.offload.pass_time import Machines
    from analysis.pipeline.offload.sophon_file import SampleProfileError, read_sophon
    from orchestrator.errors import RunFailedError, UsageError

    needed = {
        "--bandwidth-mbps": options.bandwidth_mbps,
        "--client-cores": options.client_cores,
        "--storage-cores": options.storage_cores,
        "--trainer-s": options.trainer_s,
    }
    for name, value in needed.items():
        if value is None:
            raise UsageError(
                f"{name}: a plan without an experiment needs it; add {name}, or name an experiment"
            )
        zero = name in ("--storage-cores", "--trainer-s")
        if not (_LEAST <= value <= _MOST or (zero and value == 0)):
            also = "0, or " if zero else ""
            raise typer.BadParameter(f"{name} {value:g} is not {also}from {_LEAST:g} to {_MOST:g}")
    machines = Machines(
        options.trainer_s or 0.0,
        (options.bandwidth_mbps or 0.0) * 1e6,
        options.client_cores or 0.0,
        options.storage_cores or 0.0,
    )
    try:
        profile = read_sophon(Path(options.profile), None if options.times is None else Path(options.times))
        rows = compare_policies(
            profile,
            machines,
            aim="usd" if options.objective == "usd" else "time",
            prefix_ops=options.prefix,
            speed=1.0 if options.server_speed is None else options.server_speed,
            codecs=[_codec(text) for text in options.codecs],
            prices=_prices(options.usd_per_h, options.usd_per_gb),
        )
    except SampleProfileError as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"{error}; see `orch pipeline plan --help`") from error
    except SolverError as error:
        raise RunFailedError(str(error)) from error
    count, shrink = len(profile.keys), shrinking(profile)
    if json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "samples": count,
            "shrinking": shrink,
            "shrinking_by_op": shrinking_by_op(profile),
            "least_bytes": least_bytes(profile),
            "policies": {row.policy: row.to_json() for row in rows},
        }
        typer.echo(as_json(document), nl=False)
        return
    typer.echo(
        f"{shrink:,} of {count:,} samples ({shrink / count:.1%}) are smaller after an operation than they are stored.\n"
    )
    typer.echo(rows_text("policies", [_cells(row) for row in rows], COLUMNS, Format.table), nl=False)
    for row in rows:
        typer.echo(f"{row.policy}: {row.why}.")


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
        "usd_per_1m": rounded(shown["usd_per_1m_samples"]),
        "verdict": row.verdict.replace("_", " "),
    }


def _codec(text: str) -> Any:
    from analysis.pipeline.offload.choices import Codec

    parts = text.split(",")
    try:
        name, ops, (ratio, write_ms, read_ms) = parts[0], int(parts[1]), map(float, parts[2:])
    except (ValueError, IndexError):
        name, ops, ratio, write_ms, read_ms = "", 0, 0.0, 0.0, 0.0
    if not name or ops < 1 or not (0 < ratio <= _MOST and 0 <= write_ms <= _MOST and 0 <= read_ms <= _MOST):
        raise typer.BadParameter(
            f"--codec '{text[:80]}' is not NAME,OPS,RATIO,WRITE_MS,READ_MS, such as webp,2,0.392,48,1.2"
        )
    return Codec(name, ops, ratio, write_ms / 1e3, read_ms / 1e3)


def _prices(usd_per_h: str | None, usd_per_gb: str | None) -> Any:
    from analysis.pipeline.offload.pass_time import Prices

    if usd_per_h is None and usd_per_gb is None:
        return None
    if usd_per_h is None or usd_per_gb is None:
        given, missing = (
            ("--usd-per-gb", "--usd-per-h") if usd_per_h is None else ("--usd-per-h", "--usd-per-gb")
        )
        raise typer.BadParameter(f"{given}: dollars need {missing} too, 0,0 or 0,0,0 if nothing is paid")
    rented, server = _dollars("--usd-per-h", usd_per_h, "RENTED,SERVER", 2)
    direct, into, out = _dollars("--usd-per-gb", usd_per_gb, "DIRECT,IN,OUT", 3)
    return Prices(rented / 3600, direct / 1e9, into / 1e9, out / 1e9, server / 3600)


def _dollars(option: str, text: str, shape: str, count: int) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or not all(0 <= one <= _MOST for one in found):
        raise typer.BadParameter(f"{option} '{text[:80]}' is not {shape} in dollars of 0 or more")
    return found
