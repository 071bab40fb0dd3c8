"""What torch.compile needs on a machine. Importing this does not import torch."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping


def missing_compiler(device: str, environ: Mapping[str, str]) -> str | None:
    """What torch.compile lacks on this machine, as a sentence with a remedy; None: nothing that is known beforehand.

    `device`: "cpu" or "cuda". On a CPU torch's inductor calls the C++ compiler of $CXX or g++; on a GPU it uses triton,
    which calls a C compiler.
    """
    if device == "cpu":
        compiler = environ.get("CXX") or "g++"
        if shutil.which(compiler, path=environ.get("PATH")) is None:
            return (
                f"swarm.compile needs a C++ compiler, but there is no {compiler} here; install it (apt-get install g++), "
                "or remove the key"
            )
        return None
    if importlib.util.find_spec("triton") is None:
        return "swarm.compile needs triton on a GPU, which is not installed; install it (pip install triton), or remove the key"
    compilers = [environ["CC"]] if environ.get("CC") else ["gcc", "clang"]
    if not any(shutil.which(name, path=environ.get("PATH")) for name in compilers):
        return (
            f"swarm.compile needs a C compiler, but there is no {' or '.join(compilers)} here; install it "
            "(apt-get install gcc), or remove the key"
        )
    return None
