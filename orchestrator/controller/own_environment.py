"""The environment of the command that launched a run, for its controller and whatever that calls.

Ray's workers have the environment in which Ray was started: by the first run of this home, with its AWS_PROFILE and
tokens. So each run keeps its own in a file (0600) below its keys, which a controller that Ray starts again finds there
too, and which goes when the run ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from cloud.durable_file import write_durably

_FILE = "controller-environment.key"  # `keys.forget_keys` removes all of these
# What a Ray worker has of its own, and what the peers alone are given (keys/environment.key).
_STAYS = ("RAY_", "ORCH_RAY_", "PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_")
_LEFT_OUT = (*_STAYS, "ORCH_SECRET_")


def keep_environment(folder: Path, environ: Mapping[str, str]) -> None:
    """Keep a command's environment for the run in `folder`. Raises OSError."""
    keys = folder / "keys"
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {name: value for name, value in environ.items() if not name.startswith(_LEFT_OUT)}
    write_durably(keys / _FILE, json.dumps(kept).encode())


def adopt_environment(folder: Path, environ: MutableMapping[str, str] | None = None) -> None:
    """Make this process's environment the run's own; nothing where none is kept (a run of an older orch).

    To be called before anything that reads it is imported.
    """
    environ = os.environ if environ is None else environ
    try:
        kept = dict(json.loads((folder / "keys" / _FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return
    for name in [n for n in environ if n not in kept and not n.startswith(_STAYS)]:
        del environ[name]
    environ.update(kept)
