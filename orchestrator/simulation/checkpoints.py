"""A model of the checkpoints of simulated peers: what is stored when, and what the loss of all peers costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from experiments.checkpoints.layout import checkpoint_name
from experiments.peer.checkpoints.schedule import Checkpointing, State, later, writing_slot
from metrics.records import EpochRecord

_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Loss:
    """All peers were lost at once, and training went on from an earlier state."""

    at_s: float  # when it went on
    reached: int  # epochs that were completed
    from_epoch: int  # of the newest stored checkpoint; 0: none
    every: int
    # Checkpoints that were due since the newest stored one, but were skipped during an upload or lost their writer.
    excused: int

    @property
    def lost(self) -> int:
        """Completed epochs that are trained again."""
        return self.reached - self.from_epoch

    @property
    def most(self) -> int:
        """The most that may be lost: one interval, and one more for each checkpoint that could not be stored."""
        return self.every * (1 + self.excused)


@dataclass(slots=True)
class _Upload:
    epoch: int
    vm: str
    began_s: float
    until_s: float


class SimCheckpoints:
    """The object store of one run, and the records of all epochs that were ever trained, lost ones included."""

    def __init__(
        self,
        every: int,
        upload_s: tuple[float, float],
        seed: int | str,
        *,
        every_s: float | None = None,
        records: bool = True,
    ) -> None:
        """`every`: epochs from one checkpoint to the next, unless `every_s` is given. `records`: keep those of epochs."""
        self._every, self._upload_s, self._random = every, upload_s, Random(f"checkpoints {seed}")
        self._settings = Checkpointing(
            "s3://simulated/checkpoints/sim", 2, (), every if every_s is None else None, every_s
        )
        self._writer = ""  # VM that wrote in the last epoch
        self._last: State | None = None  # of which that VM knows
        self._newest: State | None = None  # stored
        self._start: dict[str, State | None] = {}  # by VM: with which it began; None: others had begun before
        self._upload: _Upload | None = (
            None  # the writer's; another one's makes it wait, unlike in a real swarm
        )
        self._began_s = 0.0  # of the epoch in progress
        self._since_s: dict[str, float] = {}  # by VM that trains: since when
        self._excused: set[int] = set()
        self._stored_by: dict[str, list[dict[str, Any]]] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        self._news: set[str] = set()
        self.epoch = 0  # of the newest stored checkpoint
        self.names: set[str] = set()  # of all that were ever stored
        self.losses: list[Loss] = []
        self.keeps_records = records
        self.records: list[EpochRecord] = []
        self.lost: set[tuple[str, int]] = set()  # (VM, epoch) of the records that do not count
        self._trained_again = True  # since training last went on

    def came(self, vm: str, at_s: float, *, alone: bool) -> None:
        """A VM trains from now on. `alone`: nobody has the state, so it begins from the newest checkpoint."""
        self._since_s[vm] = at_s
        self._start[vm] = State(self.epoch, at_s) if alone else None
        if not alone:
            return
        self._began_s = at_s
        if self.epoch:
            self._news.add(vm)
            name = next(
                n for n in sorted(self.names, reverse=True) if n.startswith(f"epoch-{self.epoch:08d}-")
            )
            self._restored[vm] = {
                "name": name, "prefix": "s3://simulated/checkpoints/sim", "epoch": self.epoch, "bytes": _BYTES,
                "seconds": 20.0, "at_s": at_s,
            }  # fmt: skip

    def left(self, vm: str, at_s: float) -> None:
        """A VM no longer trains. What it was uploading is lost."""
        self.settle(at_s)
        self._since_s.pop(vm, None)
        if self._upload is not None and self._upload.vm == vm:
            self._excused.add(self._upload.epoch)
            self._upload = None

    def ended(self, epoch: int, at_s: float, vms: Iterable[str]) -> None:
        """An epoch of these VMs ended. A checkpoint of it is begun if it is due."""
        self.settle(at_s)
        if not self._trained_again:
            self._trained_again = True
            self.lost |= {(r.vm, r.epoch) for r in self.records if r.epoch >= epoch}
        peers = sorted(vms)
        for vm in peers:
            if self.keeps_records:
                began_s = max(self._began_s, self._since_s.get(vm, at_s))
                self.records.append(_record(vm, epoch, began_s, at_s))
        self._began_s = at_s
        if not peers:
            return
        slots = {vm.rpartition("-")[0] or vm: vm for vm in peers}
        writer = slots[str(writing_slot(sorted(slots), slots))]
        if writer != self._writer:  # it looks in the store
            self._writer, self._last = writer, later(self._start.get(writer), self._newest)
        if self._settings.due(epoch, at_s, self._last):
            self._last = State(epoch, at_s)
            if self._upload is not None:
                self._excused.add(epoch)
            else:
                self._upload = _Upload(epoch, writer, at_s, at_s + self._random.uniform(*self._upload_s))

    def settle(self, at_s: float) -> None:
        """Complete the upload whose time is over."""
        up = self._upload
        if up is None or up.until_s > at_s:
            return
        self._upload = None
        self.epoch, self._newest = up.epoch, State(up.epoch, up.began_s)
        self._excused = {epoch for epoch in self._excused if epoch > up.epoch}
        name = checkpoint_name(up.epoch, up.vm)
        self.names.add(name)
        self._news.add(up.vm)
        self._stored_by.setdefault(up.vm, []).append(
            {"name": name, "epoch": up.epoch, "bytes": _BYTES, "sent_bytes": _BYTES, "copy_s": 0.1,
             "upload_s": up.until_s - up.began_s, "at_s": up.until_s}
        )  # fmt: skip

    def resumed(self, reached: int, at_s: float) -> int:
        """Training goes on after all peers were lost. Return the epoch whose state it goes on from."""
        self.settle(at_s)
        self.losses.append(Loss(at_s, reached, self.epoch, self._every, len(self._excused)))
        self._excused = set()
        self._trained_again = False
        return self.epoch

    @property
    def counted(self) -> int:
        """Epochs that count in figures: lost ones count until an epoch was trained again."""
        return len({r.epoch for r in self.records if (r.vm, r.epoch) not in self.lost})

    def status(self, vm: str) -> dict[str, Any]:
        """Return the field `checkpoints` of the VM's status.json."""
        return {"stored": self._stored_by.get(vm, [])[-5:], "restored": self._restored.get(vm), "error": None}

    def news(self) -> set[str]:
        """VMs whose status has changed since the last call."""
        found, self._news = self._news, set()
        return found


def _record(vm: str, epoch: int, began_s: float, ended_s: float) -> EpochRecord:
    """An epoch of which only the times matter."""
    wall_s = ended_s - began_s
    return EpochRecord(
        vm,
        epoch,
        began_s,
        ended_s,
        1,
        1,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        wall_s,
        0.0,
        None,
        1,
        "",
        "simulated",
    )
