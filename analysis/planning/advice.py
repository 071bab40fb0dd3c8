"""Advice before a run: which places, numbers of peers, accelerators and options suit the user's goals. Pure.

The search ranks by nominal figures (`analysis.planning.peer_space`), the proposals have the intervals of `predict`. What
cannot be predicted or priced is left out, with the reason. docs/advise.md has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Literal

import yaml

from analysis.compare.paper import ONE_CLOCK, PAPER_BASIS, references
from analysis.planning.more_peers import most_peers
from analysis.planning.peer_space import Kind, PeerSpace, Unfit
from analysis.planning.predicted_cost import cost_of
from analysis.planning.prediction import Bottleneck, Inputs, Prediction, Value, inputs_of, predict
from analysis.planning.search import (
    LIMIT,
    Account,
    Figures,
    Found,
    Goals,
    combinations_of,
    infeasible,
    meeting,
    pareto,
)
from cloud.networks import NetworkError
from cloud.places import continent
from cloud.prices.book import PriceBook
from cloud.prices.classes import is_own
from cloud.prices.missing import missing_egress, missing_vms
from experiments.parse.load import to_document
from experiments.schema.models import ExperimentSpec, PeerGroup, Resources
from experiments.schema.slots import slots
from metrics.more_peers import MorePeers, Rate, by_figures, words

ROWS = 12
"""Default of the number of proposals."""
# The paper's machines in one place, with the basis of their rate. Its 8xT4 is a swarm as the proposals are.
_CENTRAL = {
    "1xT4": ONE_CLOCK,
    "4xT4 DDP": PAPER_BASIS,
    "8xA10": PAPER_BASIS,
    "DGX-2 spot": PAPER_BASIS,
    "DGX-2 on demand": PAPER_BASIS,
}

Dollars = Callable[[ExperimentSpec, Prediction], tuple[Value, Value]]
"""$/h and $/10^6 samples of a prediction."""


class AdviceError(Exception):
    """Nothing of what was asked can be predicted; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the search leaves out. `detail` is a sentence for the user."""

    code: Literal[
        "option_invalid",
        "unpredicted",
        "no_place",
        "no_vm_price",
        "no_path",
        "no_egress_price",
        "same_figures",
    ]
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class Peers:
    """Peers of one kind in a proposal."""

    location: str
    accelerators: str
    use_spot: bool
    count: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """One experiment of the Pareto set. Dollars are of VMs and of egress between peers."""

    option: str  # the options that differ from the file, "" for none
    spec: ExperimentSpec
    peers: tuple[Peers, ...]
    prediction: Prediction
    sps: Value
    usd_per_h: Value
    usd_per_1m: Value
    time_s: Value  # to `Advice.samples`
    egress_share: float  # of the dollars
    transfer: Bottleneck  # what limits the exchange of gradients, and the share of an epoch that it takes
    more_peers: MorePeers | None  # None: a single peer

    @property
    def granularity(self) -> float | None:
        """Calculation / communication time; None for a single peer."""
        found = self.prediction.granularity
        return None if found is None else found.value

    @property
    def doubling(self) -> float | None:
        """Factor on samples/s of twice the peers, by the paper's rule; None where rounds overlap with calculation."""
        return None if self.more_peers is None else self.more_peers.factor


@dataclass(frozen=True, slots=True)
class Alternative:
    """A system in one place, without a swarm across places. Proposals are numbered from 1."""

    name: str
    sps: float
    usd_per_h: Decimal
    usd_per_1m: Decimal
    short: str  # its name in a chart
    clock: str  # of its rate: wall, phase-timed, unknown, or predicted
    source: str
    note: str
    faster_than: tuple[int, ...]
    cheaper_than: tuple[int, ...]  # per sample
    meets_goals: bool

    @property
    def better_than(self) -> tuple[int, ...]:
        """Proposals than which it is both faster and cheaper per sample."""
        return tuple(n for n in self.faster_than if n in self.cheaper_than)


@dataclass(frozen=True, slots=True)
class Unmet:
    """Goals that no combination meets together, and the nearest: its largest excess over a goal is the smallest."""

    goals: tuple[str, ...]
    nearest: Proposal
    excess: Mapping[str, float]  # by goal: 0.1 is 10 % beyond it; 0 or less: met


