"""Warnings shown with a run's figures, as whole sentences. That the run was emulated comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloud.targets import target_of
from metrics.cost.lost_work import LostWork
from metrics.epochs.throughput import dropped_rounds, measured
from metrics.events.bad_samples import bad_samples_of
from metrics.events.peer_warnings import peer_warnings_of
from metrics.host_load import describe_host
from metrics.logged_rates import left_out
from metrics.readable import few, number, size, usd
from metrics.run import RunNumbers
from metrics.traffic import PRIVATE, handed_over

AGREEMENT_LIMIT = 0.03  # warn if meters and switch differ by more than this share


def sentences(run: RunNumbers, money: bool = True, basis: bool = True) -> list[str]:
    """Return all warnings of a run, the most important first.

    `money`: include warnings about costs. `basis`: include that the run was emulated, with its scales.
    """
    found: list[str] = []
    if run.meta.emulated:
        found += [_emulated(run)] if basis else []
        found += _slept(run.meta.sync_work_s)
    found += _ending(run)
    found += _host(run)
    found += _rounds(run)
    found += _bad_samples(run)
    found += _epochs(run)
    found += peer_warnings_of(run.meta.peer_warnings, run.slot)
    found += _counts(run)
    if money:
        found += _money(run)
        found += run.notes
    found += run.meta.warnings  # recorded by the controller during the run
    return found


def _emulated(run: RunNumbers) -> str:
    meta, scales = run.meta, run.terms.scales
    where = (
        "peers on this machine's loopback, without network delays"
        if not target_of(meta.target).emulates_distance
        else "peers in network namespaces of this machine"
    )
    ran = meta.model.ran if meta.model else None
    network = f"; what ran: {ran}" if ran else ""
    if meta.emulation is not None and meta.emulation.accelerators == "host":
        return (
            f"Emulated: {where}; nothing is scaled, and calculation times are those of this machine's CPU, not of the "
            f"accelerators{network}."
        )
    return (
        f"Emulated: {where}; scales: bytes {scales.bytes:g}, time {scales.time:g}, "
        f"samples {scales.samples:g}; figures are converted to full scale, the raw ones are under 'raw'{network}."
    )


def _slept(sync_work_s: Mapping[str, float]) -> list[str]:
    """Warn about communication time that was not measured."""
    slept = [f"{seconds:g} s on {name}" for name, seconds in sorted(sync_work_s.items()) if seconds]
    if not slept:
        return []
    return [
        f"Communication includes {', '.join(slept)} per round for the VM's own work before and after it: this is a sleep "
        "of constant length, calibrated on the paper's A-2 runs."
    ]


def _ending(run: RunNumbers) -> list[str]:
    status = run.meta.status
    if status in ("done", None):
        return []
    if status == "running":
        return ["The run has not ended: the figures cover the run so far."]
    error = run.meta.error
    return [f"The run ended as '{status}'{f': {error}' if error else ''}."]


def _host(run: RunNumbers) -> list[str]:
    if not run.meta.emulated:
        return []
    host = run.meta.host
    if host is None or host.contended is None:
        return ["It is unknown whether this machine was fast enough to keep the emulation's timing."]
    if host.contended:
        return [
            f"This machine was too busy to keep the emulation's timing, so times may be wrong: {describe_host(host.to_json())}."
        ]
    return []


def _bad_samples(run: RunNumbers) -> list[str]:
    found = bad_samples_of(run.meta.bad_samples, run.slot)
    return [found.sentence] if found is not None and found.sentence else []


def _last_checkpoint(run: RunNumbers) -> list[str]:
    """Warn if a run that is done has checkpoints, but none of its last epoch."""
    stored, last = run.checkpoints, max((epoch.epoch for epoch in run.raw), default=0)
    if run.meta.status != "done" or not (stored.stored or stored.restored or stored.failed):
        return []
    if stored.epoch >= last:
        return []
    newest = f"the newest one is of epoch {stored.epoch} of {last}" if stored.epoch else "there is none"
    return [f"The model of the last epoch is in no checkpoint that was reported: {newest}."]


def _rounds(run: RunNumbers) -> list[str]:
    bad = dropped_rounds(run.raw)
    if not bad:
        return []
    why = sorted({part for e in bad for _, text in e.dropped for part in text.split(";") if part})
    return [
        f"Hivemind lost part of {len(bad)} of {len(run.raw)} rounds ({_in_epochs([e.epoch for e in bad])}: {'; '.join(why)}): "
        "they did not average the gradients of all peers."
    ]


def _epochs(run: RunNumbers) -> list[str]:
    found: list[str] = []
    found += [_lost_work(one) for one in run.lost_work]
    if run.lost_s and not run.lost_work:
        resumed = [one.epoch for one in run.checkpoints.restored if one.at_s >= run.lost_s[-1]]
        found.append(
            f"All peers were lost at once; training went on from the checkpoint of epoch {max(resumed)}."
            if resumed
            else "All peers were lost at once, and what they had learned with them."
        )
    found += [run.checkpoints.sentence] if run.checkpoints.failed else []
    found += _last_checkpoint(run)
    if lacking := run.unrecorded:
        found.append(
            f"No record is known of {_count(len(lacking), 'epoch')} ({', '.join(map(str, lacking[:5]))}"
            f"{', ...' if len(lacking) > 5 else ''}): their samples and times are unknown and in none of the totals."
        )
    chosen = measured(run.raw)
    found += _not_in_sps(run, {e.epoch for e in chosen})
    if not chosen:
        return [
            *found,
            "No epoch ended after the warm-up: throughput, granularity and epoch times are unknown.",
        ]
    incomplete = [e.epoch for e in run.raw if not e.complete]
    if incomplete:
        found.append(f"Epoch {incomplete[0]} was not reported by every running peer and is not measured.")
    listed = {r.epoch for r in run.logged_rates[1:] if r.sps is not None}  # in the sentence above
    gaps = [e.epoch for e in run.raw if e.duration_s is None and e.epoch not in listed]
    if gaps:
        found.append(
            f"No wall time is known {_in_epochs(gaps)} (the previous epoch has no record, or the logged rate is 0): not measured."
        )
    moved = [e.epoch for e in chosen if e.joined or e.left]
    if moved:
        found.append(
            f"A peer joined or left in {len(moved)} of {len(chosen)} measured epochs: {_in_epochs(moved)}."
        )
    return found


def _lost_work(lost: LostWork) -> str:
    """Say from where training went on after the loss of all peers, and what was lost."""
    went_on = (
        f"training went on from the state after epoch {lost.from_epoch}"
        if lost.from_epoch
        else "training restarted at epoch 1"
    )
    return (
        f"All peers were lost at once and {went_on}: {_count(lost.epochs, 'epoch')} trained before that "
        f"({number(lost.samples)} samples, {usd(lost.usd) if lost.usd is not None else 'dollars unknown'}) count in the "
        "cost only, not in the other figures."
    )


def _not_in_sps(run: RunNumbers, chosen: set[int]) -> list[str]:
    """Warn about records that the paper's mean counts and ours leaves out."""
    which = left_out(run.logged_rates, chosen)
    if not which:
        return []
    rates = sum(1 for r in run.logged_rates[1:] if r.sps is not None)
    return [
        f"sps ({_count(len(chosen), 'epoch')}) leaves out records that sps_epoch_mean ({_count(rates, 'rate')}, counted as in "
        f"the paper) includes: {which}."
    ]


