"""State changes when the monitor is observed or lost; the next monitor continues with the same files."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import Observed
from orchestrator.core.state import RunState


def monitor_observed(state: RunState, event: Observed) -> RunState:
    """Apply an observation of a current or earlier monitor VM."""
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
    """Schedule the next monitor, with back-off after the first loss; fail the run after too many.

    Peers publish their last three epochs, so a longer gap without a monitor loses records.
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