@dataclass(frozen=True, slots=True)
class Advice:
    """Proposals, the fastest first; or, if there are none, the goals that cannot be met."""

    experiment: str
    goals: Goals
    samples: int
    proposals: tuple[Proposal, ...]
    more: int  # of the Pareto set, not among the proposals
    unmet: Unmet | None
    alternatives: tuple[Alternative, ...]
    left_out: tuple[LeftOut, ...]
    requested: int  # combinations of all that was asked, what is left out included
    account: Account
    price_book: str
    prices_until: date | None  # the date of the book's newest price
    network: str
    path_model: str

    @property
    def shown(self) -> tuple[Proposal, ...]:
        """The proposals, or the nearest combination if nothing meets the goals; alternatives count these."""
        return self.proposals or (() if self.unmet is None else (self.unmet.nearest,))


@dataclass(frozen=True, slots=True)
class _Searched:
    """One option with its space."""

    option: str
    spec: ExperimentSpec
    space: PeerSpace


def advise(
    options: Mapping[str, ExperimentSpec],
    resources: Sequence[Resources],
    sizes: Sequence[int],
    goals: Goals,
    book: PriceBook,
    *,
    rented: bool = False,
    invalid: Sequence[LeftOut] = (),
    samples: int | None = None,
    most: int | None = None,
    rows: int = ROWS,
    limit: int = LIMIT,
    dollars: Dollars | None = None,
) -> Advice:
    """Search the combinations of `resources` with `sizes` peers (two or more), for each of `options` (name: experiment).

    `invalid`: options that were left out before. `samples`: to which times are given (default: those of all epochs of
    the first option). `most`: peers of one kind, such as a quota (None: no limit). At most `rows` proposals,
    spread over the Pareto set. A VM without a spot price is taken on demand
    if that has a price. Raises AdviceError if nothing can be predicted.
    """
    first = next(iter(options.values()))
    samples = samples or first.swarm.target_batch_size * first.measure.all_epochs
    found, left_out = _spaces(options, resources, book, rented, most)
    if not any(each.space.kinds for each in found):
        reasons = dict.fromkeys(each.detail for each in left_out)
        raise AdviceError(f"{first.name}: nothing can be predicted: {'; '.join(list(reasons)[:3])}")
    price = dollars or (lambda spec, p: usd_of(spec, p, book))
    spaces = [each.space for each in found]
    result = pareto(spaces, sizes, goals, limit=limit)
    account, unmet = result.account, None

    def proposed(one: Found, number: int) -> Proposal:
        return _proposal(found[one.space], one, number, book, samples, price, rented=rented)

    if not result.front:
        every = pareto(spaces, sizes, Goals(), limit=limit, cost=lambda f: f.usd_per_h)
        account = every.account
        if not every.front:
            raise AdviceError(
                f"{first.name}: no combination of {_range(sizes)} peers can be predicted and priced: "
                + "; ".join(list(dict.fromkeys(each.detail for each in left_out))[:3])
            )
        result = meeting(every, goals)  # of another search, where the limit left something out
        why = infeasible(every, goals)
        if why is not None:
            unmet = Unmet(why.goals, proposed(why.nearest, 1), why.excess)
    chosen = _spread(result.front, rows)
    proposals = tuple(proposed(one, k + 1) for k, one in enumerate(chosen))
    shown = proposals or (() if unmet is None else (unmet.nearest,))
    inputs = next(each.space.inputs for each in found if each.space.kinds)
    requested = len({(r.infra, r.accelerators) for r in resources})
    return Advice(
        experiment=first.name,
        goals=goals,
        samples=samples,
        proposals=proposals,
        more=len(result.front) - len(proposals),
        unmet=unmet,
        alternatives=_alternatives(found[0], shown, goals, book),
        left_out=(*invalid, *left_out),
        requested=(len(options) + len(invalid)) * sum(combinations_of(requested, n) for n in sizes),
        account=account,
        price_book=book.name,
        prices_until=book.newest_date,
        network=inputs.network.name,
        path_model=inputs.path.name,
    )


def yaml_of(spec: ExperimentSpec) -> str:
    """Return an experiment as the text of a file that `orch launch` takes."""
    return yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True)


