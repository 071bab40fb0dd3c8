"""What is odd in a run's logs beyond single files: peers that failed or idled, rules that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.importers.wandb.account import Account
from analysis.importers.wandb.bee import Bee
from analysis.importers.wandb.monitor import Monitor
from analysis.importers.wandb.sync import Sync

_OFF_S = 5.0  # an epoch may be so much longer or shorter on one VM than for the monitor, and a tenth of it,
_APART_S = 30.0  # clocks of different machines may differ so much without a word


def findings(
    bees: Mapping[str, Bee],
    syncs: Mapping[str, Sync],
    accounts: Mapping[str, Account],
    monitor: Monitor | None,
    baseline: bool,
) -> list[str]:
    """Sentences with their evidence, the gravest first."""
    if baseline:
        return []
    found: list[str] = []
    if monitor is None:
        found.append(
            "There is no monitor log: the swarm's rates follow from the VMs' own samples and clocks."
        )
    else:
        if len(bees) < monitor.peers:
            found.append(
                f"The monitor saw {monitor.peers} peers, there are logs of {len(bees)}: "
                "sums over VMs (bytes, dollars) miss the others."
            )
        if not monitor.epochs:
            found.append(f"{monitor.shown}: no hivemind epoch ended while the monitor watched.")
    last = {vm: a.epochs[-1].epoch for vm, a in accounts.items() if a.epochs}
    seen = [*last.values(), *(e.epoch for e in (monitor.epochs if monitor else ()))]
    newest = max(seen, default=0)
    if monitor is not None and monitor.epochs and monitor.epochs[-1].epoch < newest:
        found.append(
            f"{monitor.shown}: its last epoch is {monitor.epochs[-1].epoch}, the VMs' logs go on to {newest}: the mean of "
            "the epochs' rates is of the former, the other figures are of all."
        )
    if not last:
        found.append(
            "No VM's log shows a finished epoch: calculation, communication and granularity are unknown."
        )
    end = max((bee.last_s for bee in bees.values()), default=0.0)
    for vm, bee in bees.items():
        own = last.get(vm)
        if bee.steps and newest and (own is None or own < newest):
            what = f"after epoch {own}" if own else "before its first averaging"
            found.append(
                f"{bee.shown}: {vm} did not average {what} of {newest}, and its log ends {end - bee.last_s:.0f} s "
                "before the last one: the VM failed or was taken away, or the log is cut."
            )
        found += _sync(vm, bee, syncs[vm])
        found += _clock(vm, bee, accounts[vm], monitor)
    return found


def _sync(vm: str, bee: Bee, sync: Sync) -> list[str]:
    found: list[str] = []
    skipped = [b for b in sync.boundaries if not b.averaged]
    for boundary in skipped:
        found.append(
            f"{bee.shown}: {vm} came to epoch {boundary.epoch} without averaging (step {boundary.step + 1}, "
            f"optimizer {bee.opt[boundary.step]:.1f} s): it loaded the others' state or missed the round."
        )
    if sync.agree is False and bee.steps:
        found.append(
            f"{bee.shown}: the authors' rule (median + 2 std) finds {len(sync.authors)} synchronising steps, "
            f"by {sync.rule} there are {len(sync.steps)}; the latter are used."
        )
    return found


def _clock(vm: str, bee: Bee, account: Account, monitor: Monitor | None) -> list[str]:
    if monitor is None:
        return []
    found: list[str] = []
    ends = {e.epoch: e.ended_s for e in monitor.epochs}
    apart = sorted(e.ended_s - ends[e.epoch] for e in account.epochs if e.epoch in ends)
    if apart and abs(apart[len(apart) // 2]) > _APART_S:
        found.append(
            f"{bee.shown}: {vm} ends its epochs {apart[len(apart) // 2]:+.0f} s from the monitor: "
            "their clocks differ; durations on one clock are not affected."
        )
    lasted = {e.epoch: e.duration_s for e in monitor.epochs[1:] if e.duration_s}
    for e in account.epochs:
        own, swarm = e.ended_s - e.began_s, lasted.get(e.epoch)
        if swarm is not None and abs(own - swarm) > _OFF_S + 0.1 * swarm:
            found.append(
                f"{bee.shown}: epoch {e.epoch} lasted {own:.0f} s on {vm} and {swarm:.0f} s for the monitor: "
                "one of the clocks jumped, or the VM missed an epoch's end."
            )
    return found
