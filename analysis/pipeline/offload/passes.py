"""Several passes with caches: what each choice sends, reads, computes and keeps in the first pass and in later ones.

A cached sample is fetched once, one that is not in every pass. Only values before the first random operation can be
cached, as random operations run anew in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analysis.pipeline.offload.choices import Choice, Choices
from analysis.pipeline.offload.pass_time import Assignment, Machines, PassTime, pass_time
from analysis.pipeline.offload.sample_profile import Floats, SampleProfile


@dataclass(frozen=True, slots=True)
class Caches:
    """Passes over the data set, the caches of client and server, and the first random operation, counted from 1.

    Raises ValueError for fewer than one pass, caches that are negative or not finite, and an operation before the first.
    """

    passes: float = 1.0
    client_bytes: float = 0.0
    server_bytes: float = 0.0
    random_from: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.passes < math.inf:
            raise ValueError(f"{self.passes:g} passes are not 1 or more")
        for name, size in (("client", self.client_bytes), ("server", self.server_bytes)):
            if not 0 <= size < math.inf:
                raise ValueError(f"the {name}'s cache of {size:g} bytes is not 0 or more")
        if self.random_from < 1:
            raise ValueError(f"the first random operation {self.random_from} is not 1 or more")

    @property
    def matter(self) -> bool:
        """Whether a pass can differ from the first."""
        return self.passes > 1 and self.client_bytes + self.server_bytes > 0


@dataclass(frozen=True)
class Phase:
    """Passes that are alike. `share`: of all passes. `store_bytes`: (n, c), that leave the store."""

    choices: Choices
    share: float
    store_bytes: Floats


@dataclass(frozen=True)
class Cache:
    """`kept_bytes`: (n, c), in a cache that has `most_bytes`."""

    kept_bytes: Floats
    most_bytes: float


@dataclass(frozen=True)
class Problem:
    """What is chosen for each sample: phases with the same choices, and the caches that they fill."""

    phases: tuple[Phase, ...]
    caches: tuple[Cache, ...] = ()

    @classmethod
    def of(cls, choices: Choices) -> Problem:
        """One pass without caches."""
        raw = np.broadcast_to(choices.sent_bytes[:, :1], choices.sent_bytes.shape)
        return cls((Phase(choices, 1.0, raw),))

    @property
    def names(self) -> tuple[Choice, ...]:
        """The choices."""
        return self.phases[0].choices.names

    @property
    def samples(self) -> int:
        """n."""
        return self.phases[0].choices.samples

    @property
    def uses_server(self) -> npt.NDArray[np.bool_]:
        """(c,): choices that need the server."""
        return np.array([choice.uses_server for choice in self.names])

    def fits(self, chosen: Assignment) -> bool:
        """Whether the caches hold what is kept."""
        rows = np.arange(self.samples)
        return all(math.fsum(cache.kept_bytes[rows, chosen]) <= cache.most_bytes for cache in self.caches)

    def only(self, columns: npt.NDArray[np.intp]) -> Problem:
        """The problem with some of its choices, in this order."""

        def phase(one: Phase) -> Phase:
            old = one.choices
            names = tuple(old.names[column] for column in columns)
            kept = Choices(
                names, old.sent_bytes[:, columns], old.server_s[:, columns], old.client_s[:, columns]
            )
            return Phase(kept, one.share, one.store_bytes[:, columns])

        caches = tuple(replace(one, kept_bytes=one.kept_bytes[:, columns]) for one in self.caches)
        return Problem(tuple(map(phase, self.phases)), caches)


@dataclass(frozen=True, slots=True)
class MeanPass(PassTime):
    """The mean of several passes; its times are means, and each pass takes the longest of its own.

    `store_bytes`: that leave the store in a pass. `client_cached`, `server_cached`: samples.
    """

    first: PassTime
    later: PassTime
    passes: float
    store_bytes: float
    client_cached: int
    server_cached: int

    @property
    def seconds(self) -> float:
        """Of a pass, in the mean."""
        return (self.first.seconds + (self.passes - 1) * self.later.seconds) / self.passes

    @property
    def uses_server(self) -> bool:
        """Whether the server is rented, and all bytes go through it."""
        return self.offloaded > 0 or self.server_cached > 0


def problem_of(profile: SampleProfile, choices: Choices, caches: Caches) -> Problem:
    """The choices with each place where values can be cached. `choices`: those of `choices_of`; they stay the first ones.

    Raises ValueError if the first random operation is after the last one by more than one: then none is random.
    """
    ops = len(profile.ops)
    if caches.random_from > ops + 1:
        raise ValueError(
            f"the first random operation {caches.random_from} is not from 1 to {ops + 1}; the pipeline has {ops} operations, and "
            f"{ops + 1} means that none is random"
        )
    if not caches.matter:
        return Problem.of(choices)
    plain = {choice.ops: k for k, choice in enumerate(choices.names) if choice.codec == "none"}
    sizes = profile.sizes
    n = choices.samples
    nothing = np.zeros(n)
    raw = sizes[:, 0]
    names: list[Choice] = []
    first: list[tuple[Floats, Floats, Floats, Floats]] = []  # sent, server, client, store
    later: list[tuple[Floats, Floats, Floats, Floats]] = []
    kept: list[tuple[Floats, Floats]] = []  # client, server
    for column, choice in enumerate(choices.names):
        sent, server_s, client_s = (
            values[:, column] for values in (choices.sent_bytes, choices.server_s, choices.client_s)
        )
        whole = (sent, server_s, client_s, raw)

        def add(
            name: Choice,
            after: tuple[Floats, Floats, Floats, Floats],
            on_client: Floats,
            on_server: Floats,
            own: tuple[Floats, Floats, Floats, Floats] = whole,
        ) -> None:
            names.append(name)
            first.append(own)
            later.append(after)
            kept.append((on_client, on_server))

        add(choice, whole, nothing, nothing)
        if caches.client_bytes:
            coded = choice.codec != "none"
            for done in range(choice.ops, choice.ops + 1 if coded else caches.random_from):
                if done >= caches.random_from:
                    break
                rest_s = client_s if done == choice.ops else choices.client_s[:, plain[done]]
                size = sent if done == choice.ops else sizes[:, done]
                add(replace(choice, on_client=done), (nothing, nothing, rest_s, nothing), size, nothing)
        if caches.server_bytes:
            for done in range(min(choice.ops, caches.random_from - 1) + 1):
                left_s = np.maximum(server_s - choices.server_s[:, plain[done]], 0.0)
                add(
                    replace(choice, on_server=done),
                    (sent, left_s, client_s, nothing),
                    nothing,
                    sizes[:, done],
                )
    # the plain choices first, in their order, as policies name them by column
    order = sorted(
        range(len(names)), key=lambda k: names[k].on_client is not None or names[k].on_server is not None
    )

    def phase(columns: Sequence[tuple[Floats, Floats, Floats, Floats]], share: float) -> Phase:
        sent, server_s, client_s, store = (
            np.column_stack([columns[k][which] for k in order]) for which in range(4)
        )
        return Phase(Choices(tuple(names[k] for k in order), sent, server_s, client_s), share, store)

    phases = (
        phase(first, 1 / caches.passes),
        phase(later, 1 - 1 / caches.passes),
    )
    limits = (caches.client_bytes, caches.server_bytes)
    held = tuple(
        Cache(np.column_stack([kept[k][which] for k in order]), most)
        for which, most in enumerate(limits)
        if most
    )
    return Problem(phases, held)


def filled(problem: Problem, chosen: Assignment) -> Assignment:
    """The same samples offloaded, and the caches filled in the order of the samples while these fit.

    The client keeps what it is sent, if that is not random. If a sample is offloaded, the server keeps other samples as
    they are stored.
    """
    places = {choice: k for k, choice in enumerate(problem.names)}
    uses = bool(problem.uses_server[chosen].any())
    found = chosen.copy()
    room = [cache.most_bytes for cache in problem.caches]
    for i, column in enumerate(chosen):
        choice = problem.names[column]
        on_client, on_server = replace(choice, on_client=choice.ops), replace(choice, on_server=0)
        for cached in (on_client, on_server) if uses else (on_client,):
            if (place := places.get(cached)) is None:
                continue
            needed = [float(cache.kept_bytes[i, place]) for cache in problem.caches]
            if all(need <= left for need, left in zip(needed, room, strict=True)):
                room = [left - need for need, left in zip(needed, room, strict=True)]
                found[i] = place
                break
    return found


def passes_time(problem: Problem, chosen: Assignment, machines: Machines) -> PassTime:
    """The pass with these choices, or the mean of the passes if they differ."""
    found = [pass_time(phase.choices, chosen, machines) for phase in problem.phases]
    if len(found) == 1:
        return found[0]
    first, later = found
    shares = [phase.share for phase in problem.phases]

    def mean(a: float, b: float) -> float:
        return a * shares[0] + b * shares[1]

    rows = np.arange(problem.samples)
    store = [math.fsum(phase.store_bytes[rows, chosen]) for phase in problem.phases]
    names = problem.names
    on_client = np.array([choice.on_client is not None for choice in names])
    on_server = np.array([choice.on_server is not None for choice in names])
    return MeanPass(
        first.t_g_s,
        mean(first.t_cc_s, later.t_cc_s),
        first.t_cs_s if math.isinf(first.t_cs_s) else mean(first.t_cs_s, later.t_cs_s),
        mean(first.t_net_s, later.t_net_s),
        mean(first.sent_bytes, later.sent_bytes),
        first.offloaded,
        mean(first.server_cpu_s, later.server_cpu_s),
        first,
        later,
        1 / shares[0],
        mean(store[0], store[1]),
        int(np.count_nonzero(on_client[chosen])),
        int(np.count_nonzero(on_server[chosen])),
    )