def usd_of(
    spec: ExperimentSpec, p: Prediction, book: PriceBook, places: Sequence[Resources] | None = None
) -> tuple[Value, Value]:
    """Return $/h and $/10^6 samples of VMs and egress between peers. Raises ValueError if a price is unknown.

    `places`: of the slots' VMs, by slot; None: each slot's first one, as in `predict`.
    """
    vms = Decimal(0)
    for one in (slot.places[0] for slot in slots(spec)) if places is None else places:
        price = book.vm(one.infra, one.accelerators, one.use_spot)
        if price is None:
            raise ValueError(f"{book.name} has no price of {one.accelerators} in {one.infra}")
        vms += price.usd
    if p.egress_usd_per_epoch is None:
        raise ValueError("; ".join(p.unknown))
    tbs = spec.swarm.target_batch_size
    cost = cost_of(p, tbs, tbs, vms)
    assert cost.usd_per_h is not None
    assert cost.usd_per_1m_samples is not None
    return cost.usd_per_h, cost.usd_per_1m_samples


def why(proposal: Proposal) -> str:
    """Say in one sentence what a proposal's granularity, its bottleneck and its egress mean."""
    parts: list[str] = []
    if proposal.more_peers is not None:
        parts.append(words(proposal.more_peers))
    largest, transfer = proposal.prediction.bottleneck, proposal.transfer
    if largest is not None and largest.kind != transfer.kind:
        name = {"calculation": "calculation", "waiting": "waiting for peers", "work": "each VM's own work"}
        parts.append(f"{name[largest.kind]} takes {100 * largest.share:.0f} % of an epoch")
    limit = f"the path {transfer.where}" if transfer.kind == "path" else "what each VM can process"
    parts.append(f"the exchange takes {100 * transfer.share:.1f} %, limited by {limit}")
    parts.append(
        f"egress is {100 * proposal.egress_share:.0f} % of the dollars"
        if proposal.egress_share
        else "egress costs nothing"
    )
    return "; ".join(parts)


def _spaces(
    options: Mapping[str, ExperimentSpec],
    resources: Sequence[Resources],
    book: PriceBook,
    rented: bool,
    most: int | None,
) -> tuple[list[_Searched], list[LeftOut]]:
    searched: list[_Searched] = []
    left_out: dict[tuple[str, str, str], LeftOut] = {}

    def leave(one: LeftOut) -> None:
        left_out.setdefault((one.code, one.what, one.detail), one)

    for option, spec in options.items():
        kinds: list[Kind] = []
        inputs: Inputs | None = None
        lost: list[LeftOut] = []
        for one in resources:
            found = _kind(spec, one, book, most)
            if isinstance(found, LeftOut):
                lost.append(found)
            else:
                kinds.append(found[0])
                inputs = found[1]
        reasons = {each.detail for each in lost}
        if option and len(reasons) == 1 and not kinds:  # it is the option that cannot be predicted
            lost = [LeftOut("unpredicted", option, reasons.pop())]
        for each in lost:
            leave(each)
        if inputs is None:
            continue
        space = PeerSpace(kinds, inputs, book, rented=rented)
        equal = space.equal_places()
        for place, other in equal.items():
            leave(
                LeftOut(
                    "same_figures", place, f"{place} has the same figures as {other}, which stands for both"
                )
            )
        if equal:
            space = PeerSpace([k for k in kinds if k.location not in equal], inputs, book, rented=rented)
        for pair in space.unfit.values():
            leave(_pair(pair, book, rented))
        searched.append(_Searched(option, spec, space))
    return searched, list(left_out.values())


def _pair(pair: Unfit, book: PriceBook, rented: bool) -> LeftOut:
    """Two places that cannot have peers together."""
    a, b = pair.a, pair.b
    what = f"{a} with {b}" if a != b else f"two peers in {a}"
    if pair.code == "no_path":
        places = a if a == b else f"{a},{b}"
        return LeftOut(
            pair.code, what, f"{pair.detail}, which `orch net check --places {places}` then emulates"
        )
    row = ", ".join(f"{k} {v}" for k, v in missing_egress(book, a, b, public=rented).as_dict().items() if v)
    return LeftOut(pair.code, what, f"{book.name} has no price of egress from {a} to {b}: add the row {row}")


