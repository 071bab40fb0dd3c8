"""Hivemind in a process of the test's own: what it leaves open (loops, sockets, processes) goes with it."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.peer.processes import descendants, kill_descendants, record_descendants
from experiments.wire.hivemind.patches import own_locks
from experiments.wire.hivemind.sockets import short_socket_folder
from experiments.wire.record_keys import generate_identity

_FORK = multiprocessing.get_context("fork")


def apart(work: Callable[[Path], Any], limit_s: float = 60.0) -> Any:
    """`work(folder)` in a forked process; `folder` holds the identities a.key and b.key. Returns its result.

    Fails with the traceback of whatever `work` raises. Without a result in time it says on standard error where its threads
    are, and all of its processes are killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="oht-", dir="/tmp"))  # short: sockets go there
    for name in ("a", "b"):
        (folder / f"{name}.key").write_bytes(generate_identity()[0])
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_inside, args=(work, folder, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            _give_up(process.pid)
            raise AssertionError(f"no result within {limit_s:g} s; where it was is on standard error")
        kind, result = ours.recv()
        assert kind == "result", result
        return result
    finally:
        process.join(10)
        process.kill()
        process.join()
        process.close()
        ours.close()
        shutil.rmtree(folder, ignore_errors=True)


def _give_up(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1)  # it writes its threads' stacks
    for below in [*reversed(descendants(pid)), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(below, signal.SIGKILL)


def _inside(work: Callable[[Path], Any], folder: Path, pipe: Any) -> None:
    faulthandler.register(signal.SIGUSR1, file=2)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # the tests have looked it up; multiprocessing's sockets go there too
    own_locks()  # others of the pytest process may be held by a thread that is not in this one
    short_socket_folder()
    try:
        result = work(folder)
        record_descendants()
        pipe.send(("result", result))
    except BaseException:  # noqa: BLE001 - the test that waits shows it
        pipe.send(("failed", traceback.format_exc()))
    kill_descendants()
    os._exit(0)
