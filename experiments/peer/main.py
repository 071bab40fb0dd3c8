"""Entry point of the peer program: environment, temporary folder, exit codes."""

from __future__ import annotations

import os
from pathlib import Path

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.processes import kill_descendants, own_temporary_folder, remove_folder
from experiments.peer.status import Status
from experiments.wire.hivemind.sockets import SocketFolderError


def main(config_path: str) -> int:
    """Run one peer to completion. Returns 0 (done, or left on request), 1 (failed), 2 (invalid config) or 3 (lease
    expired).

    Must be the only work of its process: it sets the environment, signal handlers and thread limits, and kills
    all processes it started before it returns.
    """
    path = Path(config_path).absolute()
    status = Status(path.with_name("status.json"))
    status.set(phase="starting")
    try:
        config = PeerConfig.load(path)
        _set_environment(config)
        temporary = own_temporary_folder()
    except (PeerConfigError, SocketFolderError) as error:
        status.set(phase="failed", error=str(error))
        return 2
    try:
        # Imported here because it loads torch, which reads the thread limits set above and takes seconds that an
        # invalid config should not have to wait for. In a process forked from a warm host it is fast.
        from experiments.peer.peer import run

        return run(config, path.parent, temporary, status)
    finally:
        kill_descendants()
        remove_folder(temporary)


def _set_environment(config: PeerConfig) -> None:
    os.environ.update(config.environment)
    os.environ.setdefault("GOLOG_LOG_LEVEL", "error")  # p2pd's debug log alone would overload a host
    threads = config.threads or (1 if config.emulated else 0)
    if threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
    if config.emulated:
        os.environ["GOMAXPROCS"] = "1"