def _kind(
    spec: ExperimentSpec, one: Resources, book: PriceBook, most: int | None
) -> tuple[Kind, Inputs] | LeftOut:
    """A kind of peer with its inputs, or why it is left out."""
    what = f"{one.accelerators} in {one.infra}"
    pair = spec.model_copy(update={"peers": (_group("two", one, 2, spec),)})
    try:
        inputs, steps = inputs_of(pair)
    except (ValueError, NetworkError) as error:
        return LeftOut("unpredicted", what, str(error))
    try:
        inputs.network.place(one.infra)
    except NetworkError as error:
        return LeftOut(
            "no_place", what, f"{error}; add a row, which `orch net check --places {one.infra}` then emulates"
        )
    price = book.vm(one.infra, one.accelerators, one.use_spot)
    spot = one.use_spot
    if price is None and one.use_spot:
        price, spot = book.vm(one.infra, one.accelerators, use_spot=False), False
    if price is None:
        return LeftOut(
            "no_vm_price", what, f"{book.name} has no price of {what}: add the row {_row(book, one)}"
        )
    rate = inputs.rates_sps[0]
    if is_own(one.infra):
        there = sum(g.count for g in spec.peers if any(r.infra == one.infra for r in g.alternatives)) or 1
        most = there if most is None else min(most, there)
    step = steps[0]
    return Kind(
        one.infra, one.accelerators, spot, rate, step.sync_work_s, price.usd, most, step_s=step.step_s
    ), inputs


@dataclass(frozen=True, slots=True)
class _Wanted:
    location: str
    accelerator: str
    use_spot: bool
    instance: str = "unknown"


def _row(book: PriceBook, one: Resources) -> str:
    missing = missing_vms(book, [_Wanted(one.infra, one.accelerators, one.use_spot)])[0]
    return ", ".join(f"{k} {v}" for k, v in missing.as_dict().items() if v)


def _proposal(
    searched: _Searched,
    one: Found,
    number: int,
    book: PriceBook,
    samples: int,
    dollars: Dollars,
    *,
    rented: bool,
) -> Proposal:
    kinds = [(kind, count) for kind, count in zip(searched.space.all, one.counts, strict=True) if count]
    spec = proposed_spec(searched.spec, kinds, number)
    p = predict(spec, book, rented=rented)
    assert p.sps is not None, p.unknown
    if abs(p.sps.value / one.figures.sps - 1) > 1e-9:
        raise AssertionError(f"the search has {one.figures.sps} samples/s, the predictor {p.sps.value}")
    per_h, per_1m = dollars(spec, p)
    inputs, _ = inputs_of(spec)
    exchange = inputs.transfer()
    epoch_s = inputs.tbs / p.sps.value
    egress = float(p.egress_usd_per_epoch or 0) / spec.swarm.target_batch_size * 1e6
    return Proposal(
        option=searched.option,
        spec=spec,
        peers=tuple(Peers(k.location, k.accelerators, k.use_spot, count) for k, count in kinds),
        prediction=p,
        sps=p.sps,
        usd_per_h=per_h,
        usd_per_1m=per_1m,
        time_s=Value(samples / p.sps.value, samples / p.sps.high, samples / p.sps.low),
        egress_share=egress / per_1m.value if per_1m.value else 0.0,
        transfer=Bottleneck(exchange.limit, exchange.where, exchange.seconds / epoch_s),
        more_peers=None if p.granularity is None else _more_peers(searched, one, p.granularity.value),
    )


def _more_peers(searched: _Searched, one: Found, granularity: float) -> MorePeers:
    """What doubling a combination would give, by the search's figures, which are the predictor's values."""
    space = searched.space
    apart = any(count and not space.fits(k, k) for k, count in enumerate(one.counts))

    def figures(times: int) -> Rate | None:
        if times > 1 and apart:
            return None  # two peers in one of these places have no figures, as for machines of one's own
        found = space.figures(tuple(count * times for count in one.counts))
        return Rate(found.sps, found.usd_per_1m)

    overlaps = searched.spec.swarm.method.schedule.overlaps_rounds
    return by_figures(granularity, sum(one.counts), most_peers(searched.spec), figures, overlaps=overlaps)


