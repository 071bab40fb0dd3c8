"""The peer: joins the swarm, streams, trains, meters, publishes. `python -m experiments.peer CONFIG`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.status import Status

if TYPE_CHECKING:
    from experiments.peer.reporting.egress_meter import EgressMeter
    from experiments.peer.reporting.final_egress import Untold
    from experiments.peer.reporting.publish import Publisher

_log = logging.getLogger("experiments.peer")
_SERVE_S = 120.0
_LEAVE_S, _LEAVE_SOFT_S = 9.5, 6.0
_GOODBYE_S = 2.0  # of the time to leave, kept for what follows the round
_STRETCHED = 0.02
_INSIDE_S = 10.0  # for the connections to the peers of this network


def main(config_path: str) -> int:
    """Run one peer to its end. Returns 0 (done, or left when told to), 1 (failed), 2 (config wrong) or 3 (its
    lease expired).

    Meant to be the only thing its process does: it sets environment, signal handlers and thread
    limits, and everything it starts is gone when it returns.
    """
    path = Path(config_path).absolute()
    status = Status(path.with_name("status.json"))
    status.set(phase="starting")
    try:
        config = PeerConfig.load(path)
    except PeerConfigError as error:
        status.set(phase="failed", error=str(error))
        return 2
    _environment(config)
    # imported here: a process forked from a warm one has them already, and the limits above come first
    from experiments.peer.processes import kill_descendants, own_temporary_folder, remove_folder
    from experiments.wire.hivemind.sockets import SocketFolderError

    try:
        temporary = own_temporary_folder()
    except SocketFolderError as error:
        status.set(phase="failed", error=str(error))
        return 2
    try:
        return _guarded(config, path.parent, temporary, status)
    finally:
        kill_descendants()
        remove_folder(temporary)


def _environment(config: PeerConfig) -> None:
    os.environ.update(config.environment)
    os.environ.setdefault("GOLOG_LOG_LEVEL", "error")  # p2pd's debug log alone loads a host
    if config.emulated:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMAXPROCS"):
            os.environ[name] = "1"


def _guarded(config: PeerConfig, folder: Path, temporary: Path, status: Status) -> int:
    """`_run` with every end turned into a status and an exit code."""
    from cloud.storage.errors import StorageError, is_final
    from experiments.peer.reporting.publish import PublishError
    from experiments.peer.state.catch_up import ChaseError, NoStateError
    from experiments.peer.swarm.dht_node import SwarmError
    from experiments.peer.training.emulated_model import ModelSizeError

    try:
        return _run(config, folder, temporary, status)
    except (PeerConfigError, ModelSizeError, PublishError) as error:
        status.set(phase="failed", error=f"{folder / 'config.json'}: {error}", hopeless=True)
        return 2
    except StorageError as error:
        _log.exception("failed")
        status.set(phase="failed", error=str(error), hopeless=is_final(error))
        return 1
    except (SwarmError, NoStateError, ChaseError, OSError) as error:
        _log.exception("failed")
        status.set(phase="failed", error=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the process's last line: nothing above could tell the user
        _log.exception("failed")
        log = folder / "peer.log"
        status.set(phase="failed", error=f"{type(error).__name__}: {error}; {log} has the traceback")
        return 1


def _run(config: PeerConfig, folder: Path, temporary: Path, status: Status) -> int:
    import torch
    from hivemind.utils.timed_storage import get_dht_time

    from experiments.peer.optimizer.build import build_optimizer
    from experiments.peer.optimizer.join import Download, take_over
    from experiments.peer.optimizer.single_peer import build_plain
    from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
    from experiments.peer.processes import Departure, children_die_with_us, note_descendants, remove_folder
    from experiments.peer.reporting.final_egress import Untold
    from experiments.peer.reporting.loss_log import set_up_logging
    from experiments.peer.reporting.model_bytes import ModelBytes, address_of, by_address, count_tensors
    from experiments.peer.reporting.publish import Publisher, use_record_key
    from experiments.peer.shutdown.policy import Life
    from experiments.peer.shutdown.preemption_notices import NoticeWatch, Source
    from experiments.peer.swarm.allowlist import Guard, close_the_door
    from experiments.peer.swarm.clock import CLOCK_VARIABLE, SwarmClock, follow, told_time
    from experiments.peer.swarm.dht_node import first_peers, start_dht
    from experiments.peer.swarm.internal_addresses import FILE as NEIGHBOURS
    from experiments.peer.swarm.internal_addresses import read_neighbours
    from experiments.peer.swarm.membership import Membership, alive_slots
    from experiments.peer.swarm.orders import OrdersWatch
    from experiments.peer.training.batches import Batches, DigitSource, open_shards, read_heldout
    from experiments.peer.training.loop import Hooks, Trainer
    from experiments.peer.training.parameter_digest import parameters_sha, write_sample
    from experiments.peer.training.step_log import StepLog
    from experiments.peer.training.task import build_task
    from experiments.wire.dht_records import KEEP_EPOCHS, MOST_EPOCHS
    from experiments.wire.hivemind.patches import mend_hivemind, own_locks
    from metrics.records import EgressRecord, EpochRecord, IngressRecord, JoinRecord

    watch = set_up_logging(folder / "peer.log")
    config = replace(config, initial_peers=first_peers(config.initial_peers, os.environ))
    children_die_with_us()
    if config.emulated:
        torch.set_num_threads(1)
    own_locks()
    mend_hivemind()
    orders, guard = OrdersWatch(config), Guard()
    if orders.closed:  # before anything listens
        guard.allow(orders.peer_ids)
        close_the_door(guard)
    use_record_key(folder / config.record_key_file)
    meter, metering_since = _meter(status), time.monotonic()  # before the first byte is sent
    model_bytes, addresses = ModelBytes(), dict[str, str]()
    count_tensors(model_bytes)  # before the averagers are forked

    def handed() -> dict[str, int] | None:
        """Bytes of the model handed over so far, by address."""
        counted = None if meter is None else model_bytes.by_peer()
        return None if counted is None else by_address(counted, addresses)

    untold = Untold(config.vm, folder / "egress.csv", _reading(meter), handed=handed)

    stop = threading.Event()
    goodbyes: list[Callable[[], None]] = []  # in the order they are said

    def last_words() -> None:
        status.leaving()
        for goodbye in goodbyes:  # the rest dies with the process
            goodbye()
        _write_untold(untold, status)
        remove_folder(temporary)

    departure = Departure(stop, last_words, soft_s=_LEAVE_SOFT_S, limit_s=_LEAVE_S)
    clock = SwarmClock(told_time(os.environ.get(CLOCK_VARIABLE, "")))
    follow(clock)
    # What its cloud announces is by the cloud's clock, which this machine's is set by, in mid-run too.
    life = Life(orders, departure, status, stop, time.time, lambda: clock.now_s() - time.time())
    life.start()
    if config.notice_url:
        try:
            source = Source(config.notice_url, unix_time=time.time)
        except ValueError as error:
            raise PeerConfigError(str(error)) from error
        NoticeWatch(source, life.noticed, lambda text: status.warn("notice", text))

    task = build_task(config)
    status.set(ran=task.ran)
    opener = open_shards(config, folder / "cache", lambda text: status.warn("cache", text))
    heldout = read_heldout(config, opener)
    dht, maddr = start_dht(config, folder / config.identity_file)
    status.set(phase="dht", maddr=maddr, peer_id=str(dht.peer_id))

    def looked() -> None:
        guard.allow(orders.peer_ids)
        for key, refused in (("strangers", guard.refused), ("orders", dict(orders.refused))):
            if refused:
                status.warn(key, f"{key} refused: {', '.join(f'{n} {k}' for k, n in refused.items())}")

    orders.watch(dht, looked)
    publisher = Publisher(
        dht,
        config.run_id,
        config.vm,
        config.slot,
        config.generation,
        folder / config.record_key_file,
        keep=MOST_EPOCHS if config.plain else KEEP_EPOCHS,  # a plain loop's epochs may be over in no time
        unix_time=clock.now_s,
    )
    goodbyes.append(lambda: _flush(publisher, 1.5))
    membership = Membership(
        dht,
        config,
        maddr,
        lambda n: status.warn("heal", f"the DHT lost and regained links {n} times"),
        subkey=publisher.subkey,
        is_member=orders.is_member,
        neighbours=partial(read_neighbours, folder / NEIGHBOURS),
    )
    build = build_plain if config.plain else build_optimizer
    optimizer = build(config, dht, task.parameters())

    def tried_again(reason: str) -> None:
        watch.take()  # what the failed attempt lost, the next one averages
        epoch = optimizer.local_epoch
        status.warn(f"retry {epoch}", f"epoch {epoch + 1}: an attempt failed and was made again: {reason}")

    if isinstance(optimizer, SwarmOptimizer):
        optimizer.watch_others(membership, tried_again)
    goodbyes.insert(0, lambda: optimizer.take_back_progress(_GOODBYE_S / 2))
    note_descendants()
    batches = Batches(DigitSource(config, opener), config.batch_size)
    steps = StepLog(folder / "steps.csv")
    goodbyes.append(membership.stop)
    membership.start()
    status.set(phase="ready")

    def share() -> None:
        addresses.update(address_of(m.maddr for m in membership.members))
        addresses.update(membership.inside)
        if batches.share_among(config.slot, alive_slots(membership.members, config.slot), config.shards):
            _log.info("this slot's share of the shards changed")

    def epoch_ended(epoch: EpochRecord, egress: list[EgressRecord], ingress: IngressRecord) -> None:
        publisher.epoch(epoch, egress, ingress)
        untold.told(epoch.epoch, egress)
        membership.announce("training", epoch.epoch)
        steps.flush()
        status.set(epoch=epoch.epoch)
        if epoch.dropped:
            status.warn(
                f"dropped {epoch.epoch}", f"epoch {epoch.epoch} lost part of its round: {epoch.dropped}"
            )
        life.round_ended(epoch.comm_s)

    began = membership.wait_for_start(config.expected_peers, config.barrier_timeout_s, stop)
    if began == "timeout":
        seen = len(membership.members)
        status.warn(
            "barrier",
            f"started with {seen} of {config.expected_peers} peers after {config.barrier_timeout_s:g} s",
        )
    membership.wait_until_inside(_INSIDE_S, stop)
    if membership.outside:
        status.warn(
            "inside",
            f"{len(membership.outside)} peers of this network are reached at their public addresses only",
        )
    ended_by_itself = False
    if not stop.is_set():
        download = Download()
        if began == "joined" and isinstance(optimizer, SwarmOptimizer):
            download = take_over(optimizer, lambda: membership.members)
        membership.announce("training", optimizer.local_epoch)
        joined = JoinRecord(
            config.vm,
            clock.now_s(),
            download.seconds,
            download.bytes,
            optimizer.local_epoch,
            download.donor,
            download.resumed,
        )
        status.set(phase="training", epoch=optimizer.local_epoch, join=asdict(joined))
        share()
        batches.start()
        life.train(lambda: optimizer.tracker.estimated_next_update_time - get_dht_time())
        hooks = Hooks(steps.write, epoch_ended, watch.take, membership.others_training_at, share)
        joining_s = time.monotonic() - metering_since
        trainer = Trainer(
            config,
            task,
            optimizer,
            batches,
            _reading(meter),
            opener.counter,
            hooks,
            stop,
            joining_s,
            handed=handed,
            paused=lambda: orders.paused,
            unix_s=clock.now_s,
        )
        ended_by_itself = trainer.run()
        _say_stretch(status, trainer.padding.overrun_s, trainer.padding.asked_s, trainer.padding.worst_s)
    steps.close()
    if departure.asked and not ended_by_itself:  # first the round: others may be about to wait for this peer
        status.leaving()
        optimizer.leave_round(max(0.0, departure.soft_left_s - _GOODBYE_S))
    if heldout is not None and optimizer.local_epoch > 0 and not life.in_a_hurry:
        accuracy, loss = task.evaluate(heldout)
        _log.info("held out: accuracy %.4f, loss %.4f, %d samples", accuracy, loss, len(heldout[1]))
        publisher.evaluation(optimizer.local_epoch, accuracy, loss, len(heldout[1]))
    if ended_by_itself:
        _flush(publisher, 5.0)
        _write_untold(untold, status)  # again at the end; should this VM be killed first, most of it is told
        sha = parameters_sha(task.parameters())
        write_sample(folder / "parameters.f32", task.parameters())
        status.set(phase="done", epoch=optimizer.local_epoch, parameters_sha=sha)
        membership.announce("serving", optimizer.local_epoch)
        stop.wait(_SERVE_S)
    batches.close()
    for goodbye in goodbyes:
        goodbye()
    _within(3.0, optimizer.shutdown)
    orders.stop()
    dht.shutdown()
    _write_untold(untold, status)
    for text in (*publisher.warnings, *(meter.warnings if meter else ())):
        status.warn(text, text)
    publisher.close()
    if meter is not None:
        meter.close()
    if status.write_error is not None:
        _log.error("status.json could not be written: %s", status.write_error)
        return departure.code or 1
    return departure.code


def _meter(status: Status) -> EgressMeter | None:
    """The kernel's counters, or none with a warning: where they cannot be read, egress stays unknown."""
    from experiments.peer.reporting.egress_meter import EgressMeter
    from experiments.peer.reporting.socket_counters import InetDiagError

    try:
        return EgressMeter()
    except InetDiagError as error:
        status.warn("egress", f"egress is unknown: {error}")
        return None


