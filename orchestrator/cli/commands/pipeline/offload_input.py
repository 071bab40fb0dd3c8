"""What a plan or report without an experiment rests on: the profile, what a pass runs on, and what a two-stage profile adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.commands.pipeline.offload_options import (
    OffloadOptions,
    caches_of,
    codec_of,
    numbers,
    prices_of,
    refusing,
)

if TYPE_CHECKING:
    from analysis.pipeline.offload.choices import Codec
    from analysis.pipeline.offload.compare import PolicyRow
    from analysis.pipeline.offload.offload_profile import Head
    from analysis.pipeline.offload.pass_time import Machines
    from analysis.pipeline.offload.sample_profile import SampleProfile


@dataclass(frozen=True)
class OffloadInput:
    """`speed`: the server's seconds / the client's, of each operation or of all.

    `stage_1` None: the profile has sizes and times only.
    """

    profile: SampleProfile
    machines: Machines
    speed: tuple[float, ...] | float
    codecs: tuple[Codec, ...] = ()  # measured ones
    stage_1: dict[str, Any] | None = None
    storable: int | None = None  # first operations whose values can be kept; None: not known
    time_off: bool = False  # the input is not I/O-bound

    def speed_of(self, ops: Sequence[str]) -> dict[str, float]:
        """By operation."""
        speeds = self.speed if isinstance(self.speed, tuple) else (self.speed,) * len(ops)
        return dict(zip(ops, speeds, strict=True))


def compared(options: OffloadOptions) -> tuple[OffloadInput, tuple[PolicyRow, ...]]:
    """Read the profile and compare the policies. Raises UsageError, typer.BadParameter, RunFailedError."""
    from analysis.pipeline.offload.compare import compare_policies

    with refusing():
        found = read_input(options)
        return found, compare_policies(found.profile, found.machines, **settings_of(options, found))


def settings_of(options: OffloadOptions, found: OffloadInput) -> dict[str, Any]:
    """The arguments of `compare_policies` but for profile and machines. Raises typer.BadParameter."""
    if found.storable is not None:
        if options.random_from is not None and options.random_from > found.storable + 1:
            raise typer.BadParameter(
                f"--random-from {options.random_from}: operation {found.storable + 1} of the profile is random; give "
                f"{found.storable + 1} at most, or leave the option out"
            )
        options = replace(options, random_from=options.random_from or found.storable + 1)
    typed = _typed(options)
    return {
        **typed,
        "speed": found.speed,
        "codecs": [*found.codecs, *typed["codecs"]],
        "time_off": found.time_off,
    }


def _typed(options: OffloadOptions) -> dict[str, Any]:
    return {
        "aim": options.objective.value,
        "prefix_ops": options.prefix,
        "codecs": [codec_of(text) for text in options.codecs],
        "prices": prices_of(options.usd_per_h, options.usd_per_gb),
        "caches": caches_of(options),
    }


def read_input(options: OffloadOptions) -> OffloadInput:
    """Read the profile; one of two stages gives the options that are left out.

    Raises UsageError, typer.BadParameter, SampleProfileError, ValueError.
    """
    from analysis.pipeline.offload.io_bound import IoBound, io_bound
    from orchestrator.cli.render.io_bound import io_bound_text
    from orchestrator.errors import UsageError
    from orchestrator.pipeline.offload.find_profile import head_at, read_offload_profile
    from orchestrator.pipeline.offload.setting import offload_setting

    _typed(options)  # options are checked before a long file is read
    head = head_at(options.profile)
    if head is None:
        machines = _machines(
            options.bandwidth_mbps, options.client_cores, options.storage_cores, options.trainer_s
        )
        data = read_table(options.profile, options.times)
        return OffloadInput(data, machines, _speed(options, data, None))
    if options.times is not None:
        raise UsageError(f"--times: {head} has the times of its samples; leave the option out")
    given = [
        _given("--bandwidth-mbps", options.bandwidth_mbps),
        _given("--client-cores", options.client_cores),
        _given("--trainer-s", options.trainer_s, zero=True),
    ]
    (storage_cores,) = numbers("--storage-cores", options.storage_cores, zero=True)
    profile = read_offload_profile(head)
    setting = offload_setting(profile, *given)
    if setting.trainer_s is None:
        raise UsageError(
            "--trainer-s: the profile does not know the trainer's rate; add --trainer-s, or profile with --sps-per-peer"
        )
    rates = (setting.fetch_sps, setting.preprocess_sps, setting.trainer_sps)
    verdict = io_bound(*rates)
    names = ("fetch_sps", "preprocess_sps", "trainer_sps")
    shown = (None if rate is None or isinf(rate.value) else rate.to_json() for rate in rates)
    return OffloadInput(
        profile.samples,
        _as_machines(setting.bandwidth_mbps, setting.client_cores, storage_cores, setting.trainer_s),
        _speed(options, profile.samples, profile.head),
        profile.choosable(),
        {**dict(zip(names, shown, strict=True)), "io_bound": verdict.value, "text": io_bound_text(*rates)},
        profile.head.storable,
        verdict is not IoBound.YES,
    )


def read_table(profile: str, times: str | None) -> SampleProfile:
    """Read a table as SOPHON's authors publish it. Raises SampleProfileError."""
    from analysis.pipeline.offload.sophon_file import read_sophon

    return read_sophon(Path(profile), None if times is None else Path(times))