def proposed_spec(spec: ExperimentSpec, kinds: Sequence[tuple[Kind, int]], number: int) -> ExperimentSpec:
    """Return the experiment with these peers, one group a kind, named after it and `number`."""
    own = {
        (each.infra, each.accelerators, each.use_spot): each
        for group in spec.peers
        for each in group.alternatives
    }
    template = spec.peers[0].alternatives[0]
    groups: list[PeerGroup] = []
    names: set[str] = set()
    for kind, count in kinds:
        there = own.get((kind.location, kind.accelerators, kind.use_spot)) or Resources(
            infra=kind.location,
            accelerators=kind.accelerators,
            use_spot=kind.use_spot,
            disk_size=template.disk_size,
        )
        name = base = _group_name(kind.location)
        again = 2
        while name in names:
            name, again = f"{base[:13]}-{again}", again + 1
        names.add(name)
        groups.append(_group(name, there.model_copy(update={"infra": kind.location}), count, spec))
    title = f"{spec.name[:36].rstrip('-')}-a{number}"
    return spec.model_copy(
        update={
            "name": title,
            "description": f"Proposal {number} of orch advise {spec.name}",
            "peers": tuple(groups),
        }
    )


def _group(name: str, one: Resources, count: int, spec: ExperimentSpec) -> PeerGroup:
    return PeerGroup(name=name, count=count, resources=one, replace=spec.peers[0].replace)


def _group_name(location: str) -> str:
    """A group's name of at most 16 characters: us, eu, asia, aus or sa; otherwise the region."""
    known = continent(location)
    return known.lower() if known else re.sub(r"[^a-z0-9-]", "-", location.split("/")[1].lower())[:16]


def _spread(front: Sequence[Found], rows: int) -> list[Found]:
    """Choose at most `rows` of the front: the fastest, the cheapest, and others evenly between them."""
    if len(front) <= rows:
        return list(front)
    if rows == 1:
        return [front[-1]]
    return [front[round(k * (len(front) - 1) / (rows - 1))] for k in range(rows)]


def _alternatives(
    searched: _Searched, shown: Sequence[Proposal], goals: Goals, book: PriceBook
) -> tuple[Alternative, ...]:
    """Systems in one place: a single VM of each accelerator by the predictor, and the paper's, with their sources."""
    found = [
        _beside(f"{r.name} of the paper", r.name, r.sps, r.usd_per_h, r.clock, r.source, r.note, shown, goals)
        for r in references()
        if r.model == searched.spec.timed_as and _CENTRAL.get(r.name) == r.basis
    ]
    cheapest: dict[str, Kind] = {}
    for kind in searched.space.all:
        known = cheapest.get(kind.accelerators)
        if known is None or kind.usd_per_h < known.usd_per_h:
            cheapest[kind.accelerators] = kind
    for accelerators, kind in cheapest.items():
        alone = proposed_spec(searched.spec, [(kind, 1)], 1)
        alone = alone.model_copy(update={"swarm": alone.swarm.model_copy(update={"plain": True})})
        p = predict(alone, book)
        if p.sps is not None:
            source = "experiments/accelerators.csv"
            name = f"one VM with {accelerators} in {kind.location}, without a swarm"
            price = f"price book {book.name}, {'spot' if kind.use_spot else 'on demand'}"
            if is_own(kind.location):
                price = "a machine of your own, for which nothing is billed"
            short = f"one {accelerators.removesuffix(':1')}"
            found.append(
                _beside(name, short, p.sps.value, kind.usd_per_h, "predicted", source, price, shown, goals)
            )
    return tuple(sorted(found, key=lambda each: -each.sps))


def _beside(
    name: str,
    short: str,
    sps: float,
    usd_per_h: Decimal,
    clock: str,
    source: str,
    note: str,
    shown: Sequence[Proposal],
    goals: Goals,
) -> Alternative:
    per_1m = usd_per_h / 3600 / Decimal(repr(sps)) * 1_000_000
    return Alternative(
        name=name,
        sps=sps,
        usd_per_h=usd_per_h,
        usd_per_1m=per_1m,
        short=short,
        clock=clock,
        source=source,
        note=note,
        faster_than=tuple(k + 1 for k, p in enumerate(shown) if sps > p.sps.value),
        cheaper_than=tuple(k + 1 for k, p in enumerate(shown) if float(per_1m) < p.usd_per_1m.value),
        meets_goals=goals.met(Figures(sps, float(usd_per_h), float(per_1m))),
    )


def _range(sizes: Sequence[int]) -> str:
    ends = f"{sizes[0]} to {sizes[-1]}"
    together = all(b == a + 1 for a, b in pairwise(sizes))
    return str(sizes[0]) if len(sizes) == 1 else ends if together else ", ".join(map(str, sizes))
