"""hivemind.ProgressTracker that ends an epoch with the right step, tells of pauses and says goodbye."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils.timed_storage import get_dht_time

__all__ = ["PunctualTracker"]

_log = logging.getLogger(__name__)
_LATE_S = 3.0  # a DHT that answers late is no standstill


class PunctualTracker(ProgressTracker):
    """Ends an epoch with the step that reaches the target, not with the one after it.

    Peers in step finish their last steps at the estimated end of the epoch, some milliseconds
    before or after it; their reports arrive later. Hivemind compares the clock with the estimate
    exactly, so about every second epoch a peer starts another step and the others wait for it.
    Half a step of tolerance decides it. Nothing else is earlier: a step sooner, half is not enough.
    """

    samples_per_step = 0
    gone: Callable[[], Collection[bytes]] = staticmethod(tuple)  # peer ids that are known to be dead
    _looked_s = float("-inf")
    held = False  # paused: this peer adds no samples to the epoch until it goes on

    def hold(self, held: bool) -> None:
        """Tell the swarm again what this peer has of the epoch, and whether it is adding to it.

        The others reckon with a peer's last rate for as long as they hear nothing newer: without this the
        epoch would be over, with too few samples, when the pause is.
        """
        self.held = held
        self.report_local_progress(self.local_progress.epoch, self.local_progress.samples_accumulated)

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
        if isinstance(metadata, dict) and (gone := self.gone()):
            metadata = {key: entry for key, entry in metadata.items() if _peer_of(entry) not in gone}
        known: Any = metadata  # Hivemind's annotation says what the dictionary was validated by
        return super()._parse_swarm_progress_data(known)

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
