"""The environment of the command that launched a run, for its controller and the provider calls.

Ray workers inherit the environment in which Ray was started, which is that of the first run of this home,
with its AWS_PROFILE and tokens. So each run stores its own in a file (0600) below its keys. A restarted
controller reads it again. The file is removed when the run ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from cloud.durable_file import write_durably

_FILE = "controller-environment.key"  # `keys.forget_keys` removes all of these
# Variables that stay those of the Ray worker; secrets of the peers (keys/environment.key) are left out, too.
_STAYS = ("RAY_", "ORCH_RAY_", "PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_")
_LEFT_OUT = (*_STAYS, "ORCH_SECRET_")


def keep_environment(folder: Path, environ: Mapping[str, str]) -> None:
    """Store a command's environment for the run in `folder`. Raises OSError."""
    keys = folder / "keys"
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    stored = {name: value for name, value in environ.items() if not name.startswith(_LEFT_OUT)}
    write_durably(keys / _FILE, json.dumps(stored).encode())


def adopt_environment(folder: Path, environ: MutableMapping[str, str] | None = None) -> None:
    """Replace this process's environment by the stored one, if there is one (runs of older orchs have none).

    Call this before importing anything that reads the environment.
    """
    environ = os.environ if environ is None else environ
    try:
        stored = dict(json.loads((folder / "keys" / _FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return
    for name in [n for n in environ if n not in stored and not n.startswith(_STAYS)]:
        del environ[name]
    environ.update(stored)
