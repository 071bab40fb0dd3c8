"""A swarm of digits peers on the emulated cloud without a controller: start, observe, kill and pause peers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.robust.verdict import Ends
from cloud.local import LocalCloud, LocalOptions, StoreOptions
from cloud.provider import LaunchRequest, Offer
from experiments.peer.config import PeerConfig
from experiments.wire.record_keys import generate_identity, generate_record_key

PLACES = ("gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b")  # peers alternate between them
_RUN = "robust"
_POLL_S = 0.05
_LEASE_S = 900.0  # longer than any wait without a call to the cloud
_PHASES = re.compile(
    r"(?P<matchmaking>Pre-scheduling gradient averaging round)|(?P<averaging>Averaging begins)"
    r"|(?P<calculation>Averaged gradients|Transitioning to epoch|the round is given up)"
)
_GIVEN_UP = b"the round is given up"
_LINEAGE = re.compile(r"epoch (\d+) is of lineage (\w*)")


class StuckError(Exception):
    """A wait timed out, or a peer failed by itself."""


@dataclass(frozen=True)
class Settings:
    """Settings, in seconds as in PeerConfig. An epoch takes about `target / (peers x samples) x step_s` plus a round."""

    peers: int
    parameters: int = 300_000
    bytes_scale: float = 200.0
    forward_s: float = 0.1
    backward_s: float = 0.2
    batch_size: int = 16
    coalesce: int = 2
    calc_steps: int = 10  # steps of `coalesce` batches after which the peers together reach the target
    matchmaking_time_s: float = 2.0
    request_timeout_s: float = 1.0
    next_chunk_timeout_s: float = 8.0
    averaging_timeout_s: float = 30.0
    dht_timeout_s: float = 5.0
    overlap: str = "none"
    averaging: str = "flat"
    compression: str = "float16"
    max_epochs: int = 10_000
    epochs_after: int = 2  # complete epochs after a disturbance
    pause_s: float = 10.0
    averaging_s: float = 0.9  # window of a round in which a kill is tried; rounds take longer

    @property
    def step_s(self) -> float:
        """Seconds per optimizer call."""
        return self.coalesce * (self.forward_s + self.backward_s)

    @property
    def target_batch_size(self) -> int:
        """Samples per epoch."""
        return self.peers * self.batch_size * self.coalesce * self.calc_steps

    def config(self, slot: str, generation: int, seed: int, **changes: Any) -> PeerConfig:
        """Build the configuration of a peer."""
        return PeerConfig(
            run_id=_RUN,
            vm=f"{_RUN}-{slot}-{generation}",
            slot=slot,
            generation=generation,
            listen_address="",
            listen_port=34_000,
            barrier_timeout_s=120.0,
            target_batch_size=self.target_batch_size,
            batch_size=self.batch_size,
            coalesce=self.coalesce,
            max_epochs=self.max_epochs,
            compression=self.compression,
            overlap=self.overlap,
            averaging=self.averaging,
            averaging_region=_place(slot),
            optimizer={"name": "adam", "lr": 0.01},
            matchmaking_time_s=self.matchmaking_time_s,
            averaging_timeout_s=self.averaging_timeout_s,
            next_chunk_timeout_s=self.next_chunk_timeout_s,
            request_timeout_s=self.request_timeout_s,
            dht_timeout_s=self.dht_timeout_s,
            part_size_bytes=max(1024, 2 * self.parameters // self.peers // 12),
            model="ConvNextLarge",
            emulated=True,
            parameters=self.parameters,
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            sync_work_s=0.2,
            seed=seed,
            region="us-east-1",
            cache_bytes=1 << 24,
            heldout_shards=(),
            **changes,
        )


def _place(slot: str) -> str:
    return PLACES[(ord(slot) - ord("a")) % len(PLACES)]


@dataclass
class Peer:
    """A peer's VM."""

    vm: str
    slot: str
    folder: Path
    ends: Ends = field(default_factory=Ends)
    gone: bool = False  # killed by this benchmark
    epoch: int = 0
    phase: str = "none"
    maddr: str = ""
    error: str = ""
    pid: int = 0


