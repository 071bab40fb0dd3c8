"""Feed random corruptions of everything a VM can send to the real readers, controller loop and store.

    python -m benchmarks.hostile_vm --count 10000
    python -m benchmarks.hostile_vm --seconds 3600

Each run has two slots. The VMs of slot "a" are hostile: their job.json, status.json, logs, archives and DHT records
(benchmarks/hostile_dht.py) are corrupted at random. This must not end the run, affect slot "b", or leave a VM
running.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_dht import HostileSwarm
from cloud.provider import LaunchRequest, Observed, Offer, Owned, is_monitor
from cloud.sky.records import VmRecord
from cloud.sky.state import Listed, after_peek, after_skew, observed, parse_peek, skew_of
from cloud.sky.vm.ssh import unpack
from metrics.coverage import coverage_of
from metrics.records import EventRecord
from metrics.store.database import RunStore
from orchestrator.controller.calls import InlineCalls
from orchestrator.controller.tick import Shell
from orchestrator.core import events as ev
from orchestrator.core.journal import created
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec

RUN_ID = "r"
_PLACE = Place("aws/us-east-1/us-east-1a", "g4dn.xlarge", "T4:1", True, Decimal("0.18"), "book")
_SPEC = RunSpec(
    RUN_ID, (SlotSpec("a", (_PLACE,), Policy()), SlotSpec("b", (_PLACE,), Policy())), first_alone=False
)
_LAST = 3
_PROGRESS_PERIOD_S = 30.0
_LIMIT_S = 5000.0  # a run that takes longer hangs
_FILES = (
    "status.json",
    "steps.csv",
    "egress.csv",
    "utilisation.csv",
    "coverage.csv",
    "peer.log",
    "setup.log",
    "job.json",
)
_STEPS = (
    "step,epoch,began_s,wall_s,load_s,move_s,forward_s,backward_s,optimizer_local_s,optimizer_sync_s,other_s,samples\n"
    "1,1,5.0,1.0,0.1,0.0,0.3,0.5,0.0,0.0,0.1,32\n"
)
_COVERAGE = "vm,number,what,pass_number,shard,first,end\nx,0,used,0,0,0,64\nx,1,end,0,0,0,0\n"
_UTILISATION = "began_s,wall_s,readings,scope,cores,cpu_mean\n5.0,10.0,10,vm,4,0.5\n"
_PEER = "12D3KooWGRUuQZfcDrL1q9qLQCpkW6hQ4gCvQ5FBCZ1gY3iR8dNm"
_TOKENS = ("9" * 5000, "NaN", "-Infinity", "\\ud800")
_CELLS = (b"nan", b"inf", b"9" * 30, b"9" * 5000, b"-1", b"\xff\xfe", b'"', b"\r", b"\x1b[2J")
_EVIL: Sequence[Any] = (
    None, True, False, 0, -1, 2**62, 10**30, 1e18, -1e300, 1e308, float("nan"), float("inf"), "", "x", "no", "alone",
    "\x1b[31mred\x1b[0m", "\x00", "\ud800", "\u202eabc", "done", "failed", "training", "leaving", "waiting", "ended", [], {}, [[]],
    {"a": {"b": [1, "x"]}}, "y" * 5000, "/ip4/1.2.3.4/tcp/1/p2p/alone", "2026-11-24", ["a"] * 50,
)  # fmt: skip


@dataclass
class Outcome:
    """The result of a run: the number of corruptions, and the violations found."""

    corruptions: int
    in_dht: int  # those in the DHT
    wrong: list[str]


class HostileCloud:
    """An in-memory provider that corrupts the reports, logs and archives of VMs of the slot `hostile`."""

    name = "sky"

    def __init__(self, folder: Path, random: Random, hostile: str) -> None:
        self.now_s = 1_790_000_000.0
        self.corruptions = 0
        self._folder, self._random, self._hostile = folder, random, hostile
        self._records: dict[str, VmRecord] = {}
        (folder / "monitor").mkdir(parents=True)
        self.swarm = HostileSwarm(RUN_ID, folder, random, lambda: self.now_s)

    def request(self, request: LaunchRequest) -> None:
        """Create the VM immediately."""
        if request.vm not in self._records:
            self._records[request.vm] = VmRecord(
                request.vm, request.vm, _PLACE.location, "T4:1", True, self.now_s, launched=True, address="10.0.0.1",
            )  # fmt: skip

    def observe(self) -> list[Observed]:
        """Return all VMs, as parsed by the real readers."""
        found: list[Observed] = []
        self._scrape()
        for vm, record in self._records.items():
            if not record.end_state:
                text = "\n".join(self._report(record))
                if self._is_hostile(vm):
                    text = self._corrupt_report(text)
                record = self._records[vm] = after_peek(
                    after_skew(record, skew_of(text, self.now_s, 0.1)), parse_peek(text), self.now_s
                )
            found.append(observed(record, Listed(vm, "UP", record.address), self.now_s))
        return found

    def terminate(self, vm: str) -> None:
        """End the VM immediately."""
        record = self._records.get(vm)
        if record is not None and not record.end_state:
            self._records[vm] = replace(record, end_state="terminated", ended_at_s=self.now_s)

    def collect(self, vm: str) -> str:
        """Unpack the VM's archive."""
        to = self._folder / "vms" / vm
        files = {
            "steps.csv": _STEPS.encode(), "egress.csv": _egress(vm), "utilisation.csv": _UTILISATION.encode(),
            "coverage.csv": _COVERAGE.encode(),
            "peer.log": b"a line\n",
        }  # fmt: skip
        if self._is_hostile(vm):
            for name in files:
                files[name] = self._corrupt_bytes(files[name])
        archive = _packed(files)
        unpack(self._corrupt_bytes(archive) if self._is_hostile(vm) else archive, _FILES, to)
        return str(to)

    def offers(self, location: str, accelerator: str, use_spot: bool) -> list[Offer]:
        """Not used."""
        raise NotImplementedError

    def list_ours(self, owner: str) -> list[Owned]:
        """Not used."""
        raise NotImplementedError

    def release(self, owned: Owned) -> None:
        """Not used."""
        raise NotImplementedError

    def close(self) -> None:
        """End all VMs."""
        for vm in self._records:
            self.terminate(vm)

    def alive(self) -> list[str]:
        """Return the VMs that have not ended."""
        return [vm for vm, record in self._records.items() if not record.end_state]

    def _is_hostile(self, vm: str) -> bool:
        return vm.startswith(f"{RUN_ID}-{self._hostile}-")

    def _report(self, record: VmRecord) -> tuple[str, str]:
        for_s = self.now_s - record.requested_at_s
        phase = _phase(for_s)
        job = {"phase": "running", "exit_code": None, "error": "", "at_s": record.requested_at_s + 1.0}
        status = {
            "phase": phase, "at_s": self.now_s, "maddr": f"/ip4/10.0.0.1/tcp/31337/p2p/{_PEER}" if for_s >= 2 else None,
            "peer_id": _PEER, "epoch": 1, "error": None, "hopeless": False, "notice_at_s": None, "join": None, "warnings": [],
            "utilisation": [{"began_s": self.now_s, "wall_s": 10.0, "readings": 10, "scope": "vm", "cores": 4, "cpu_mean": 0.5}],
            "coverage": [[0, "used", 0, 0, 0, 64], [1, "size", 0, 0, 0, 64]],
        }  # fmt: skip
        return json.dumps(job), json.dumps(status)

    def _scrape(self) -> None:
        """Let the monitor read the peers' records."""
        peers = {vm: r for vm, r in self._records.items() if not r.end_state and not is_monitor(vm)}
        phases = {vm: _phase(self.now_s - record.requested_at_s) for vm, record in peers.items()}
        training = [vm for vm, phase in phases.items() if phase in ("training", "done")]
        trained = [vm for vm, phase in phases.items() if phase == "done"]
        self.swarm.scrape(training, trained, self._is_hostile)

    def _corrupt_report(self, text: str) -> str:
        random = self._random
        self.corruptions += 1
        how = random.randrange(9)
        if how < 5:  # fields of one of the files
            documents = [json.loads(line) for line in text.split("\n")]
            for _ in range(random.randint(1, 4)):
                chosen = random.choice(documents)
                chosen[random.choice([*chosen, "made up", "ran"])] = random.choice(_EVIL)
            return "\n".join(json.dumps(document) for document in documents)
        if how == 5:
            return "[" * random.choice((10, 3000, 200_000)) + text
        if how == 6:
            return text.replace(
                random.choice(('"phase"', ": ", "null", "1")),
                random.choice(_TOKENS),
            )
        if how == 7:
            return random.choice(
                ("", "\n\n\n", "{}\n{}", "null\nnull", "[]\n1", text[::-1], "x" * 300_000, "\n" + text)
            )
        return self._corrupt_bytes(text.encode()).decode(errors="replace")

    def _corrupt_bytes(self, content: bytes) -> bytes:
        random = self._random
        self.corruptions += 1
        data = bytearray(content)
        for _ in range(random.randint(1, 6)):
            at = random.randint(0, len(data))
            match random.randrange(5):
                case 0:
                    data[at : at + random.randint(0, 40)] = random.randbytes(random.randint(0, 40))
                case 1:
                    data = data[:at]
                case 2:
                    data[at:at] = b"\0" * random.choice((1, 600, 30_000))
                case 3:
                    data[at : at + 3] = random.choice(_CELLS)
                case _:
                    data[at:at] = data[: random.randint(0, 200)]
        return bytes(data)


