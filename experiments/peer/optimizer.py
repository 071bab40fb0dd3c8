"""hivemind.Optimizer with our settings, and with what it keeps to itself made visible."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import (
    BlockwiseQuantization,
    CompressionBase,
    Float16Compression,
    NoCompression,
    RoleAdaptiveCompression,
    Uniform8BitQuantization,
)
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.progress_tracker import LocalTrainingProgress, ProgressTracker
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.lamb import Lamb

__all__ = [
    "NoGroupError",
    "PunctualTracker",
    "Round",
    "SwarmOptimizer",
    "build_optimizer",
    "compression_of",
    "state_compression",
    "torch_optimizer_of",
]

_log = logging.getLogger(__name__)
_NEVER = 10**9
_COMPRESSIONS: dict[str, Callable[[], CompressionBase]] = {
    "none": NoCompression,
    "float16": Float16Compression,
    "uniform8bit": Uniform8BitQuantization,
    "blockwise8bit": BlockwiseQuantization,
}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "lamb": Lamb,
}


def compression_of(name: str) -> CompressionBase:
    """Hivemind's compression by its name in the config. Raises PeerConfigError for another name."""
    if name not in _COMPRESSIONS:
        raise PeerConfigError(f"compression: {name!r} is none of {', '.join(_COMPRESSIONS)}")
    return _COMPRESSIONS[name]()


def state_compression() -> CompressionBase:
    """Of the state that a joiner downloads: weights in float16, 2 bytes, what the optimizer remembers whole, 4 bytes.

    Adam's and LAMB's mean squares are those of gradients: below 6e-8 float16 has only zero, and a step divided by
    its root throws the joiner's weights far away.
    """
    return RoleAdaptiveCompression(parameter=Float16Compression(), default=NoCompression())


