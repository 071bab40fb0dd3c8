"""Where the time of a run's input went: sums of its traces (`data.trace`) by operation, epoch and VM, as measured. Pure.

The stall is the `load` seconds of the epochs' steps, of VMs with a trace. A sum of which a part is unknown is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from metrics.records import NO_EPOCH, InputBatchRecord, InputOpRecord, InputTraceRecord

_Key = TypeVar("_Key", str, int)
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class OpInput:
    """Sums over all samples of one operation."""

    op: str
    n: int
    wall_s: float
    cpu_s: float | None
    bytes_out: int | None


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Sums over the batches that the training used: of an epoch, or of a VM.

    `complete`: whether no event was dropped, so that these are all batches.
    """

    batches: int
    samples: int | None
    fetch_s: float | None
    collate_s: float | None
    wait_s: float | None
    delay_s: float | None
    stall_s: float | None
    out_of_order: int | None
    complete: bool


@dataclass(frozen=True, slots=True)
class RunInput:
    """Sums of a run's traces. Epoch None: in none of the VM's recorded epochs."""

    ops: tuple[OpInput, ...]  # in the order in which a sample passes them
    epochs: tuple[tuple[int | None, BatchInput], ...]
    vms: tuple[tuple[str, BatchInput], ...]
    traces: tuple[InputTraceRecord, ...]

    def to_json(self, slot: Callable[[str], str]) -> dict[str, Any]:
        """Plain JSON types. `slot`: gives the slot of a VM."""
        files = {row.vm: row for row in self.traces}
        return {
            "ops": [_json(one) for one in self.ops],
            "epochs": [{"epoch": epoch} | _json(one) for epoch, one in self.epochs],
            "vms": [
                {"vm": vm, "slot": slot(vm)}
                | _json(one)
                | {name: getattr(files[vm], name) for name in ("files", "damaged", "dropped")}
                for vm, one in self.vms
            ],
        }


def run_input(
    ops: Sequence[InputOpRecord],
    batches: Sequence[InputBatchRecord],
    traces: Sequence[InputTraceRecord],
    loads_s: Mapping[tuple[str, int], float],
) -> RunInput | None:
    """Add up a run's input sums. None: it has no trace. `loads_s`: load seconds of a VM's steps by VM and epoch."""
    if not traces:
        return None
    vms = {row.vm for row in traces}
    by_op: dict[str, list[InputOpRecord]] = {}
    for row in ops:
        by_op.setdefault(row.op, []).append(row)
    of_vm, of_epoch = _grouped(batches, lambda row: row.vm), _grouped(batches, lambda row: row.epoch)
    stalls = {key: seconds for key, seconds in loads_s.items() if key[0] in vms}
    vm_stalls, epoch_stalls = dict[str, list[float]](), dict[int, list[float]]()
    for (vm, epoch), seconds in stalls.items():
        vm_stalls.setdefault(vm, []).append(seconds)
        epoch_stalls.setdefault(epoch, []).append(seconds)
    return RunInput(
        tuple(
            OpInput(
                name,
                sum(row.n for row in rows),
                math.fsum(row.wall_s for row in rows),
                _sum([row.cpu_s for row in rows]),
                _sum([row.bytes_out for row in rows]),
            )
            for name, rows in by_op.items()
        ),
        tuple(
            (None if epoch == NO_EPOCH else epoch, _batch_input(of_epoch[epoch], epoch_stalls.get(epoch, [])))
            for epoch in sorted(of_epoch)
        ),
        tuple(
            (row.vm, _batch_input(of_vm.get(row.vm, []), vm_stalls.get(row.vm, []), not row.dropped))
            for row in sorted(traces, key=lambda row: row.vm)
        ),
        tuple(traces),
    )


def _grouped(
    rows: Iterable[InputBatchRecord], key: Callable[[InputBatchRecord], _Key]
) -> dict[_Key, list[InputBatchRecord]]:
    found: dict[_Key, list[InputBatchRecord]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _batch_input(
    rows: Sequence[InputBatchRecord], stalls_s: Sequence[float], complete: bool = True
) -> BatchInput:
    return BatchInput(
        batches=sum(row.n for row in rows),
        samples=_sum([row.samples for row in rows]),
        fetch_s=_sum([row.fetch_s for row in rows]),
        collate_s=_sum([row.collate_s for row in rows]),
        wait_s=_sum([row.wait_s for row in rows]),
        delay_s=_sum([row.delay_s for row in rows]),
        stall_s=math.fsum(stalls_s) if stalls_s else None,
        out_of_order=_sum([row.out_of_order for row in rows]),
        complete=complete and all(row.dropped == 0 for row in rows),
    )


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    """Return the sum. None if a value is unknown, or if there is none."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def _json(one: OpInput | BatchInput) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}
