"""What a strategy costs in an experiment, by the price book and the ledger's own functions. Exact Decimal dollars. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from analysis.pipeline.options import Option, PlanPeer, Setting, Training, train
from cloud.prices.classes import INTERNET, egress_class, store_egress_class
from metrics.cost.ledger import CostLine, Ledger, Terms, data_lines, egress_lines, storage_lines, vm_lines
from metrics.epochs.scaling import Scales
from metrics.records import VmRecord
from metrics.traffic import STORE, Traffic

OFFLINE = "offline"
"""The node that runs the first operations once."""
_MILLION = 1_000_000
_EACH = 16  # passes that the search for the break-even tries one by one


@dataclass(frozen=True)
class OptionCost:
    """The training of some passes with one strategy, and its bill: `training` and the work before it, `offline`."""

    passes: int
    samples: int  # that are trained on
    run: Training
    training: Ledger
    offline: Ledger

    @property
    def usd(self) -> Decimal | None:
        """All dollars. None: unknown."""
        return Ledger((*self.training.lines, *self.offline.lines)).sum()

    @property
    def one_off_usd(self) -> Decimal | None:
        """Dollars of the work before training. None: unknown."""
        return self.offline.sum()

    @property
    def usd_per_1m(self) -> Decimal | None:
        """Dollars per million trained samples, the work before them included. None: unknown."""
        return per_1m(self.usd, self.samples)

    def part_usd_per_1m(self, kind: str) -> Decimal | None:
        """Dollars of one of `vm`, `data` and `storage` while training, or of `offline`, per million samples."""
        return per_1m(self.one_off_usd if kind == OFFLINE else self.training.sum(kind), self.samples)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the dollars are unknown."""
        return tuple(dict.fromkeys((*self.training.unknown, *self.offline.unknown)))


def per_1m(usd: Decimal | None, samples: int) -> Decimal | None:
    """Dollars per million of `samples`. None: unknown."""
    return None if usd is None else usd * _MILLION / samples


def cost(option: Option, setting: Setting, passes: int) -> OptionCost:
    """Return what `passes` passes over the data set cost with a strategy."""
    run = train(option, setting, passes)
    measured, split = option.measured, option.measured.strategy.split
    read = _read_bytes(option, setting, run)
    if split:
        read[OFFLINE] = setting.samples * option.source_wire_bytes
    kept = setting.samples * (option.source_stored_bytes + (measured.stored_bytes if split else 0))
    terms = _terms(setting, round(kept))
    data = data_lines(read, terms)
    vms = [_vm(peer, peer.slot, run.seconds) for peer in setting.peers]
    training = [*vm_lines(vms, run.seconds, {}, terms), *(line for line in data if line.dst != OFFLINE)]
    training += storage_lines(run.seconds, terms)
    offline = [line for line in data if line.dst == OFFLINE]
    if split:
        offline += _work_lines(option, setting, terms)
    return OptionCost(passes, passes * setting.samples, run, Ledger(tuple(training)), Ledger(tuple(offline)))


def _read_bytes(option: Option, setting: Setting, run: Training) -> dict[str, float | None]:
    """Bytes that each peer reads from the store: its share of the data set once, and then as in later passes."""
    share = setting.samples / len(setting.peers)
    read: dict[str, float | None] = {}
    for slot, samples in run.peer_samples.items():
        first = min(share, samples)
        read[slot] = first * option.measured.wire_bytes + (samples - first) * option.measured.later_wire_bytes
    return read


def _work_lines(option: Option, setting: Setting, terms: Terms) -> list[CostLine]:
    """The VM that runs and stores the first operations, and its upload; on this machine nothing is billed.

    What a VM sends to a store of its own region is free, as what the store sends it.
    """
    worker, measured = setting.offline, option.measured
    if worker is None:
        return []
    if measured.offline_s is None or measured.save_s is None:
        reason = "the time to run and store the first operations was not measured"
        lines = [CostLine("vm", OFFLINE, OFFLINE, "", None, "s", None, reason)]
    else:
        seconds = setting.samples * (measured.offline_s + measured.save_s)
        lines = list[CostLine](vm_lines([_vm(worker, OFFLINE, seconds)], seconds, {}, terms))
    if store_egress_class(setting.store, worker.location) != "same_region":
        kind = egress_class(worker.location, setting.store, public=setting.public) or "unknown"
        sent = setting.samples * measured.stored_bytes
        lines += egress_lines([Traffic(OFFLINE, STORE, worker.location, setting.store, kind, sent)], terms)
    return lines


def _terms(setting: Setting, kept_bytes: int) -> Terms:
    locations = {peer.slot: peer.location for peer in setting.peers}
    locations[OFFLINE] = INTERNET if setting.offline is None else setting.offline.location
    return Terms(
        Scales(),
        None,
        setting.book,
        {},
        locations,
        None,
        setting.store,
        dataset_bytes=kept_bytes,
        public=setting.public,
    )


def _vm(peer: PlanPeer, name: str, seconds: float) -> VmRecord:
    return VmRecord(
        vm=name,
        slot=name,
        generation=0,
        location=peer.location,
        instance=peer.instance,
        accelerator=peer.accelerator,
        use_spot=peer.use_spot,
        usd_per_h=peer.usd_per_h,
        price_source=peer.price_source,
        address="",
        requested_s=0.0,
        ready_s=None,
        ended_s=seconds,
        end_cause="",
    )


def least_cheaper_passes(
    option: Option, baseline: Option, setting: Setting, most: int = 10_000
) -> int | None:
    """Return the least number of passes from which the strategy is cheaper than `baseline`. None: never, or unknown.

    Every number up to `_EACH` is tried. Beyond, the sign of the difference is taken to change once, up to `most`.
    """

    def cheaper(passes: int) -> bool:
        usd, other = cost(option, setting, passes).usd, cost(baseline, setting, passes).usd
        return usd is not None and other is not None and usd < other

    found = next((passes for passes in range(1, _EACH + 1) if cheaper(passes)), None)
    if found is not None:
        return found
    low, high = _EACH, _EACH * 2
    while high < most and not cheaper(high):
        low, high = high, high * 2
    if high >= most and not cheaper(high := most):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cheaper(middle) else (middle, high)
    return high
