"""Which lost peers had trained the last epoch, so that a replacement would have nothing to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.core.events import Event, Finished, Missing, Observed
from orchestrator.core.state import RunState, SlotState


def lost_vms(happened: Iterable[Event]) -> set[str]:
    """VMs that these events show to be lost, or about to be; not those whose program reported an error.

    A silent VM, which may still run, is lost by the event itself: it is terminated first.
    """
    found: set[str] = set()
    for event in happened:
        match event:
            case Missing(vm=vm):
                found.add(vm)
            case Observed(vm=vm, state=state, phase=phase, notice_at_s=notice_at_s) if phase != "failed":
                if state in ("preempted", "failed", "terminated") or notice_at_s is not None:
                    found.add(vm)
            case _:
                pass
    return found


def finished(
    state: RunState, lost: Collection[str], trained_last: Collection[str], complete: bool, now_s: float
) -> list[Event]:
    """Events for peers of `lost`, and for those lost before, that have finished; to be processed before their losses.

    `trained_last`: VMs whose record of the last epoch has been read. `complete`: whether the run's last evaluation has been
    read and its last checkpoint is stored, if it has them. Before that, the remaining peers may be lost too: no VM is
    requested any more once a slot is done, so the checkpoint would never be stored.
    """
    if state.stop_status or not complete:
        return []
    found: list[Event] = []
    for slot in state.slots:
        vm = slot.vm if slot.state is SlotState.TRAINING else ""
        if slot.state is SlotState.WAITING and slot.lost > 0:  # a refused VM trained nothing
            vm = slot.ending or f"{state.spec.run_id}-{slot.name}-{slot.generation - 1}"
        if vm in trained_last and (vm in lost or slot.state is SlotState.WAITING):
            found.append(Finished(now_s, vm, slot.name))
    return found
