"""Derive the contract's view of a VM from SkyPilot's list, the VM's own report and the record. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from cloud.clock import MAX_SKEW_S, SET_CLOCK_HINT
from cloud.prices.classes import network_of
from cloud.provider import Observed, VmState
from cloud.sky.records import VmRecord
from cloud.vm_report import job_of, parse_notice, status_of

_ABSENT_READS = 3  # lists are eventually consistent
_EXACT_S = 5.0  # clock readings with a larger error are ignored
_SILENT_S = 15.0  # a VM that does not answer for longer has this in its cause


@dataclass(frozen=True)
class Listed:
    """One cluster in SkyPilot's list."""

    cluster: str
    status: str  # INIT, UP, STOPPED, AUTOSTOPPING
    address: str = ""


def parse_peek(text: str | None) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Parse job.json and status.json as a VM reported them; None if it did not answer."""
    if text is None:
        return None
    lines = [*text.split("\n", 2), "", ""]
    return job_of(lines[0]), status_of(lines[1])


@dataclass(frozen=True)
class Skew:
    """How far a VM's clock is ahead of this machine's, and the maximum error of that. Seconds."""

    ahead_s: float
    error_s: float


def skew_of(text: str | None, asked_s: float, took_s: float) -> Skew | None:
    """Compute a VM's clock skew from the time that it reported after job.json and status.json.

    `asked_s`: unix time of the request; `took_s`: time until the answer arrived. None if it reported no time or the error
    is too large.
    """
    lines = [] if text is None else text.split("\n")
    try:
        theirs_s = float(lines[2])
    except (IndexError, ValueError):
        return None
    error_s = max(0.0, took_s) / 2
    if not math.isfinite(theirs_s) or not 0.0 <= theirs_s < 1e11 or error_s > _EXACT_S:
        return None
    return Skew(theirs_s - asked_s - error_s, error_s)


def after_skew(record: VmRecord, skew: Skew | None) -> VmRecord:
    """Update a VM's recorded clock skew; a more precise earlier measurement that agrees with the new one is kept."""
    if skew is None:
        return record
    known_s, known_error_s = record.clock_skew_s, record.clock_error_s
    if known_s is not None and known_error_s is not None:
        agrees = abs(skew.ahead_s - known_s) <= skew.error_s + known_error_s + 0.1
        if agrees and known_error_s <= 2 * skew.error_s:
            return record
    return replace(record, clock_skew_s=round(skew.ahead_s, 3), clock_error_s=round(skew.error_s, 3))


def clock_refusal(record: VmRecord) -> str:
    """Return why a VM with a wrong clock must not take part; "" if it may, or its program already runs."""
    if record.clock_skew_s is None or record.job.get("phase") in ("running", "ended"):
        return ""
    if abs(record.clock_skew_s) - (record.clock_error_s or 0.0) <= MAX_SKEW_S:
        return ""
    where = "ahead of" if record.clock_skew_s > 0 else "behind"
    return (
        f"its clock is {abs(record.clock_skew_s):.0f} s {where} this machine's, at most {MAX_SKEW_S:.0f} s are allowed: "
        f"{SET_CLOCK_HINT}; do this on this machine if all VMs are refused for that reason"
    )


def after_peek(
    record: VmRecord, peek: tuple[dict[str, Any], dict[str, Any]] | None, now_s: float
) -> VmRecord:
    """Update a record after a VM answered, or did not (`peek` None)."""
    record = replace(record, absent_reads=0)
    if peek is None:
        return replace(record, unreached_since_s=min(record.unreached_since_s or now_s, now_s))
    job, status = peek
    job, status = job or dict(record.job), status or dict(record.status)
    ready_at_s = record.ready_at_s
    if ready_at_s is None and job.get("phase") in ("waiting", "running", "ended"):
        reported_s = (
            now_s
            if job["phase"] == "ended"
            else float(job.get("at_s") or now_s) - (record.clock_skew_s or 0.0)
        )
        ready_at_s = min(max(reported_s, record.requested_at_s), now_s)
    notice_s = parse_notice(status.get("notice_at_s"), now_s)
    return replace(
        record, job=job, status=status, ready_at_s=ready_at_s, unreached_since_s=None,
        notice_at_s=record.notice_at_s if notice_s is None else notice_s,
    )  # fmt: skip


def absent(record: VmRecord, now_s: float) -> VmRecord:
    """Update a record after a list without the VM, while the cloud gives no reason; gone after several of these."""
    record = replace(record, absent_reads=record.absent_reads + 1)
    return gone(record, now_s, "") if record.absent_reads >= _ABSENT_READS else record


