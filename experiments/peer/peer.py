"""One peer: `assemble` starts its components, `Peer` joins the swarm, trains, publishes and leaves."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hivemind.utils.timed_storage import get_dht_time

from cloud.storage.counter import ByteCounter
from cloud.storage.errors import StorageError, is_final
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Cursor
from experiments.peer.checkpoints.restore import RestoreError
from experiments.peer.checkpoints.session import Checkpoints, build_checkpoints
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.optimizer.build import build_optimizer
from experiments.peer.optimizer.join import Download, take_over
from experiments.peer.optimizer.single_peer import PlainOptimizer, build_plain
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.processes import Departure, kill_children_with_parent, record_descendants, run_within
from experiments.peer.reporting.coverage_log import CoverageLog
from experiments.peer.reporting.input_sums import InputSums
from experiments.peer.reporting.loss_log import LossWatch, set_up_logging
from experiments.peer.reporting.model_bytes import ModelBytes, count_tensors
from experiments.peer.reporting.publish import Publisher, PublishError, use_record_key
from experiments.peer.reporting.traffic import Traffic, open_meter
from experiments.peer.reporting.utilisation import watch_utilisation
from experiments.peer.shutdown.leave import LeaveSequence
from experiments.peer.shutdown.policy import ShutdownPolicy
from experiments.peer.state.catch_up import CatchUpError, NoStateError
from experiments.peer.status import Status
from experiments.peer.swarm.allowlist import Allowlist
from experiments.peer.swarm.clock import CLOCK_VARIABLE, SwarmClock, controller_time, install_clock
from experiments.peer.swarm.dht_node import SwarmError, first_peers, start_dht
from experiments.peer.swarm.internal_addresses import FILE as NEIGHBOURS
from experiments.peer.swarm.internal_addresses import read_neighbours
from experiments.peer.swarm.membership import Membership, alive_slots
from experiments.peer.swarm.orders import Admission, OrdersWatch
from experiments.peer.swarm.start_weights import StartWeightsError, check_start_weights
from experiments.peer.training.batches import Batches, open_shards
from experiments.peer.training.data_position import cursor_at, cursor_of, position_of
from experiments.peer.training.decoding import WorkerEndedError
from experiments.peer.training.emulated_model import ModelSizeError
from experiments.peer.training.input_trace import ConsumerTrace, input_recorder
from experiments.peer.training.loader import HeldOut, Loaded
from experiments.peer.training.loop import Hooks, Trainer
from experiments.peer.training.parameter_digest import parameters_sha, write_sample
from experiments.peer.training.periodic_evaluation import PeriodicEvaluation, build_copy, evaluating_slot
from experiments.peer.training.ranks import Ranks
from experiments.peer.training.step_log import StepLog
from experiments.peer.training.stored_settings import with_stored_files
from experiments.peer.training.task import TaskRunner, build_runner, use_code_folder
from experiments.peer.training.task_data import (
    first_batch,
    held_out,
    statistics_batches,
    training_source,
    use_stored_values,
)
from experiments.pipeline.errors import PipelineError
from experiments.tasks.protocol import TaskError
from experiments.wire.data_position import DataPosition
from experiments.wire.dht_records import KEEP_EPOCHS, MAX_EPOCHS
from experiments.wire.epoch_positions import IN_STATUS, IN_STATUS_VALUES, EpochPositions
from experiments.wire.hivemind.patches import apply as apply_patches
from metrics.records import EgressRecord, EpochRecord, IngressRecord, JoinRecord, StepRecord

_log = logging.getLogger("experiments.peer")
_SERVE_S = 120.0  # how long a finished peer serves its state
_LOOK_S = 3.0  # while it does: period of a look at whether the last checkpoint is stored
_LEAVE_S, _LEAVE_SOFT_S = 9.5, 6.0  # after a signal
_TELL_SWARM_S = 2.0  # reserved from the leave time for the steps after the round
_POSITION_S = 5.0  # between two reports of the position in the data, except at the end of an epoch
_FLUSH_S, _FLUSH_AT_THE_END_S = 1.5, 5.0
_OPTIMIZER_S = 3.0  # for Hivemind's shutdown, which may otherwise wait for a whole round
_EVALUATION_S = 2.0  # for an evaluation during training to be cancelled
_INTERNAL_S = 10.0  # for the internal connections to the peers of this network
_BEGINNING = DataPosition(0, (), None, 0)  # of the data


def run(config: PeerConfig, folder: Path, temporary: Path, status: Status) -> int:
    """Run one peer. Every outcome is written to the status and returned as the exit code (see `main.main`)."""
    try:
        return assemble(config, folder, temporary, status).run()
    except (PeerConfigError, ModelSizeError, PublishError) as error:
        status.set(phase="failed", error=f"{folder / 'config.json'}: {error}", hopeless=True)
        return 2
    except StorageError as error:
        _log.exception("failed")
        status.set(phase="failed", error=str(error), hopeless=is_final(error))
        return 1
    except (TaskError, PipelineError, StartWeightsError, RestoreError) as error:
        _log.exception("failed")
        status.set(phase="failed", error=str(error), hopeless=True)
        return 1
    except (SwarmError, NoStateError, CatchUpError, WorkerEndedError, OSError) as error:
        _log.exception("failed")
        status.set(phase="failed", error=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - last resort: no caller could report it to the user
        _log.exception("failed")
        log = folder / "peer.log"
        status.set(phase="failed", error=f"{type(error).__name__}: {error}; {log} has the traceback")
        return 1


def assemble(config: PeerConfig, folder: Path, temporary: Path, status: Status) -> Peer:
    """Start a peer's components in dependency order and register their shutdown on the peer's exit stack.

    Raises what the components raise. Components already started then end with the process (`main.main`), as after a
    later failure.
    """
    losses = _prepare_process(config, folder)
    config = replace(config, initial_peers=first_peers(config.initial_peers, os.environ))
    parts = ExitStack()
    orders = OrdersWatch(config)  # the lease starts here
    admission = Admission(orders, Allowlist(), status.warn)
    admission.install()  # before anything listens
    use_record_key(folder / config.record_key_file)
    model_bytes = ModelBytes()
    traffic = Traffic(  # before the first byte is sent
        config.vm, folder / "egress.csv", open_meter(status.warn), model_bytes, status.warn
    )
    count_tensors(model_bytes)  # before the averagers are forked
    parts.callback(traffic.close)

    stop = threading.Event()
    leave = LeaveSequence(status, traffic.write_final, temporary)
    departure = Departure(stop, leave.cut_short, soft_s=_LEAVE_SOFT_S, limit_s=_LEAVE_S)
    clock = SwarmClock(controller_time(os.environ.get(CLOCK_VARIABLE, "")))
    install_clock(clock)
    parts.callback(
        watch_utilisation(
            config.vm,
            folder,
            own_machine=config.own_machine,
            own_network=config.own_network,
            publish=lambda newest: status.set(utilisation=newest),
            warn=status.warn,
            unix_s=clock.now_s,
        )
    )
    # Notices use the cloud's clock, which also sets this machine's clock, even in the middle of a run.
    policy = ShutdownPolicy(orders, departure, status, stop, time.time, lambda: clock.now_s() - time.time())
    policy.start()
    policy.watch_notices(config.notice_url)

    use_code_folder(config, folder)
    opener = open_shards(config, folder / "cache", partial(status.warn, "cache"))
    config = with_stored_files(config, folder, opener.open)
    task = build_runner(config)
    use_stored_values(config, task, opener.open)
    status.set(ran=task.ran)
    task.precision.warn = partial(status.warn, "precision")
    heldout = held_out(config, opener, task, partial(status.left_out, "heldout"))
    if heldout is not None:
        heldout.check()
    if heldout is not None or config.checkpoint is not None:
        task.common_batches = statistics_batches(config, opener, task)

    dht, maddr = start_dht(config, folder / config.identity_file)
    parts.callback(dht.shutdown)
    status.set(phase="dht", maddr=maddr, peer_id=str(dht.peer_id))
    admission.watch(dht)
    parts.callback(admission.stop)
    publisher = Publisher(
        dht,
        config.run_id,
        config.vm,
        config.slot,
        config.generation,
        folder / config.record_key_file,
        keep=MAX_EPOCHS if config.plain else KEEP_EPOCHS,  # epochs of a plain loop may be very short
        unix_time=clock.now_s,
    )
    parts.callback(_close_publisher, publisher, status)
    start_weights = task.start_digest()
    membership = Membership(
        dht,
        config,
        maddr,
        lambda n: status.warn("heal", f"the DHT lost and regained links {n} times"),
        subkey=publisher.subkey,
        is_member=orders.is_member,
        neighbours=partial(read_neighbours, folder / NEIGHBOURS),
        weights=start_weights,
    )
    build = build_plain if config.plain else build_optimizer
    optimizer = build(config, dht, task.parameter_groups())
    parts.callback(run_within, _OPTIMIZER_S, optimizer.shutdown)
    record_descendants()
    leave.add(
        partial(optimizer.withdraw_progress, _TELL_SWARM_S / 2),
        partial(publisher.flush, _FLUSH_S),
        membership.stop,
    )
    parts.callback(leave.tell_swarm)
    checkpoints = build_checkpoints(config, folder, status, optimizer, membership, task, stop, clock.now_s)
    if checkpoints is not None:
        parts.callback(checkpoints.close)
    left_out = partial(status.left_out, "training")
    cursor = _start_cursor(config, status)
    recorder = input_recorder(config, folder)
    source = training_source(config, opener, task, left_out, cursor, recorder)
    consumer = None if recorder is None else ConsumerTrace(recorder)
    sums = None
    if recorder is not None:
        sums = InputSums(
            recorder.folder,
            folder,
            config.vm,
            publish=lambda newest: status.set(input_sums=newest),
            warn=status.warn,
        )
        sums.start()
        parts.callback(sums.close)  # after the batches
    batches = Batches(source, config.batch_size * config.ranks, consumer)
    parts.callback(batches.close)
    if config.compile:  # removed with the folder; the ranks share it
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(temporary / "compiled"))
    ranks = Ranks(config, folder, temporary, task) if config.ranks > 1 else None
    if ranks is not None:
        parts.callback(ranks.close)
        record_descendants()
    if (
        config.compile
    ):  # after Hivemind's processes were forked, which would inherit OpenMP's threads as locks only
        _compile(config, opener, task, ranks)
        record_descendants()
    periodic = None
    if config.evaluate_every_epochs and heldout is not None:
        copy = build_copy(config)  # also collates, since the training does at the same time
        again = held_out(config, opener, copy, partial(status.left_out, "heldout"))
        assert again is not None
        warn = partial(status.warn, "evaluation")
        periodic = PeriodicEvaluation(copy, again, publisher.evaluation, warn)
        parts.callback(periodic.stop, _EVALUATION_S)
    return Peer(
        config=config,
        folder=folder,
        status=status,
        parts=parts,
        stop=stop,
        departure=departure,
        policy=policy,
        orders=orders,
        clock=clock,
        losses=losses,
        traffic=traffic,
        publisher=publisher,
        membership=membership,
        optimizer=optimizer,
        task=task,
        start_weights=start_weights,
        batches=batches,
        ranks=ranks,
        heldout=heldout,
        counter=opener.counter,
        steps=StepLog(folder / "steps.csv"),
        coverage=CoverageLog(folder / "coverage.csv", config.vm, config.shards, source.shard_samples),
        periodic=periodic,
        checkpoints=checkpoints,
        begins_at=position_of(cursor or Cursor(), config.shards),
        input_sums=sums,
    )


def _prepare_process(config: PeerConfig, folder: Path) -> LossWatch:
    """Set up what Hivemind's forked processes inherit: logging, being killed with this process, patches."""
    losses = set_up_logging(folder / "peer.log")
    kill_children_with_parent()
    if threads := config.threads or (1 if config.emulated else 0):
        torch.set_num_threads(threads)
    apply_patches("peer")
    return losses


