"""Predict samples/s, granularity and egress of an experiment before it runs. Pure: nothing is started or fitted here.

docs/prediction.md has the formulas. Constants: `predictor_constants.csv` and the data files that the emulation uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from analysis.planning.constants import constants
from analysis.planning.epoch_time import epoch_s, epochs_s
from analysis.planning.method_assumptions import method_assumptions
from analysis.planning.round_time import (
    Limits,
    Transfer,
    bytes_of,
    expected_spell_s,
    limits,
    longest_round_trip_s,
    transfer,
)
from analysis.planning.sent_bytes import (
    SOURCES,
    ByteDraws,
    PairBytes,
    byte_draws,
    control_bytes,
    reports,
    shown,
    whole_packets,
)
from cloud.networks import (
    Network,
    NetworkError,
    PathModel,
    VmModel,
    path_bounds,
    path_model,
    vm_bounds,
    vm_model,
)
from cloud.networks.tuning import tuned
from cloud.prices.book import PriceBook
from cloud.prices.classes import egress_class
from cloud.prices.missing import MissingPrice, missing_egress
from experiments.averaging.records import AveragingMethod, region_of
from experiments.catalog import StepTime, step_time
from experiments.emulation.accelerators import HOST, resolved
from experiments.schema.models import ExperimentSpec, Resources
from experiments.schema.slots import slots
from experiments.schema.trained_model import known_model
from metrics.cost.ledger import Terms, egress_lines
from metrics.epochs.scaling import Scales
from metrics.traffic import Traffic

DEFAULT_NETWORK, DEFAULT_PATH_MODEL = "study-2023-04", "study"
_DRAWS = 2000
_DIGITS = 5  # of numbers in JSON
_NORMAL_90 = 1.645  # standard deviations from the mean to the 95 % quantile

WINDOW, HOLD, PROCESSING = "TCP window", "hold of further streams", "processing of a VM"
CHECKPOINTS = "checkpoints"
STEPS, MEASURED, EPOCHS = "step time", "measurement of the step time", "step time by epoch"
SPELLS, WAIT = "slow spells", "waiting for peers"
_OF_SPS, _OF_BYTES = "sps", "egress_bytes_per_vm_epoch"
_VMS_OF_T4 = 2  # whose mean is a T4's step time; other accelerators' are of one VM (experiments/accelerators.csv)


@dataclass(frozen=True, slots=True)
class Value:
    """A prediction with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Assumption:
    """An input, and its share of the variance of `share_of` (of all inputs varied one at a time). None: not varied."""

    name: str
    value: str
    source: str
    share: float | None
    share_of: str = _OF_SPS  # a key of the prediction


