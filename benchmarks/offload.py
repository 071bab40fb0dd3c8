"""Compare passes over photos behind a slow link with what `orch pipeline plan` predicts, under every offloading policy.

Photos in a real S3 store; the offload server, with `--cores` processes, on the same machine; a client that reads over a link of
`--mbps` and runs the other operations in one thread. Each sample is profiled first (orch pipeline profile --offload), and
each policy's choices and its pass are predicted from that. Prints a row per policy with the median of the passes, and how
busy the server's processes were. The link is a proxy that delays bytes; it counts those of TLS, too. Two
shards are read at once, so that the link is busy while a request waits for the store's answer.

Exits with 1 if a median is more than 10 % off its prediction, if `best` is not 1.6 times as fast as `none` (with WebP 3
times), if the server's processes used more than 1.05 times their cores, or if policies gave different tensors.

    python -m benchmarks.offload --samples 200 --mbps 40 --repeats 5
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import queue
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from analysis.pipeline.offload import policies
from analysis.pipeline.offload.best import best
from analysis.pipeline.offload.choices import Choices, choices_of
from analysis.pipeline.offload.offload_profile import OffloadProfile
from analysis.pipeline.offload.pass_time import Assignment, Machines, pass_time
from cloud.storage.opener import ShardOpener
from experiments.offload.certificate import Certificate, server_context
from experiments.offload.cores import Cores
from experiments.offload.job import Job
from experiments.offload.mixed import MixedPipeline
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.reader import OffloadReader, ServerAddress
from experiments.offload.server import OffloadServer
from orchestrator.pipeline.offload.profiling import OffloadWanted, offload_profile
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.target import find_target

PIPELINE, CODEC, WEBP = "imagenet", "webp", "best, webp"
NEEDED_SPEEDUP = {"best": 1.6, WEBP: 3.0}
LARGEST_ERROR, LARGEST_CPU = 0.10, 1.05
_CHUNK_BYTES = 16 * 1024


def assignments(profile: OffloadProfile, machines: Machines) -> dict[str, tuple[Choices, Assignment]]:
    """The choices of each policy."""
    samples = profile.samples
    plain, coded = choices_of(samples), choices_of(samples, profile.choosable())
    return {
        "none": (plain, policies.none(plain)),
        "all": (plain, policies.everything(plain)),
        "prefix:2": (plain, policies.prefix(plain, 2)),
        "fastflow": (plain, policies.fastflow(plain, machines)),
        "greedy": (plain, policies.greedy(plain, machines, samples.keys)),
        "best": (plain, best(plain, machines).chosen),
        WEBP: (coded, best(coded, machines).chosen),
    }


def plan_of(opened: OpenInput, profile: OffloadProfile, choices: Choices, chosen: Assignment) -> OffloadPlan:
    """The server's plan."""
    found: dict[str, Choice] = {}
    for key, column in zip(profile.samples.keys, chosen, strict=True):
        name = choices.names[column]
        if name.ops:
            found[key] = Choice(name.ops, CODEC if name.codec.startswith(CODEC) else "none")
    return OffloadPlan.of(opened.pipeline, opened.seed, found)


class Link:
    """A proxy on loopback to a port: all bytes towards the client arrive at `bps` together."""

    def __init__(self, port: int, bps: float) -> None:
        self._target, self._s_per_byte = port, 8 / bps
        self._free_s, self._lock = 0.0, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, paced: bool) -> None:
        with contextlib.suppress(OSError):  # one side has closed
            while data := source.recv(_CHUNK_BYTES):
                if paced:
                    with self._lock:
                        self._free_s = max(self._free_s, time.monotonic()) + len(data) * self._s_per_byte
                        wait_s = self._free_s - time.monotonic()
                    time.sleep(max(0.0, wait_s))
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Served:
    """What the server's process needs."""

    job: Job
    cores: int
    certificate: Certificate
    client: Callable[[], Any]
    endpoint: str
    mbps: float