def torch_optimizer_of(settings: Mapping[str, Any]) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """A factory of the torch optimizer from `{"name": ..., "lr": ..., ...}`; raises PeerConfigError."""
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    name = str(options.pop("name", ""))
    if name not in _OPTIMIZERS:
        raise PeerConfigError(f"optimizer.name: {name!r} is none of {', '.join(_OPTIMIZERS)}")
    factory = partial(_OPTIMIZERS[name], **options)
    try:
        factory([torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise PeerConfigError(f"optimizer: {name} does not take these settings: {error}") from error
    return factory


class NoGroupError(Exception):
    """Nobody to average with was found in time, although the tracker counts others."""


@dataclass
class Round:
    """What one call of `SwarmOptimizer.step` did about synchronising."""

    group_size: int = 0  # peers averaged together; 1: alone; 0: no round in this call
    state_loads: int = 0
    losses: list[str] = field(default_factory=list)
    swarm_peers: int = 0  # peers the tracker knew of when the round began


class PunctualTracker(ProgressTracker):
    """Ends an epoch with the step that reaches the target, not with the one after it.

    Peers in step finish their last steps at the estimated end of the epoch, some milliseconds
    before or after it; their reports arrive later. Hivemind compares the clock with the estimate
    exactly, so about every second epoch a peer starts another step and the others wait for it.
    Half a step of tolerance decides it. Nothing else is earlier: a step sooner, half is not enough.
    """

    samples_per_step = 0
    held = False  # paused: this peer adds no samples to the epoch until it goes on

    def hold(self, held: bool) -> None:
        """Tell the swarm again what this peer has of the epoch, and whether it is adding to it.

        The others reckon with a peer's last rate for as long as they hear nothing newer: without this the
        epoch would be over, with too few samples, when the pause is.
        """
        self.held = held
        self.report_local_progress(self.local_progress.epoch, self.local_progress.samples_accumulated)

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


class SwarmOptimizer(hivemind.Optimizer):
    """Records each round's group and failures, and mends two faults of `reuse_grad_buffers`.

    With `reuse_grad_buffers=True, offload_optimizer=False`, Hivemind 1.1.12
    - alone and without a pre-scheduled round, steps with the *sum* of the accumulated gradients;
    - after a failed round, steps with zeros: the buffers were reset when the round began, and
      "Proceeding with local gradients" loads those.
    Here the first uses their mean, the second what the averager holds (this peer's own mean,
    with the parts that were averaged before the failure).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.round = Round()
        self.sync_work_s = 0.0  # emulated: the real VM's own work around a round
        self.on_round_begins: Callable[[], None] | None = None
        self._local_gradients_loaded = False
        super().__init__(*args, **kwargs)

    def _make_progress_tracker(self, target_batch_size: int, **kwargs: Any) -> PunctualTracker:
        tracker = PunctualTracker(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **kwargs,
        )
        tracker.samples_per_step = self.batch_size_per_step or 0
        self._punctual = tracker
        return tracker

    def take_round(self) -> Round:
        """What happened since the last call of this method."""
        taken, self.round = self.round, Round()
        return taken

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.swarm_peers = self.tracker.global_progress.num_peers
        super()._update_global_epoch(grad_scaler)

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        self._local_gradients_loaded = False
        began = super()._begin_averaging_gradients(grad_scaler)
        if not began:
            self.round.group_size = 1
            if self.round.swarm_peers > 1:
                self.round.losses.append("averaging could not begin: local gradients")
            if not self._local_gradients_loaded:
                self._load_local_gradients_into_optimizer()
        return began

    def _load_local_gradients_into_optimizer(self) -> None:
        super()._load_local_gradients_into_optimizer()
        self._local_gradients_loaded = True

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        if maybe_step_control is None:
            super()._average_gradients_and_load_into_optimizer(maybe_step_control)
            return
        try:
            group = self._result_of(maybe_step_control)
            self.round.group_size = len(group)
            _log.info(f"Averaged gradients with {len(group)} peers")
        except Exception as error:  # noqa: BLE001 - any failure of a round: training goes on, the loss is counted
            self.round.group_size = 1
            self.round.losses.append(f"averaging failed ({type(error).__name__}): local gradients")
            _log.warning(f"Averaging gradients failed with {error!r}: local gradients")
        self._load_averaged_gradients_into_optimizer_()
        if self.round.group_size > 1:
            # within the step, where the tracker's estimate of the step rate is paused: slept after the step, it
            # made every estimate of the epoch's end late, and averaging waited a step longer for its schedule
            time.sleep(self.sync_work_s)

    def _result_of(self, control: StepControl) -> Any:
        """The round's result; raises NoGroupError rather than look for a group until averaging_timeout.

        A peer killed without a goodbye stays in the tracker's count for a while: the survivors of a
        pair would look for it for minutes.
        """
        limit_s = float(self.averaging_timeout or 60.0)
        patience_s = max(3.0 * float(self.matchmaking_time or 5.0), 6.0)
        try:
            return control.result(min(patience_s, limit_s))
        except FutureTimeoutError:
            if control.stage == AveragingStage.LOOKING_FOR_GROUP:
                control.cancel()
                raise NoGroupError(f"no group within {patience_s:g} s") from None
        return control.result(max(0.0, limit_s - patience_s))

    def hold(self, held: bool) -> None:
        """`PunctualTracker.hold`."""
        self._punctual.hold(held)

    def take_back_progress(self, timeout_s: float) -> None:
        """From now on nobody reckons with this peer; it may not train again."""
        self._punctual.shutdown(timeout_s)

    @property
    def round_scheduled(self) -> bool:
        """Whether others may be looking for a group with this peer, or averaging with it."""
        return self.scheduled_grads is not None and not self.scheduled_grads.done()

    def leave_round(self, timeout_s: float) -> None:
        """Before this peer goes: a round that has its group is finished with weight 0, any other given up.

        A group that lost a member it was formed with would wait for it, and miss its part of the average.
        """
        control, self.scheduled_grads = self.scheduled_grads, None
        if control is None or control.done():
            return
        if control.stage == AveragingStage.LOOKING_FOR_GROUP:
            control.cancel()
            return
        if not control.triggered:
            control.weight = 0.0
            control.allow_allreduce()
        try:
            control.result(timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever became of the round: this peer leaves
            _log.warning("left a round that was under way: %r", error)

    def load_state_from_peers(self, **kwargs: Any) -> None:
        """Download the newest state from a peer; blocks until it is here."""
        if self.on_round_begins is not None:
            self.on_round_begins()
        self.round.state_loads += 1
        super().load_state_from_peers(**kwargs)


def build_optimizer(
    config: PeerConfig, dht: hivemind.DHT, parameters: Iterable[torch.nn.Parameter]
) -> SwarmOptimizer:
    """The Optimizer with the settings of docs/hivemind.md. Raises PeerConfigError for unknown names."""
    compression = compression_of(config.compression)
    timeout = config.averaging_timeout_s
    optimizer = SwarmOptimizer(
        dht=dht,
        run_id=config.run_id,
        target_batch_size=config.target_batch_size,
        batch_size_per_step=config.batch_size * config.coalesce,
        params=list(parameters),
        optimizer=torch_optimizer_of(config.optimizer),
        matchmaking_time=config.matchmaking_time_s,
        averaging_timeout=timeout,
        allreduce_timeout=timeout,
        next_chunk_timeout=config.next_chunk_timeout_s,
        load_state_timeout=max(120.0, 2 * timeout),
        reuse_grad_buffers=True,
        offload_optimizer=False,
        delay_optimizer_step=False,
        delay_grad_averaging=False,
        delay_state_averaging=False,
        average_state_every=_NEVER,
        grad_compression=compression,
        load_state_compression=state_compression(),
        # hivemind.Optimizer passes neither request_timeout nor part_size_bytes on: by factory
        grad_averager_factory=partial(
            GradientAverager,
            request_timeout=config.request_timeout_s,
            part_size_bytes=config.part_size_bytes,
            allow_state_sharing=False,  # a joiner needs the weights, not stale gradients
        ),
        averager_opts={"request_timeout": config.request_timeout_s},
        # the default, 3 s, before anybody is seen is longer than a short first epoch: peers would step alone
        tracker_opts={"default_refresh_period": 0.5, "max_refresh_period": 5.0, "metadata_expiration": 30.0},
        verbose=True,
        shutdown_timeout=2,
    )
    optimizer.sync_work_s = config.sync_work_s
    return optimizer
