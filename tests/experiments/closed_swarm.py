"""A closed swarm on loopback: peers, the monitor, orders signed by the test as the controller's, and strangers."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from peer_rig import RUN, PeerProcess, config_of, kill_group

from experiments.wire.orders import OrderPeer, Orders, generate_run_key, record_key_digest, sign
from experiments.wire.record_keys import generate_identity, generate_record_key

_STRANGER = Path(__file__).with_name("stranger.py")


class ClosedSwarm:
    """Peers that obey the orders which `order` gives; the monitor brings them around."""

    QUICK: ClassVar[dict[str, Any]] = {  # two peers, epochs of one to two seconds, no end
        "expected_peers": 2,
        "max_epochs": 10_000,
        "target_batch_size": 64,
        "matchmaking_time_s": 1.0,
        "request_timeout_s": 0.6,
    }

    def __init__(self, folder: Path, endpoint: str, shards: tuple[str, ...], **changes: object) -> None:
        self.folder, self._endpoint, self._shards, self._changes = folder, endpoint, shards, changes
        self._pem, self.public_key = generate_run_key()
        self._monitor_identity, monitor_id = generate_identity()
        self._keys: dict[str, tuple[bytes, bytes, str]] = {}  # by slot: identity, record key, its public half
        self._members = [OrderPeer("monitor", monitor_id, "")]
        self._version = 0
        self.given: list[bytes] = []
        self.peers: dict[str, PeerProcess] = {}
        self._monitor: subprocess.Popen[bytes] | None = None
        self._temporary = Path(tempfile.mkdtemp(prefix="ocs-", dir="/tmp"))  # short: sockets go there
        self._memory = {*_shared_memory()}
        (folder / "monitor").mkdir(parents=True)

    def allow(self, slot: str) -> None:
        """Put a VM of the slot on the list; `order` says so."""
        identity, peer_id = generate_identity()
        record, public = generate_record_key()
        self._keys[slot] = (identity, record, public)
        self._members.append(OrderPeer(f"{RUN}-{slot}-0", peer_id, record_key_digest(public)))

    def identity_of(self, slot: str) -> bytes:
        return self._keys[slot][0]

    def order(self, *, paused: bool = False, lease_s: float = 600.0, without: tuple[str, ...] = ()) -> bytes:
        """Give new orders, in the monitor's folder as the controller does."""
        self._version += 1
        now_s = time.time()
        members = tuple(m for m in self._members if m.vm not in {f"{RUN}-{slot}-0" for slot in without})
        blob = sign(Orders(RUN, self._version, now_s, now_s + lease_s, paused, members), self._pem)
        self.given.append(blob)
        fresh = self.folder / "monitor" / "orders.new"
        fresh.write_bytes(blob)
        fresh.replace(self.folder / "monitor" / "orders.bin")
        return blob

    def start(self, slot: str, **changes: object) -> PeerProcess:
        """Start the slot's peer with the newest orders; the first is who the others join."""
        maddrs = tuple(p.status()["maddr"] for p in self.peers.values())
        config = config_of(slot, self._endpoint, self._shards, initial_peers=maddrs, **self._changes)
        config = replace(
            config,
            orders=base64.b64encode(self.given[-1]).decode(),
            orders_public_key=self.public_key,
            **changes,  # type: ignore[arg-type]
        )
        identity, record, _ = self._keys[slot]
        self.peers[slot] = PeerProcess(self.folder / slot, config, identity, record)
        return self.peers[slot]

    def gather(self, *slots: str) -> None:
        """Allow and start the slots' peers and the monitor; returns once they train together."""
        for slot in slots:
            self.allow(slot)
        self.order()
        for slot in slots:
            self.start(slot).wait_for(lambda status: status.get("maddr"))
        self.order()
        self.watch()
        self.wait_for(lambda: len(self.epochs()) >= 2 * len(slots))

    def watch(self) -> None:
        """Start the monitor, once the peers' addresses are known."""
        folder = self.folder / "monitor"
        config = {"run_key": RUN, "target_batch_size": 128, "period_s": 0.5, "dht_timeout_s": 5.0}
        (folder / "config.json").write_text(json.dumps({**config, "orders_public_key": self.public_key}))
        (folder / "identity.key").write_bytes(self._monitor_identity)
        self.tell_roster()
        self._monitor = subprocess.Popen(
            [sys.executable, "-m", "experiments.monitor", str(folder / "config.json")],
            env={**os.environ, "TMPDIR": str(self._temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def tell_roster(self) -> None:
        """Write roster.json with the addresses known now."""
        rows = [
            {
                "vm": f"{RUN}-{slot}-0",
                "slot": slot,
                "generation": 0,
                "record_public_key": self._keys[slot][2],
                "maddr": peer.status().get("maddr"),
            }
            for slot, peer in self.peers.items()
        ]
        fresh = self.folder / "monitor" / "roster.new"
        fresh.write_text(json.dumps({"peers": rows}))
        fresh.replace(self.folder / "monitor" / "roster.json")

    def epochs(self) -> list[dict[str, Any]]:
        """All epochs the monitor has accepted so far, of all peers."""
        path = self.folder / "monitor" / "monitor.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.startswith('{"kind":"epoch"')]
        return [row["epoch"] for row in rows]

    def rejected(self) -> list[str]:
        """What the monitor has refused."""
        path = self.folder / "monitor" / "monitor.jsonl"
        return [line for line in path.read_text().splitlines() if line.startswith('{"kind":"rejected"')]

    def wait_for(self, what: Callable[[], object], limit_s: float = 40.0) -> None:
        end = time.monotonic() + limit_s
        while not what():
            for peer in self.peers.values():
                peer.wait_for(lambda _: True)  # fails with its log when it has ended
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.1)

    def close(self) -> None:
        for peer in self.peers.values():
            peer.kill()
        if self._monitor is not None:
            kill_group(self._monitor)
        shutil.rmtree(self._temporary, ignore_errors=True)
        for file in {*_shared_memory()} - self._memory:  # of what was killed on the way, strangers included
            if not Path("/proc", file.name.split("_")[1]).exists():
                file.unlink(missing_ok=True)


def _shared_memory() -> Iterator[Path]:
    """torch's, named by the process that made it."""
    return Path("/dev/shm").glob("torch_*")


class Stranger:
    """`stranger.py` in a process of its own, with Hivemind as it comes; it begins at `go`.

    It has the machine's idle time only: what it costs the peers is their own work for it.
    """

    def __init__(self, swarm: ClosedSwarm, what: str, seconds: float = 0.0, identity: bytes = b"") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ost-", dir="/tmp"))
        config = next(iter(swarm.peers.values())).config
        (self._folder / "identity.key").write_bytes(identity or generate_identity()[0])
        (self._folder / "record.key").write_bytes(generate_record_key()[0])
        order = {
            "what": what,
            "go": str(self._folder / "go"),
            "seconds": seconds,
            "maddrs": [p.status()["maddr"] for p in swarm.peers.values()],
            "config": {**config.to_json(), "environment": {}, "orders": "", "orders_public_key": ""},
            "old_orders": base64.b64encode(swarm.given[0]).decode(),
            "new_orders": base64.b64encode(swarm.given[-1]).decode(),
        }
        (self._folder / "order.json").write_text(json.dumps(order))
        with (self._folder / "stderr").open("w") as errors:
            self._process = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, str(_STRANGER), str(self._folder / "order.json")],
                env={**os.environ, "TMPDIR": str(self._folder), "PYTHONPATH": str(Path.cwd())},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def go(self) -> Stranger:
        (self._folder / "go").touch()
        return self

    def result(self, limit_s: float) -> dict[str, Any]:
        """What it got, by attempt. Fails with its own words when it broke."""
        try:
            path = self._folder / "result.json"
            end = time.monotonic() + limit_s
            while not path.exists() and self._process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            said = (self._folder / "stderr").read_text()[-3000:]
            assert path.exists(), said
            print(said)  # pytest shows it when the test fails
            return json.loads(path.read_text())
        finally:
            self.close()

    def close(self) -> None:
        kill_group(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)
