"""Accounting of epochs: phases, samples, loss, bytes, and reasons for incomplete rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloud.storage.counter import BytesRead
from experiments.peer.averaging.rounds import Round
from experiments.peer.training.step_timer import EpochTimes
from metrics.records import EgressRecord, EpochRecord, IngressRecord, StepRecord


def loss_reasons(done: Round, logged: Sequence[str], others_training: int) -> list[str]:
    """Return the reasons why the round lost a part; empty for a complete round and for a peer that is alone.

    `logged`: reasons from Hivemind's log. `others_training`: number of other peers announced as training at about this
    epoch. Seeing no other peer while others were training counts as a loss.
    """
    reasons = [*done.losses, *logged]
    expected = others_training + 1
    if not done.state_loads and done.group_size < expected and not done.losses:
        reasons.append(
            "no other peers seen" if done.group_size <= 1 else f"group of {done.group_size} of {expected}"
        )
    return list(dict.fromkeys(reasons))


def egress_between(
    vm: str,
    epoch: int,
    phase: str,
    seconds: float,
    before: dict[str, int],
    after: dict[str, int],
    model: dict[str, int] | None = None,
) -> list[EgressRecord]:
    """Return records of the bytes sent between two meter readings, one for each destination with any.

    `model`: bytes of model data sent meanwhile, by address; None: not counted.
    """
    sent = {address: 0 for address, count in (model or {}).items() if count > 0}
    sent |= {address: count - before.get(address, 0) for address, count in after.items()}
    return [
        EgressRecord(
            vm=vm,
            epoch=epoch,
            dst_address=address,
            phase=phase,
            seconds=seconds,
            bytes=max(0, count),
            model_bytes=None if model is None else model.get(address, 0),
        )
        for address, count in sorted(sent.items())
        if count > 0 or (model or {}).get(address)
    ]


class EpochLedger:
    """Accounts for one epoch after the other. `snapshot`: bytes sent by address; `read`: data bytes read.

    Both count from the peer's start. What precedes the first epoch is part of that epoch's records; its sent bytes have
    the phase "joining", which took `joining_s`. A peer that has completed its round keeps sending parts of it to others
    while it calculates. So bytes sent during the first half of the calculation after a round have the phase "settling",
    and "calc" contains control traffic only.
    """

    def __init__(
        self,
        vm: str,
        snapshot: Callable[[], dict[str, int]],
        read: Callable[[], BytesRead],
        ran: str,
        joining_s: float,
        model_bytes: Callable[[], dict[str, int] | None] = lambda: None,
    ) -> None:
        """`model_bytes`: bytes of model data sent by address (`reporting.model_bytes`); None: not counted."""
        self._vm, self._snapshot, self._read, self._ran = vm, snapshot, read, ran
        self._joining_s, self._model_bytes = joining_s, model_bytes
        self._model_bytes_before: dict[str, int] = {}
        self._joining: dict[str, int] | None = snapshot()  # until it is in a record
        self._at_end = self._joining
        self._at_round: dict[str, int] | None = None
        # seconds outside rounds until half of the steps, and the meter reading then
        self._settled: tuple[float, dict[str, int]] | None = None
        self._steps_before = 0  # of the previous epoch, until its round began
        self._steps_at_round = 0
        self._ahead = 0  # samples of the next epoch
        self._read_at_end = BytesRead(0, 0, 0)
        self._times = EpochTimes(0.0)
        self.losses: list[float] = []  # of the accelerator steps
        self.reasons: list[str] = []  # why part of this epoch was lost

    def begin(self, began_s: float) -> None:
        """Begin a new epoch at this unix time. The meter's last reading becomes its first."""
        self._steps_before = self._steps_at_round + 1 if self._times.overlapped_s else self._times.steps
        self._times = EpochTimes(began_s, samples=self._ahead)
        self._ahead = 0
        self._at_begin, self._at_round, self._settled = self._at_end, None, None
        self.losses, self.reasons = [], []

    def round_begins(self) -> None:
        """Call when the synchronising part of a step begins: bytes sent from here on count as communication."""
        if self._at_round is None:
            self._at_round, self._steps_at_round = self._snapshot(), self._times.steps

    def round_ends(self) -> None:
        """Call when the synchronising step is over."""
        self._at_end = self._snapshot()

    def add(self, step: StepRecord) -> None:
        """Count a step. Halfway through the epoch's steps, all parts of the last round have been sent."""
        self._times.add(step)
        if (
            self._settled is None
            and 0 < self._steps_before <= 2 * self._times.steps
            and self._at_round is None
        ):
            self._settled = (self._times.calc_s + self._times.paused_s, self._snapshot())

    def add_pause(self, seconds: float) -> None:
        """Add a pause between two steps, ordered by the controller: neither calculation nor communication."""
        self._times.paused_s += seconds

    def add_hidden(self, seconds: float, ahead: int) -> None:
        """Add the overlap of the round that ended: `seconds` passed while this peer calculated `ahead` samples for the
        next epoch.
        """
        self._times.overlapped_s += seconds
        self._ahead = ahead

    def discard_samples(self) -> None:
        """Call when the accumulated gradients were discarded: their samples do not count."""
        self._times.samples = 0

    def end(self, epoch: int, group_size: int) -> tuple[EpochRecord, list[EgressRecord], IngressRecord]:
        """Return the records of the epoch that ended with the last step added. `epoch`: its number."""
        times, read = self._times, self._read()
        record = EpochRecord(
            vm=self._vm,
            epoch=epoch,
            began_s=times.began_s,
            ended_s=times.began_s + times.wall_s + times.paused_s,
            steps=times.steps,
            samples=times.samples - self._ahead,
            calc_s=times.calc_s,
            comm_s=times.comm_s,
            loss=sum(self.losses) / len(self.losses),
            group_size=group_size,
            dropped=";".join(dict.fromkeys(self.reasons)),
            ran=self._ran,
            **{f"{name}_s": seconds for name, seconds in times.phases_s.items()},
        )
        middle = self._at_round if self._at_round is not None else self._at_end
        outside_s = times.calc_s + times.paused_s - times.overlapped_s
        settled_s, settled = self._settled or (0.0, self._at_begin)
        if self._settled is None and times.overlapped_s and self._steps_before:
            # hardly any step between two rounds: no part of it is control traffic only
            settled_s, settled = outside_s, middle
        calculating_s = outside_s - settled_s
        model = self._model_bytes_since()
        none = None if model is None else dict[str, int]()
        egress = [
            *egress_between(self._vm, epoch, "joining", self._joining_s, {}, self._joining or {}, none),
            *egress_between(self._vm, epoch, "settling", settled_s, self._at_begin, settled, none),
            *egress_between(self._vm, epoch, "calc", calculating_s, settled, middle, none),
            *egress_between(self._vm, epoch, "comm", times.comm_s, middle, self._at_end, model),
        ]
        began, self._read_at_end, self._joining = self._read_at_end, read, None
        ingress = IngressRecord(
            vm=self._vm,
            epoch=epoch,
            network_bytes=read.network_bytes - began.network_bytes,
            cache_bytes=read.cache_bytes - began.cache_bytes,
        )
        return record, egress, ingress

    def _model_bytes_since(self) -> dict[str, int] | None:
        """Bytes of model data sent since the end of the last epoch, by address."""
        sent, before = self._model_bytes(), self._model_bytes_before
        if sent is None:
            return None
        self._model_bytes_before = sent
        return {address: count - before.get(address, 0) for address, count in sent.items()}
