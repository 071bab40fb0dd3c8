"""Which VM begins the swarm: the others are told to join it as soon as its address is known."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.indexed_state import Work


def choose_seed(work: Work, now_s: float) -> None:
    """Let one of the VMs that wait to be told whom to join begin the swarm, where there is none to be joined.

    Chosen among those that are ready, so that one slow launch holds up nobody. Two swarms would train two models, so
    nobody is chosen while another peer may yet show up with an address: the last one chosen, one that was told whom
    to join, or one that is lost and still being ended.
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