class Swarm:
    """A swarm of peers. Not thread-safe; all waits call `look`."""

    def __init__(self, folder: Path, settings: Settings, seed: int, mode: str = "auto") -> None:
        self.settings, self.seed, self._folder, self._mode = settings, seed, folder, mode
        self.peers: dict[str, Peer] = {}
        self.namespaces: set[str] = set()
        self._cloud: LocalCloud | None = None
        self._generation: dict[str, int] = {}
        self.pids: set[int] = set()

    @contextlib.contextmanager
    def running(self, endpoint: str, shards: Sequence[str]) -> Iterator[Swarm]:
        """Start the cloud and the peers, yield once all train, then close the cloud. Raises StuckError."""
        self._shards = tuple(shards)
        options = LocalOptions(
            bytes_scale=self.settings.bytes_scale,
            mode=self._mode,  # type: ignore[arg-type]
            store=StoreOptions(kind="forward", location=PLACES[0], url=endpoint),
            preload=(
                "torch",
                "hivemind",
                "experiments.peer.optimizer.build",
                "experiments.peer.training.task",
                "boto3",
            ),
            lease_s=_LEASE_S,
        )
        self._cloud = LocalCloud.start(self._folder, options)
        try:
            self._endpoint = self._wait_for_store()
            slots = [chr(ord("a") + i) for i in range(self.settings.peers)]
            first = self.start(slots[0])
            self.wait(lambda: bool(first.maddr), 60.0, "the first peer's address")
            for slot in slots[1:]:
                self.start(slot)
            self.wait(
                lambda: all(p.phase == "training" for p in self.peers.values()), 120.0, "all peers to train"
            )
            yield self
        finally:
            try:
                self._record_resources()
            finally:
                self._cloud.close()

    def start(self, slot: str) -> Peer:
        """Start a VM with a peer of the slot, which joins the peers that are running."""
        generation = self._generation[slot] = self._generation.get(slot, -1) + 1
        known = tuple(p.maddr for p in self.alive() if p.maddr)
        config = self.settings.config(
            slot,
            generation,
            self.seed,
            initial_peers=known,
            expected_peers=self.settings.peers if generation == 0 else 1,
            endpoint=self._endpoint,
            shards=self._shards,
            environment={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
        )
        files = {
            config.identity_file: generate_identity()[0],
            config.record_key_file: generate_record_key()[0],
        }
        assert self._cloud is not None
        self._cloud.request(
            LaunchRequest(
                config.vm,
                Offer(_place(slot), "emulated", "T4:1", True, None, ""),
                "experiments.peer.main:main",
                config.to_json(),
                files,
            )
        )
        self.peers[config.vm] = Peer(config.vm, slot, self._folder / "vms" / config.vm)
        return self.peers[config.vm]

    def alive(self) -> list[Peer]:
        """Return the peers that were not killed, in order of their start."""
        return [peer for peer in self.peers.values() if not peer.gone]

    def look(self) -> None:
        """Read the status of the peers. Raises StuckError for a peer that failed by itself."""
        now_s = time.monotonic()
        for peer in self.alive():
            try:
                status = json.loads((peer.folder / "status.json").read_text())
            except (OSError, ValueError):
                continue
            before, peer.phase, peer.epoch = peer.phase, status["phase"], status["epoch"]
            peer.maddr, peer.error = status["maddr"] or "", status["error"] or ""
            if peer.phase == "failed":
                raise StuckError(f"{peer.vm} failed: {peer.error}; {peer.folder}/peer.log")
            if peer.phase == "training" and before not in ("training", "done"):
                peer.ends.began = (peer.epoch, now_s)
            elif peer.phase in ("training", "done"):
                peer.ends.saw(peer.epoch, now_s)

    def wait(self, what: Callable[[], bool], limit_s: float, name: str) -> None:
        """Poll until `what` returns True. Raises StuckError after `limit_s`."""
        end_s = time.monotonic() + limit_s
        while True:
            self.look()
            if what():
                return
            if time.monotonic() > end_s:
                states = ", ".join(f"{p.vm}: {p.phase} {p.epoch}" for p in self.alive())
                raise StuckError(f"waited {limit_s:g} s for {name}: {states}")
            time.sleep(_POLL_S)

    def rest(self, seconds: float) -> None:
        """Poll for the given time."""
        end_s = time.monotonic() + seconds
        with contextlib.suppress(StuckError):
            self.wait(lambda: time.monotonic() >= end_s, seconds + 1.0, "time")

    def wait_for_phase(self, peer: Peer, phase: str, limit_s: float) -> None:
        """Wait until the peer's log shows the next start of the phase."""
        log = peer.folder / "peer.log"
        seen = log.stat().st_size
        self.wait(lambda: phase in _phases(log, seen), limit_s, f"{phase} of {peer.vm}")

    def phase_of(self, peer: Peer) -> str:
        """Return "matchmaking", "averaging" or "calculation", according to the end of the peer's log."""
        return (_phases(peer.folder / "peer.log") or ["calculation"])[-1]

    def given_up(self) -> int:
        """Count the rounds that peers gave up, with their gradients, since the start of the swarm."""
        logs = [peer.folder / "peer.log" for peer in self.peers.values()]
        return sum(log.read_bytes().count(_GIVEN_UP) for log in logs if log.exists())

    def lineages(self, peers: Sequence[Peer], epoch: int) -> tuple[set[str], set[str]]:
        """Return the lineages of these peers at `epoch`: all that ever occurred, and the current ones.

        Equal lineages mean equal weights. More than one lineage ever (or now) means that the swarm was (or is) split.
        Peers that skipped the epoch have none.
        """
        ever, now = set[str](), set[str]()
        for peer in peers:
            text = (peer.folder / "peer.log").read_text(errors="replace")
            if found := [lineage for number, lineage in _LINEAGE.findall(text) if int(number) == epoch]:
                ever |= set(found)
                now.add(found[-1])
        return ever, now

    def pid_of(self, peer: Peer) -> int:
        """Return the pid of the peer's process in the host's namespace."""
        assert self._cloud is not None
        return next(vm["pid"] for vm in self._cloud.state()["vms"] if vm["vm"] == peer.vm)

    def kill(self, peer: Peer, phase: str) -> bool:
        """SIGKILL the peer's process if it is in that phase; its Hivemind processes follow. Returns whether it was."""
        self._record_resources()
        pid = self.pid_of(peer)
        if self.phase_of(peer) != phase:
            return False
        os.kill(pid, signal.SIGKILL)
        peer.gone = True
        return True

    def pause(self, peer: Peer, seconds: float) -> None:
        """SIGSTOP all of the VM's processes, including p2pd, and SIGCONT them after the given time."""
        group = self.pid_of(peer)
        os.killpg(group, signal.SIGSTOP)
        try:
            self.rest(seconds)
        finally:
            os.killpg(group, signal.SIGCONT)

    def compare(self, peers: Sequence[Peer], limit_s: float = 120.0) -> dict[str, Any]:
        """Compare the weights of these peers from a separate VM and return the result of compare.py."""
        assert self._cloud is not None
        name = f"{_RUN}-compare-{sum(vm['vm'].startswith(f'{_RUN}-compare') for vm in self._cloud.state()['vms'])}"
        config = {
            "run_id": _RUN,
            "peers": {peer.vm: peer.maddr for peer in peers},
            "listen_address": "",
            "listen_port": 34_000,
            "silence_s": 20.0,
            "limit_s": 0.75 * limit_s,
        }
        self._cloud.request(
            LaunchRequest(
                name,
                Offer(PLACES[0], "emulated", "T4:1", True, None, ""),
                "benchmarks.robust.compare:main",
                config,
            )
        )
        result = self._folder / "vms" / name / "result.json"
        self.wait(lambda: (result.with_name("status.json")).exists(), limit_s, "the comparison")
        return json.loads(result.read_text())

    @property
    def mode(self) -> str:
        """The mode of the cloud: "namespaces" or "loopback"."""
        assert self._cloud is not None
        return str(self._cloud.state()["mode"])

    def _wait_for_store(self) -> str:
        assert self._cloud is not None
        end_s = time.monotonic() + 60.0
        while (found := self._cloud.store()).get("state") != "ready":
            if time.monotonic() > end_s:
                raise StuckError(f"the store did not become ready: {found}")
            time.sleep(0.1)
        return str(found["endpoint"])

    def _record_resources(self) -> None:
        """Record the namespaces and pids that must be gone at the end."""
        assert self._cloud is not None
        for vm in self._cloud.state().get("vms", []):
            if vm["pid"]:
                self.pids |= _family(vm["pid"])
                with contextlib.suppress(OSError):
                    self.namespaces.add(os.readlink(f"/proc/{vm['pid']}/ns/net"))
        with contextlib.suppress(OSError):
            self.namespaces.discard(os.readlink("/proc/self/ns/net"))

    def left(self) -> list[str]:
        """List what is left after the end: processes, namespaces, sockets, shared memory."""
        found = [f"shared memory {f}" for pid in self.pids for f in Path("/dev/shm").glob(f"torch_{pid}_*")]
        temp = self._folder / "cloud" / "temp"
        if temp.exists() and Path(temp.read_text()).exists():
            found.append(f"folder {temp.read_text()}")
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                text = Path(f"/proc/{entry}/cmdline").read_text() + os.readlink(f"/proc/{entry}/cwd")
                network = os.readlink(f"/proc/{entry}/ns/net")
            except OSError:
                continue
            if str(self._folder) in text or network in self.namespaces:
                found.append(f"process {entry} {text[:80]!r} {network}")
        return found


def _phases(log: Path, start: int = 0) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        found = _PHASES.finditer(file.read().decode(errors="replace"))
    return [str(match.lastgroup) for match in found]


def _family(pid: int) -> set[int]:
    from experiments.peer.processes import descendants

    return {pid, *descendants(pid)}