def gone(record: VmRecord, now_s: float, why: str) -> VmRecord:
    """Record that the VM is gone, with the state that follows from who ended it."""
    if record.end_state:
        return record
    ended = record.job.get("phase") == "ended"
    if record.ending:
        state, cause = "terminated", "terminated"
    elif record.use_spot and not ended:
        state, cause = "preempted", why or "the cloud took the spot VM back"
    elif ended:  # the program had ended, and the VM was removed by its own autodown
        state, cause = "terminated", str(record.job.get("error") or "its program had ended")
    else:
        state, cause = "failed", why or "the VM is gone, but orch did not end it"
    return replace(record, end_state=state, ended_at_s=now_s, cause=cause)


def observed(record: VmRecord, listed: Listed | None, now_s: float) -> Observed:
    """Return a VM in the form of the provider contract."""
    state, cause = _state(record, listed, now_s)
    return Observed(
        vm=record.vm,
        state=state,
        location=record.location,
        address=record.address or None,
        requested_at_s=record.requested_at_s,
        ready_at_s=record.ready_at_s,
        ended_at_s=record.ended_at_s,
        cause=cause,
        notice_at_s=record.notice_at_s,
        status=record.status or _before_status(record),
        instance=record.instance,
        usd_per_h=Decimal(record.usd_per_h) if record.usd_per_h else None,
        price_source=record.price_source,
        link=record.link,
        internal_address=record.internal,
        clock_skew_s=record.clock_skew_s,
    )


def _before_status(record: VmRecord) -> dict[str, Any]:
    """Return the status of a program that has not reported one itself.

    A VM's script that failed before the program started, as it would on every other VM, counts as its program.
    A VM that was told which peers to join does not count as waiting any more: otherwise another VM could be told to start
    the swarm, which would then be a second one.
    """
    if record.job.get("phase") == "ended" and record.job.get("hopeless") is True:
        return {"phase": "failed", "error": record.job.get("error"), "hopeless": True}
    phase = {
        "setup": "setup",
        "installing": "installing",
        "waiting": "starting" if record.told else "waiting",
        "running": "starting",
    }.get(str(record.job.get("phase")))
    return {"phase": phase} if phase else {}


def peers_to_join(record: VmRecord, roster: Mapping[str, Any]) -> str:
    """Return what to tell a waiting VM, from the controller's roster.json: peers, or "alone"; "": nothing yet.

    Decided only while it waits, since the peers that are up when its software is ready differ from those when it was
    rented.
    """
    if record.job.get("phase") != "waiting" or clock_refusal(record):
        return ""
    peers = [str(maddr) for maddr in roster.get("join", ())]
    return " ".join(peers) or ("alone" if roster.get("seed") == record.vm else "")


def neighbours(record: VmRecord, living: Iterable[VmRecord], roster: Mapping[str, Any]) -> str:
    """Return the VMs that this one reaches at internal addresses, one "PEER_ID IP" per line; "": none.

    These are the VMs of its network (`network_of`) according to SkyPilot. An address that two VMs claim is left out.
    """
    network = network_of(record.location)
    near = [r for r in living if network and r.internal and network_of(r.location) == network]
    held = Counter(r.internal for r in near)
    ids = {str(peer.get("vm")): str(peer.get("peer_id") or "") for peer in roster.get("peers", ())}
    lines = [
        f"{ids[r.vm]} {r.internal}"
        for r in near
        if r.vm != record.vm and held[r.internal] == 1 and ids.get(r.vm)
    ]
    return "\n".join(sorted(lines))


_END_STATES: Mapping[str, VmState] = {
    "preempted": "preempted", "terminated": "terminated", "failed": "failed",
}  # fmt: skip


def _state(record: VmRecord, listed: Listed | None, now_s: float) -> tuple[VmState, str]:
    if record.end_state:
        return _END_STATES[record.end_state], record.cause
    if not record.launched:
        return "pending", record.cause
    if record.ending:
        return "running", "terminating"
    if record.job.get("phase") == "ended" and record.status.get("phase") != "done":
        # It still exists and is billed, so the caller has to end it. After a notice, however, the cloud will.
        if record.notice_at_s is not None and record.job.get("exit_code") == 0:
            return "running", "it left the swarm after the provider's notice"
        return "failed", str(record.job.get("error") or "its program ended")
    if refused := clock_refusal(record):
        return "failed", refused
    cause = ""
    if record.unreached_since_s is not None and now_s - record.unreached_since_s > _SILENT_S:
        cause = f"it has not answered for {now_s - record.unreached_since_s:.0f} s"
    if listed is not None and listed.status == "STOPPED":
        return "failed", "the VM was stopped"
    if record.ready_at_s is None:
        return "pending", cause or "the VM is installing its software"
    return "running", cause
