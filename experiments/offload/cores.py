"""The server's processes, one for each core that it may use: each has one thread, a limit of memory, and a time limit."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from cloud.storage.samples import Sample
from experiments.offload.errors import PlanError
from experiments.offload.job import Job
from experiments.offload.mixed import as_stored
from experiments.offload.shard_stream import sample_bytes
from experiments.offload.worker import DONE

_MOST = 256
_START_S = 60.0
_ROOT = Path(__file__).parents[2]
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


class Cores:
    """`count` processes that run the operations of a job.

    A sample whose operations raise, take longer than `limit_s`, or end their process (for want of memory, say) is sent as
    it is stored; `report` gets the reason as a sentence. Raises PlanError for a count out of range, and if a process
    cannot load the pipeline.
    """

    def __init__(
        self, job: Job, count: int, *, limit_s: float, memory_bytes: int, report: Callable[[str], None]
    ) -> None:
        if type(count) is not int or not 1 <= count <= _MOST:
            raise PlanError(f"cores: {count!r} is not a whole number from 1 to {_MOST}")
        self.count = count
        self._work = job.work
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._report = report
        self._lock = threading.Lock()
        self._closed = False
        self._workers: set[_Worker] = set()
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="core")
        try:
            for _ in range(count):
                self._idle.put(self._start())
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that run now."""
        with self._lock:
            return sorted(worker.process.pid for worker in self._workers)

    def submit(self, sample: Sample, pass_number: int, headers: dict[str, str]) -> Future[bytes]:
        """Transform a sample; the result is its entries in the tar. Raises RuntimeError after `close`."""
        return self._pool.submit(self._run, sample, pass_number, headers)

    def close(self) -> None:
        """End all processes. Samples in work are given as they are stored."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            self._end(worker)

    def _run(self, sample: Sample, pass_number: int, headers: dict[str, str]) -> bytes:
        worker, answer = self._idle.get(), b""
        try:
            if worker is None:  # the last one was ended, and no new one could be started yet
                worker = self._start()
            answer = worker.ask((sample, pass_number, headers), self._limit_s)
            why = "" if answer[:1] == DONE else answer[1:].decode("utf-8", "replace")
        except TimeoutError:
            answer, why = b"", f"its operations took longer than {self._limit_s:g} s"
        except (EOFError, OSError, PlanError) as error:
            answer, why = b"", f"the process that ran its operations ended ({type(error).__name__})"
        finally:  # the core stays available whatever happened
            if not answer and worker is not None:
                self._end(worker)
                worker = None
            self._idle.put(worker)
        if not why:
            return answer[1:]
        if not self._closed:
            self._report(f"{sample['__url__']}: sample {sample['__key__']} is sent as it is stored: {why}")
        return sample_bytes(as_stored(sample), headers)

    def _start(self) -> _Worker:
        worker = _Worker(self._memory_bytes)
        with self._lock:
            self._workers.add(worker)
            is_closed = self._closed
        try:
            if is_closed:
                raise EOFError
            answer = worker.ask(self._work, _START_S)
        except (EOFError, OSError, TimeoutError) as error:
            self._end(worker)
            raise PlanError(
                f"a process of the server could not be started ({type(error).__name__}); give it more memory"
            ) from error
        if answer[:1] != DONE:
            self._end(worker)
            raise PlanError(answer[1:].decode("utf-8", "replace"))
        return worker

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.end()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, memory_bytes: int) -> None:
        ours, theirs = Pipe()
        with contextlib.closing(theirs):
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "experiments.offload.worker",
                    *map(str, (theirs.fileno(), os.getpid(), memory_bytes)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=_ROOT,
                env={**os.environ, **_ONE_THREAD},
            )
        self._pipe: Connection = ours  # pyright: ignore[reportAttributeAccessIssue]

    def ask(self, message: object, limit_s: float) -> bytes:
        """Send a message and return the answer. Raises TimeoutError, EOFError, OSError."""
        self._pipe.send(message)
        if not self._pipe.poll(limit_s):
            raise TimeoutError
        return self._pipe.recv_bytes()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()
