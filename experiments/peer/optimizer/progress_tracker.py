"""A hivemind.ProgressTracker that ends epochs with the right step and reports pauses and shutdown."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.swarm.members import IsMember, anybody, valid_reports

_log = logging.getLogger(__name__)
_LATE_S = 3.0  # tolerance for slow DHT responses, which are not a standstill
_REPORT_EACH_S = 0.25  # at least between two reports of further samples; the others fetch every 0.5 s at most
_CREDITS_COME_S = 5.0  # time after an own credit in which those of the others arrive


class PunctualTracker(ProgressTracker):
    """Ends an epoch with the step that reaches the target, not with the one after it.

    Synchronised peers finish their last steps at the estimated end of the epoch, some milliseconds before or after it,
    and their reports arrive later. Hivemind compares the clock with the estimate exactly, so in about every second epoch
    a peer starts another step and the others wait for it. A tolerance of half a step avoids this and cannot end an epoch
    a step too early.

    Reports further samples of an epoch at most every `_REPORT_EACH_S`, where Hivemind reports each step: a report takes about
    5 ms of CPU time (of this process and the DHT's), which is an eighth of a core if a step takes 40 ms. The others
    extrapolate from the last report. The beginning of an epoch, its first samples (by which the others learn that this peer
    trains), a pause and credited samples are reported at once.
    """

    samples_per_step = 0
    gone: Callable[[], Collection[bytes]] = staticmethod(tuple)  # peer ids known to be dead
    is_member: IsMember = staticmethod(anybody)
    _fetched_s = float("-inf")
    # samples per second by peer id, as of the last fetch
    _rates: Mapping[bytes, float] = MappingProxyType({})
    _credited_s = float("-inf")
    _round_since: float | None = None  # start (DHT time) of a round that overlaps with calculation
    held = False  # paused: this peer adds no samples to the epoch
    _active_epoch = float("-inf")  # the swarm's epoch in which this peer last had samples

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._report_now = (
            threading.Event()
        )  # the next report does not wait; the thread starts in Hivemind's __init__
        super().__init__(*args, **kwargs)

    def report_local_progress(
        self, local_epoch: int, samples_accumulated: int, update_global_samples: bool = True
    ) -> None:
        """Set this peer's samples of the epoch, and report them: at once, unless they are further ones of the epoch."""
        before = self.local_progress
        further = local_epoch == before.epoch and samples_accumulated > before.samples_accumulated > 0
        super().report_local_progress(local_epoch, samples_accumulated, update_global_samples)
        self._note_samples(samples_accumulated)
        if not further:
            self._report_now.set()

    def _note_samples(self, samples: int) -> None:
        """Remember that this peer adds samples, although an epoch may be over before they are reported."""
        if samples > 0:
            self._active_epoch = self.global_epoch

    async def _progress_reporter(self) -> None:
        """Like Hivemind's, but at the pace given above."""
        loop = asyncio.get_running_loop()
        reported_s = float("-inf")
        store: asyncio.Task[Any] | None = None
        dht: Any = self.dht
        try:
            while not self.shutdown_triggered.is_set():
                repeat_s = max(0.0, reported_s + self.metadata_expiration / 2 - get_dht_time())
                if await loop.run_in_executor(None, self.should_report_progress.wait, repeat_s):
                    early_s = reported_s + _REPORT_EACH_S - get_dht_time()
                    if early_s > 0.0:
                        await loop.run_in_executor(None, self._report_now.wait, min(early_s, _REPORT_EACH_S))
                self.should_report_progress.clear()
                self._report_now.clear()
                # after clearing the events: a later change sets them again
                progress, reported_s = self.local_progress, get_dht_time()
                self._note_samples(progress.samples_accumulated)
                if self._active_epoch < self.global_epoch - 1:
                    continue  # this peer is not synchronised, or adds no samples
                future = dht.store(
                    key=self.training_progress_key,
                    subkey=self._local_public_key,
                    value=progress.dict(),
                    expiration_time=reported_s + self.metadata_expiration,
                    return_future=True,
                )
                store = asyncio.create_task(asyncio.wait_for(future, timeout=self.metadata_expiration))
        finally:
            _log.debug("no longer reporting progress for %s", self.prefix)
            if store is not None:
                store.cancel()

    def hold(self, held: bool) -> None:
        """Report this peer's samples of the epoch again, and whether it is adding more.

        The others extrapolate a peer's last rate until they receive a newer report. Without this, the epoch would be
        over, with too few samples, when the pause ends.
        """
        self.held = held
        self.report_local_progress(self.local_progress.epoch, self.local_progress.samples_accumulated)

    def round_begins(self, limit_s: float) -> None:
        """Call when a round that overlaps with calculation begins, for at most `limit_s`. Inside `pause_updates` only.

        Nothing is fetched until `round_ends`: a fetch waiting for the end of the pause would delay the update.
        """
        self._round_since = get_dht_time()
        self.global_progress.next_fetch_time = self._round_since + limit_s
        self.global_state_updated.set()

    def report_epoch(self, epoch: int) -> None:
        """Report that this peer is at `epoch` without samples. The known progress of the swarm is kept."""
        self.local_progress = self._get_local_progress(epoch, 0)
        self._report_now.set()
        self.should_report_progress.set()

    def round_ends(self) -> None:
        """Call when the overlapped round ends: the swarm's progress is fetched again."""
        self._round_since = None
        self.global_progress.next_fetch_time = get_dht_time() + self.min_refresh_period
        self.global_state_updated.set()

    @property
    def estimated_next_update_time(self) -> float:
        """Like Hivemind's; while a round overlaps with calculation, the time at which the round began."""
        since = self._round_since
        return super().estimated_next_update_time if since is None else since

    def credit(self, epoch: int, samples: int) -> None:
        """Report samples that this peer calculated before `epoch` began. For use inside `pause_updates`.

        The step rate was already updated when they were calculated.
        """
        if epoch == self.global_progress.epoch:
            self.global_progress.samples_accumulated += samples
        self.local_progress = self._get_local_progress(epoch, samples)
        self._note_samples(samples)
        self._report_now.set()
        self.should_report_progress.set()
        self._credited_s = time.monotonic()
        self.global_progress.next_fetch_time = get_dht_time() + self.min_refresh_period
        self.global_state_updated.set()

    @property
    def stale(self) -> bool:
        """Whether the last fetch of the swarm's progress is older than ever in normal operation, as after a standstill of
        this process.
        """
        return time.monotonic() - self._fetched_s > self.max_refresh_period + _LATE_S

    def ask(self, timeout_s: float = 10.0) -> GlobalTrainingProgress:
        """Fetch the swarm's progress; returns the last known one if the DHT does not respond in time.

        For use inside `pause_updates`, where nothing else refreshes it.
        """
        dht: Any = self.dht
        try:
            found = dht.get(self.training_progress_key, latest=True, return_future=True).result(timeout_s)
        except Exception as error:  # noqa: BLE001 - a slow DHT: the last known progress is used
            _log.warning("cannot fetch the swarm's progress: %r", error)
            return self.global_progress
        self.global_progress = self._parse_swarm_progress_data(found.value if found is not None else None)
        return self.global_progress

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        self._fetched_s = time.monotonic()
        metadata = valid_reports(metadata, self.is_member)
        if isinstance(metadata, dict) and (gone := self.gone()):
            metadata = {key: entry for key, entry in metadata.items() if _peer_of(entry) not in gone}
        known: Any = metadata  # Hivemind's annotation is the type that validated the dictionary
        progress = super()._parse_swarm_progress_data(known)
        entries = metadata.values() if isinstance(metadata, dict) else ()
        self._rates = {peer: e.value["samples_per_second"] for e in entries if (peer := _peer_of(e))}
        # the others' credits change the estimate immediately
        if time.monotonic() - self._credited_s < _CREDITS_COME_S:
            soon = get_dht_time() + self.min_refresh_period
            progress.next_fetch_time = min(progress.next_fetch_time, soon)
        return progress

    @property
    def part(self) -> float | None:
        """This peer's share of the swarm's samples per second; None if no other peer has reported its rate."""
        own, rate = self.dht.peer_id.to_bytes(), self.performance_ema.samples_per_second
        others = [sps for peer, sps in self._rates.items() if peer != own]
        return rate / (rate + sum(others)) if others and self.performance_ema.num_updates else None

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop reporting, withdraw the last report and wait until the DHT has stored that. Repeated calls do nothing.

        Hivemind does not wait, and its DHT is shut down before the store is sent: the others then expect this peer
        until its report expires, and the survivor of a pair looks for it in every round.
        """
        if self.shutdown_triggered.is_set():
            return
        self._report_now.set()  # the reporter's last wait ends
        super().shutdown(timeout)
        expiration = get_dht_time() + self.metadata_expiration
        dht: Any = self.dht  # its types do not express that return_future=True returns a future
        try:
            dht.store(
                self.training_progress_key,
                subkey=self._local_public_key,
                value=None,
                expiration_time=expiration,
                return_future=True,
            ).result(timeout)
        except Exception as error:  # noqa: BLE001 - during shutdown: there may be no peers left
            _log.warning("this peer's progress report was not withdrawn: %r", error)

    def _get_local_progress(self, local_epoch: int, samples_accumulated: int) -> LocalTrainingProgress:
        progress = super()._get_local_progress(local_epoch, samples_accumulated)
        return progress.copy(update={"samples_per_second": 0.0}) if self.held else progress

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether this peer may end the epoch now."""
        if super().ready_to_update_epoch:
            return True
        if self.local_progress.samples_accumulated == 0 or self.performance_ema.num_updates == 0:
            return False
        half_step_s = 0.5 * self.samples_per_step / self.performance_ema.samples_per_second
        return get_dht_time() + half_step_s >= self.global_progress.eta_next_epoch


def _peer_of(entry: Any) -> bytes:
    value = getattr(entry, "value", None)
    return value.get("peer_id", b"") if isinstance(value, dict) else b""