def _start_cursor(config: PeerConfig, status: Status) -> Cursor | None:
    """Where the slot's last peer was in the data. It was reported by another VM: an invalid one is only a warning."""
    if config.data_position is None:
        return None
    try:
        return cursor_at(config.data_position, config.shards)
    except ValueError as error:
        status.warn("data position", f"the first pass over the data begins again: {error}")
        return None


def _compile(config: PeerConfig, opener: ShardOpener, task: TaskRunner, ranks: Ranks | None) -> None:
    """Compile the model before this peer is announced: others would wait for it in their first round."""
    batch = first_batch(config, opener, task)
    _log.info("compiled the model in %.1f s", task.compile_with(batch))
    if ranks is not None:
        ranks.compile_with(batch)


def _close_publisher(publisher: Publisher, status: Status) -> None:
    publisher.close()
    for text in publisher.warnings:
        status.warn(text, text)


@dataclass
class Peer:
    """A peer whose components run. `parts` ends them in reverse order; after a failure they end with the process."""

    config: PeerConfig
    folder: Path
    status: Status
    parts: ExitStack
    stop: threading.Event  # set to end training
    departure: Departure
    policy: ShutdownPolicy
    orders: OrdersWatch
    clock: SwarmClock
    losses: LossWatch
    traffic: Traffic
    publisher: Publisher
    membership: Membership
    optimizer: SwarmOptimizer | PlainOptimizer
    task: TaskRunner
    start_weights: str  # digest
    batches: Batches[Loaded]
    heldout: HeldOut | None
    counter: ByteCounter  # bytes read from the store
    steps: StepLog
    coverage: CoverageLog
    ranks: Ranks | None = None  # the VM's other accelerators
    _position_at_s: float = field(init=False, default=0.0)
    _last_used: Loaded | None = field(init=False, default=None)
    periodic: PeriodicEvaluation | None = None  # evaluates during training
    checkpoints: Checkpoints | None = None
    begins_at: DataPosition = _BEGINNING  # where this peer begins in the data
    input_sums: InputSums | None = None  # of the trace
    _epoch_positions: EpochPositions = field(init=False, default=EpochPositions(0))

    def run(self) -> int:
        """Train until the run ends or `stop` is set, then leave. Returns the process's exit code."""
        began = self._wait_for_swarm()
        finished = False
        if self.checkpoints is not None:
            self.checkpoints.begin(began)
            if self.checkpoints.restored_epoch is not None:
                self._go_back_in_data(self.checkpoints.restored_epoch)
        if not self.stop.is_set():
            self._join(took_over=began == "joined")
            finished = self._train()
            self.status.set(data_position=self._position(), coverage=self.coverage.end())
        self.steps.close()
        if self.departure.requested and not finished:
            # the round first: others may be about to wait for this peer
            self.status.leaving()
            self.optimizer.leave_round(max(0.0, self.departure.soft_left_s - _TELL_SWARM_S))
        if finished and self.checkpoints is not None:
            self.checkpoints.training_ended()
        self._evaluate()
        if finished:
            self._serve()
        self.parts.close()
        if self.status.write_error is not None:
            _log.error("status.json could not be written: %s", self.status.write_error)
            return self.departure.code or 1
        return self.departure.code

    def _wait_for_swarm(self) -> str:
        """Announce this peer and wait until training may start. Returns the result of `Membership.wait_for_start`.

        Raises StartWeightsError, RestoreError, StorageError.
        """
        config, membership = self.config, self.membership
        if self.checkpoints is not None:
            self.checkpoints.prepare()
        if isinstance(self.optimizer, SwarmOptimizer):
            self.optimizer.watch_others(membership, self._attempt_failed)
        membership.start()
        self.status.set(phase="ready")
        began = membership.wait_for_start(config.expected_peers, config.barrier_timeout_s, self.stop)
        if began == "timeout":
            seen, expected, wait_s = len(membership.members), config.expected_peers, config.barrier_timeout_s
            self.status.warn("barrier", f"started with {seen} of {expected} peers after {wait_s:g} s")
        if began in ("ready", "timeout"):
            check_start_weights(config, self.start_weights, membership.members)
        membership.wait_for_internal_connections(_INTERNAL_S, self.stop)
        if public_only := len(membership.public_only):
            self.status.warn(
                "inside", f"{public_only} peers of this network are reachable at their public addresses only"
            )
        return began

    def _go_back_in_data(self, epoch: int) -> None:
        """Begin where this slot was at the end of a restored epoch. If that is unknown, begin as if joining a swarm.

        The positions were reported by other VMs: invalid ones are only a warning.
        """
        known = EpochPositions.from_json(self.config.epoch_positions)
        position = None if known is None else known.upto(epoch)
        try:
            cursor = None if position is None else cursor_of(position, self.config.shards)
        except ValueError as error:
            _log.warning("the position at the end of epoch %d cannot be used: %s", epoch, error)
            position = cursor = None
        if position is None or cursor is None:
            if self.config.data_position is None:  # no peer of this slot used any data
                return
            self.status.warn(
                "data position",
                f"the data goes on where the lost work ended: the position at the end of epoch {epoch} is unknown",
            )
            return
        self.batches.start_at(cursor)
        self.begins_at = position
        _log.info("the data goes on where this slot was at the end of epoch %d: %s", epoch, position)

    def _join(self, took_over: bool) -> None:
        """Download the state of a swarm that is already training, and report the join."""
        optimizer, download = self.optimizer, Download()
        if took_over and isinstance(optimizer, SwarmOptimizer):
            download = take_over(optimizer, lambda: self.membership.members)
        epoch = optimizer.local_epoch
        self.membership.announce("training", epoch)
        joined = JoinRecord(
            self.config.vm,
            self.clock.now_s(),
            download.seconds,
            download.bytes,
            epoch if download.donor else 0,  # a peer that begins with a checkpoint begins with the others
            download.donor,
            download.resumed,
        )
        self._epoch_positions = EpochPositions(epoch, {epoch: self.begins_at})
        positions = self._epoch_positions.newest(IN_STATUS, IN_STATUS_VALUES).to_json()
        self.status.set(phase="training", epoch=epoch, join=asdict(joined), epoch_positions=positions)

    def _train(self) -> bool:
        """Train. Returns True if the run is over for this peer, False if it was stopped."""
        tracker = self.optimizer.tracker
        self._next_share()
        self.batches.start()
        self.policy.train(lambda: tracker.estimated_next_update_time - get_dht_time())
        hooks = Hooks(
            self._stepped,
            self._epoch_ended,
            self.losses.take,
            self.membership.others_training_at,
            self._next_share,
            self._used,
            phase=None if self.batches.trace is None else self.batches.trace.phase,
        )
        trainer = Trainer(
            self.config,
            self.task,
            self.optimizer,
            self.batches,
            self.traffic.sent,
            self.counter,
            hooks,
            self.stop,
            self.traffic.counting_s,
            model_bytes=self.traffic.model_bytes,
            paused=lambda: self.orders.paused,
            last_epoch=lambda: self.orders.last_epoch,
            unix_s=self.clock.now_s,
            ranks=self.ranks,
        )
        finished = trainer.run()
        if trainer.padding.warning is not None:
            self.status.warn("stretch", trainer.padding.warning)
        return finished

    def _stepped(self, step: StepRecord) -> None:
        self.steps.write(step)
        if time.monotonic() - self._position_at_s >= _POSITION_S:
            self.status.set(data_position=self._position(), coverage=self.coverage.report())

    def _used(self, loaded: Loaded) -> None:
        self._last_used = loaded
        self.coverage.used(loaded.spans)

    def _position(self) -> dict[str, Any] | None:
        """Where this slot is in its data: after the last batch whose accelerator steps ended."""
        self._position_at_s = time.monotonic()
        position = self._position_now()
        return None if position is None else position.to_json()

    def _position_now(self) -> DataPosition | None:
        last = self._last_used
        return None if last is None else position_of(last.cursor, self.config.shards)

    def _positions_with(self, epoch: int) -> dict[str, Any]:
        """Add where this slot is at the end of an epoch. Returns the newest positions, as JSON."""
        position, before = self._position_now() or self.begins_at, self._epoch_positions
        added = EpochPositions(before.since, {**before.at, epoch: position})
        self._epoch_positions = added.newest(IN_STATUS, IN_STATUS_VALUES)
        return self._epoch_positions.to_json()

    def _attempt_failed(self, reason: str) -> None:
        self.losses.take()  # the next attempt averages what the failed one lost
        epoch = self.optimizer.local_epoch
        self.status.warn(
            f"retry {epoch}", f"epoch {epoch + 1}: an averaging attempt failed and was retried: {reason}"
        )

    def _epoch_ended(self, epoch: EpochRecord, egress: list[EgressRecord], ingress: IngressRecord) -> None:
        self.publisher.epoch(epoch, egress, ingress)
        self.traffic.published(epoch.epoch, egress)
        if self.input_sums is not None:
            self.input_sums.epoch_ended(epoch)
        self.membership.announce("training", epoch.epoch)
        self.steps.flush()
        self.status.set(
            epoch=epoch.epoch,
            data_position=self._position(),
            epoch_positions=self._positions_with(epoch.epoch),
            coverage=self.coverage.report(),
        )
        if self.checkpoints is not None:
            self.checkpoints.epoch_ended(epoch.epoch)
        if epoch.dropped:
            self.status.warn(
                f"dropped {epoch.epoch}",
                f"epoch {epoch.epoch} lost part of its round: {epoch.dropped}",
                recorded=True,
            )
        self._evaluate_a_copy(epoch.epoch)
        self.policy.round_ended(epoch.comm_s)

    def _next_share(self) -> None:
        members, slot = self.membership.members, self.config.slot
        self.traffic.locate((m.maddr for m in members), self.membership.internal)
        if self.batches.share_among(slot, alive_slots(members, slot), self.config.shards):
            _log.info("this slot's share of shards changed")

    def _evaluate_a_copy(self, epoch: int) -> None:
        """Begin to evaluate if it is this peer's turn. After the last epoch all peers evaluate."""
        if self.periodic is None or epoch >= min(self.orders.last_epoch or epoch + 1, self.config.max_epochs):
            return
        self.periodic.check()
        slots = alive_slots(self.membership.members, self.config.slot)
        if evaluating_slot(epoch, self.config.evaluate_every_epochs, slots) != self.config.slot:
            return
        if not self.periodic.begin(epoch, self.task):
            _log.warning("epoch %d is not evaluated: the last evaluation still runs", epoch)

    def _evaluate(self) -> None:
        epoch = self.optimizer.local_epoch
        if self.periodic is not None:
            self.periodic.stop(_EVALUATION_S)
        if self.heldout is None or epoch == 0 or self.policy.urgent:
            return
        if self.periodic is not None and self.periodic.evaluated >= epoch:
            return
        try:
            with self.task.common_statistics():
                figures = self.task.evaluate(self.heldout.batches())
        except StorageError as error:
            if is_final(error):
                raise
            self.status.warn("evaluation", f"epoch {epoch} was not evaluated: {error}")
            return
        samples = self.heldout.samples
        values = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        _log.info("held out: %s, %d samples", values, samples)
        self.publisher.evaluation(epoch, figures, samples)

    def _serve(self) -> None:
        """Store the last checkpoint, report completion, then serve the state until the peer is stopped."""
        self.publisher.flush(_FLUSH_AT_THE_END_S)
        self.traffic.write_final()  # written again at the end; if the VM is killed first, most of it is recorded
        if self.checkpoints is not None:
            self.checkpoints.wait_for_last(self.stop)
        sha = parameters_sha(self.task.parameters())
        write_sample(self.folder / "parameters.f32", self.task.parameters())
        epoch = self.optimizer.local_epoch
        self.status.set(phase="done", epoch=epoch, parameters_sha=sha)
        self.membership.announce("serving", epoch)
        until_s = time.monotonic() + _SERVE_S
        while not self.stop.is_set():
            storing = self.checkpoints is not None and self.checkpoints.serve()
            if not storing and time.monotonic() >= until_s:
                return
            self.stop.wait(_LOOK_S)