@dataclass(frozen=True, slots=True)
class PairEgress:
    """Bytes that one peer's slot sends another in an epoch, whole packets. `usd` None: no price."""

    src: str
    dst: str
    bytes_per_epoch: float
    usd_per_epoch: Decimal | None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The largest part of an epoch and its share of the epoch's seconds."""

    kind: str  # calculation, path, vm, waiting or work
    where: str
    share: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """Figures of an epoch in each simulated run, which dollars are calculated from."""

    epoch_s: np.ndarray
    egress_usd: np.ndarray | None  # None: no price


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted figures at full scale; None: unknown, with the reason in `unknown`. Seconds are of one epoch."""

    experiment: str
    unknown: tuple[str, ...] = ()
    sps: Value | None = None
    granularity: Value | None = None
    calc_s: Value | None = None
    comm_s: Value | None = None
    epoch_s: Value | None = None
    hivemind_share: float | None = None  # of a step: 1 - plain step time / step time in a swarm
    egress: tuple[PairEgress, ...] | None = None
    egress_bytes_per_vm_epoch: Value | None = None  # to other peers; None too in a plain loop
    egress_usd_per_epoch: Decimal | None = None
    missing_prices: tuple[MissingPrice, ...] = ()
    bottleneck: Bottleneck | None = None
    assumptions: tuple[Assumption, ...] = ()
    simulated: Simulated | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the seconds and bytes of an epoch depend on, all at nominal values."""

    tbs: int
    batch_size: int  # of a step of one accelerator
    step_samples: int  # of a step of all peers together
    rates_sps: tuple[float, ...]
    locations: tuple[str, ...]
    gradient_bytes: float
    network: Network
    path: PathModel
    vm: VmModel
    work_s: float
    step_s: float  # of the slowest peer
    method: AveragingMethod

    def transfer(self) -> Transfer:
        """Return the transfer of a round. Raises NetworkError for a pair without figures."""
        return transfer(
            self.locations,
            self.gradient_bytes,
            self.network,
            self.path,
            self.vm.processing_bps,
            self.method.exchange,
        )

    def limits(self) -> Limits:
        """Return what can limit the transfer, for other figures of paths and VMs."""
        return limits(self.locations, self.gradient_bytes, self.network, self.method.exchange)

    def payload_bytes(self) -> dict[tuple[int, int], float]:
        """Return the bytes of gradients from one peer to another in a round, of those that exchange any."""
        shares = self.method.exchange.pair_shares([region_of(place) for place in self.locations])
        return {pair: bytes_of(share, self.gradient_bytes) for pair, share in shares.items()}

    def further_trips_s(self) -> float:
        """Return what further exchanges of a round wait for: each begins when the one before has returned."""
        further = self.method.compression.exchanges - 1
        return further * longest_round_trip_s(self.locations, self.network) if further else 0.0

    def epoch_s(self, calc_s: float, comm_s: float) -> float:
        """Return the seconds of an epoch from those of its calculation and of its round."""
        return epoch_s(self.method.schedule, calc_s, comm_s, self.work_s, self.step_s)

    def epochs_s(self, calc_s: np.ndarray, comm_s: np.ndarray) -> np.ndarray:
        """Return `epoch_s` of each simulated run."""
        return epochs_s(self.method.schedule, calc_s, comm_s, self.work_s, self.step_s)

    def control_bytes(self, peers: int, step_samples: int, calc_s: float) -> float:
        """Return the control traffic of one of `peers` peers with another in an epoch with `calc_s` of calculation.

        `step_samples`: of one step of all of them together.
        """
        return control_bytes(peers, reports(self.tbs, step_samples, calc_s))

    def pair_bytes(self) -> dict[tuple[int, int], PairBytes]:
        """Return the bytes that each peer sends each other one in an epoch. Pairs without gradients have control traffic."""
        n, payload = len(self.locations), self.payload_bytes()
        control = self.control_bytes(n, self.step_samples, self.tbs / sum(self.rates_sps))
        return {pair: PairBytes(payload.get(pair, 0.0), control) for pair in permutations(range(n), 2)}

    def bytes_of_a_peer(self) -> PairBytes:
        """Return the bytes that a peer sends all others in an epoch, in the mean of all peers."""
        pairs, n = self.pair_bytes().values(), len(self.locations)
        return PairBytes(sum(pair.payload for pair in pairs) / n, sum(pair.control for pair in pairs) / n)


@cache
def _network(name: str) -> Network:
    return Network.load(name)


def wait_s(peers: int) -> float:
    """Return the seconds of a round in which peers wait for each other: matchmaking's rest and stragglers."""
    rows = constants()
    return rows["wait_base_s"].value + rows["wait_per_peer_s"].value * (peers - 1)


def known_communication_s(spec: ExperimentSpec) -> float:
    """Return the seconds of a round without slow spells and `wait_s`. Raises ValueError with why they are unknown."""
    inputs, _ = inputs_of(spec)
    return inputs.transfer().seconds + inputs.work_s + inputs.further_trips_s()


def nominal_sps(spec: ExperimentSpec, places: Sequence[Resources]) -> float:
    """Return the samples/s of peers at these places, by nominal inputs; one peer of a swarm trains without rounds.

    Raises ValueError, NetworkError with why they are unknown.
    """
    if len(places) == 1 and not spec.swarm.plain:
        found = [_step_time(spec, places[0])]
        return found[0].batch_size / found[0].step_s
    inputs, _ = inputs_of(spec, places)
    calc_s = inputs.tbs / sum(inputs.rates_sps)
    return inputs.tbs / inputs.epoch_s(calc_s, 0.0 if spec.swarm.plain else _round_s(inputs))


