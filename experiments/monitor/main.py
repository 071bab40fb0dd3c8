"""Main program of the monitor: read the swarm's DHT once per second and append the accepted records to a file.

The monitor also publishes the controller's orders in the DHT. `main(config_path)` runs in its own process (forked by a
provider, or `python -m experiments.monitor CONFIG`). It reads roster.json, orders.bin and identity.key (the identity
that the peers expect) from the folder of the config, and writes monitor.jsonl, status.json and monitor.log there. On
SIGTERM it does one last scrape of at most 2 s and exits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloud.clock import run_clock
from experiments.log_file import LogFile
from experiments.monitor.roster import Roster, RosterError, load_roster
from experiments.monitor.sink import Sink, line_of, read_accepted, read_rejected, write_status
from experiments.wire.dht_records import EPOCHS_FIELD, EVALUATIONS_FIELD, EpochReport
from experiments.wire.hivemind.sockets import SocketFolderError
from experiments.wire.orders import Orders, OrdersError, orders_expiration_s, orders_key, verify

_log = logging.getLogger("experiments.monitor")

_LAST_SCRAPE_S = 2.0
_FIRST_ORDERS_S = 600.0  # wait this long for the first orders: the default lease
_GRACE_S = 30.0  # keep running after the lease, to read the peers' last records
_IDLE_READ_S = 5.0  # period for reading epochs and evaluations while no progress report shows a new epoch


class MonitorConfigError(Exception):
    """The monitor's config cannot be read."""


class AbandonedError(Exception):
    """The controller has issued no new orders for longer than a lease."""


