"""What `orch pipeline plan --profile A --profile B --cores N` prints: how jobs share a server's cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.commands.pipeline.offload_input import read_table
from orchestrator.cli.commands.pipeline.offload_options import codec_of, numbers, refusing
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

if TYPE_CHECKING:
    from analysis.pipeline.offload.jobs import JobShare

_MOST_CORES = 256
_COLUMNS = ("job", "profile", "weight", "cores", "policy", "none_s", "epoch_s", "server_s", "gb", "offloaded")


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """The options of several profiles, None if not given. Texts are as typed."""

    profiles: tuple[str, ...]
    times: tuple[str, ...]
    cores: int | None
    weights: str | None
    least_gain: str | None  # in per cent
    bandwidth_mbps: str | None
    client_cores: str | None
    server_speed: str | None
    trainer_s: str | None
    codecs: tuple[str, ...]


def jobs_plan(options: JobsOptions, *, json: bool) -> None:
    """Share the cores and print each job's. Raises UsageError, typer.BadParameter, RunFailedError."""
    from analysis.pipeline.offload.choices import choices_of
    from analysis.pipeline.offload.jobs import Job, share_server
    from analysis.pipeline.offload.pass_time import Machines
    from orchestrator.errors import UsageError
    from orchestrator.pipeline.offload.find_profile import head_at

    count = len(options.profiles)
    if options.cores is None:
        raise UsageError(f"--cores: {count} profiles share a server; add --cores N, or name one profile")
    if not 1 <= options.cores <= _MOST_CORES:
        raise typer.BadParameter(f"--cores {options.cores} is not from 1 to {_MOST_CORES}")
    if folders := [one for one in options.profiles if head_at(one) is not None]:
        raise UsageError(
            f"--profile {folders[0]}: jobs that share a server are tables with --times, and this is the folder of a two-stage "
            "profile; leave --cores out to plan it alone"
        )
    if len(options.times) != count:
        raise UsageError(
            f"--times: {count} profiles need as many files of times, in their order, and there are {len(options.times)}; cores "
            "are shared by what operations take"
        )
    weights = numbers("--weights", "1" if options.weights is None else options.weights, count)
    gains = numbers(
        "--least-gain", "0.1" if options.least_gain is None else options.least_gain, count, zero=True
    )
    if max(gains) >= 100:
        raise typer.BadParameter(f"--least-gain {max(gains):g} is not from 0 to less than 100 per cent")
    mbps = numbers("--bandwidth-mbps", options.bandwidth_mbps, count)
    client = numbers("--client-cores", options.client_cores, count)
    speeds = numbers("--server-speed", "1" if options.server_speed is None else options.server_speed, count)
    trainers = numbers("--trainer-s", options.trainer_s, count, zero=True)
    codecs = [codec_of(text) for text in options.codecs]
    with refusing():
        profiles = [read_table(one, own) for one, own in zip(options.profiles, options.times, strict=True)]
        jobs = [
            Job(
                options.profiles[k],
                choices_of(profile, codecs, speeds[k]),
                Machines(trainers[k], mbps[k] * 1e6, client[k], 0),
                weights[k],
                gains[k] / 100,
            )
            for k, profile in enumerate(profiles)
        ]
        shares = share_server(jobs, options.cores)
    left = options.cores - sum(share.cores for share in shares)
    shared_s = sum(share.job.weight * share.found.seconds for share in shares)
    none_s = sum(share.job.weight * share.nothing.seconds for share in shares)
    if json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "cores": options.cores,
            "cores_left": left,
            "weighted_s": shared_s,
            "weighted_none_s": none_s,
            "jobs": [share.to_json() for share in shares],
        }
        typer.echo(as_json(document), nl=False)
        return
    typer.echo(rows_text("jobs", _cells(shares), _COLUMNS, Format.table), nl=False)
    for k, share in enumerate(shares, 1):
        typer.echo(f"Job {k}: {share.why}.")
    typer.echo(
        f"Weighted sum of the passes: {shared_s:.4g} s, {none_s:.4g} s if nothing is offloaded; cores left over: {left}."
    )


def _cells(shares: Sequence[JobShare]) -> list[dict[str, Any]]:
    return [
        {
            "job": k,
            "profile": share.job.name,
            "weight": f"{share.job.weight:g}",
            "cores": share.cores,
            "policy": "best" if share.cores else "none",
            "none_s": f"{share.nothing.seconds:.4g}",
            "epoch_s": f"{share.found.seconds:.4g}",
            "server_s": f"{share.found.server_cpu_s:.4g}",
            "gb": f"{share.found.sent_bytes / 1e9:.4g}",
            "offloaded": share.found.offloaded,
        }
        for k, share in enumerate(shares, 1)
    ]
