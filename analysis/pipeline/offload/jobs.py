"""What each job on a shared server gets, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.pipeline.offload import policies
from analysis.pipeline.offload.best import best
from analysis.pipeline.offload.choices import Choices
from analysis.pipeline.offload.pass_time import BOUND_WORDS, Machines, PassTime, pass_time
from analysis.pipeline.offload.sharing import LEAST_GAIN, Demand, pass_by_cores, share_cores


@dataclass(frozen=True)
class Job:
    """A job that asks for cores. `machines`: its own; their cores next to the storage do not count.

    `least_gain`: of its pass without offloading; a smaller one is none.
    """

    name: str
    choices: Choices
    machines: Machines
    weight: float = 1.0
    least_gain: float = LEAST_GAIN


@dataclass(frozen=True)
class JobShare:
    """The cores of a job and its pass with them. `pass_s`: its best pass with 0, 1, 2, ... cores."""

    job: Job
    cores: int
    nothing: PassTime
    found: PassTime
    pass_s: tuple[float, ...]
    why: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "profile": self.job.name,
            "samples": self.job.choices.samples,
            "weight": self.job.weight,
            "cores": self.cores,
            "policy": "best" if self.cores else "none",
            "none_s": self.nothing.seconds,
            "epoch_s": self.found.seconds,
            "bytes": self.found.sent_bytes,
            "offloaded": self.found.offloaded,
            "storage_cpu_s": self.found.server_cpu_s,
            "pass_s_by_cores": list(self.pass_s),
            "why": self.why,
        }


def share_server(jobs: Sequence[Job], cores: int) -> list[JobShare]:
    """Share whole cores so that the weighted sum of the jobs' passes is least. Raises ValueError as `Demand` does, SolverError."""

    def demand(job: Job) -> Demand:
        def seconds(count: int) -> float:
            return best(job.choices, replace(job.machines, storage_cores=count), little_work=False).value

        pass_s = pass_by_cores(seconds, cores, least_gain=job.least_gain)
        return Demand(job.weight, pass_s, job.least_gain)

    demands = [demand(job) for job in jobs]
    shares = share_cores(demands, cores)
    return [_share(job, one, count) for job, one, count in zip(jobs, demands, shares, strict=True)]


def _share(job: Job, demand: Demand, cores: int) -> JobShare:
    machines = replace(job.machines, storage_cores=cores)
    nothing = pass_time(job.choices, policies.none(job.choices), machines)
    found = pass_time(job.choices, best(job.choices, machines).chosen, machines)
    return JobShare(job, cores, nothing, found, tuple(demand.pass_s), _why(demand, cores, nothing, found))


def _why(demand: Demand, cores: int, nothing: PassTime, found: PassTime) -> str:
    counted = demand.counted_s
    gains = [k for k in range(cores + 1, len(counted)) if counted[k] < counted[cores]]
    more = ""
    if gains:
        count, saved_s = gains[0] - cores, counted[cores] - counted[gains[0]]
        further = "further " if cores else ""
        named = f"a {further}core saves" if count == 1 else f"{count} {further}cores save"
        more = f"{named} {saved_s:.4g} s, times its weight of {demand.weight:g}, and the other jobs gain more by it"
        if count > 1:
            more = more.removesuffix("it") + "them"
    if cores:
        made = "core makes" if cores == 1 else "cores make"
        text = f"{cores} {made} its pass {found.seconds:.4g} s instead of {nothing.seconds:.4g} s"
        if more:
            return f"{text}; {more}"
        all_of_them = cores == len(counted) - 1
        return f"{text}; {'it has all of them' if all_of_them else 'further ones save nothing'}"
    if more:
        return f"nothing is offloaded: {more}"
    less = f"shorter by less than {100 * demand.least_gain:g} %" if demand.least_gain else "no shorter"
    return (
        f"nothing is offloaded: {BOUND_WORDS[nothing.bound]} takes longest, {nothing.seconds:.4g} s, and cores next to the "
        f"storage make that {less}"
    )
