"""What `orch pipeline trace` is given: a pipeline, an experiment or a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.parse.load import find
from experiments.pipeline.load import BUILT_IN
from experiments.schema.errors import SpecError
from orchestrator.errors import UsageError
from orchestrator.home import home_folder, list_runs, resolve_run, run_folder
from orchestrator.pipeline.target import Target, find_target


def find_traced(name: str, overrides: Sequence[str] = ()) -> Target | Path:
    """Return the pipeline or experiment of that name; if there is none, the folder of the run.

    Raises UsageError, SpecError.
    """
    if name in BUILT_IN:
        return find_target(name, overrides)
    try:
        find(name)
    except SpecError:
        home = home_folder()
        if name != "latest" and not any(name and run.startswith(name) for run in list_runs(home)):
            if Path(name).name != name or Path(name).suffix or Path(name).is_dir():
                raise
            raise UsageError(
                f"'{name[:80]}': no such pipeline, experiment or run; `orch pipeline ls`, `orch experiments` and `orch ls` "
                "list them"
            ) from None
        return run_folder(home, resolve_run(home, name))
    return find_target(name, overrides)