def _phase(for_s: float) -> str:
    return "starting" if for_s < 2 else "ready" if for_s < 4 else "training" if for_s < 40 else "done"


def _egress(vm: str) -> bytes:
    return f"vm,epoch,dst_address,phase,seconds,bytes\n{vm},1,10.0.0.9,leaving,1.5,77\n".encode()


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


class _Requests:
    last_epoch = _LAST
    evaluates = True
    checkpoints = False
    most_checkpoint_bytes = 10**9

    def peer(self, request: ev.RequestVm, place: Place) -> LaunchRequest:
        return LaunchRequest(
            request.vm, Offer(place.location, place.instance, "T4:1", True, None, ""), "p", {}
        )

    def monitor(self, vm: str) -> LaunchRequest:
        return LaunchRequest(vm, Offer(_PLACE.location, "m", "CPU:1", False, None, ""), "p", {})

    def nodes(self) -> dict[str, tuple[str, str]]:
        return {}


def run_one(folder: Path, seed: int, hostile: str = "a") -> tuple[Outcome, list[tuple[Any, ...]]]:
    """Run to the end in an empty folder. Also returns what happened to slot "b"."""
    random = Random(seed)
    cloud = HostileCloud(folder, random, hostile)
    with RunStore.open_writer(folder / "run.db") as store:
        fact = created(_SPEC)
        store.append(
            "events",
            [EventRecord(0, cloud.now_s, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)],
        )
        store.set_meta("training_shards", 1)
        wrong: list[str] = []
        try:
            shell = Shell(
                store, InlineCalls(cloud), _Requests(), folder, now_s=lambda: cloud.now_s, jitter=Random(1).random
            )  # fmt: skip
            began_s = cloud.now_s
            while not shell.tick():
                cloud.now_s += 1.0 if cloud.now_s < began_s + 60.0 else 10.0
                if cloud.now_s > began_s + _LIMIT_S:
                    wrong.append(f"it has not ended after {_LIMIT_S:.0f} s: {shell.state}")
                    break
        except Exception as error:  # noqa: BLE001 - this is what is tested
            wrong.append(f"a tick raised {error!r}")
        if store.meta("status") != "done":
            wrong.append(f"it ended as {store.meta('status')}: {store.meta('error')}")
        if cloud.alive():
            wrong.append(f"still running: {', '.join(cloud.alive())}")
        other: list[tuple[Any, ...]] = [
            (e.kind, e.vm, e.from_state, e.to_state)
            for e in store.records("events")
            if e.slot == "b" and e.kind == "transition"
        ]
        other += [("steps", s.vm, s.step, s.wall_s) for s in store.records("steps") if s.vm == "r-b-0"]
        other += [("egress", e.vm, e.phase, e.bytes) for e in store.records("egress") if e.vm == "r-b-0"]
        rows, vms = store.records("coverage"), store.records("vms")
        other += [("coverage", row.what, row.first, row.end) for row in rows if row.vm == "r-b-0"]
        covered = coverage_of(rows, 1, vms, [row.vm for row in vms])
        if covered is None or any(one.samples not in (64, None) for one in covered.passes):
            wrong.append(f"coverage {covered}")
    cloud.swarm.close()
    drawn = cloud.corruptions + cloud.swarm.corruptions
    return Outcome(drawn, cloud.swarm.corruptions, wrong + cloud.swarm.wrong), other


