"""Convert exceptions to a message and an exit code; the table of codes is in `orchestrator.errors`."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NamedTuple

DONE = 0
FAILED = 1  # the run failed, or an internal error occurred
WRONG = 2  # the command or the YAML is invalid
REFUSED = 3  # stopped, or refused because of the budget or the user's answer
NOT_TORN_DOWN = 5  # VMs may be alive
INTERRUPTED = 130


class Verdict(NamedTuple):
    """Exit code and message of an error.

    `sentence` is None for an unknown error, which is reported as an internal error. `located`: the sentence
    already starts with a file and line, so it is printed without a prefix.
    """

    code: int
    sentence: str | None
    located: bool = False


# Errors that `orchestrator.errors` does not import, by the full name of the class, so that `orch --help`
# stays fast. A test checks that every name exists.
BY_NAME: dict[str, int] = {
    "experiments.schema.errors.SpecError": WRONG,
    "analysis.importers.base.ImportFailed": WRONG,
    "cloud.prices.rows.PriceBookError": WRONG,
    "cloud.places.PlaceError": WRONG,
    "cloud.networks.network.NetworkError": WRONG,
    "cloud.spot.text.HistoryError": WRONG,
    "analysis.export.tables.ExportError": WRONG,
    "analysis.export.bill_file.BillError": WRONG,
    "cloud.storage.errors.StoreFullError": FAILED,
    "cloud.storage.errors.StoreFailedError": FAILED,
    "cloud.storage.errors.EmbeddedStoreError": FAILED,
    "cloud.storage.errors.StorageError": WRONG,
    "experiments.checkpoints.errors.CheckpointError": FAILED,
    "experiments.pipeline.errors.BadSampleError": FAILED,
    "experiments.pipeline.errors.PipelineError": FAILED,
    "experiments.offload.errors.PlanError": WRONG,
    "experiments.tasks.errors.TaskError": FAILED,
}

# Errors whose sentence starts with a file and line.
_LOCATED = ("experiments.schema.errors.SpecError", "cloud.spot.text.HistoryError")

_UNUSABLE = (errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def verdict(error: BaseException) -> Verdict:
    """Return the message for the user and the exit code of `error`."""
    if isinstance(error, KeyboardInterrupt):
        return Verdict(INTERRUPTED, "interrupted")
    from orchestrator.errors import EXIT_CODES

    for known, code in EXIT_CODES:
        if isinstance(error, known):
            return Verdict(code, _sentence(error))
    for kind in type(error).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        code = BY_NAME.get(name)
        if code is not None:
            return Verdict(code, _sentence(error), located=name in _LOCATED)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "the state folder, the temporary folder or the output"
        return Verdict(FAILED, f"{where}: no space left on the disk; free some space, then try again")
    if isinstance(error, PermissionError) and error.filename:
        return Verdict(
            WRONG, f"{error.filename}: permission denied; set ORCH_HOME to a folder you can write to"
        )
    if isinstance(error, OSError) and error.filename and (error.errno in _UNUSABLE or _no_home(error)):
        return Verdict(WRONG, f"{error.filename}: {error.strerror}; set ORCH_HOME to another folder")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing(error.name)
    return Verdict(FAILED, None)


def _no_home(error: OSError) -> bool:
    """Whether ORCH_HOME cannot be created, as below /proc. Any other missing file is an internal error."""
    from orchestrator.home import home_folder

    home, path = home_folder(), Path(os.fsdecode(error.filename))
    return error.errno == errno.ENOENT and not home.exists() and (path == home or home in path.parents)


def _sentence(error: BaseException) -> str:
    return str(error).strip() or f"{type(error).__name__} without a message"


def _missing(module: str) -> Verdict:
    package = module.partition(".")[0]
    if package in ("orchestrator", "experiments", "cloud", "metrics", "analysis"):
        return Verdict(FAILED, None)
    from cloud.targets import LOCAL, SKY

    # With the Python that lacks the package, which need not be that of the clone's .venv.
    install = (SKY if package == "sky" else LOCAL).install.replace(".venv/bin/python", sys.executable)
    return Verdict(
        WRONG,
        f"{package} is not installed in {sys.prefix}, and this command needs it; "
        f"run `{install}` in a clone of orch",
    )