def serve(served: Served, pipe: Connection) -> None:
    """Serve until the pipe ends. Sends the link's port and the ids of the processes that run operations."""

    def report(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        tls = server_context(*served.certificate.write(Path(folder)))
        opener = ShardOpener(served.client, endpoint=served.endpoint)
        cores = Cores(served.job, served.cores, limit_s=20, memory_bytes=1 << 30, report=report)
        try:
            server = OffloadServer(served.job, cores, opener, tls, host="127.0.0.1", report=report)
            link = Link(server.port, served.mbps * 1e6)
            pipe.send((link.port, cores.pids))
            with contextlib.suppress(EOFError):
                pipe.recv()
            link.close()
            server.stop()
        finally:
            cores.close()


@contextlib.contextmanager
def server(served: Served) -> Iterator[tuple[int, list[int]]]:
    """A server in a process of its own: the port behind the link, and the processes that run operations."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(served, there))
    process.start()
    there.close()
    try:
        port, pids = here.recv()
        yield port, pids
    finally:
        here.close()
        process.join(30)
        process.kill()


@dataclass(frozen=True)
class Pass:
    """A pass: seconds, samples that came through the server, CPU seconds of its processes, SHA-256 of all tensors."""

    seconds: float
    server_samples: int
    cpu_s: float
    digest: str


def used_cpu_s(pid: int) -> float:
    """CPU seconds of a process so far (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_pass(readers: list[OffloadReader], opened: OpenInput, shards: list[str], pids: list[int]) -> Pass:
    """Each reader, in a thread of its own, reads the next shard that no other has begun; the remaining operations run here."""
    pipeline = MixedPipeline(opened.pipeline, opened.seed)
    lines: dict[str, queue.SimpleQueue[Any]] = {shard: queue.SimpleQueue() for shard in shards}
    before, digest = sum(one.counts.server_samples for one in readers), hashlib.sha256()
    turn = iter(shards)  # next() of it is atomic

    def cpu_s() -> float:
        return sum(map(used_cpu_s, pids))

    def read(reader: OffloadReader) -> None:
        for shard in turn:
            try:
                for sample in reader.read(shard, 0):
                    lines[shard].put(sample)
                lines[shard].put(None)
            except Exception as error:  # noqa: BLE001 - raised in the other thread
                lines[shard].put(error)

    began_cpu_s, began_s = cpu_s(), time.monotonic()
    for reader in readers:
        threading.Thread(target=read, args=(reader,), daemon=True).start()
    for line in lines.values():
        while (sample := line.get()) is not None:
            if isinstance(sample, Exception):
                raise sample
            item = pipeline.run(sample, opened.seed, 0)
            digest.update(sample["__key__"].encode() + hashlib.sha256(item["image"].tobytes()).digest())
    took_s = time.monotonic() - began_s
    through = sum(one.counts.server_samples for one in readers) - before
    return Pass(took_s, through, cpu_s() - began_cpu_s, digest.hexdigest())


def passes(
    opened: OpenInput, shards: list[str], plan: OffloadPlan, options: argparse.Namespace
) -> list[Pass]:
    """The repeats of one policy, after a pass that is not counted. Raises RuntimeError if samples came from the store."""
    token, certificate = secrets.token_hex(16), Certificate.make()
    job = Job(PIPELINE, plan, frozenset(shards), {"client": token}, find_settings())
    served = Served(job, options.cores, certificate, opened.client, opened.endpoint, options.mbps)
    with server(served) as (port, pids):
        at = ServerAddress("127.0.0.1", port, certificate.certificate, plan.fingerprint, plan.sha256, token)
        readers = [
            OffloadReader(at, opened.opener, report=lambda text: print(text, file=sys.stderr))
            for _ in range(options.streams)
        ]
        found = [run_pass(readers, opened, shards, pids) for _ in range(1 + options.repeats)][1:]
        for reader in readers:
            reader.close()
    if any(one.server_samples < options.samples for one in found):
        raise RuntimeError("the server was lost in between")
    return found


def find_settings() -> dict[str, Any]:
    """The settings of the pipeline, as `orch pipeline` uses it."""
    standalone = find_target(PIPELINE).standalone
    assert standalone is not None
    return dict(standalone.settings)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--mbps", type=float, default=40.0)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--streams", type=int, default=2, help="shards that are read at once")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    target = find_target(PIPELINE)
    wanted = OffloadWanted(samples=options.samples, batches=5, codecs=(CODEC,), workers=1)
    profile = offload_profile(target, wanted, print, lambda _: None)
    machines = Machines(0.0, options.mbps * 1e6, 1, options.cores)
    good, medians, digests = True, dict[str, float](), set[str]()
    print(
        "policy        offloaded  predicted s  limited by  median s (least, most)     difference  server's CPU s/s"
    )
    with open_input(target, samples=options.samples, progress=print) as opened:
        shards = sorted(opened.shards)
        for name, (choices, chosen) in assignments(profile, machines).items():
            expected = pass_time(choices, chosen, machines)
            found = passes(opened, shards, plan_of(opened, profile, choices, chosen), options)
            took = [one.seconds for one in found]
            medians[name] = statistics.median(took)
            error = medians[name] / expected.seconds - 1
            busy = max(one.cpu_s / one.seconds for one in found)
            digests |= {one.digest for one in found}
            good = good and abs(error) <= LARGEST_ERROR and busy <= options.cores * LARGEST_CPU
            print(
                f"{name:12} {expected.offloaded:10d} {expected.seconds:12.2f}  {expected.bound:10}  "
                f"{medians[name]:8.2f} ({min(took):.2f}, {max(took):.2f}) {error:+17.1%} {busy:17.2f}",
                flush=True,
            )
    for name, needed in NEEDED_SPEEDUP.items():
        speedup = medians["none"] / medians[name]
        good = good and speedup >= needed
        print(f"{name}: {speedup:.2f} times as fast as none (needed: {needed})")
    same = len(digests) == 1
    print(f"tensors of all passes are {'the same' if same else 'NOT the same'}")
    return 0 if good and same else 1


if __name__ == "__main__":
    raise SystemExit(main())
