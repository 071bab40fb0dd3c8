"""What becomes of the run when its monitor is seen, or dies: the next one goes on with the same files."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import Observed
from orchestrator.core.state import RunState


def monitor_observed(state: RunState, event: Observed) -> RunState:
    """What the provider says of a VM that is or was the monitor's."""
    if event.vm != state.monitor_vm():
        return state  # an earlier one
    if event.state in ("pending", "running") and event.phase != "failed":
        if event.state == "running" and state.monitor in ("absent", "wanted"):
            return replace(state, monitor="up")
        return state
    if state.stop_status or state.monitor in ("ending", "gone"):
        return replace(state, monitor="gone" if event.state != "running" else "ending")
    return monitor_lost(state, event.now_s, event.cause or f"it {event.state}")


def monitor_lost(state: RunState, now_s: float, cause: str) -> RunState:
    """Wish for the next monitor, the first time at once; give the run up after too many.

    Peers publish their last three epochs: what ends while nobody watches for longer than that is lost.
    """
    spec, lost = state.spec, state.monitors_lost
    if lost >= spec.max_monitor_restarts:
        why = f"the monitor died {lost + 1} times ({cause}): nothing of the run can be measured any more"
        return replace(state, stop_status="failed", stop_cause=why)
    return replace(
        state,
        monitor="absent",
        monitors_lost=lost + 1,
        monitor_retry_at_s=now_s + spec.monitor_backoff_s * (2.0**lost - 1.0),
        monitor_cause=cause,
    )
