"""The report's part on a profile alone, without an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.commands.pipeline.offload_input import read_input, settings_of
from orchestrator.cli.commands.pipeline.offload_options import OffloadOptions, refusing

if TYPE_CHECKING:
    from analysis.pipeline.offload.pass_time import Machines
    from analysis.pipeline.offload.passes import Caches
    from analysis.report.pipeline.parts import Parts

_MOST_CORES = 8  # of the figure by cores


def offload_parts(options: OffloadOptions) -> Parts:
    """Compare the policies, with each number of storage cores too. Raises UsageError, typer.BadParameter, RunFailedError."""
    from analysis.pipeline.offload.compare import compare_by_cores, compare_policies
    from analysis.report.pipeline.parts import OffloadPart, Parts

    with refusing():
        found = read_input(options)
        profile, machines, settings = found.profile, found.machines, settings_of(options, found)
        rows = compare_policies(profile, machines, **settings)
        timed = profile.op_s is not None
        by_cores = compare_by_cores(profile, machines, _MOST_CORES, **settings) if timed else {}
    missing: list[str] = []
    if not timed:
        missing.append(
            "Pass times, the benefit by CPU second, the pass by storage cores and the bill need the operations' times; give them "
            "with --times."
        )
    elif settings["prices"] is None:
        missing.append("The bill needs prices; give them with --usd-per-h and --usd-per-gb.")
    setting = _setting(machines, settings["caches"], settings["aim"])
    if found.stage_1 is not None:
        setting += f" {found.stage_1['text']}"
    part = OffloadPart(profile, setting, settings["speed"], rows, by_cores)
    name = Path(options.profile).name.removesuffix(".gz").removesuffix(".csv")
    return Parts(name, offload=part, missing=tuple(missing))


def _setting(machines: Machines, caches: Caches, aim: str) -> str:
    def cores(count: float) -> str:
        return "1 core" if count == 1 else f"{count:g} cores"

    text = (
        f"{machines.bandwidth_bps / 1e6:.4g} Mb/s to a client of {cores(machines.client_cores)}, {cores(machines.storage_cores)} "
        f"next to the storage, a trainer that needs {machines.trainer_s:.4g} s for a pass; best minimises "
        f"{'seconds' if aim == 'time' else 'dollars'}."
    )
    if caches.matter:
        text += (
            f" Means of {caches.passes:g} passes with caches of {caches.client_bytes / 1e9:g} GB (client) and "
            f"{caches.server_bytes / 1e9:g} GB (server)."
        )
    return text