@dataclass
class Tally:
    """The totals of many runs."""

    corruptions: int = 0
    in_dht: int = 0
    runs: int = 0
    wrong: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # by seed


def run_many(
    done: Callable[[Tally], bool],
    first_seed: int = 0,
    progress: Callable[[Tally], None] = lambda _tally: None,
) -> Tally:
    """Run with seeds from `first_seed` on until `done`."""
    with _quiet():
        return _run_many(done, first_seed, progress)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs of thousands of rejected values."""
    loggers = [logging.getLogger(name) for name in ("orchestrator", "cloud", "metrics", "hivemind")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _run_many(done: Callable[[Tally], bool], first_seed: int, progress: Callable[[Tally], None]) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        _, expected = run_one(Path(folder) / "calm", 0, hostile="nobody")
    tally = Tally()
    while not done(tally):
        seed = first_seed + tally.runs
        with tempfile.TemporaryDirectory() as folder:
            outcome, other = run_one(Path(folder) / "run", seed)
        tally.corruptions += outcome.corruptions
        tally.in_dht += outcome.in_dht
        tally.runs += 1
        wrong = outcome.wrong + ([f"slot b: {other} instead of {expected}"] if other != expected else [])
        if wrong:
            tally.wrong[seed] = wrong
        progress(tally)
    return tally


def main() -> int:
    """Return 1 if a run ended early or another VM was affected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="minimum number of corruptions")
    parser.add_argument("--seconds", type=float, help="duration, instead of --count")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    options = parser.parse_args()
    began_s = printed_s = time.monotonic()

    def done(tally: Tally) -> bool:
        if options.seconds is None:
            return tally.corruptions >= options.count
        return time.monotonic() - began_s >= options.seconds

    def progress(tally: Tally) -> None:
        nonlocal printed_s
        if time.monotonic() - printed_s >= _PROGRESS_PERIOD_S:
            printed_s = time.monotonic()
            print(_line(tally, printed_s - began_s), file=sys.stderr, flush=True)

    tally = run_many(done, options.seed, progress)
    for seed, wrong in tally.wrong.items():
        print(f"seed {seed}: {'; '.join(wrong)}")
    print(_line(tally, time.monotonic() - began_s))
    return bool(tally.wrong)


def _line(tally: Tally, for_s: float) -> str:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return (
        f"{tally.corruptions} corruptions ({tally.in_dht} of them in the DHT) in {tally.runs} runs, {for_s:.0f} s, "
        f"peak {peak_mb:.0f} MB: {len(tally.wrong)} runs failed"
    )


if __name__ == "__main__":
    sys.exit(main())
