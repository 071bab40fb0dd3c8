"""hivemind.ProgressTracker that ends an epoch with the right step, and reports pauses and the peer's end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.swarm.members import IsMember, anybody, sound_reports

_log = logging.getLogger(__name__)
_LATE_S = 3.0  # a DHT that answers late is no standstill
_CREDITS_COME_S = 5.0  # after an own credit


class PunctualTracker(ProgressTracker):
    """Ends an epoch with the step that reaches the target, not with the one after it.

    Peers in step finish their last steps at the estimated end of the epoch, some milliseconds
    before or after it; their reports arrive later. Hivemind compares the clock with the estimate
    exactly, so about every second epoch a peer starts another step and the others wait for it.
    Half a step of tolerance decides it. Nothing else is earlier: a step sooner, half is not enough.
    """

    samples_per_step = 0
    gone: Callable[[], Collection[bytes]] = staticmethod(tuple)  # peer ids that are known to be dead
    is_member: IsMember = staticmethod(anybody)
    _looked_s = float("-inf")
    _rates: Mapping[bytes, float] = MappingProxyType({})  # by peer id, as of the last look
    _credited_s = float("-inf")
    _round_since: float | None = None  # DHT time; a round goes on beside calculation
    held = False  # paused: this peer adds no samples to the epoch until it goes on

    def hold(self, held: bool) -> None:
        """Tell the swarm again what this peer has of the epoch, and whether it is adding to it.

        The others reckon with a peer's last rate for as long as they hear nothing newer: without this the
        epoch would be over, with too few samples, when the pause is.
        """
        self.held = held
        self.report_local_progress(self.local_progress.epoch, self.local_progress.samples_accumulated)

    def round_begins(self, limit_s: float) -> None:
        """A round goes on beside calculation, at most for `limit_s`. For use inside `pause_updates`.

        Until `round_ends` nothing is fetched: a fetch that waited for the pause's end would make the update wait for it.
        """
        self._round_since = get_dht_time()
        self.global_progress.next_fetch_time = self._round_since + limit_s
        self.global_state_updated.set()

    def tell_epoch(self, epoch: int) -> None:
        """Tell the swarm that this peer is at `epoch`, with no samples of it. What it knows of the swarm stays."""
        self.local_progress = self._get_local_progress(epoch, 0)
        self.should_report_progress.set()

    def round_ends(self) -> None:
        """The swarm is looked at again."""
        self._round_since = None
        self.global_progress.next_fetch_time = get_dht_time() + self.min_refresh_period
        self.global_state_updated.set()

    @property
    def estimated_next_update_time(self) -> float:
        """As Hivemind's; while a round goes on beside calculation, when that began."""
        since = self._round_since
        return super().estimated_next_update_time if since is None else since

    def credit(self, epoch: int, samples: int) -> None:
        """Tell the swarm of samples that this peer calculated before `epoch` began. For use inside `pause_updates`.

        Their pace was counted when they were calculated.
        """
        if epoch == self.global_progress.epoch:
            self.global_progress.samples_accumulated += samples
        self.local_progress = self._get_local_progress(epoch, samples)
        self.should_report_progress.set()
        self._credited_s = time.monotonic()
        self.global_progress.next_fetch_time = get_dht_time() + self.min_refresh_period
        self.global_state_updated.set()

    @property
    def stale(self) -> bool:
        """Whether the swarm's progress was not looked at for longer than it ever is: this process stood still."""
        return time.monotonic() - self._looked_s > self.max_refresh_period + _LATE_S

    def ask(self, timeout_s: float = 10.0) -> GlobalTrainingProgress:
        """The swarm's progress as the DHT has it now; what was known before when it does not answer in time.

        For use inside `pause_updates`, where nothing else refreshes it.
        """
        dht: Any = self.dht
        try:
            found = dht.get(self.training_progress_key, latest=True, return_future=True).result(timeout_s)
        except Exception as error:  # noqa: BLE001 - a slow DHT: what was known holds
            _log.warning("the swarm's progress is not to be had: %r", error)
            return self.global_progress
        self.global_progress = self._parse_swarm_progress_data(found.value if found is not None else None)
        return self.global_progress

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        self._looked_s = time.monotonic()
        metadata = sound_reports(metadata, self.is_member)
        if isinstance(metadata, dict) and (gone := self.gone()):
            metadata = {key: entry for key, entry in metadata.items() if _peer_of(entry) not in gone}
        known: Any = metadata  # Hivemind's annotation says what the dictionary was validated by
        progress = super()._parse_swarm_progress_data(known)
        entries = metadata.values() if isinstance(metadata, dict) else ()
        self._rates = {peer: e.value["samples_per_second"] for e in entries if (peer := _peer_of(e))}
        # the others' credits change the estimate at once
        if time.monotonic() - self._credited_s < _CREDITS_COME_S:
            soon = get_dht_time() + self.min_refresh_period
            progress.next_fetch_time = min(progress.next_fetch_time, soon)
        return progress

    @property
    def part(self) -> float | None:
        """This peer's share of the swarm's samples a second; None: nobody else said how fast it is."""
        own, rate = self.dht.peer_id.to_bytes(), self.performance_ema.samples_per_second
        others = [sps for peer, sps in self._rates.items() if peer != own]
        return rate / (rate + sum(others)) if others and self.performance_ema.num_updates else None

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop reporting, take the last report back and wait until the DHT has it; once.

        Hivemind does not wait, and its DHT is shut down before the word is out: the others then reckon with this
        peer until its report expires, and the survivor of a pair looks for it in every round.
        """
        if self.shutdown_triggered.is_set():
            return
        super().shutdown(timeout)
        expiration = get_dht_time() + self.metadata_expiration
        dht: Any = self.dht  # its methods' types cannot say that return_future=True returns a future
        try:
            dht.store(
                self.training_progress_key,
                subkey=self._local_public_key,
                value=None,
                expiration_time=expiration,
                return_future=True,
            ).result(timeout)
        except Exception as error:  # noqa: BLE001 - on the way out: nobody may be listening any more
            _log.warning("this peer's progress was not taken back: %r", error)

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
