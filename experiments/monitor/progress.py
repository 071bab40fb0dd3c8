"""Validate Hivemind's own progress reports (`<run_key>_progress`) and convert them to rows. Pure.

A peer signs its report with its process-wide key, which is its record key, so the roster identifies it. A report that
is not signed by a key of the roster, or has another peer id than the roster, is rejected.

The time of a report is the time at which it was first read, by our clock.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer
from pydantic import v1

from experiments.monitor.acceptance import Raw, Rejection, Verifier
from experiments.monitor.roster import Roster
from experiments.wire.dht_records import RecordError
from metrics.records import ProgressRecord

_log = logging.getLogger(__name__)
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]{100,800})\]")
_SILENT_AFTER_S = 30.0  # a peer repeats its report at least every 15 s (half of metadata_expiration)
_LIMIT_BYTES = 4096
_MAX_EPOCH = 2**40  # integers in the run store have 63 bits


@dataclass(frozen=True)
class Progress:
    """The last report of one peer."""

    vm: str
    epoch: int
    samples: int
    sps: float
    read_s: float  # when it was first read, by our clock


class ProgressBoard:
    """The last report of each VM."""

    def __init__(self, run_key: str, target_batch_size: int, verifier: Verifier) -> None:
        self.key = DHTID.generate(source=f"{run_key}_progress").to_bytes()
        self._target = target_batch_size
        self._verifier = verifier
        self._last: dict[str, tuple[float, Progress | None]] = {}  # vm: (expiration, report; None: it left)
        self._rejected: dict[bytes, str] = {}  # digest: reason

    def offer(self, entries: Iterable[Raw], roster: Roster, now_s: float) -> list[Rejection]:
        """Read the entries of one scrape and return those that are rejected for the first time.

        `now_s`: a clock that is never adjusted.
        """
        rejected: list[Rejection] = []
        for raw in entries:
            if raw.key != self.key or (digest := raw.digest) in self._rejected:
                continue
            vm = ""
            try:
                if len(raw.value) > _LIMIT_BYTES:
                    raise RecordError("size", f"progress of {len(raw.value)} bytes")
                match = _OWNER.fullmatch(raw.subkey) if isinstance(raw.subkey, bytes) else None
                peer = roster.by_key.get(match[1].decode()) if match else None
                if peer is None:
                    raise RecordError("roster", "progress signed by a key that is not on the roster")
                vm = peer.vm
                if not math.isfinite(raw.expiration):
                    raise RecordError("values", f"progress that expires at {raw.expiration}")
                if vm in self._last and raw.expiration <= self._last[vm][0]:
                    continue  # a replica's older copy, or the one we have
                report = _parse(self._verifier.payload(raw), vm, peer.peer_id, now_s)
                self._last[vm] = (raw.expiration, report)
            except RecordError as error:
                if len(self._rejected) > 4096:
                    self._rejected.clear()
                self._rejected[digest] = error.reason
                rejected.append(Rejection(f"progress: {error.reason}", vm, str(error)))
            except Exception as error:  # noqa: BLE001 - logged: other records must still be read
                _log.exception("cannot read the progress of %s", vm or "an unknown VM")
                self._rejected[digest] = "unreadable"
                rejected.append(Rejection("progress: unreadable", vm, repr(error)))
        return rejected

    def roster_changed(self) -> None:
        """Check reports again that were rejected because of the roster, which may list their VM now."""
        self._rejected = {d: reason for d, reason in self._rejected.items() if reason != "roster"}

    def alive(self, now_s: float) -> list[Progress]:
        """Return the reports of peers that reported recently and did not leave, sorted by VM."""
        found = (report for _, report in self._last.values() if report is not None)
        return sorted(
            (r for r in found if now_s - r.read_s < _SILENT_AFTER_S),
            key=lambda r: r.vm,
        )

    def rows(self, now_s: float) -> list[ProgressRecord]:
        """Return one row per peer and one for the swarm (vm ""), which counts the samples of its newest epoch.

        The remaining time is Hivemind's own estimate: each peer's samples are extrapolated at its rate from the time at
        which its report was read (in Hivemind: was made; `ProgressTracker._parse_swarm_progress_data`).
        """
        alive = self.alive(now_s)
        if not alive:
            return []
        epoch = max(r.epoch for r in alive)
        rows = [self._row(now_s, r.vm, r.epoch, [r], 1) for r in alive]
        rows.append(self._row(now_s, "", epoch, alive, len(alive)))
        return rows

    def _row(
        self, now_s: float, vm: str, epoch: int, reports: Sequence[Progress], peers: int
    ) -> ProgressRecord:
        current = [r for r in reports if r.epoch == epoch]
        samples = sum(r.samples for r in current)
        sps = sum(r.sps for r in reports)
        by_now = samples + sum(max(0.0, now_s - r.read_s) * r.sps for r in current)
        eta_s = max(0.0, self._target - by_now) / sps if sps > 0 and not vm else None
        return ProgressRecord(now_s, vm, epoch, samples, sps, peers, eta_s)


def _parse(payload: bytes, vm: str, peer_id: str | None, now_s: float) -> Progress | None:
    try:
        value: Any = MSGPackSerializer.loads(payload)
        if value is None:
            return None
        progress: Any = LocalTrainingProgress.parse_obj(value)
    except (v1.ValidationError, ValueError, TypeError) as error:
        raise RecordError("schema", repr(error)[:300]) from error
    except Exception as error:  # msgpack's own errors are of many types
        raise RecordError("schema", f"not msgpack: {error!r}") from error
    if peer_id is not None and PeerID(progress.peer_id).to_base58() != peer_id:
        raise RecordError(
            "identity", f"{vm} reports as peer {PeerID(progress.peer_id).to_base58()}, not {peer_id}"
        )
    if not (math.isfinite(progress.samples_per_second) and math.isfinite(progress.time)):
        raise RecordError("values", "a rate or time that is not finite")
    if (
        progress.samples_per_second > 1e9
        or progress.samples_accumulated > 2**60
        or progress.epoch > _MAX_EPOCH
    ):
        raise RecordError("values", "a rate or count that is impossibly large")
    return Progress(vm, progress.epoch, progress.samples_accumulated, progress.samples_per_second, now_s)
