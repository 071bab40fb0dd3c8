"""Checks of the peers: those that ended early, joined late, missed epochs, idled, or have no log."""

from __future__ import annotations

from statistics import median

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding
from metrics.epochs.throughput import measured
from metrics.records import VmEnd
from metrics.traffic import died

# Used if the length of an epoch is unknown: longer than it takes to stop the VMs of a run one after the other.
ENDED_EARLY_S = 60.0
# Equal GPUs differ by a few percent: one with half the samples of the others waited or failed.
IDLE_SHARE = 0.5
# A peer's DHT record may be expired during some scrapes while the peer averages.
ABSENT_DOUBT = 0.05


def peers(e: Evidence) -> list[Finding]:
    """Report VMs that ended early, missed epochs or processed few samples, and a changing number of peers."""
    if e.baseline:
        return []
    return [*_ended(e), *_epochs(e), *_changed(e), *_idle(e)]


def _ended(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    for row in e.run.vms:
        if died(row):
            sentence = f"{row.vm} ended with cause '{row.end_cause}'."
            severity = "note" if row.end is VmEnd.PREEMPTED else "doubt"
            found.append(
                e.finding("peer-ended", severity, sentence, "ended_s", row.ended_s, file=e.file(row.vm))
            )
    ends = [row.ended_s for row in e.run.vms if row.ended_s is not None]
    if e.imported is None or len(ends) < 2:
        return found  # our own VMs' ends have a cause
    usual, limit_s = median(ends), max(ENDED_EARLY_S, e.epoch_s or 0.0)
    for row in e.run.vms:
        if row.ended_s is not None and usual - row.ended_s > limit_s:
            sentence = (
                f"{row.vm}: its log ends {rounded(usual - row.ended_s)} s before the other VMs' "
                f"(more than {'an epoch' if e.epoch_s else 'a minute'}): the VM failed or was preempted."
            )
            found.append(
                e.finding(
                    "peer-ended",
                    "doubt",
                    sentence,
                    "ended_early_s",
                    usual - row.ended_s,
                    limit_s,
                    file=e.file(row.vm),
                )
            )
    return found


def _went_on(e: Evidence) -> str:
    """From where training went on after the last loss of all peers."""
    epoch = e.run.lost_work[-1].from_epoch
    return f"went on from the state after epoch {epoch}" if epoch else "restarted at epoch 1"


def _epochs(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    seen = {epoch.epoch: {p.vm for p in epoch.peers} for epoch in e.run.raw if epoch.peers}
    if not seen:
        return []
    warmup = {epoch.epoch for epoch in e.run.raw if epoch.warmup}
    replaced = {row.slot for row in e.run.vms if row.generation > 0}
    before = {row.vm: e.run.discarded_by_vm.get(row.vm, 0) for row in e.run.vms}
    if any(before.values()):
        names = ", ".join(vm for vm, count in before.items() if count)
        sentence = (
            f"All peers were lost at once and training {_went_on(e)}: what {names} did in up to "
            f"{counted(max(before.values()), 'epoch')} before that counts in the cost only."
        )
        found.append(
            e.finding(
                "peer-epochs", "note", sentence, "epochs", max(before.values()), n=e.run.discarded_epochs
            )
        )
    for row in e.run.vms:
        own = sorted(number for number, names in seen.items() if row.vm in names)
        file = e.file(row.vm)
        if not own and before[row.vm]:
            continue  # it took part before training restarted
        if not own:
            sentence = f"{row.vm} took part in none of the {counted(len(seen), 'epoch')}: it failed, or its log is truncated."
            found.append(e.finding("peer-epochs", "doubt", sentence, "epochs", 0, len(seen), file=file))
            continue
        late = [n for n in seen if n < own[0]]
        missed = [n for n in seen if own[0] < n < own[-1] and n not in own]
        gone = [n for n in seen if n > own[-1]]
        for what, numbers in (
            ("joined late and missed", late),
            ("missed", missed),
            ("left early and missed", gone),
        ):
            if not numbers or (row.slot in replaced and what != "missed"):
                continue  # a VM and its replacement each cover part of the slot's epochs
            harmless = set(numbers) <= warmup
            listed = ", ".join(str(n) for n in sorted(numbers)[:8]) + (" ..." if len(numbers) > 8 else "")
            sentence = (
                f"{row.vm} {what} {'epoch' if len(numbers) == 1 else 'epochs'} {listed} of the swarm's {len(seen)}"
                f"{' (warm-up only)' if harmless else ''}."
            )
            found.append(
                e.finding(
                    "peer-epochs",
                    "note" if harmless else "doubt",
                    sentence,
                    "epochs",
                    len(own),
                    len(seen),
                    file=file,
                )
            )
    return found


def _changed(e: Evidence) -> list[Finding]:
    sizes = sorted({len(epoch.peers) for epoch in measured(e.run.raw) if epoch.peers})
    if len(sizes) < 2:
        return []
    listed = " and ".join(str(n) for n in sizes)
    sentence = f"The measured epochs have {listed} peers, so a mean over them does not belong to one number of peers."
    return [e.finding("peers-changed", "doubt", sentence, "peers", sizes[0], sizes[-1])]


def _idle(e: Evidence) -> list[Finding]:
    done: dict[str, float] = {row.vm: 0.0 for row in e.run.vms}
    turns: dict[str, int] = dict.fromkeys(done, 0)
    for epoch in e.run.raw:
        for p in epoch.peers:
            if not epoch.warmup and p.vm in done:
                done[p.vm] += p.samples
                turns[p.vm] += 1
    found: list[Finding] = []
    for kind in sorted({row.accelerator for row in e.run.vms}):
        rates = {r.vm: done[r.vm] / turns[r.vm] for r in e.run.vms if r.accelerator == kind and turns[r.vm]}
        usual = median(rates.values()) if len(rates) > 1 else 0.0
        for vm, rate in rates.items():
            if rate < IDLE_SHARE * usual:
                sentence = (
                    f"{vm} processed {rate:,.0f} samples per epoch, VMs with the same GPU {usual:,.0f}: "
                    f"it idled, or shared its GPU."
                )
                found.append(
                    e.finding(
                        "peer-idle",
                        "doubt",
                        sentence,
                        "samples_per_epoch",
                        rate,
                        usual,
                        turns[vm],
                        e.file(vm),
                    )
                )
    return found


def peers_seen(e: Evidence) -> list[Finding]:
    """Compare the peers that the monitor counted with the VMs that have logs."""
    if e.baseline or e.imported is None or not e.progress or not e.run.vms:
        return []
    chosen = measured(e.run.raw)
    if not chosen:
        return []
    begin_s = min(epoch.ended_s - (epoch.duration_s or 0.0) for epoch in chosen)
    end_s = max(epoch.ended_s for epoch in chosen)
    scrapes = [r.peers for r in e.progress if begin_s < r.at_s <= end_s]
    if not scrapes:
        return []
    vms, file = len(e.run.vms), e.monitor_file
    if max(scrapes) > vms:
        sentence = (
            f"The monitor saw up to {max(scrapes)} peers, but only {vms} have logs: bytes and samples of the others "
            "are missing from every sum over VMs."
        )
        return [e.finding("peers-seen", "doubt", sentence, "peers", max(scrapes), vms, len(scrapes), file)]
    share = sum(1 for n in scrapes if n < vms) / len(scrapes)
    if max(scrapes) < vms or share > ABSENT_DOUBT:
        sentence = (
            f"The monitor saw fewer than {vms} peers in {percent(share)} of its scrapes of the measured epochs "
            f"(at least {min(scrapes)}, at most {max(scrapes)})."
        )
        return [
            e.finding(
                "peers-seen", "doubt", sentence, "share_of_scrapes", share, ABSENT_DOUBT, len(scrapes), file
            )
        ]
    return []
