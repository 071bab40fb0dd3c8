"""Compare replacement policies on histories of spot capacity: the real controller's loop for each, on the same market."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any, get_args

from analysis.spot.references import REFERENCES, Reference, training_share
from analysis.spot.timeline import Timeline, covered, timeline
from cloud.sim import TraceEvent
from cloud.spot.history import History
from experiments.schema.models import ExperimentSpec
from orchestrator.core.state import Replace, RunSpec
from orchestrator.simulation.driver import Outcome
from orchestrator.simulation.scenario import FaultClass, Scenario

POLICIES: tuple[Replace, ...] = get_args(Replace)
RESTART_S = 390.0
_NEVER = 10**9  # epochs from one checkpoint to the next, of a run that stores none
# Shares of the restart: from the request to the program, to the known address, to training.
_BOOT, _KNOWN, _JOIN = 0.8, 0.05, 0.15


@dataclass(frozen=True)
class Market:
    """Histories of the places of an experiment, and the time of them that a run goes through."""

    histories: Mapping[str, History]  # by location, of each place with spot VMs
    restart_s: float  # from the request of a VM until its peer trains
    days: float | None  # the longest duration of a run; None: from the begin of the histories to their end

    def window(self, seed: int) -> tuple[float, float]:
        """Begin and end of the run with this seed, by the histories' clock. A shorter run begins at a random time."""
        begins_s, ends_s = covered(self.histories)
        left_s = ends_s - begins_s - (self.days or 0.0) * 86400.0
        if self.days is None or left_s <= 0:
            return begins_s, ends_s
        from_s = begins_s + Random(f"spot {seed}").uniform(0.0, left_s)
        return from_s, from_s + self.days * 86400.0

    def cut(self, from_s: float, until_s: float) -> Timeline:
        """The histories in this time."""
        return timeline(self.histories, from_s, until_s)


def on_market(
    made: Scenario,
    market: Market,
    spec: ExperimentSpec,
    *,
    policy: Replace | None,
    faults: Collection[FaultClass],
) -> Scenario:
    """The scenario with the market's capacities instead of the usual preemptions. `policy`: of all slots; None: their own.

    `spec`: with the checkpoints that the run stores. Without any, the loss of all peers loses all that was trained. Ticks
    are sparse unless there are faults that a controller notices by their deadlines only.
    """
    from_s, until_s = market.window(made.seed)
    line = market.cut(from_s, until_s)
    restart_s = market.restart_s
    places = tuple(
        replace(
            place, boot_s=(_BOOT * restart_s, _BOOT * restart_s), notice_s=None,
            preempt_per_h=place.preempt_per_h if "preemption" in faults else 0.0,
        )
        for place in made.places
    )  # fmt: skip
    every, every_s = _NEVER, None
    if spec.checkpoint is not None:
        every, every_s = spec.checkpoint.every_epochs or 1, spec.checkpoint.every_s
    peers = replace(
        made.peers, dht_s=(_KNOWN * restart_s,) * 2, join_s=(_JOIN * restart_s,) * 2,
        min_peers=made.spec.min_peers, checkpoint_every=every, checkpoint_every_s=every_s, checked_records=False,
    )  # fmt: skip
    slots = made.spec.slots
    if policy is not None:
        slots = tuple(replace(slot, policy=replace(slot.policy, replace=policy)) for slot in slots)
    return replace(
        made, spec=replace(made.spec, slots=slots), places=places, peers=peers, duration_s=until_s - from_s,
        trace=(*capacities(line), *made.trace), sparse=not set(faults) - {"preemption"},
    )  # fmt: skip


def capacities(line: Timeline) -> tuple[TraceEvent, ...]:
    """The changes of capacity as events of the simulated cloud, in seconds since the begin of the timeline."""
    events: list[TraceEvent] = []
    before: Sequence[int | None] = [None] * len(line.places)
    for at_s, row in zip(line.times_s, line.capacity, strict=True):
        for place, old, new in zip(line.places, before, row, strict=True):
            if old != new:
                events.append(TraceEvent(at_s - line.times_s[0], place, "capacity", Decimal(new)))
        before = row
    return tuple(events)


@lru_cache(maxsize=64)
def _oracle_share(line: Timeline, peers: int, restart_s: float) -> float:
    return training_share(line, "oracle", peers=peers, restart_s=restart_s, seed=0)


def reference_share(
    reference: Reference, market: Market, run: RunSpec, from_s: float, until_s: float, seed: int
) -> float:
    """Share of the time in training of a reference policy, for the slots of a run that may use any of its places.

    A place with VMs on demand has room for all of them.
    """
    line = market.cut(from_s, until_s)
    on_demand = {p.location for slot in run.slots for p in slot.places if not p.use_spot}
    count = len(run.slots)
    more = tuple(f"{location} on demand" for location in sorted(on_demand))
    rows = tuple((*row, *(count for _ in more)) for row in line.capacity)
    whole = Timeline((*line.places, *more), line.times_s, rows, line.end_s)
    if reference == "oracle":
        return _oracle_share(whole, count, market.restart_s)
    return training_share(whole, reference, peers=count, restart_s=market.restart_s, seed=seed)


