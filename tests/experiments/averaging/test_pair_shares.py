"""What pairs of peers exchange, by the records: the sums by region, and the plan that the peers make."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from experiments.averaging.flat import FLAT
from experiments.averaging.hierarchical import HIERARCHICAL
from experiments.averaging.methods import EXCHANGES
from experiments.peer.averaging.hierarchical_plan import Hierarchy, cut, traffic

REGIONS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(REGIONS)
def test_pairs_add_up_to_what_regions_send(regions: list[str]) -> None:
    for exchange in EXCHANGES:
        shares = exchange.pair_shares(regions)
        by_region = Counter[tuple[str, str]]()
        for (i, j), share in shares.items():
            assert i != j
            assert share > 0
            assert shares[j, i] == share
            by_region[regions[i], regions[j]] += share  # type: ignore[assignment]
        assert by_region == {pair: share for pair, share in exchange.sent(regions).items() if share}


@given(REGIONS)
def test_hierarchical_pairs_are_those_of_the_peers_plan(regions: list[str]) -> None:
    hierarchy = Hierarchy.of(regions)
    cells = hierarchy.shards * len(hierarchy.regions)
    parts = cut([60 * cells], [60], hierarchy)  # as many parts as shards and homes: equal shares
    sent = {pair: Fraction(values) / (60 * cells) for pair, values in traffic(hierarchy, parts).items()}
    assert HIERARCHICAL.pair_shares(regions) == sent


def test_flat_pairs_exchange_two_nths() -> None:
    assert set(FLAT.pair_shares(list("aabbc")).values()) == {Fraction(2, 5)}
    assert len(FLAT.pair_shares(list("aabbc"))) == 20
    assert FLAT.pair_shares(["a"]) == HIERARCHICAL.pair_shares(["a"]) == {}
