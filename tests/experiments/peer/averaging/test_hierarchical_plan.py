"""The plan of two-level averaging: which peer averages which part, and the traffic between regions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.averaging.hierarchical_plan import Hierarchy, cut, flat_traffic, traffic

C8 = ("us", "us", "eu", "eu", "asia", "asia", "aus", "aus")
groups = st.lists(st.sampled_from(["us", "eu", "asia", "aus", "sa"]), min_size=1, max_size=12)
tensors = st.lists(st.integers(0, 500), max_size=6)


def between(regions: tuple[str, ...], sent: dict[tuple[int, int], float]) -> float:
    return sum(values for (a, b), values in sent.items() if regions[a] != regions[b])


@given(groups, tensors, st.integers(1, 64))
def test_each_value_is_averaged_once_per_region(regions: list[str], sizes: list[int], most: int) -> None:
    hierarchy = Hierarchy.of(regions)
    parts = cut(sizes, [most] * len(sizes), hierarchy)
    for tensor, size in enumerate(sizes):
        covered = [v for p in parts if p.tensor == tensor for v in range(p.start, p.stop)]
        assert covered == [*range(size)]
    for part in parts:
        assert 0 < part.values <= most
        representatives = [hierarchy.representative(r, part.shard) for r in range(len(hierarchy.regions))]
        assert [hierarchy.region_of(p) for p in representatives] == [*range(len(hierarchy.regions))]
        assert hierarchy.home(part) == representatives[part.home]


@given(groups)
def test_every_peer_is_a_representative(regions: list[str]) -> None:
    hierarchy = Hierarchy.of(regions)
    assert sorted(p for members in hierarchy.regions for p in members) == [*range(len(regions))]
    for region, members in enumerate(hierarchy.regions):
        assert {regions[p] for p in members} == {sorted(set(regions))[region]}
        assert {hierarchy.representative(region, s) for s in range(hierarchy.shards)} == {*members}


@given(groups, tensors, st.integers(1, 64))
def test_regions_exchange_two_vectors_for_each_region_but_one(
    regions: list[str], sizes: list[int], most: int
) -> None:
    hierarchy = Hierarchy.of(regions)
    sent = traffic(hierarchy, cut(sizes, [most] * len(sizes), hierarchy))
    assert between(tuple(regions), sent) == 2 * (len(hierarchy.regions) - 1) * sum(sizes)
    inside = sum(sent.values()) - between(tuple(regions), sent)
    assert inside == 2 * (len(regions) - len(hierarchy.regions)) * sum(sizes)  # in all as flat: 2 (n - 1)


@given(groups, st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 64))
def test_homes_and_shards_are_balanced_to_one_part(regions: list[str], sizes: list[int], most: int) -> None:
    hierarchy = Hierarchy.of(regions)
    load: dict[tuple[int, int], int] = {
        (home, shard): 0 for home in range(len(hierarchy.regions)) for shard in range(hierarchy.shards)
    }
    for part in cut(sizes, [most] * len(sizes), hierarchy):
        load[part.home, part.shard] += part.values
    assert max(load.values()) - min(load.values()) <= most


def test_c8_sends_half_as_much_between_regions_as_flat() -> None:
    hierarchy = Hierarchy.of(C8)
    parts = cut([64_000] * 4, [1000] * 4, hierarchy)
    flat = flat_traffic(8, 256_000)
    assert between(C8, traffic(hierarchy, parts)) / between(C8, flat) == 0.5
    sent = traffic(hierarchy, parts)
    by_peer = [sum(v for (a, _), v in sent.items() if a == peer) for peer in range(8)]
    assert by_peer == [pytest.approx(2 * 7 / 8 * 256_000)] * 8  # no peer sends more than with flat


@pytest.mark.parametrize("regions", [("us", "eu", "asia", "aus"), ("us",) * 4])
def test_one_region_or_one_peer_per_region_equals_flat(regions: tuple[str, ...]) -> None:
    hierarchy = Hierarchy.of(regions)
    assert traffic(hierarchy, cut([4000], [10], hierarchy)) == flat_traffic(4, 4000)


def test_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one peer"):
        Hierarchy.of([])
