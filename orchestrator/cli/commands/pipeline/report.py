"""`orch pipeline report`: what was measured of an input, on one page."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import Where
from orchestrator.cli.commands.pipeline.arguments import SetOption, parsed_passes
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
from orchestrator.cli.commands.pipeline.offload_report import offload_parts
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import say

_LATEST = "latest"


class Form(StrEnum):
    """What is printed."""

    html = "html"
    json = "json"


def report(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[TARGET]",
            help="Experiment (file or name), built-in pipeline, or a run: its id, a prefix, or latest. None: offload by a profile "
            "alone.",
        ),
    ] = "",
    overrides: SetOption = None,
    pipeline: Annotated[
        str, typer.Option(metavar="NAME", help="Show what was measured of this pipeline or experiment.")
    ] = "",
    trace: Annotated[
        str,
        typer.Option(metavar="FILE|DIR|latest", help="What `orch pipeline trace` wrote; a run has its own."),
    ] = _LATEST,
    map_: Annotated[
        str, typer.Option("--map", metavar="FILE|DIR|latest", help="What `orch pipeline map` wrote.")
    ] = _LATEST,
    profile: Annotated[
        str, typer.Option(metavar="FILE|DIR|latest", help="What `orch pipeline profile` wrote.")
    ] = _LATEST,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Passes over the data set. [1,30] Without a target: one number. [1]",
        ),
    ] = None,
    sps_per_peer: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Samples/s of a peer that never waits for data. Default: predicted from its accelerator.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples in the data set. Default: those of the profile."),
    ] = None,
    prices: Annotated[
        str, typer.Option(metavar="NAME|FILE.csv", help="Price book, in place of the experiment's `prices`.")
    ] = "",
    on: Annotated[
        Where,
        typer.Option(
            help="local: the emulated cloud on this machine; sky: VMs rented through SkyPilot. Of a run: its own."
        ),
    ] = Where.local,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the report. Default: pipeline-reports/<target>-<time> in ORCH_HOME.",
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Seconds of each operation, as --profile.", rich_help_panel=PANEL),
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
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    output: Annotated[Form, typer.Option("--output", "-o", help="html or json.")] = Form.html,
) -> None:
    """Write a page with what was measured of an input: trace, map, profile, and what its strategies pay.

    Measures nothing: `orch pipeline trace`, `map` and `profile` do, and the newest of each is shown, if they are of one
    pipeline. Dollars need an experiment, as for `orch pipeline plan`. Each figure is also a PNG, an SVG and a CSV.

    Without a target, --profile names a profile of each sample as for `orch pipeline plan`, whose options for one profile hold:
    samples that shrink, benefit by CPU second, pass time and traffic by policy, pass time with 0 to 8 cores next to the
    storage, and the bill (docs/offload.md).

    Exit: 0 written, 2 invalid option, no such target, or nothing was measured.

    \b
    JSON: {"schema_version", "target", "kind": "pipeline"|"experiment"|"run"|"profile", "report" (the page), "parts": {"trace",
      "map", "profile": the file it is from, or null}, "best": [{"passes", "strategy", "text"}], "missing": [sentence],
      "warnings": [sentence]}
    """
    from analysis.report.pipeline.build import build
    from analysis.report.pipeline.parts import PlanPart
    from orchestrator.cli.render.pipeline_plan import assumptions, best_text
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder
    from orchestrator.pipeline.reporting import Asked, collect

    alone: dict[str, Any] = {
        "--times": times,
        "--bandwidth-mbps": bandwidth_mbps,
        "--client-cores": client_cores,
        "--storage-cores": storage_cores,
        "--server-speed": server_speed,
        "--server-profile": server_profile,
        "--trainer-s": trainer_s,
        "--objective": "usd" if objective is Objective.usd else None,
        "--prefix": None if prefix == 2 else prefix,
        "--codec": codec,
        "--usd-per-h": usd_per_h,
        "--usd-per-gb": usd_per_gb,
        "--cache-gb": cache_gb,
        "--random-from": random_from,
    }
    best: list[dict[str, Any]] = []
    if not target:
        if profile == _LATEST:
            raise UsageError(
                "name an experiment, a pipeline or a run, or a profile by sample with --profile FILE"
            )
        of_targets = {
            "--set": overrides,
            "--pipeline": pipeline,
            "--trace": trace != _LATEST,
            "--map": map_ != _LATEST,
            "--sps-per-peer": sps_per_peer is not None,
            "--samples": samples,
            "--prices": prices,
            "--on": on is not Where.local,
        }
        for option, value in of_targets.items():
            if value:
                raise UsageError(f"{option}: it belongs to the report of a target; name one, or leave it out")
        options = OffloadOptions(
            profile,
            times,
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
        parts = offload_parts(options)
        kind, files = "profile", {"profile": profile}
    else:
        for option, value in alone.items():
            if value is not None:
                raise UsageError(
                    f"{option}: it belongs to the report of a profile alone; leave it out, or the target"
                )
        if sps_per_peer is not None and not 0 < sps_per_peer < math.inf:
            raise typer.BadParameter(f"--sps-per-peer {sps_per_peer:g} is not above 0")
        asked = Asked(
            target,
            tuple(overrides or ()),
            pipeline,
            trace,
            map_,
            profile,
            parsed_passes("1,30" if passes is None else passes),
            prices,
            TARGETS[on.value].rents,
            sps_per_peer,
            samples,
        )
        found = collect(asked, home_folder(), say)
        parts = found.parts
        if found.planned is not None and parts.profile is not None:
            planned = found.planned
            texts = [best_text(one, planned.spec.data.cache_gb) for one in planned.plan.best]
            rest = assumptions(planned.setting, parts.profile.generated, parts.profile.machine)
            parts = replace(
                parts,
                plan=PlanPart(
                    planned.spec.name, planned.plan, tuple(texts), tuple(line["text"] for line in rest)
                ),
            )
            best = [
                {"passes": one.row.cost.passes, "strategy": one.row.label, "text": text}
                for one, text in zip(planned.plan.best, texts, strict=True)
            ]
        kind, files = found.kind, found.files
    name = f"{parts.target}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = home_folder() / "pipeline-reports" / name if out is None else out.absolute()
    try:
        page = build(parts, folder)
    except OSError as error:
        raise UsageError(
            f"--out: {folder} cannot be written ({error.strerror or error}); choose another folder"
        ) from error
    if output is Form.json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "target": parts.target,
            "kind": kind,
            "report": str(page),
            "parts": {part: files.get(part) for part in ("trace", "map", "profile")},
            "best": best,
            "missing": list(parts.missing),
            "warnings": list(parts.warnings),
        }
        typer.echo(as_json(document), nl=False)
    else:
        typer.echo(str(page))
    if show:
        typer.launch(page.as_uri())