def _round_s(inputs: Inputs) -> float:
    found = inputs.transfer()
    waited_s = wait_s(len(inputs.locations)) + inputs.further_trips_s()
    return found.seconds + expected_spell_s(found, inputs.path) + waited_s + inputs.work_s


def simulated_runs() -> int:
    """Number of simulated runs behind an interval."""
    return _DRAWS


def predict(
    spec: ExperimentSpec,
    book: PriceBook | None = None,
    *,
    rented: bool = False,
    places: Sequence[Resources] | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict an experiment. `rented`: peers have public addresses. `places`: see `inputs_of`.

    `epochs`: that are measured, whose means the intervals are for; None: those of the experiment.

    Intervals come from `_DRAWS` simulated runs with `seed`. Never raises for an experiment that cannot be predicted:
    the result says why.
    """
    if not rented and spec.emulation is not None and resolved(spec.emulation, spec.task) == HOST:
        why = "emulation.accelerators host trains on this machine, whose step time is unknown; see `orch try`"
        return Prediction(spec.name, (why,))
    try:
        inputs, steps = inputs_of(spec, places)
        found = inputs.transfer()  # raises for a pair without figures
    except (ValueError, NetworkError) as error:
        return Prediction(spec.name, (str(error),))
    calc_s, plain = inputs.tbs / sum(inputs.rates_sps), spec.swarm.plain
    spell_s, waited_s = expected_spell_s(found, inputs.path), wait_s(len(inputs.locations))
    waited_s += inputs.further_trips_s()
    comm_s = 0.0 if plain else found.seconds + spell_s + waited_s + inputs.work_s
    epoch_s = inputs.epoch_s(calc_s, comm_s)
    draws = _Draws(inputs, steps, found, plain, max(1, spec.measure.epochs if epochs is None else epochs))
    calc, comm = draws.run(np.random.default_rng(seed), draws.names)
    epoch = inputs.epochs_s(calc, comm)
    parts = {"calculation": calc_s}
    if not plain:
        parts |= {found.limit: found.seconds + spell_s, "waiting": waited_s, "work": inputs.work_s}
    kind = max(parts, key=lambda name: parts[name])
    where = (
        found.where
        if kind == found.limit
        else "all peers"
        if kind in ("calculation", "waiting")
        else "each VM"
    )
    egress, missing = ((), ()) if plain else _egress(spec, inputs, book, rented)
    usd = [pair.usd_per_epoch for pair in egress]
    control = inputs.control_bytes(len(inputs.locations), inputs.step_samples, calc_s)
    sent, sent_usd = _sent(egress, control, byte_draws(_bytes_random(seed), _DRAWS))
    return Prediction(
        experiment=spec.name,
        sps=_value(inputs.tbs / epoch_s, inputs.tbs / epoch),
        granularity=None if plain else _value(calc_s / comm_s, calc / comm),
        calc_s=_value(calc_s, calc),
        comm_s=None if plain else _value(comm_s, comm),
        epoch_s=_value(epoch_s, epoch),
        hivemind_share=0.0
        if plain
        else 1
        - sum(step.batch_size / step.step_s for step in steps)
        / sum(step.batch_size / step.plain_step_s for step in steps),
        egress=egress,
        egress_bytes_per_vm_epoch=None
        if plain
        else _value(sum(e.bytes_per_epoch for e in egress) / len(inputs.locations), sent),
        egress_usd_per_epoch=None if None in usd else sum((u for u in usd if u is not None), Decimal(0)),
        missing_prices=missing,
        bottleneck=Bottleneck(kind, where, parts[kind] / epoch_s),
        assumptions=(
            *_assumptions(spec, inputs, steps, draws, seed),
            *(() if plain else _of_method(inputs)),
        ),
        unknown=_unpriced(book, missing) if egress else (),
        simulated=Simulated(epoch, sent_usd),
    )


def inputs_of(
    spec: ExperimentSpec, places: Sequence[Resources] | None = None
) -> tuple[Inputs, list[StepTime]]:
    """Return the inputs of a prediction, and each peer's step time. Paths between the peers are not looked up here.

    `places`: of the slots' VMs, by slot; None: each slot's first one.

    Raises ValueError or NetworkError with why the experiment cannot be predicted.
    """
    swarm, plain = spec.swarm, spec.swarm.plain
    model = known_model(spec.model, spec.task, spec.data)
    if model is None:
        raise ValueError(f"the size of {spec.trains} is unknown until the task has been built")
    method = swarm.method
    first = [slot.places[0] for slot in slots(spec)] if places is None else list(places)
    if len(first) < 2 and not plain:
        raise ValueError("a swarm of one peer has no averaging round; use swarm.plain, or two peers")
    steps = [_step_time(spec, place) for place in first]
    emulation = spec.emulation
    emulated_network = emulation.network if emulation is not None else DEFAULT_NETWORK
    paths = emulation.path_model if emulation is not None else DEFAULT_PATH_MODEL
    if emulated_network == "none":
        raise ValueError(
            f"emulation.network none has no figures of the network between peers; give {DEFAULT_NETWORK} or another network"
        )
    return Inputs(
        tbs=swarm.target_batch_size,
        batch_size=swarm.batch_size,
        step_samples=sum(step.batch_size for step in steps),
        rates_sps=tuple(step.batch_size / step.step_s for step in steps),
        locations=tuple(place.infra for place in first),
        gradient_bytes=method.compression.gradient_bytes(model.averaged_as, model.parameters),
        network=_network(emulated_network),
        path=tuned(path_model(paths), spec.network_tuning),
        vm=vm_model(),
        work_s=max(step.sync_work_s for step in steps),
        step_s=max(step.step_s for step in steps),
        method=method,
    ), steps


def _step_time(spec: ExperimentSpec, place: Resources) -> StepTime:
    """Return the step time of the experiment's model at a place. Raises ValueError with why it is unknown."""
    swarm, model = spec.swarm, known_model(spec.model, spec.task, spec.data)
    if model is None:
        raise ValueError(f"the size of {spec.trains} is unknown until the task has been built")
    step = step_time(model.name, place.accelerators, plain=swarm.plain)
    if step is None:
        raise ValueError(
            f"no step time of {model.name} on {place.accelerators}: add a row to experiments/accelerators.csv, "
            "or measure it with `orch try`"
        )
    if step.batch_size != swarm.batch_size * int(place.accelerators.rpartition(":")[2]):
        raise ValueError(
            f"the step time of {model.name} on {place.accelerators} was measured with {step.batch_size} samples a "
            f"step, not with swarm.batch_size {swarm.batch_size} on each accelerator, and how it changes is unknown; "
            f"train with that batch size, or measure a step in a swarm and in a plain loop on {place.accelerators} "
            "with the new one and put batch_size, step_s and plain_step_s into experiments/accelerators.csv"
        )
    return step


class _Draws:
    """Simulated runs: each is the mean of its epochs, as a measurement is."""

    def __init__(
        self, inputs: Inputs, steps: Sequence[StepTime], found: Transfer, plain: bool, epochs: int
    ) -> None:
        self._inputs, self._found, self._plain, self._epochs = inputs, found, plain, epochs
        self._accelerators = [step.accelerator for step in steps]
        calculation = (STEPS, MEASURED, EPOCHS)
        self.names = calculation if plain else (*calculation, WINDOW, HOLD, PROCESSING, SPELLS, WAIT)

    def run(self, random: np.random.Generator, varied: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return calculation and communication seconds of each simulated run; inputs not `varied` are nominal."""
        inputs, n, epochs = self._inputs, len(self._inputs.locations), self._epochs
        rates, of_vms = np.broadcast_to(np.array(inputs.rates_sps), (_DRAWS, n)), inputs.vm.step_spread_of_vms
        if STEPS in varied:
            rates = rates / (1 + of_vms * random.standard_normal((_DRAWS, n)))
        if (
            MEASURED in varied
        ):  # a step time is the mean of few VMs, and all peers with the accelerator share its error
            for accelerator in dict.fromkeys(self._accelerators):
                vms = _VMS_OF_T4 if accelerator == "T4:1" else 1
                factor = 1 + of_vms / np.sqrt(vms) * random.standard_normal((_DRAWS, 1))
                rates = np.where([a == accelerator for a in self._accelerators], rates / factor, rates)
        calc = inputs.tbs / rates.sum(axis=1)
        if EPOCHS in varied:
            spread = inputs.vm.step_spread_of_epochs / np.sqrt(epochs)
            calc = calc * (1 + spread * random.standard_normal(_DRAWS))
        if self._plain:
            return calc, np.zeros(_DRAWS)
        transfers = self._transfer_s(random, varied)
        spells = np.full(_DRAWS, expected_spell_s(self._found, inputs.path))
        if SPELLS in varied:
            spells = self._spell_s(random, transfers)
        waited = np.full(_DRAWS, wait_s(n))
        if WAIT in varied:
            spread = constants()["wait_spread_s"].value
            waited = np.maximum(0, waited + spread * random.standard_normal(_DRAWS))
        return calc, transfers + spells + waited + inputs.work_s + inputs.further_trips_s()

    def _transfer_s(self, random: np.random.Generator, varied: tuple[str, ...]) -> np.ndarray:
        """Return transfer seconds. The slowest pair's limit by path and by VM are both recomputed."""
        inputs = self._inputs
        if not {WINDOW, HOLD, PROCESSING} & set(varied):
            return np.full(_DRAWS, self._found.seconds)
        paths, vms = path_bounds(inputs.path.name), vm_bounds()
        of_window, of_processing, own = random.standard_normal((3, _SAMPLED))
        # Start and slope of one fitted line (benchmarks/calibrate.py): of a high window with a high hold, little remains.
        together = constants()["window_hold_correlation"].value
        of_hold = together * of_window + np.sqrt(1 - together**2) * own

        def drawn(
            name: str, value: float, bounds: tuple[float, float] | None, side: np.ndarray
        ) -> np.ndarray:
            if name not in varied or bounds is None:
                return np.full(_SAMPLED, value)
            low, high = bounds
            scale = np.where(side < 0, value - low, high - value) / _NORMAL_90
            return np.maximum(value / 10, value + scale * side)

        window = drawn(WINDOW, inputs.path.window_bytes, paths.get("window_bytes"), of_window)
        hold = drawn(HOLD, inputs.path.hold_s, paths.get("hold_s"), of_hold)
        processing = drawn(PROCESSING, inputs.vm.processing_bps, vms.get("processing_bps"), of_processing)
        limits = inputs.limits()
        seconds = [
            limits.seconds(replace(inputs.path, window_bytes=float(w), hold_s=float(h)), float(p))
            for w, h, p in zip(window, hold, processing, strict=True)
        ]
        return np.resize(np.array(seconds), _DRAWS)

    def _spell_s(self, random: np.random.Generator, transfers: np.ndarray) -> np.ndarray:
        """Return each run's mean delay by slow spells, drawn for each of its epochs."""
        model, epochs = self._inputs.path, self._epochs
        rates = np.full(_DRAWS, model.spell_rate_per_s)
        if "spell_rate_per_s" in path_bounds(model.name):
            # For a given mean duration, as here, the rate rests on the number of rounds that a spell delayed: Poisson. The
            # file's interval is wider, since it holds the duration's too: many short spells delay as much as few long ones.
            seen = constants()["spell_rounds"].value
            rates = rates * random.gamma(seen, 1 / seen, _DRAWS)
        delay = np.zeros(_DRAWS)
        for g, pairs in self._found.spells.items():
            for early in (False, True):
                time = model.spell_mean_s if early else transfers
                counts = random.poisson(rates * pairs * time * epochs)
                run = np.repeat(np.arange(_DRAWS), counts)
                left = transfers[run] * (1.0 if early else random.random(len(run)))
                lasts = random.exponential(model.spell_mean_s, len(run))
                np.add.at(delay, run, np.minimum(lasts, left / g) * (1 - g))
        return delay / epochs


_SAMPLED = 500  # draws of the network's figures, used in turn


def _value(value: float, draws: np.ndarray) -> Value:
    low, high = np.quantile(draws, [0.05, 0.95])
    return Value(value, float(low), float(high))


def _egress(
    spec: ExperimentSpec, inputs: Inputs, book: PriceBook | None, rented: bool
) -> tuple[tuple[PairEgress, ...], tuple[MissingPrice, ...]]:
    """Return each directed pair's bytes and dollars by the ledger of measurements, and the rows without a price."""
    names = [slot.name for slot in slots(spec)]
    places = dict(zip(names, inputs.locations, strict=True))
    rows: list[Traffic] = []
    for (i, j), pair in inputs.pair_bytes().items():
        src, dst = inputs.locations[i], inputs.locations[j]
        kind = egress_class(src, dst, public=rented) or "unknown"
        rows.append(Traffic(names[i], names[j], src, dst, kind, pair.total))
    terms = Terms(Scales(1.0, 1.0, 1.0), None, book, {}, {}, None, None, public=rented)
    usd: dict[tuple[str, str], Decimal | None] = {}
    for line in egress_lines(rows, terms):
        before = usd.get((line.src, line.dst), Decimal(0))
        usd[line.src, line.dst] = None if before is None or line.usd is None else before + line.usd
    missing = (
        []
        if book is None
        else [
            missing_egress(book, places[a], places[b], public=rented)
            for (a, b), u in usd.items()
            if u is None
        ]
    )
    pairs = tuple(PairEgress(row.src, row.dst, row.bytes, usd[row.src, row.dst]) for row in rows)
    return pairs, tuple(dict.fromkeys(missing))


def _bytes_random(seed: int) -> np.random.Generator:
    return np.random.default_rng(
        (seed, 1)
    )  # seconds are drawn apart: what bytes are varied changes none of them


def _sent(
    egress: Sequence[PairEgress], control: float, drawn: ByteDraws
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return each simulated run's bytes of a VM to the others, and all VMs' dollars of an epoch (None: no price).

    What a pair sends beyond `control`, its control traffic, are gradients. Its bytes are priced at the mean price of
    those predicted.
    """
    nowhere = np.zeros(len(drawn.packets))
    sent, usd = nowhere, nowhere
    for e in egress:
        payload = max(0.0, e.bytes_per_epoch - control) / whole_packets()
        bytes_of_pair = drawn.of(PairBytes(payload, control))
        sent = sent + bytes_of_pair
        if e.usd_per_epoch is not None:
            usd = usd + bytes_of_pair * (float(e.usd_per_epoch) / e.bytes_per_epoch)
    unknown = any(e.usd_per_epoch is None for e in egress)
    return sent / max(1, len({e.src for e in egress})), None if unknown else usd


def _unpriced(book: PriceBook | None, missing: tuple[MissingPrice, ...]) -> tuple[str, ...]:
    if book is None:
        return ("no price book was given",)
    rows = (", ".join(f"{k} {v}" for k, v in row.as_dict().items() if v) for row in missing)
    return tuple(f"{book.name} has no price of egress: add the row {row}" for row in rows)


def _assumptions(
    spec: ExperimentSpec, inputs: Inputs, steps: list[StepTime], draws: _Draws, seed: int
) -> tuple[Assumption, ...]:
    variances: dict[str, float] = {}
    for name in draws.names:
        calc, comm = draws.run(np.random.default_rng(seed), (name,))
        variances[name] = float(np.var(inputs.tbs / inputs.epochs_s(calc, comm)))
    total = sum(variances.values())
    file = "cloud/networks/path_models.csv"
    wait = constants()["wait_per_peer_s"]
    known: dict[str, Callable[[], tuple[str, str]]] = {
        STEPS: lambda: (
            ", ".join(sorted({f"{s.step_s:g} s on {s.accelerator}" for s in steps})),
            steps[0].source,
        ),
        MEASURED: lambda: (
            f"of {_VMS_OF_T4 if steps[0].accelerator == 'T4:1' else 1} VMs",
            "cloud/networks/vm_models.csv: spread of VMs",
        ),
        EPOCHS: lambda: (f"{100 * inputs.vm.step_spread_of_epochs:g} %", "cloud/networks/vm_models.csv"),
        WINDOW: lambda: (f"{inputs.path.window_bytes / 1e6:g} MB", file),
        HOLD: lambda: (f"{inputs.path.hold_s * 1e3:g} ms a stream", file),
        PROCESSING: lambda: (f"{inputs.vm.processing_bps / 1e9:g} Gb/s", "cloud/networks/vm_models.csv"),
        SPELLS: lambda: (f"{inputs.path.spell_rate_per_s:g} per s and pair", file),
        WAIT: lambda: (f"{wait_s(len(inputs.locations)):.2g} s", wait.source),
    }
    found = [
        Assumption(name, *known[name](), variances[name] / total if total else None) for name in draws.names
    ]
    if not spec.swarm.plain:
        found += _assumed_bytes(inputs, seed)
    if spec.checkpoint is not None:
        found.append(
            Assumption(CHECKPOINTS, "no slow-down", "written in the background (docs/checkpoints.md)", None)
        )
    found.append(Assumption("preemptions", "none", "not predicted: no history of the place is used", None))
    return tuple(found)


def _of_method(inputs: Inputs) -> list[Assumption]:
    known = method_assumptions(inputs.method, inputs.path, inputs.further_trips_s())
    return [Assumption(*each, None) for each in known]


def _assumed_bytes(inputs: Inputs, seed: int) -> list[Assumption]:
    """The inputs of bytes, each with its share of their variance."""
    pair = inputs.bytes_of_a_peer()
    variances = {
        name: float(np.var(byte_draws(_bytes_random(seed), _DRAWS, (name,)).of(pair))) for name in SOURCES
    }
    total, known = sum(variances.values()), shown()
    return [Assumption(name, *known[name], variances[name] / total, _OF_BYTES) for name in SOURCES]


def rounded(v: Value | None) -> dict[str, float] | None:
    """Return a value and its interval in JSON types, with as many digits as no machine calculates differently."""
    if v is None:
        return None
    return {"value": _digits(v.value), "low": _digits(v.low), "high": _digits(v.high)}


def _digits(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _few(number: float | None) -> float | None:
    return None if number is None else _digits(number)


_INTERVALS = ("sps", "granularity", "calc_s", "comm_s", "epoch_s", "egress_bytes_per_vm_epoch")


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return plain JSON types; dollars are strings, unknown is None, other numbers have `_DIGITS` digits."""
    p = prediction
    return {
        **{k: rounded(getattr(p, k)) for k in _INTERVALS},
        "hivemind_share": _few(p.hivemind_share),
        "egress": None
        if p.egress is None
        else [
            {"src": e.src, "dst": e.dst, "bytes_per_epoch": round(e.bytes_per_epoch),
             "usd_per_epoch": None if e.usd_per_epoch is None else str(e.usd_per_epoch)}
            for e in p.egress
        ],
        "egress_usd_per_epoch": None if p.egress_usd_per_epoch is None else str(p.egress_usd_per_epoch),
        "missing_prices": [row.as_dict() for row in p.missing_prices],
        "bottleneck": None
        if p.bottleneck is None
        else {"kind": p.bottleneck.kind, "where": p.bottleneck.where, "share": _few(p.bottleneck.share)},
        "assumptions": [
            {
                "name": a.name,
                "value": a.value,
                "source": a.source,
                "share": None if a.share is None else round(a.share, 4),
                "share_of": a.share_of,
            }
            for a in p.assumptions
        ],
        "unknown": list(p.unknown),
    }  # fmt: skip
