"""Decides when this peer has to leave and whether it may still finish the running round.

A peer is ended from outside by a signal (handled by `processes.Departure`), a preemption notice or the end of its
lease. The decisions are pure functions; `ShutdownPolicy` carries them out in a thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cloud.vm_report import NOTICE_HORIZON_S
from experiments.peer.config import PeerConfigError
from experiments.peer.processes import Departure
from experiments.peer.shutdown.preemption_notices import Notice, NoticeWatch, Source
from experiments.peer.status import Status

_log = logging.getLogger(__name__)

LEASE_EXPIRED = 3  # exit code
_SHORTEST_NOTICE_S = 30.0  # Google's and Azure's
_LATE_S = 10.0  # maximum delay with which a notice is read
_LEAVE_WITHIN_S = 20.0  # of a notice, even if the VM is taken later
_CUT_SHORT_S = 4.0  # for publishing, leaving the DHT and the last meter reading
_LEASE_SOFT_S, _LEASE_LIMIT_S = 2.0, 4.0  # short: there may be no peers left to notify
_PERIOD_S = 0.5
_UNDER_WAY_S = 0.1  # a round that began at least this long ago overlaps with calculation
_OVERRUN_S = 2.0  # for `leave_round`, and for a round that takes longer than the last one


@dataclass(frozen=True)
class Grace:
    """Seconds from now until the orderly shutdown is cut short, and until the process exits."""

    soft_s: float
    limit_s: float


def grace(notice_at_s: float, now_s: float) -> Grace:
    """Time a peer may stay after a notice: at most 20 s, and one second less than the VM has left.

    If the time is short, the larger part of it is reserved for `Departure`'s `cut_short`.
    """
    limit_s = max(1.0, min(_LEAVE_WITHIN_S, notice_at_s - now_s - 1.0))
    return Grace(max(limit_s - _CUT_SHORT_S, 0.4 * limit_s), limit_s)


def notice_time(at_s: float, now_s: float) -> float:
    """Convert the announced end of the VM (`at_s`, by the cloud's clock) to unix seconds of this machine's clock.

    A time that no cloud announces (in the past, or further ahead than any notice) means that the two clocks differ.
    The shortest notice of any cloud is assumed then.
    """
    return at_s if now_s - _LATE_S <= at_s <= now_s + NOTICE_HORIZON_S else now_s + _SHORTEST_NOTICE_S


def round_fits(eta_s: float | None, round_s: float | None, left_s: float) -> bool:
    """Whether this epoch's averaging will be over within `left_s` seconds, so that its work is not lost.

    `eta_s`: seconds until the epoch's samples are complete; negative if a round has been overlapping with calculation
    for that long. `round_s`: duration of the last averaging. None: unknown. A round that takes longer than the last
    one is awaited until 2 s are left, in which this peer leaves the round.
    """
    if eta_s is None or round_s is None:
        return False
    least_s = _OVERRUN_S if eta_s < -_UNDER_WAY_S else 0.0
    return max(least_s, eta_s + round_s) < left_s


class Lease(Protocol):
    """The part of `orders.OrdersWatch` used here."""

    def lease_left_s(self) -> float:
        """Seconds until the lease ends; infinite without one."""
        ...


class ShutdownPolicy(threading.Thread):
    """Watches the lease from the start of the program, and acts on notices."""

    def __init__(
        self,
        lease: Lease,
        departure: Departure,
        status: Status,
        stop: threading.Event,
        now_s: Callable[[], float],
        swarm_ahead_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`now_s`: unix time of this machine, for notices; `swarm_ahead_s`: lead of the swarm's clock over it."""
        super().__init__(name="shutdown-policy", daemon=True)
        self._lease, self._departure, self._status, self._stop_training = lease, departure, status, stop
        self._now_s, self._swarm_ahead_s = now_s, swarm_ahead_s
        self._notice: Notice | None = None
        self._urgent = threading.Event()
        self._eta_s: Callable[[], float | None] = lambda: None
        self._round_s: float | None = None

    @property
    def urgent(self) -> bool:
        """Whether the VM is about to be taken or the lease is over. Optional work is skipped then."""
        return self._urgent.is_set()

    def watch_notices(self, url: str) -> None:
        """Poll preemption notices at `PeerConfig.notice_url` in a thread; "": none. Raises PeerConfigError."""
        if not url:
            return
        try:
            source = Source(url, unix_time=self._now_s)
        except ValueError as error:
            raise PeerConfigError(str(error)) from error
        NoticeWatch(source, self.on_notice, partial(self._status.warn, "notice"))

    def train(self, eta_s: Callable[[], float]) -> None:
        """Call when training begins; `eta_s` as in `round_fits`."""
        self._eta_s = eta_s

    def round_ended(self, comm_s: float) -> None:
        """Call after an epoch whose averaging took `comm_s` seconds. After a notice, this stops training."""
        self._round_s = comm_s
        if self._notice is not None:
            self._stop_training.set()

    def on_notice(self, notice: Notice) -> None:
        """Leave because the provider announced the end of this VM."""
        now_s = self._now_s()
        at_s = notice_time(notice.at_s, now_s)
        allowed = grace(at_s, now_s)
        _log.warning(
            "notice: %s in %.0f s; leaving within %.0f s", notice.action, at_s - now_s, allowed.limit_s
        )
        self._status.leaving(notice_at_s=at_s + self._swarm_ahead_s())
        self._urgent.set()
        self._departure.leave(allowed.soft_s, allowed.limit_s, at_once=False)
        self._notice = notice
        self._stop_unless_round_fits()

    def run(self) -> None:
        """Check periodically until the lease is over."""
        while not self.check():
            time.sleep(_PERIOD_S)

    def check(self) -> bool:
        """Check the lease and the round to be finished once. Returns True when nothing is left to watch."""
        if self._lease.lease_left_s() <= 0.0:
            self._urgent.set()
            _log.error("lease expired: no orders from the controller for too long")
            self._departure.leave(_LEASE_SOFT_S, _LEASE_LIMIT_S, code=LEASE_EXPIRED)
            self._status.leaving(error="lease expired")
            return True
        if self._notice is not None:
            self._stop_unless_round_fits()
        return False

    def _stop_unless_round_fits(self) -> None:
        if not round_fits(self._eta_s(), self._round_s, self._departure.soft_left_s):
            self._stop_training.set()