def _reading(meter: EgressMeter | None) -> Callable[[], dict[str, int]]:
    return meter.snapshot if meter is not None else dict


def _write_untold(untold: Untold, status: Status) -> None:
    from experiments.peer.reporting.socket_counters import InetDiagError

    try:
        untold.write()
    except (OSError, InetDiagError) as error:
        status.warn("untold", f"egress after the last epoch is unknown: {error}")


def _flush(publisher: Publisher, timeout_s: float) -> None:
    if not publisher.flush(timeout_s):
        _log.warning("the last record was not accepted within %.1f s", timeout_s)


def _say_stretch(status: Status, overrun_s: float, asked_s: float, worst_s: float) -> None:
    if asked_s > 0.0 and overrun_s > _STRETCHED * asked_s:
        share = 100.0 * overrun_s / asked_s
        worst_ms = 1000.0 * worst_s
        text = f"padded phases took {share:.1f} % longer than asked (worst {worst_ms:.0f} ms): host too busy"
        status.warn("stretch", text)


def _within(seconds: float, what: Callable[[], None]) -> None:
    """Run it in a thread for at most so long; Hivemind's goodbye may wait for a whole round."""

    def guarded() -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 - on the way out: the other goodbyes still have their turn
            _log.warning("leaving: %r", error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
