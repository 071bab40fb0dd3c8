"""What a reader must know beside a run's numbers, as whole sentences; that it was emulated comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloud.targets import target_of
from metrics.epochs.throughput import dropped_rounds, measured
from metrics.host_load import told
from metrics.logged_rates import left_out
from metrics.readable import few, size
from metrics.run import RunNumbers
from metrics.traffic import PRIVATE, handed_over

AGREEMENT_LIMIT = 0.03  # meters and switch may differ by this share before it is a warning


def sentences(run: RunNumbers, money: bool = True, basis: bool = True) -> list[str]:
    """All warnings of a run, the most important first.

    `money`: those about its dollars too. `basis`: that it was emulated, and its scales, too.
    """
    found: list[str] = []
    if run.meta.emulated:
        found += [_emulated(run)] if basis else []
        found += _slept(run.meta.sync_work_s)
    found += _ending(run)
    found += _host(run)
    found += _rounds(run)
    found += _epochs(run)
    found += _counts(run)
    if money:
        found += _money(run)
        found += run.notes
    found += run.meta.warnings  # what the controller noted while the run went on
    return found


def _emulated(run: RunNumbers) -> str:
    meta, scales = run.meta, run.terms.scales
    where = (
        "peers on this machine's loopback, without distance"
        if not target_of(meta.target).has_distance
        else "peers in network namespaces of this machine"
    )
    ran = meta.model.ran if meta.model else None
    network = f"; what ran: {ran}" if ran else ""
    return (
        f"Emulated: {where}; scales: bytes {scales.bytes:g}, time {scales.time:g}, "
        f"samples {scales.samples:g}; numbers are multiplied back to the study's scale, "
        f"raw ones stand under 'raw'{network}."
    )


def _slept(sync_work_s: Mapping[str, float]) -> list[str]:
    """What of the communication time was not measured."""
    slept = [f"{seconds:g} s on {name}" for name, seconds in sorted(sync_work_s.items()) if seconds]
    if not slept:
        return []
    return [
        f"Communication includes {', '.join(slept)} a round for the VM's own work around it: slept, a constant "
        "calibrated on the study's A-2 runs."
    ]


def _ending(run: RunNumbers) -> list[str]:
    status = run.meta.status
    if status in ("done", None):
        return []
    if status == "running":
        return ["The run has not ended: the numbers are those so far."]
    error = run.meta.error
    return [f"The run ended as '{status}'{f': {error}' if error else ''}."]


def _host(run: RunNumbers) -> list[str]:
    if not run.meta.emulated:
        return []
    host = run.meta.host
    if host is None or host.contended is None:
        return ["Whether this machine kept the emulation's clock honest is not known."]
    if host.contended:
        return [
            f"This machine was too busy to keep the emulation's clock honest: {told(host.to_json())}: times may be off."
        ]
    return []


def _rounds(run: RunNumbers) -> list[str]:
    bad = dropped_rounds(run.raw)
    if not bad:
        return []
    why = sorted({part for e in bad for _, text in e.dropped for part in text.split(";") if part})
    return [
        f"Hivemind lost part of {len(bad)} of {len(run.raw)} rounds ({_in_epochs([e.epoch for e in bad])}: {'; '.join(why)}): "
        "these did not average all peers' gradients."
    ]


def _epochs(run: RunNumbers) -> list[str]:
    found: list[str] = []
    if run.forgotten_epochs:
        found.append(
            f"All peers were lost at once, and training began anew at epoch 1: {run.forgotten_epochs} epochs from before "
            "that are in the cost and in no other figure."
        )
    chosen = measured(run.raw)
    found += _not_in_sps(run, {e.epoch for e in chosen})
    if not chosen:
        return [
            *found,
            "No epoch ended after the warm-up: throughput, granularity and epoch times are unknown.",
        ]
    cut = [e.epoch for e in run.raw if not e.complete]
    if cut:
        found.append(f"Epoch {cut[0]} was not reported by every living peer and is not measured.")
    told = {r.epoch for r in run.logged_rates[1:] if r.sps is not None}  # in the sentence above
    gaps = [e.epoch for e in run.raw if e.duration_s is None and e.epoch not in told]
    if gaps:
        found.append(
            f"No wall time is known {_in_epochs(gaps)} (the one before left no record, or the logged rate is 0): not measured."
        )
    moved = [e.epoch for e in chosen if e.joined or e.left]
    if moved:
        found.append(
            f"A peer joined or left in {len(moved)} of {len(chosen)} measured epochs: {_in_epochs(moved)}."
        )
    return found


def _not_in_sps(run: RunNumbers, chosen: set[int]) -> list[str]:
    """What the study's mean counts and ours leaves out."""
    which = left_out(run.logged_rates, chosen)
    if not which:
        return []
    rates = sum(1 for r in run.logged_rates[1:] if r.sps is not None)
    return [
        f"sps ({_count(len(chosen), 'epoch')}) leaves out records that sps_epoch_mean ({_count(rates, 'rate')}, as the study "
        f"counts them) has: {which}."
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
            f"The peers' programs say that they handed over {size(model[0])} of the model, and their meters counted "
            f"{size(model[1])} to the same peers: egress at the study's scale may be too high."
        )
    if run.tails:
        found.append(
            f"VMs that died sent {size(sum(run.tails.values()))} (unscaled) after their last report; these are in no sum of "
            "bytes, and the bill has an estimate of them."
        )
    inside = sum(f.bytes for f in run.flows if f.dst == PRIVATE)
    if inside:
        found.append(
            f"{size(inside)} (unscaled) went to internal addresses that are no VM's of the run, billed as to another zone."
        )
    lost = sorted({f.dst for f in run.flows if f.kind == "unknown"})
    if lost:
        found.append(f"Bytes went to places that are not on the map: {', '.join(lost)}.")
    return found


def _money(run: RunNumbers) -> list[str]:
    lines = [line for line in run.bill.lines if line.estimated]
    vms = ", ".join(dict.fromkeys(line.src for line in lines))
    estimated = [
        f"{size(sum(line.quantity or 0 for line in lines))} of egress of lost VMs ({vms}) after their last "
        "records are an estimate, at the rate of their last epoch: the bill marks them."
    ]
    unknown = run.bill.unknown
    return [
        *(estimated if lines else ()),
        *([f"The cost is unknown: {few(unknown)}."] if unknown else ()),
    ]
