"""The program of one process of the server: runs operations on samples that it gets over a pipe, one after the other."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection

from experiments.offload.job import Work
from experiments.offload.mixed import Transformer
from experiments.offload.shard_stream import sample_bytes
from experiments.pipeline.errors import describe_error

DONE = b"\x01"
FAILED = b"\x00"

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int, memory_bytes: int) -> None:
    """Answer each sample with DONE and its bytes in the tar, or with FAILED and a reason, until the pipe ends.

    The first message is the work; the others are (sample, pass, pax headers).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe = Connection(descriptor)
    try:
        work: Work = pipe.recv()
        try:
            transform = Transformer(work.pipeline(), work.plan)
        except Exception as error:  # noqa: BLE001 - the server raises it
            pipe.send_bytes(FAILED + str(error).encode())
            return
        pipe.send_bytes(DONE)
        while True:
            sample, pass_number, headers = pipe.recv()
            try:
                answer = DONE + sample_bytes(transform(sample, pass_number), headers)
            except Exception as error:  # noqa: BLE001 - an operation may raise anything; the sample goes as it is stored
                answer = FAILED + describe_error(error).encode("utf-8", "replace")
            pipe.send_bytes(answer)
    except (EOFError, OSError):  # the server has ended
        return


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