@dataclass(frozen=True)
class PolicyRun:
    """A run of one policy and seed. Shares are of the time of all peers; None is unknown or did not happen."""

    policy: str
    seed: int
    from_s: float  # by the histories' clock
    status: str
    cause: str
    hours: float
    time_training: float
    regret: float  # the oracle's share of the same time, less that of the run
    samples: float
    epochs: int
    spent_usd: Decimal
    usd_per_1m: Decimal | None
    hours_to_target: float | None  # to the last epoch
    below_min_peers_h: float
    lost_samples: float
    lost_epochs: int
    preemptions: int
    replacements: int
    refusals: int
    vm_hours: float
    median_joining_s: float | None


def policy_run(policy: str, made: Scenario, market: Market, outcome: Outcome) -> PolicyRun:
    """The figures of one run.

    A run that reached its last epoch, its budget or its longest duration is judged by the time until then; one that
    gave up is judged by the whole time.
    """
    from_s, until_s = market.window(made.seed)
    gave_up = outcome.status in ("failed", "no_capacity", "lost")
    judged_s = made.duration_s if gave_up else min(outcome.simulated_s, made.duration_s)
    ends_s = min(until_s, from_s + judged_s)
    oracle = reference_share("oracle", market, made.spec, from_s, ends_s, made.seed)
    share = outcome.trained_s / (judged_s * len(made.spec.slots))
    return PolicyRun(
        policy=policy,
        seed=made.seed,
        from_s=from_s,
        status=outcome.status,
        cause=outcome.cause,
        hours=outcome.simulated_s / 3600.0,
        time_training=share,
        regret=oracle - share,
        samples=outcome.samples,
        epochs=outcome.epochs,
        spent_usd=outcome.spent_usd,
        usd_per_1m=_per_1m(outcome.spent_usd, outcome.samples),
        hours_to_target=outcome.simulated_s / 3600.0 if outcome.status == "done" else None,
        below_min_peers_h=outcome.below_min_peers_s / 3600.0,
        lost_samples=outcome.lost_samples,
        lost_epochs=outcome.lost_epochs,
        preemptions=outcome.preemptions,
        replacements=outcome.replacements,
        refusals=outcome.refusals,
        vm_hours=outcome.vm_hours,
        median_joining_s=outcome.median_joining_s,
    )


def _per_1m(usd: Decimal, samples: float) -> Decimal | None:
    return (usd / Decimal(repr(samples)) * 10**6).quantize(Decimal("0.0001")) if samples else None


def summaries(runs: Sequence[PolicyRun]) -> list[dict[str, Any]]:
    """One row per policy: means over its runs, and how the runs ended. The price is all dollars by all samples."""
    rows: list[dict[str, Any]] = []
    for policy in dict.fromkeys(run.policy for run in runs):
        mine = [run for run in runs if run.policy == policy]

        def mean(figure: Callable[[PolicyRun], float], mine: Sequence[PolicyRun] = mine) -> float:
            return sum(map(figure, mine)) / len(mine)

        reached = [run.hours_to_target for run in mine if run.hours_to_target is not None]
        usd = sum((run.spent_usd for run in mine), Decimal(0))
        rows.append(
            {
                "policy": policy,
                "runs": len(mine),
                "time_training": mean(lambda run: run.time_training),
                "regret": mean(lambda run: run.regret),
                "samples": mean(lambda run: run.samples),
                "spent_usd": (usd / len(mine)).quantize(Decimal("0.0001")),
                "usd_per_1m": _per_1m(usd, sum(run.samples for run in mine)),
                "reached": len(reached),
                "hours_to_target": sum(reached) / len(reached) if reached else None,
                "below_min_peers_h": mean(lambda run: run.below_min_peers_h),
                "lost_samples": mean(lambda run: run.lost_samples),
                "lost_epochs": mean(lambda run: run.lost_epochs),
                "preemptions": mean(lambda run: run.preemptions),
                "refusals": mean(lambda run: run.refusals),
                "ended": dict(Counter(run.status for run in mine)),
            }
        )
    return rows


def reference_rows(market: Market, run: RunSpec, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per reference policy: its share of the whole time, and the regret; means over the seeds."""
    means = {
        name: sum(reference_share(name, market, run, *market.window(seed), seed) for seed in seeds)
        / len(seeds)
        for name in REFERENCES
    }
    # The sums of a policy that is as good as the oracle may be rounded in another way.
    return [
        {"policy": name, "time_training": mean, "regret": max(0.0, means["oracle"] - mean)}
        for name, mean in means.items()
    ]