def _in_epochs(epochs: Sequence[int]) -> str:
    """Return `in epoch 3`, `in epochs 3, 4`."""
    return f"in epoch{'' if len(epochs) == 1 else 's'} {', '.join(map(str, epochs))}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _counts(run: RunNumbers) -> list[str]:
    found: list[str] = []
    rejected = run.meta.rejected
    total = sum(int(n) for n in rejected.values())
    if total:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in sorted(rejected.items()))
        found.append(f"The monitor dropped {total} records of peers ({reasons}).")
    both = run.agreement
    if both is not None and both.difference is not None and abs(both.difference) > AGREEMENT_LIMIT:
        found.append(
            f"The peers' meters counted {abs(both.difference):.1%} "
            f"{'more' if both.difference > 0 else 'fewer'} bytes than the switch "
            f"({size(both.meter_bytes)} and {size(both.switch_bytes)})."
        )
    model = handed_over(run.flows)
    if model is not None and model[0] > model[1] * (1 + AGREEMENT_LIMIT):
        found.append(
            f"The peers' programs counted {size(model[0])} of the model sent, but their meters counted only {size(model[1])} "
            "to the same peers: egress at full scale may be too high."
        )
    if run.tails:
        found.append(
            f"Lost VMs sent {size(sum(run.tails.values()))} (unscaled) after their last report. No sum of bytes includes them; "
            "the bill includes an estimate."
        )
    inside = sum(f.bytes for f in run.flows if f.dst == PRIVATE)
    if inside:
        found.append(
            f"{size(inside)} (unscaled) went to internal addresses that belong to no VM of the run. They are billed as traffic to "
            "another zone."
        )
    lost = sorted({f.dst for f in run.flows if f.kind == "unknown"})
    if lost:
        found.append(f"Bytes went to unknown locations: {', '.join(lost)}.")
    return found


def _money(run: RunNumbers) -> list[str]:
    lines = [line for line in run.bill.lines if line.estimated]
    vms = ", ".join(dict.fromkeys(line.src for line in lines))
    estimated = [
        f"{size(sum(line.quantity or 0 for line in lines))} of egress of lost VMs ({vms}) after their last "
        "record are estimated from the rate of their last epoch and marked in the bill."
    ]
    unknown = run.bill.unknown
    return [
        *(estimated if lines else ()),
        *([f"The cost is unknown: {few(unknown)}."] if unknown else ()),
    ]
