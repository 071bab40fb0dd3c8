"""Choice of the VM that starts the swarm; the others join it as soon as its address is known."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.indexed_state import WorkingState


def choose_seed(work: WorkingState, now_s: float) -> None:
    """Choose a VM to start the swarm among those waiting for initial peers, if there is no peer to join.

    The VM is chosen among those that are ready, so that one slow launch delays no other VM. Two swarms would
    train two models, so none is chosen while another peer may still publish an address: the VM chosen last, a
    VM that was given initial peers, or a lost VM that is still being terminated.
    """
    run = work.run
    if run.stop_status or run.finishing_s is not None or work.done:
        return
    if run.seed and not any(work.of_vm(run.seed)):
        run = work.run = replace(run, seed="")
    if run.seed or work.joinable() or work.joining or work.ending or not work.waiting:
        return
    i = min(work.waiting)
    slot = work.slots[i]
    work.run = replace(run, seed=slot.vm)
    work.set(i, replace(slot, since_s=now_s, cause="it begins the swarm: the others join it"))
