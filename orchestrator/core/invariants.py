"""Invariants that must hold after every step."""

from __future__ import annotations

from orchestrator.core.state import LIVE, OVER, RunState, SlotState


class InvariantError(AssertionError):
    """The controller's state violates an invariant: a bug in orch."""


def validate(state: RunState) -> None:
    """Raises InvariantError for the first invariant that does not hold."""
    names = [s.name for s in state.slots]
    _check(names == [s.name for s in state.spec.slots], "the slots differ from those of the specification")
    vms = [vm for s in state.slots for vm in (s.vm, s.ending) if vm]
    _check(len(vms) == len(set(vms)), f"one VM is in two slots: {vms}")
    for vm in vms:
        _check(vm in state.intents, f"{vm} exists without an intent in the journal")
    for slot in state.slots:
        who = f"{slot.name}#{slot.generation} ({slot.state})"
        announced = slot.notice_at_s is not None and slot.ending != state.vm_name(slot)
        two = bool(slot.vm and slot.ending)
        _check(not two or announced, f"{who} has two VMs: {slot.vm} and {slot.ending}")
        _check(0 <= slot.place < len(state.slot_spec(slot.name).places), f"{who} has no place {slot.place}")
        _check(bool(slot.vm) or slot.state not in LIVE, f"{who} has no VM")
        _check(not slot.vm or slot.state in LIVE | OVER, f"{who} has a VM: {slot.vm}")
        if slot.state in LIVE:
            _check(slot.vm == state.vm_name(slot), f"{who} has the VM of another generation: {slot.vm}")
        _check(not slot.maddr or slot.state in LIVE | OVER, f"{who} has an address without a peer")
        if slot.ending:
            stem, _, generation = slot.ending.rpartition("-")
            earlier = stem == f"{state.spec.run_id}-{slot.name}" and int(generation) <= slot.generation
            _check(earlier, f"{who} is ending a VM that was never its own: {slot.ending}")
        if slot.state is SlotState.ENDED:
            _check(bool(state.stop_status), f"{who} although the run goes on")
    _limits(state)
    if state.ended:
        _check(not vms, f"the run has ended with {vms}")
        _check(bool(state.stop_status), "the run has ended without a status")
        _check(state.monitor in ("absent", "gone"), "the run has ended with its monitor")


def _limits(state: RunState) -> None:
    """Limits over all slots."""
    spec = state.spec
    _check(
        len(state.requested_s) <= max(1, spec.vms_per_min), f"{len(state.requested_s)} requests in a minute"
    )
    replaced = len(state.replaced_s)
    _check(replaced <= spec.replacements_per_h, f"{replaced} replacements in an hour")
    _check(len(state.replaced_s) <= len(state.intents), "replacements without an intent")
    names = [zone.market for zone in state.zones]
    _check(names == sorted(set(names)), f"the zones are not sorted and unique: {names}")
    for zone in state.zones:
        closed = zone.closed_until_s > 0.0
        _check(
            closed == (zone.refusals >= spec.breaker_failures),
            f"{zone.market} is {'closed' if closed else 'open'} after {zone.refusals} refusals",
        )
        _check(
            not zone.probe or zone.probe in state.intents,
            f"{zone.market}: its probe {zone.probe} has no intent",
        )
    _check(not state.seed or state.seed in state.intents, f"{state.seed} starts the swarm without an intent")
    _check(not state.paused or state.enough, "the run paused before it ever had enough peers")
    _check(state.paused_s >= 0.0, "the total pause is negative")


def validate_step(before: RunState, after: RunState) -> None:
    """Check `validate(after)`, and that nothing went backwards."""
    validate(after)
    _check(before.intents <= after.intents, "an intent was lost")
    _check(not (before.stop_status and not after.stop_status), "a stopping run resumed")
    _check(not (before.ended and before != after), "a run that has ended changed")
    _check(after.paused_s >= before.paused_s, "the total pause decreased")
    _check(after.launched_s == before.launched_s, "the launch time changed")
    for old, new in zip(before.slots, after.slots, strict=True):
        _check(new.generation >= old.generation, f"{new.name}: the generation decreased")
        _check(new.lost >= old.lost, f"{new.name}: the number of lost VMs decreased")
        if new.vm and new.vm != old.vm:
            _check(new.vm not in before.intents, f"{new.name}: the name {new.vm} is used twice")
        if old.state in OVER:
            _check(new.state is old.state, f"{new.name}: {old.state} became {new.state}")


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantError(sentence)