def _given(option: str, text: str | None, *, zero: bool = False) -> float | None:
    return None if text is None else numbers(option, text, zero=zero)[0]


def _machines(
    bandwidth_mbps: str | None, client_cores: str | None, storage_cores: str | None, trainer_s: str | None
) -> Machines:
    return _as_machines(
        *numbers("--bandwidth-mbps", bandwidth_mbps),
        *numbers("--client-cores", client_cores),
        *numbers("--storage-cores", storage_cores, zero=True),
        *numbers("--trainer-s", trainer_s, zero=True),
    )


def _as_machines(
    bandwidth_mbps: float, client_cores: float, storage_cores: float, trainer_s: float
) -> Machines:
    from analysis.pipeline.offload.pass_time import Machines

    return Machines(trainer_s, bandwidth_mbps * 1e6, client_cores, storage_cores)


def _speed(options: OffloadOptions, profile: SampleProfile, of: Head | None) -> tuple[float, ...] | float:
    """The server's seconds / the client's, of each operation or of all. `of`: the client's profile. Raises UsageError."""
    from analysis.pipeline.offload.offload_profile import speed_by_op
    from orchestrator.errors import UsageError
    from orchestrator.pipeline.offload.find_profile import head_at, read_offload_profile

    if options.server_profile is None:
        return numbers("--server-speed", "1" if options.server_speed is None else options.server_speed)[0]
    if options.server_speed is not None:
        raise UsageError(
            "--server-speed: --server-profile has the speed of each operation; leave one of them out"
        )
    head = head_at(options.server_profile)
    hint = "measure one of the same samples on the server with `orch pipeline profile --offload`"
    if head is None:
        raise UsageError(f"--server-profile {options.server_profile}: not the folder of a profile; {hint}")
    server = read_offload_profile(head)
    if of is not None and server.head.fingerprint != of.fingerprint:
        raise UsageError(f"--server-profile {options.server_profile}: it is of another pipeline; {hint}")
    if of is not None and (server.head.seed, server.head.pass_number) != (of.seed, of.pass_number):
        raise UsageError(
            f"--server-profile {options.server_profile}: it is of another seed or pass, in which random operations do other work; "
            f"{hint}"
        )
    try:
        found = speed_by_op(profile, server.samples)
    except ValueError as error:
        raise UsageError(f"--server-profile {options.server_profile}: {error}; {hint}") from error
    return tuple(found[op] for op in profile.ops)
