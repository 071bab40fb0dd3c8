"""The predictor's nominal figures for many numbers of peers by place, and their bounds, without simulated runs. Pure.

The formulas are those of `analysis.planning.prediction.predict` (docs/prediction.md), summed over kinds of peers instead
of over peers, so that a combination takes tens of microseconds; a test holds both against each other. Averaging is flat
or hierarchical, where pairs of peers differ in what they exchange (`analysis.planning.exchange_pairs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import combinations
from typing import Literal

from analysis.planning.epoch_time import epoch_s
from analysis.planning.exchange_pairs import least_share, pairs_of
from analysis.planning.prediction import Inputs, wait_s
from analysis.planning.round_time import Transfer, bytes_of, expected_spell_s
from analysis.planning.search import Figures
from analysis.planning.sent_bytes import PairBytes, whole_packets
from cloud.networks import NetworkError
from cloud.prices.book import Ladder, PriceBook, tiered_usd
from experiments.averaging.records import region_of
from metrics.epochs.scaling import PACKET_PER_LOAD

_SLACK = 1e-9  # bounds and figures add the same terms in another order
_PER_1M = 1_000_000 / 3600


@dataclass(frozen=True, slots=True)
class Kind:
    """A place and an accelerator that a peer may have."""

    location: str  # cloud/region/zone
    accelerators: str  # "T4:1"
    use_spot: bool
    rate_sps: float  # of one peer while it calculates
    work_s: float  # the VM's own work around a round
    usd_per_h: Decimal
    most: int | None = None  # machines of one's own: how many there are; None: no limit
    step_s: float = 0.0  # of one step; matters if rounds overlap with calculation


@dataclass(frozen=True, slots=True)
class Unfit:
    """Two kinds that cannot train together, or whose traffic has no price."""

    code: Literal["no_path", "no_egress_price"]
    a: str
    b: str
    detail: str


class PeerSpace:
    """Combinations of kinds for one experiment. `inputs`: its inputs; the peers in them do not matter."""

    def __init__(self, kinds: Sequence[Kind], inputs: Inputs, book: PriceBook, *, rented: bool) -> None:
        self._all, self._inputs = tuple(kinds), inputs
        k = range(len(self._all))
        network = inputs.network
        self._place = [network.place(kind.location) for kind in self._all]
        self._rate = [kind.rate_sps for kind in self._all]
        self._region = [region_of(kind.location) for kind in self._all]
        self._work = [kind.work_s for kind in self._all]
        self._step = [kind.step_s for kind in self._all]
        self._samples = [inputs.batch_size * _accelerators(kind) for kind in self._all]
        self._usd = [float(kind.usd_per_h) for kind in self._all]
        self._ladders: dict[tuple[int, int], Ladder] = {}
        self._round_trip_s: dict[tuple[int, int], float] = {}
        self.unfit: dict[tuple[int, int], Unfit] = {}
        for a in k:
            for b in k:
                src, dst = self._all[a].location, self._all[b].location
                pair = (min(a, b), max(a, b))
                try:
                    self._round_trip_s[a, b] = network.path(src, dst).rtt_s
                except NetworkError as error:
                    self.unfit.setdefault(pair, Unfit("no_path", src, dst, str(error)))
                    continue
                ladder = book.ladder(src, dst, public=rented)
                if ladder is None:
                    self.unfit.setdefault(pair, Unfit("no_egress_price", src, dst, book.name))
                else:
                    self._ladders[a, b] = ladder
        self._lowest = {pair: _lowest_usd(ladder) for pair, ladder in self._ladders.items()}
        self._lowest_between: dict[tuple[str, str], float] = {}
        for (a, b), usd in self._lowest.items():
            regions = (self._region[a], self._region[b])
            self._lowest_between[regions] = min(usd, self._lowest_between.get(regions, usd))
        self._carried: dict[tuple[int, int, int], float] = {}

    @property
    def inputs(self) -> Inputs:
        """What the figures depend on besides the peers."""
        return self._inputs

    @property
    def kinds(self) -> int:
        """Number of kinds."""
        return len(self._all)

    @property
    def all(self) -> tuple[Kind, ...]:
        """The kinds, by their number."""
        return self._all

    def fits(self, a: int, b: int) -> bool:
        """Whether the network and the price book have both directions between two kinds."""
        return (min(a, b), max(a, b)) not in self.unfit

    def most(self, kind: int) -> int | None:
        """Return how many peers of a kind there may be; None: no limit."""
        return self._all[kind].most

    def figures(self, counts: tuple[int, ...]) -> Figures:
        """Return the nominal figures of at least two peers that fit; dollars are of VMs and egress between peers."""
        inputs, n = self._inputs, sum(counts)
        used = [(k, count) for k, count in enumerate(counts) if count]
        calc_s = inputs.tbs / sum(count * self._rate[k] for k, count in used)
        control = inputs.control_bytes(n, sum(count * self._samples[k] for k, count in used), calc_s)
        exchange = (
            self._flat(used, control) if inputs.method.exchange.whole_group else self._by_pairs(used, control)
        )
        found, sent = exchange
        work_s = max(self._work[k] for k, _ in used)
        comm_s = (
            found.seconds + expected_spell_s(found, inputs.path) + wait_s(n) + self._trips_s(used) + work_s
        )
        sps = inputs.tbs / self._epoch_s(used, calc_s, comm_s, work_s)
        by_ladder: dict[tuple[str, ...], int] = {}
        for pair, amount in sent.items():
            key = self._ladders[pair].key
            by_ladder[key] = by_ladder.get(key, 0) + amount
        egress = sum(float(tiered_usd(self._by_key[key], amount)) for key, amount in by_ladder.items())
        vms = sum(count * self._usd[k] for k, count in used)
        per_1m = vms / sps * _PER_1M + egress / inputs.tbs * 1e6
        return Figures(sps, per_1m * sps / _PER_1M, per_1m)

    def bound(self, counts: tuple[int, ...], kind: int, peers: int) -> Figures | None:
        """Return an optimistic bound: the fastest and cheapest kinds that fit, the slowest path so far, no slow spells.

        Samples/s are at most those with every further peer at the highest local rate, and a transfer as slow as the
        slowest pair that is certain. $/h are at least the VMs'. $/1M are VMs' dollars / samples/s, whose parts for
        calculation and for communication are bounded apart, and the egress that is certain at the lowest price. If
        rounds overlap with calculation, an epoch takes at least either, and the VM's own work.
        """
        inputs, left = self._inputs, peers - sum(counts)
        used = [(k, count) for k, count in enumerate(counts) if count]
        rest = [j for j in range(kind, self.kinds) if all(self.fits(k, j) for k, _ in used)]
        if left > 1:
            rest = [j for j in rest if self.fits(j, j) or any(i != j and self.fits(i, j) for i in rest)]
        if not rest:
            return None
        rate = sum(count * self._rate[k] for k, count in used)
        calc_s = inputs.tbs / (rate + left * max(self._rate[j] for j in rest))
        samples = sum(count * self._samples[k] for k, count in used) + left * max(
            self._samples[j] for j in rest
        )
        transfer_s, certain_usd = (
            self._flat_bound(used, rest, left, inputs.control_bytes(peers, samples, calc_s))
            if inputs.method.exchange.whole_group
            else self._hierarchical_bound(used, rest, left)
        )
        work_s = max(self._work[k] for k, _ in used)
        comm_s = transfer_s + wait_s(peers) + self._trips_s(used) + work_s
        least_s = self._epoch_s(used, calc_s, comm_s, work_s)
        sps = inputs.tbs / least_s
        usd = sum(count * self._usd[k] for k, count in used)
        vms = usd + left * min(self._usd[j] for j in rest)
        # Dollars per sample calculated: a ratio of sums is lowest if all further peers are of one kind.
        ratio = min((usd + left * self._usd[j]) / (rate + left * self._rate[j]) for j in rest)
        if inputs.method.schedule.overlaps_rounds:
            per_sample = max(ratio + vms * work_s / inputs.tbs, vms * least_s / inputs.tbs)
        else:
            per_sample = ratio + vms * comm_s / inputs.tbs
        per_1m = per_sample * _PER_1M + certain_usd / inputs.tbs * 1e6
        return Figures(sps * (1 + _SLACK), vms * (1 - _SLACK), per_1m * (1 - _SLACK))

    def _flat_bound(
        self, used: Sequence[tuple[int, int]], rest: Sequence[int], left: int, control: float
    ) -> tuple[float, float]:
        """Return transfer seconds and dollars of egress that no completion has less of.

        `control`: bytes of control traffic that a pair has at least.
        """
        inputs, peers = self._inputs, sum(count for _, count in used) + left
        streams = peers - 1
        pairs = [self._both(a, b, streams) for a, b in combinations([k for k, _ in used], 2)] + [
            self._both(k, k, streams) for k, count in used if count > 1
        ]
        # At least one of the rest takes part: at best the one whose slowest path is the fastest.
        pairs.append(max(min(self._both(k, j, streams) for k, _ in used) for j in rest))
        bits = 2 * inputs.gradient_bytes / peers * 8
        transfer_s = max(bits / min(pairs), bits * PACKET_PER_LOAD * (peers - 1) / inputs.vm.processing_bps)
        low = self._lowest
        certain = sum(
            many * (others - (a == b)) * low[a, b]
            for a, many in used
            for b, others in used
            if a != b or many > 1
        )
        certain += left * min(sum(count * (low[k, j] + low[j, k]) for k, count in used) for j in rest)
        return transfer_s, certain * _in_packets(PairBytes(2 * inputs.gradient_bytes / peers, control))

    def _hierarchical_bound(
        self, used: Sequence[tuple[int, int]], rest: Sequence[int], left: int
    ) -> tuple[float, float]:
        """Implement `_flat_bound`, without control traffic.

        Each pair of regions has a pair of peers that exchanges at least `least_share`, with at least as many streams a VM
        as its region and the regions so far need. All VMs together send 2 (n - 1) gradients, so one sends 2 (n - 1) / n
        or more. Between two of R regions 2 / R gradients are sent each way, in a region of m peers 2 (m - 1): dollars are
        the least for any number of regions that can be added.
        """
        inputs, region, peers = self._inputs, self._region, sum(count for _, count in used) + left
        sizes = Counter[str]()
        for k, count in used:
            sizes[region[k]] += count
        new = {region[j] for j in rest} - sizes.keys()
        grows = any(region[j] in sizes for j in rest)
        streams = {name: max(1, size + len(sizes) - 2) for name, size in sizes.items()}
        pairs = [
            self._both(a, b, max(streams[region[a]], streams[region[b]]))
            for a, b in combinations([k for k, _ in used], 2)
        ]
        pairs += [self._both(k, k, streams[region[k]]) for k, count in used if count > 1]
        # At least one of the rest takes part: at best the one whose slowest path is the fastest.
        pairs.append(max(min(self._both(k, j, streams[region[k]]) for k, _ in used) for j in rest))
        share = least_share(len(sizes), max(sizes.values()), len(new), left, grows=grows)
        path_s = bytes_of(share, inputs.gradient_bytes) * 8 / min(pairs)
        mean_bits = 2 * inputs.gradient_bytes / peers * 8 * PACKET_PER_LOAD * (peers - 1)
        transfer_s = max(path_s, mean_bits / inputs.vm.processing_bps)

        low, vector_bytes = self._lowest_between, 2 * inputs.gradient_bytes * whole_packets()
        rounding = peers * peers  # each pair's bytes are rounded
        within = sum(low[a, a] * (size - 1) for a, size in sizes.items() if size > 1)
        between = sum(low[a, b] for a in sizes for b in sizes if a != b)
        joins = min((low[region[j], region[j]] for j in rest if region[j] in sizes), default=0.0)
        further = min((sum(low[a, name] + low[name, a] for a in sizes) for name in new), default=0.0)
        usd = [
            (between + added * further) * max(0.0, vector_bytes / (len(sizes) + added) - rounding)
            + (within + (0 if added else joins)) * max(0.0, vector_bytes - rounding)
            for added in range(0 if grows else 1, min(len(new), left) + 1)
        ]
        return transfer_s, min(usd)

    def _epoch_s(self, used: Sequence[tuple[int, int]], calc_s: float, comm_s: float, work_s: float) -> float:
        step_s = max(self._step[k] for k, _ in used)
        return epoch_s(self._inputs.method.schedule, calc_s, comm_s, work_s, step_s)

    def _trips_s(self, used: Sequence[tuple[int, int]]) -> float:
        """As `Inputs.further_trips_s`."""
        further = self._inputs.method.compression.exchanges - 1
        if not further:
            return 0.0
        trips = (self._round_trip_s[a, b] for a, count in used for b, _ in used if a != b or count > 1)
        return further * max(trips, default=0.0)

    def equal_places(self) -> dict[str, str]:
        """Return places that change no figure in place of an earlier one: they cannot train together, all else is equal."""
        of: dict[str, list[int]] = {}
        for k, kind in enumerate(self._all):
            of.setdefault(kind.location, []).append(k)
        found: dict[str, str] = {}
        for b in of:
            for a in (place for place in of if place not in found):
                if a == b:
                    break
                if self._same(a, b, of):
                    found[b] = a
                    break
        return found

    def _same(self, a: str, b: str, of: Mapping[str, list[int]]) -> bool:
        def offers(place: str) -> list[tuple[object, ...]]:
            kinds = (self._all[k] for k in of[place])
            return sorted((kind.accelerators, kind.usd_per_h, kind.rate_sps) for kind in kinds)

        one, other = of[a][0], of[b][0]
        if self._place[one] != self._place[other] or self.fits(one, other) or offers(a) != offers(b):
            return False
        for third in (kinds[0] for place, kinds in of.items() if place not in (a, b)):
            if self.fits(one, third) != self.fits(other, third):
                return False
            if self.fits(one, third) and self._both_tiers(one, third) != self._both_tiers(other, third):
                return False
        if self.fits(one, one) != self.fits(other, other):
            return False
        return not self.fits(one, one) or self._tiers(one, one) == self._tiers(other, other)

    def _both_tiers(self, a: int, b: int) -> tuple[object, ...]:
        return self._tiers(a, b), self._tiers(b, a)

    def _tiers(self, a: int, b: int) -> tuple[object, ...]:
        """Everything about a ladder that dollars depend on; which pairs share it matters if it has several tiers."""
        ladder = self._ladders[a, b]
        shared = ladder.key if len(ladder.tiers) > 1 else None
        return shared, ladder.unit_bytes, tuple((tier.tier_start, tier.usd) for tier in ladder.tiers)

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, ...], Ladder]:
        return {ladder.key: ladder for ladder in self._ladders.values()}

    def _rate_bps(self, a: int, b: int, streams: int) -> float:
        key = (a, b, streams)
        if key not in self._carried:
            inputs = self._inputs
            self._carried[key] = inputs.path.carried_bps(
                inputs.network, self._all[a].location, self._all[b].location, streams
            )
        return self._carried[key]

    def _both(self, a: int, b: int, streams: int) -> float:
        return min(self._rate_bps(a, b, streams), self._rate_bps(b, a, streams))

    def _by_pairs(
        self, used: Sequence[tuple[int, int]], control: float
    ) -> tuple[Transfer, dict[tuple[int, int], int]]:
        """Return the transfer, and the bytes that all peers of one kind send all those of another.

        `control`: bytes of control traffic of each pair, also of those that exchange no gradients.
        """
        inputs, path = self._inputs, self._inputs.path
        members: dict[str, list[int]] = {}
        for k, count in used:
            members.setdefault(self._region[k], []).extend([k] * count)
        kinds = [k for those in members.values() for k in those]
        found = pairs_of(inputs.method.exchange, tuple(len(those) for those in members.values()))
        sizes = [bytes_of(share, inputs.gradient_bytes) for share in found.shares]
        counted = Counter((kinds[i], kinds[j], share, streams) for i, j, share, streams in found.pairs)
        rates = {key: self._both(key[0], key[1], key[3]) for key in counted}
        path_s = max(sizes[key[2]] * 8 / rate for key, rate in rates.items())
        most = max(sum(sizes[share] * 8 * PACKET_PER_LOAD * peers for share, peers in vm) for vm in found.vms)
        seconds = max(path_s, most / inputs.vm.processing_bps)
        spells: dict[float, int] = {}
        sent, without = Counter[tuple[int, int]](), _pairs(used)
        for key, count in counted.items():
            a, b, share, _ = key
            amount = count * _in_packets(PairBytes(sizes[share], control))
            for ordered in ((a, b), (b, a)):
                sent[ordered] += amount
                without[ordered] -= count
            if self._place[a] != self._place[b] and path.spell_rate_per_s and seconds:
                progress = path.spell_factor * rates[key] / (sizes[share] * 8 / seconds)
                if progress < 1:
                    spells[progress] = spells.get(progress, 0) + count
        for ordered, count in without.items():
            sent[ordered] += count * _in_packets(PairBytes(0.0, control))
        return Transfer(seconds, "path", "", spells), sent

    def _flat(
        self, used: Sequence[tuple[int, int]], control: float
    ) -> tuple[Transfer, dict[tuple[int, int], int]]:
        """As `_by_pairs`, where all pairs exchange the same: they are counted instead of listed."""
        n = sum(count for _, count in used)
        sent = _in_packets(PairBytes(2 * self._inputs.gradient_bytes / n, control))
        return self._transfer(used, n), {pair: count * sent for pair, count in _pairs(used).items()}

    def _transfer(self, used: Sequence[tuple[int, int]], n: int) -> Transfer:
        """As `analysis.planning.round_time.transfer` of flat averaging, with pairs counted instead of listed."""
        inputs, path = self._inputs, self._inputs.path
        pairs = {(a, b): x * y for (a, x), (b, y) in combinations(used, 2)}
        pairs |= {(k, k): count * (count - 1) // 2 for k, count in used if count > 1}
        rates = {pair: self._both(*pair, n - 1) for pair in pairs}
        bits = 2 * inputs.gradient_bytes / n * 8
        path_s = bits / min(rates.values())
        seconds = max(path_s, bits * PACKET_PER_LOAD * (n - 1) / inputs.vm.processing_bps)
        spells: dict[float, int] = {}
        for (a, b), rate in rates.items():
            if self._place[a] != self._place[b] and path.spell_rate_per_s and seconds:
                progress = path.spell_factor * rate / (bits / seconds)
                if progress < 1:
                    spells[progress] = spells.get(progress, 0) + pairs[a, b]
        return Transfer(seconds, "path", "", spells)


def _accelerators(kind: Kind) -> int:
    """Return how many accelerators a VM of this kind has: 4 of "T4:4"."""
    return int(kind.accelerators.rpartition(":")[2])


def _pairs(used: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return how many directed pairs of peers there are of each two kinds."""
    return {
        (a, b): many * (others - (a == b)) for a, many in used for b, others in used if a != b or many > 1
    }


def _in_packets(pair: PairBytes) -> int:
    """Return what a pair sends, in whole bytes."""
    return max(0, round(pair.total))


def _lowest_usd(ladder: Ladder) -> float:
    """Dollars of a byte at the lowest of a ladder's tiers."""
    return float(min(tier.usd for tier in ladder.tiers)) / ladder.unit_bytes
