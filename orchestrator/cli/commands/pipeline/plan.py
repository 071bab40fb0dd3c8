"""`orch pipeline plan`: what each strategy of a profile would give an experiment, in samples/s and dollars."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import Where
from orchestrator.cli.commands.pipeline.arguments import parsed_passes
from orchestrator.cli.commands.pipeline.offload_jobs import JobsOptions, jobs_plan
from orchestrator.cli.commands.pipeline.offload_options import (
    PANEL,
    BandwidthOption,
    CacheOption,
    ClientCoresOption,
    CodecOption,
    Objective,
    ObjectiveOption,
    OffloadOptions,
    PrefixOption,
    RandomFromOption,
    ServerProfileOption,
    ServerSpeedOption,
    StorageCoresOption,
    TrainerOption,
    UsdPerGbOption,
    UsdPerHourOption,
)
from orchestrator.cli.commands.pipeline.offload_plan import offload_plan
from orchestrator.cli.render.output import Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

_PASSES, _WEIGHTS = "1,30", "1,1,1"


class Output(StrEnum):
    """Output format."""

    table = "table"
    json = "json"


class Offline(StrEnum):
    """Where the first operations run."""

    vm = "vm"
    here = "here"


def plan(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="YAML file, or name of a shipped experiment (`orch experiments`). None: offload by a profile alone.",
        ),
    ] = "",
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="FILE|DIR|latest",
            help="Profile that `orch pipeline profile` wrote. latest: the newest of the experiment, or of --pipeline. [latest] "
            "Without an experiment repeatable, one for each job on a server.",
        ),
    ] = None,
    pipeline: Annotated[
        str,
        typer.Option("--pipeline", metavar="NAME", help="Use a profile of this pipeline or experiment."),
    ] = "",
    any_profile: Annotated[
        bool, typer.Option("--any-profile", help="Accept a profile of any pipeline.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a value, for example data.location=aws/us-west-2. Repeatable.",
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            metavar="N[,N...]",
            help="Passes over the data set. [1,30] Without an experiment: one number. [1]",
        ),
    ] = None,
    sps_per_peer: Annotated[
        float | None,
        typer.Option(
            "--sps-per-peer",
            metavar="X",
            help="Samples/s of a peer that never waits for data. Default: predicted from its accelerator.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=1, metavar="N", help="Samples in the data set. Default: those of the profile."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="P,S,T",
            help="Weights of offline seconds, stored bytes and delivered samples/s in the score. [1,1,1] Without an experiment: "
            "W[,W...] of each job. [1]",
        ),
    ] = None,
    prices: Annotated[
        str,
        typer.Option(
            "--prices", metavar="NAME|FILE.csv", help="Price book, in place of the experiment's `prices`."
        ),
    ] = "",
    offline: Annotated[
        Offline,
        typer.Option(
            "--offline",
            help="Where the first operations run: vm: on a VM as the first peer's; here: on this machine, not billed.",
        ),
    ] = Offline.vm,
    on: Annotated[
        Where,
        typer.Option(
            "--on", help="local: the emulated cloud on this machine; sky: VMs rented through SkyPilot."
        ),
    ] = Where.local,
    times: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Seconds of each operation, as --profile. Repeatable, one for each profile.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    bandwidth_mbps: BandwidthOption = None,
    client_cores: ClientCoresOption = None,
    storage_cores: StorageCoresOption = None,
    server_speed: ServerSpeedOption = None,
    server_profile: ServerProfileOption = None,
    trainer_s: TrainerOption = None,
    objective: ObjectiveOption = Objective.time,
    prefix: PrefixOption = 2,
    codec: CodecOption = None,
    usd_per_h: UsdPerHourOption = None,
    usd_per_gb: UsdPerGbOption = None,
    cache_gb: CacheOption = None,
    random_from: RandomFromOption = None,
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Whole cores of a server that the jobs share, in place of --storage-cores.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    least_gain: Annotated[
        str | None,
        typer.Option(
            metavar="X[,X...]",
            help="Per cent of a job's pass: a smaller gain is none, as within its profile's interval. [0.1]",
            rich_help_panel=PANEL,
        ),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="table or json.")] = Output.table,
) -> None:
    """Compare the strategies of a profile in an experiment: samples/s, what limits them, dollars, and what pays.

    A strategy is what `orch pipeline profile` measured: operations that run once, codec, streams, workers and cache. It is
    compared with the one that stores and caches nothing. docs/pipeline-plan.md has the formulas.

    Without an experiment, --profile names a profile of each sample, and policies for running the first operations next to the
    storage are compared (docs/offload.md): the folder that `orch pipeline profile --offload` wrote, whose --trainer-s,
    --bandwidth-mbps and --client-cores are used unless given, or a table as SOPHON's authors publish it
    (index;raw;decoding;original_shape;..., in bytes). With --cores, tables are jobs that share a server's cores, so that the
    weighted sum of their passes is least; an option with one value holds for all jobs.

    Exit: 0 printed, 2 invalid option, or no profile that fits.

    \b
    JSON: {"schema_version", "experiment", "profile": {"file", "target", "pipeline", "fingerprint", "machine",
      "measured_at"}, "price_book", "store", "samples", "peers": [{"slot", "location", "usd_per_h", "trainer_sps",
      "stream_bps"}], "weights": [p, s, t], "options": [{"passes", "strategy", "split", "after", "codec", "streams",
      "workers", "worker_kind", "cache", "sps": {"value", "low", "high"}, "bound": trainer|link|input, "training_s",
      "usd_per_1m_samples": {"value", "low", "high"} or null, "parts_usd_per_1m_samples": {"vm", "data", "storage",
      "offline"}, "usd", "one_off_usd", "break_even_passes" (null: never, or unknown), "verdict":
      baseline|pays|does_not|no_difference|too_large|unknown, "score", "peer_cache_bytes", "unknown": [why]}], "best": [{"passes",
      "strategy", "baseline", "saves": {"part", "usd_per_1m_samples"} or null, "costs": the same, "unknown_options",
      "text"}], "assumptions": [{"code", "text"}]}; unknown is null, intervals are of 95 %.

    \b
    JSON without an experiment: {"schema_version", "samples", "shrinking" (samples), "shrinking_by_op", "least_bytes",
      "stage_1": {"fetch_sps", "preprocess_sps", "trainer_sps", "io_bound", "text"} (null: a table), "machines": {"trainer_s",
      "bandwidth_mbps", "client_cores", "storage_cores", "server_speed" (by operation)},
      "policies": {"none"|"all"|"prefix:2"|"fastflow"|"greedy"|"best": {"t_g_s" (trainer), "t_cc_s" (client's CPU), "t_cs_s"
      (server's CPU), "t_net_s", "epoch_s", "first_pass_s", "later_pass_s", "bytes", "offloaded", "client_cached",
      "server_cached" (samples), "storage_cpu_s", "usd_per_1m_samples",
      "bound_s" (of best: no pass is shorter), "verdict": baseline|pays|does_not|no_difference|off|unknown,
      "why"}}}; numbers are means of a pass.

    \b
    JSON of jobs: {"schema_version", "cores", "cores_left", "weighted_s" (sum of weights x passes), "weighted_none_s"
      (nothing offloaded), "jobs": [{"profile", "samples", "weight", "cores", "policy": best|none, "none_s", "epoch_s",
      "bytes", "offloaded", "storage_cpu_s", "pass_s_by_cores" (0, 1, ... cores), "why"}]}
    """
    from analysis.pipeline.plan import plan_pipeline
    from analysis.pipeline.presto_score import Weights
    from orchestrator.cli.render.pipeline_plan import COLUMNS, assumptions, best_text, row_cells
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder
    from orchestrator.pipeline.find_profile import find_profile
    from orchestrator.pipeline.plan_setting import check_pipeline, plan_setting
    from orchestrator.pipeline.target import find_target

    profiles = list(profile or ())
    alone: dict[str, Any] = {
        "--times": times,
        "--bandwidth-mbps": bandwidth_mbps,
        "--client-cores": client_cores,
        "--server-speed": server_speed,
        "--trainer-s": trainer_s,
        "--codec": codec,
    }
    of_one: dict[str, Any] = {
        "--server-profile": server_profile,
        "--storage-cores": storage_cores,
        "--objective": "usd" if objective is Objective.usd else None,
        "--prefix": None if prefix == 2 else prefix,
        "--usd-per-h": usd_per_h,
        "--usd-per-gb": usd_per_gb,
        "--cache-gb": cache_gb,
        "--random-from": random_from,
    }
    of_jobs: dict[str, Any] = {"--cores": cores, "--least-gain": least_gain}
    if not experiment:
        if not profiles or "latest" in profiles:
            raise UsageError("name an experiment, or a profile by sample with --profile FILE")
        of_experiments = {
            "--pipeline": pipeline,
            "--any-profile": any_profile,
            "--set": overrides,
            "--sps-per-peer": sps_per_peer is not None,
            "--samples": samples,
            "--prices": prices,
            "--offline": offline is not Offline.vm,
            "--on": on is not Where.local,
        }
        for option, value in of_experiments.items():
            if value:
                raise UsageError(
                    f"{option}: it belongs to the plan of an experiment; name one, or leave it out"
                )
        if cores is not None or len(profiles) > 1:
            for option, value in {**of_one, "--passes": passes}.items():
                if value is not None:
                    raise UsageError(
                        f"{option}: it belongs to the plan of one profile, and jobs that share a server have --cores; leave it out"
                    )
            jobs = JobsOptions(
                tuple(profiles),
                tuple(times or ()),
                cores,
                weights,
                least_gain,
                bandwidth_mbps,
                client_cores,
                server_speed,
                trainer_s,
                tuple(codec or ()),
            )
            jobs_plan(jobs, json=output is Output.json)
            return
        for option, value in {"--weights": weights, **of_jobs}.items():
            if value is not None:
                raise UsageError(
                    f"{option}: it belongs to jobs that share a server; add --cores, or leave it out"
                )
        if len(times or ()) > 1:
            raise UsageError("--times: one profile has one file of times; leave the others out")
        options = OffloadOptions(
            profiles[0],
            times[0] if times else None,
            bandwidth_mbps,
            client_cores,
            storage_cores,
            server_speed,
            server_profile,
            trainer_s,
            objective,
            prefix,
            tuple(codec or ()),
            usd_per_h,
            usd_per_gb,
            passes,
            cache_gb,
            random_from,
        )
        offload_plan(options, json=output is Output.json)
        return
    for option, value in {**alone, **of_one, **of_jobs}.items():
        if value is not None:
            raise UsageError(
                f"{option}: it belongs to a plan without an experiment; leave it out, or the experiment"
            )
    if len(profiles) > 1:
        raise UsageError("--profile: the plan of an experiment has one profile; leave the others out")
    numbers = parsed_passes(_PASSES if passes is None else passes)
    if sps_per_peer is not None and not 0 < sps_per_peer < math.inf:
        raise typer.BadParameter(f"--sps-per-peer {sps_per_peer:g} is not above 0")
    try:
        weighted = Weights.parse(_WEIGHTS if weights is None else weights)
    except ValueError as error:
        raise typer.BadParameter(f"--weights: {error}") from error
    spec = find_target(experiment, overrides or ()).spec
    if spec is None:
        raise UsageError(
            f"{experiment} is a pipeline, and a plan needs an experiment's peers and store; name an experiment, and "
            f"--pipeline {experiment}"
        )
    found, path = find_profile(profiles[0] if profiles else "latest", home_folder(), spec.name, pipeline, say)
    if not any_profile:
        check_pipeline(found, spec, pipeline)
    setting = plan_setting(
        spec,
        found,
        prices=prices,
        rented=TARGETS[on.value].rents,
        sps_per_peer=sps_per_peer,
        samples=samples,
        offline_here=offline is Offline.here,
    )
    try:
        result = plan_pipeline(found, setting.setting, numbers, weighted)
    except ValueError as error:
        raise UsageError(f"{path}: {error}; profile again with `orch pipeline profile`") from error
    assumed = assumptions(setting, found.generated, found.machine)
    if output is Output.table:
        typer.echo(
            rows_text("options", [row_cells(row) for row in result.rows], COLUMNS, Format.table), nl=False
        )
        for best in result.best:
            typer.echo(best_text(best, spec.data.cache_gb))
        for line in assumed:
            typer.echo(f"  {line['text']}")
        return
    document: dict[str, Any] = {
        "schema_version": 1,
        "experiment": spec.name,
        "profile": {
            "file": path,
            "target": found.target,
            "pipeline": found.pipeline,
            "fingerprint": found.fingerprint,
            "machine": found.machine,
            "measured_at": found.measured_at,
        },
        "price_book": setting.setting.book.name,
        "store": setting.setting.store,
        "samples": setting.setting.samples,
        "peers": [
            {
                "slot": peer.slot,
                "location": peer.location,
                "usd_per_h": peer.usd_per_h,
                "trainer_sps": peer.trainer_sps,
                "stream_bps": peer.stream_bps,
            }
            for peer in setting.setting.peers
        ],
        "weights": [weighted.offline, weighted.stored, weighted.delivered],
        "options": [row.to_json() for row in result.rows],
        "best": [{**best.to_json(), "text": best_text(best, spec.data.cache_gb)} for best in result.best],
        "assumptions": assumed,
    }
    typer.echo(as_json(document), nl=False)
