"""What `orch pipeline plan` prints without an experiment: policies for running operations next to the storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

if TYPE_CHECKING:
    from analysis.pipeline.offload.choices import Codec
    from analysis.pipeline.offload.pass_time import Machines
    from analysis.pipeline.offload.sample_profile import SampleProfile

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
    server_profile: str | None
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
    from analysis.pipeline.offload.sophon_file import SampleProfileError
    from orchestrator.errors import RunFailedError, UsageError

    try:
        profile, options, found = _measured(options)
        rows = compare_policies(
            profile,
            _machines(options),
            aim="usd" if options.objective == "usd" else "time",
            prefix_ops=options.prefix,
            speed=found.speed,
            codecs=[*found.codecs, *map(_codec, options.codecs)],
            prices=_prices(options.usd_per_h, options.usd_per_gb),
            time_off=found.time_off,
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
            "stage_1": found.stage_1,
            "machines": {
                "trainer_s": options.trainer_s,
                "bandwidth_mbps": options.bandwidth_mbps,
                "client_cores": options.client_cores,
                "storage_cores": options.storage_cores,
                "server_speed": found.speed_of(profile.ops),
            },
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
    if found.stage_1 is not None:
        typer.echo(found.stage_1["text"])


@dataclass(frozen=True)
class _Found:
    """What a two-stage profile adds. `stage_1` None: the profile has sizes and times only.

    `speed`: the server's seconds / the client's, of each operation or of all.
    """

    speed: tuple[float, ...] | float
    codecs: tuple[Codec, ...] = ()
    stage_1: dict[str, Any] | None = None
    time_off: bool = False

    def speed_of(self, ops: Sequence[str]) -> dict[str, float]:
        """By operation."""
        speeds = self.speed if isinstance(self.speed, tuple) else (self.speed,) * len(ops)
        return dict(zip(ops, speeds, strict=True))


def _measured(options: OffloadOptions) -> tuple[SampleProfile, OffloadOptions, _Found]:
    """Read the profile; one of two stages gives the options that are left out. Raises UsageError, SampleProfileError."""
    from analysis.pipeline.offload.io_bound import IoBound, io_bound
    from analysis.pipeline.offload.sophon_file import read_sophon
    from orchestrator.cli.render.io_bound import io_bound_text
    from orchestrator.errors import UsageError
    from orchestrator.pipeline.find_offload_profile import head_at, read_offload_profile
    from orchestrator.pipeline.offload_setting import offload_setting

    _check_machines(options)
    head = head_at(options.profile)
    if head is None:
        _machines(options)  # before a long file is read
        times = None if options.times is None else Path(options.times)
        data = read_sophon(Path(options.profile), times)
        return data, options, _Found(_speed(options, data, ""))
    if options.times is not None:
        raise UsageError(f"--times: {head} has the times of its samples; leave the option out")
    profile = read_offload_profile(head)
    setting = offload_setting(profile, options.bandwidth_mbps, options.client_cores, options.trainer_s)
    if setting.trainer_s is None:
        raise UsageError(
            "--trainer-s: the profile does not know the trainer's rate; add --trainer-s, or profile with --sps-per-peer"
        )
    rates = (setting.fetch_sps, setting.preprocess_sps, setting.trainer_sps)
    verdict = io_bound(*rates)
    filled = replace(
        options,
        bandwidth_mbps=setting.bandwidth_mbps,
        client_cores=setting.client_cores,
        trainer_s=setting.trainer_s,
    )
    stage_1 = {
        **dict(
            zip(
                ("fetch_sps", "preprocess_sps", "trainer_sps"),
                (None if rate is None or isinf(rate.value) else rate.to_json() for rate in rates),
                strict=True,
            )
        ),
        "io_bound": verdict.value,
        "text": io_bound_text(*rates),
    }
    speed = _speed(options, profile.samples, profile.head.fingerprint)
    return profile.samples, filled, _Found(speed, profile.choosable(), stage_1, verdict is not IoBound.YES)


def _speed(options: OffloadOptions, profile: SampleProfile, fingerprint: str) -> tuple[float, ...] | float:
    """The server's seconds / the client's, of each operation or of all. Raises UsageError."""
    from analysis.pipeline.offload.offload_profile import speed_by_op
    from orchestrator.errors import UsageError
    from orchestrator.pipeline.find_offload_profile import head_at, read_offload_profile

    if options.server_profile is None:
        return 1.0 if options.server_speed is None else options.server_speed
    if options.server_speed is not None:
        raise UsageError(
            "--server-speed: --server-profile has the speed of each operation; leave one of them out"
        )
    head = head_at(options.server_profile)
    hint = "measure one of the same samples on the server with `orch pipeline profile --offload`"
    if head is None:
        raise UsageError(f"--server-profile {options.server_profile}: not the folder of a profile; {hint}")
    server = read_offload_profile(head)
    if fingerprint and server.head.fingerprint != fingerprint:
        raise UsageError(f"--server-profile {options.server_profile}: it is of another pipeline; {hint}")
    try:
        found = speed_by_op(profile, server.samples)
    except ValueError as error:
        raise UsageError(f"--server-profile {options.server_profile}: {error}; {hint}") from error
    return tuple(found[op] for op in profile.ops)


_ZERO = ("--storage-cores", "--trainer-s")  # may be 0


def _check_machines(options: OffloadOptions) -> None:
    """Raises typer.BadParameter for a value out of range."""
    for name, value in _of_machines(options).items():
        if value is not None and not (_LEAST <= value <= _MOST or (name in _ZERO and value == 0)):
            also = "0, or " if name in _ZERO else ""
            raise typer.BadParameter(f"{name} {value:g} is not {also}from {_LEAST:g} to {_MOST:g}")


def _machines(options: OffloadOptions) -> Machines:
    """Raises UsageError for an option that is missing, ValueError for a value of a profile out of range."""
    from analysis.pipeline.offload.pass_time import Machines
    from orchestrator.errors import UsageError

    for name, value in _of_machines(options).items():
        if value is None:
            raise UsageError(
                f"{name}: a plan without an experiment needs it; add {name}, or name an experiment"
            )
    return Machines(
        options.trainer_s or 0.0,
        (options.bandwidth_mbps or 0.0) * 1e6,
        options.client_cores or 0.0,
        options.storage_cores or 0.0,
    )


def _of_machines(options: OffloadOptions) -> dict[str, float | None]:
    return {
        "--bandwidth-mbps": options.bandwidth_mbps,
        "--client-cores": options.client_cores,
        "--storage-cores": options.storage_cores,
        "--trainer-s": options.trainer_s,
    }


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
