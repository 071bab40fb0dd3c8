"""Which lost peers had trained the last epoch, so that a replacement would have nothing to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.core.events import Event, Finished, Missing, Observed, Silent
from orchestrator.core.state import LIVE, RunState, SlotState


def lost_vms(happened: Iterable[Event]) -> set[str]:
    """VMs that these events show to be lost, or about to be; not those whose program reported an error."""
    found: set[str] = set()
    for event in happened:
        match event:
            case Missing(vm=vm) | Silent(vm=vm):
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

    `trained_last`: VMs whose record of the last epoch has been read. `complete`: whether the store has the run's last
    evaluation and checkpoint, if it makes them. Otherwise another peer must be left that has trained the last epoch.
    """
    if state.stop_status or not trained_last:
        return []
    ours = (slot.vm for slot in state.slots if slot.state in LIVE)
    if not complete and not any(vm in trained_last and vm not in lost for vm in ours):
        return []
    found: list[Event] = []
    for slot in state.slots:
        vm = slot.vm if slot.state is SlotState.TRAINING else ""
        if slot.state is SlotState.WAITING and slot.lost > 0:  # a refused VM trained nothing
            vm = slot.ending or f"{state.spec.run_id}-{slot.name}-{slot.generation - 1}"
        if vm in trained_last and (vm in lost or slot.state is SlotState.WAITING):
            found.append(Finished(now_s, vm, slot.name))
    return found