@dataclass(frozen=True)
class MonitorConfig:
    """Contents of monitor/config.json."""

    run_key: str
    listen_address: str  # unused, because a client does not listen; for providers that set it for every VM
    target_batch_size: int
    period_s: float
    dht_timeout_s: float
    orders_public_key: str = ""  # of the run; if set, the monitor publishes orders.bin

    @classmethod
    def load(cls, path: Path) -> MonitorConfig:
        """Read the config. Raises MonitorConfigError with the file and the problem."""
        try:
            raw: Any = json.loads(path.read_text())
            return cls(
                run_key=str(raw["run_key"]),
                listen_address=str(raw.get("listen_address", "")),
                target_batch_size=int(raw["target_batch_size"]),
                period_s=float(raw.get("period_s", 1.0)),
                dht_timeout_s=float(raw.get("dht_timeout_s", 10.0)),
                orders_public_key=str(raw.get("orders_public_key", "")),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MonitorConfigError(f"{path}: cannot read the monitor's config: {error!r}") from error


def main(config_path: str) -> int:
    """Run until SIGTERM or SIGINT, or until the controller has issued no new orders for a lease plus 30 s.

    Returns the exit code: 0 after a signal, 1 after a failure or without new orders (the reason is in status.json).
    """
    path = Path(config_path).absolute()
    folder = path.parent
    handler = LogFile(folder / "monitor.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        config = MonitorConfig.load(path)
        # imported here: importing hivemind takes seconds, and errors of the config should be reported before
        from experiments.wire.hivemind.patches import apply

        apply("monitor")
        asyncio.run(_Monitor(config, folder).run())
        return 0
    except Exception as error:  # noqa: BLE001 - outermost frame of the program: reported in status.json
        _log.exception("the monitor failed")
        known = isinstance(error, MonitorConfigError | SocketFolderError | AbandonedError)
        message = str(error) if known else f"monitor: {error!r}; see {folder / 'monitor.log'}"
        write_status(folder / "status.json", _status("failed", error=message))
        return 1
    finally:
        _log.removeHandler(handler)
        handler.close()


def _status(phase: str, *, peer_id: str = "", epoch: int = 0, error: str = "", **more: Any) -> dict[str, Any]:
    return {
        "phase": phase,
        "at_s": time.time(),
        "maddr": None,
        "peer_id": peer_id,
        "epoch": epoch,
        "error": error,
        "ran": "monitor",
        "warnings": more.pop("warnings", []),
        **more,
    }


class _Monitor:
    def __init__(self, config: MonitorConfig, folder: Path) -> None:
        # imported here for the same reason as the patches
        from experiments.monitor.acceptance import Gate, Raw, Verifier
        from experiments.monitor.progress import ProgressBoard
        from experiments.monitor.swarm import SwarmReader

        self._config, self._folder = config, folder
        self._now_s = run_clock(folder.parent)
        verifier = Verifier()
        self._gate = Gate(config.run_key, verifier)
        self._board = ProgressBoard(config.run_key, config.target_batch_size, verifier)
        self._reader = SwarmReader(config.dht_timeout_s)
        self._entries: list[Raw] = []
        self._roster = Roster()
        self._roster_stamp: tuple[int, int, int] | None = None
        self._roster_error = ""
        self._orders: Orders | None = None
        self._orders_blob = b""
        self._orders_read_at = time.monotonic()  # before the first orders: the start
        self._orders_error = ""
        self._rejected = read_rejected(folder / "monitor.jsonl")
        self._records_read_at = -_IDLE_READ_S
        self._scrapes = 0
        for row in read_accepted(folder / "monitor.jsonl"):
            if isinstance(row, EpochReport):
                self._gate.restore(EPOCHS_FIELD, row.epoch.vm, row.epoch.epoch, row)
            else:
                self._gate.restore(EVALUATIONS_FIELD, row.vm, row.epoch, row)
        self._sink = Sink(folder / "monitor.jsonl")

    async def run(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._write_status("starting")
        identity = self._folder / "identity.key"
        starting = asyncio.create_task(self._reader.start(identity if identity.is_file() else None))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting}, timeout=1.0)
            else:
                starting.result()
                await self._watch(stop)
            self._write_status("leaving")
        finally:
            stopping.cancel()
            await self._reader.close()
            self._sink.close()
        self._write_status("done")

    async def _watch(self, stop: asyncio.Event) -> None:
        """Scrape until `stop`. Raises AbandonedError."""
        period_s = self._config.period_s
        due = time.monotonic()
        abandoned = ""
        while not stop.is_set() and not (abandoned := self._why_abandoned(time.monotonic())):
            await self._scrape(0.9 * period_s, everything=False)
            self._write_status("ready" if self._reader.nodes else "dht")
            due = max(due + period_s, time.monotonic())
            try:
                await asyncio.wait_for(stop.wait(), due - time.monotonic())
            except TimeoutError:
                continue
        await self._scrape(_LAST_SCRAPE_S, everything=True)
        if abandoned:
            raise AbandonedError(abandoned)

    async def _scrape(self, limit_s: float, *, everything: bool) -> None:
        """Query the DHT, wait at most `limit_s` for answers and write what is new. Late answers count in the next scrape."""
        self._read_roster()
        began = time.monotonic()
        self._reader.connect(self._roster.maddrs(), began)
        self._publish_orders(began)
        keys = [self._board.key]
        if everything or self._new_epoch_seen() or began - self._records_read_at >= _IDLE_READ_S:
            self._records_read_at = began
            keys += self._gate.keys
        queries = self._reader.query(keys, self._entries.extend)
        if queries:
            await asyncio.wait(queries, timeout=limit_s)
        entries, self._entries[:] = list(self._entries), []
        self._sink.write(self._rows(entries))
        self._scrapes += 1

    def _rows(self, entries: list[Any]) -> list[dict[str, Any]]:
        """Return the lines of monitor.jsonl for the entries of one scrape."""
        now_s = self._now_s()
        new, rejected = self._gate.offer(entries, self._roster, now_s)
        rejected += self._board.offer(entries, self._roster, now_s)
        lines = [line_of(row) for row in new]
        lines += [{"kind": "progress", **asdict(row)} for row in self._board.rows(now_s)]
        for one in rejected:
            _log.warning("rejected: %s", one.detail)
            self._rejected[one.reason] = count = self._rejected.get(one.reason, 0) + 1
            lines.append(
                {"kind": "rejected", "at_s": now_s, "reason": one.reason, "vm": one.vm, "count": count}
            )
        alive = [report.vm for report in self._board.alive(now_s)]
        lines.append({"kind": "swarm", "at_s": now_s, "alive": alive})
        return lines

    def _new_epoch_seen(self) -> bool:
        """Whether a peer's progress is beyond the newest record of it."""
        return any(r.epoch > self._gate.newest_epoch(r.vm) for r in self._board.alive(self._now_s()))

    def _read_roster(self) -> None:
        path = self._folder / "roster.json"
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._roster_stamp:
                return
            self._roster = load_roster(path)
            self._roster_stamp, self._roster_error = stamp, ""
        except FileNotFoundError:
            self._roster_error = (
                f"{path}: no roster yet; all records are rejected until the controller writes it"
            )
        except (OSError, RosterError) as error:
            if str(error) != self._roster_error:
                _log.warning("keeping the previous roster: %s", error)
            self._roster_error = str(error)
        else:
            self._gate.roster_changed()
            self._board.roster_changed()
            _log.info(
                "roster: %d peers, %d with an address", len(self._roster.peers), len(self._roster.maddrs())
            )

    def _read_orders(self, now: float) -> None:
        try:
            blob = (self._folder / "orders.bin").read_bytes()
            if blob != self._orders_blob:
                newest = self._orders.version if self._orders is not None else -1
                self._orders = verify(blob, self._config.orders_public_key, self._config.run_key, newest)
                self._orders_blob, self._orders_read_at = blob, now
            self._orders_error = ""
        except (OSError, OrdersError) as error:
            self._orders_error = f"{self._folder / 'orders.bin'}: {error}; the controller writes this file"

    def _publish_orders(self, now: float) -> None:
        if not self._config.orders_public_key:
            return
        self._read_orders(now)
        # A running controller renews the orders every quarter of a lease. Publishing older ones would only extend leases.
        if self._orders is not None and now - self._orders_read_at < self._orders.lease_s:
            key = orders_key(self._config.run_key)
            self._reader.publish(key, self._orders_blob, orders_expiration_s(self._orders.version), now)

    def _why_abandoned(self, now: float) -> str:
        """Return why the controller, and with it the peers, are considered gone; "" otherwise. `now`: monotonic s.

        The orders are read again first, because this process may have been suspended for longer than a lease.
        """
        if not self._config.orders_public_key:
            return ""
        self._read_orders(now)
        lease_s = _FIRST_ORDERS_S if self._orders is None else self._orders.lease_s
        if now - self._orders_read_at < lease_s + _GRACE_S:
            return ""
        return (
            f"no new orders from the controller for {now - self._orders_read_at:.0f} s (the lease of this run is "
            f"{lease_s:.0f} s), so the monitor exited"
        )

    def _write_status(self, phase: str) -> None:
        alive = self._board.alive(self._now_s())
        warnings = [error for error in (self._roster_error, self._orders_error) if error]
        if self._rejected:
            warnings.append(f"rejected records: {dict(sorted(self._rejected.items()))}")
        status = _status(
            phase,
            peer_id=self._reader.peer_id,
            epoch=max((r.epoch for r in alive), default=0),
            warnings=warnings,
            scrapes=self._scrapes,
            nodes=self._reader.nodes,
        )
        write_status(self._folder / "status.json", status)
