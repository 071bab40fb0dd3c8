"""Finds inconsistencies between a run's logs: failed or idle peers, rules and clocks that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.importers.wandb.account import Account
from analysis.importers.wandb.bee import Bee
from analysis.importers.wandb.monitor import Monitor
from analysis.importers.wandb.sync import Sync

_OFF_S = 5.0  # an epoch's length on a VM and for the monitor may differ by this plus a tenth of it
_APART_S = 30.0  # clocks of different machines may differ by this much without a warning


def findings(
    bees: Mapping[str, Bee],
    syncs: Mapping[str, Sync],
    accounts: Mapping[str, Account],
    monitor: Monitor | None,
    baseline: bool,
) -> list[str]:
    """Return sentences with their evidence, the most severe first."""
    if baseline:
        return []
    found: list[str] = []
    if monitor is None:
        found.append(
            "There is no monitor log: the swarm's rates are computed from the VMs' samples and clocks."
        )
    else:
        if len(bees) < monitor.peers:
            found.append(
                f"The monitor saw {monitor.peers} peers, but only {len(bees)} have logs: "
                "sums over VMs (bytes, dollars) lack the others."
            )
        if not monitor.epochs:
            found.append(f"{monitor.shown}: no hivemind epoch ended while the monitor ran.")
    last = {vm: a.epochs[-1].epoch for vm, a in accounts.items() if a.epochs}
    seen = [*last.values(), *(e.epoch for e in (monitor.epochs if monitor else ()))]
    newest = max(seen, default=0)
    if monitor is not None and monitor.epochs and monitor.epochs[-1].epoch < newest:
        found.append(
            f"{monitor.shown}: its last epoch is {monitor.epochs[-1].epoch}, but the VMs' logs continue to {newest}: the mean "
            "of the epochs' rates covers only the former, the other figures cover all."
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
                "before the last one: the VM failed or was preempted, or the log is truncated."
            )
        found += _sync(vm, bee, syncs[vm])
        found += _clock(vm, bee, accounts[vm], monitor)
    return found


def _sync(vm: str, bee: Bee, sync: Sync) -> list[str]:
    found: list[str] = []
    skipped = [b for b in sync.boundaries if not b.averaged]
    for boundary in skipped:
        found.append(
            f"{bee.shown}: {vm} reached epoch {boundary.epoch} without averaging (step {boundary.step + 1}, "
            f"optimizer {bee.opt[boundary.step]:.1f} s): it downloaded the state of another peer or missed the round."
        )
    if sync.agree is False and bee.steps:
        found.append(
            f"{bee.shown}: the authors' rule (median + 2 std) finds {len(sync.authors)} synchronising steps, the rule "
            f"'{sync.rule}' finds {len(sync.steps)}; the latter are used."
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
            f"{bee.shown}: the clocks of {vm} and the monitor differ: its epochs end {apart[len(apart) // 2]:+.0f} s from "
            "the monitor's. Durations on one clock are not affected."
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
