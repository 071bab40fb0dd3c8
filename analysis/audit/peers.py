"""Peers that failed or idled: they end early, come late, miss epochs, do little, or were never in the logs."""

from __future__ import annotations

from statistics import median

from analysis.audit.evidence import Evidence, counted, percent, rounded
from analysis.audit.findings import Finding
from metrics.epochs.throughput import measured
from metrics.records import VmEnd
from metrics.traffic import died

# Without an epoch's length: more than starting and stopping the VMs of a run one after the other takes.
ENDED_EARLY_S = 60.0
# Equal GPUs differ by a few percent: one that does half of what the others do waited or failed.
IDLE_SHARE = 0.5
# A peer's record in the DHT may expire for some scrapes while it averages.
ABSENT_DOUBT = 0.05


def peers(e: Evidence) -> list[Finding]:
    """VMs that ended before the others, took part in no or not in every epoch, or did few samples."""
    if e.baseline:
        return []
    return [*_ended(e), *_epochs(e), *_changed(e), *_idle(e)]


def _ended(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    for row in e.run.vms:
        if died(row):
            sentence = f"{row.vm} ended as '{row.end_cause}'."
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
                f"(more than {'an epoch' if e.epoch_s else 'a minute'}): it failed or was taken."
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


def _epochs(e: Evidence) -> list[Finding]:
    found: list[Finding] = []
    seen = {epoch.epoch: {p.vm for p in epoch.peers} for epoch in e.run.raw if epoch.peers}
    if not seen:
        return []
    warmup = {epoch.epoch for epoch in e.run.raw if epoch.warmup}
    replaced = {row.slot for row in e.run.vms if row.generation > 0}
    for row in e.run.vms:
        own = sorted(number for number, names in seen.items() if row.vm in names)
        file = e.file(row.vm)
        if not own:
            sentence = f"{row.vm} took part in none of the {counted(len(seen), 'epoch')}: it failed, or its log is cut."
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
                continue  # a replaced VM is its slot's earlier or later half
            harmless = set(numbers) <= warmup
            told = ", ".join(str(n) for n in sorted(numbers)[:8]) + (" ..." if len(numbers) > 8 else "")
            sentence = (
                f"{row.vm} {what} {'epoch' if len(numbers) == 1 else 'epochs'} {told} of the swarm's {len(seen)}"
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
    told = " and ".join(str(n) for n in sizes)
    sentence = f"The measured epochs are of {told} peers: a mean over them is of no number of peers."
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
                    f"{vm} did {rate:,.0f} samples an epoch where VMs with the same GPU did {usual:,.0f}: "
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
    """Peers that the monitor saw against the VMs whose logs are there."""
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
            f"The monitor saw up to {max(scrapes)} peers and there are logs of {vms}: what the missing ones sent and "
            "computed is in no sum over VMs."
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
