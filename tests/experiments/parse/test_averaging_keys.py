"""What a round brings from region to region, against the peers' own plan of it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.averaging.hierarchical import between_share
from experiments.averaging.methods import method_of
from experiments.averaging.records import region_of
from experiments.parse.load import load
from experiments.peer.averaging.hierarchical_plan import Hierarchy, cut, flat_traffic, traffic
from experiments.schema.slots import slots

VALUES = 60 * 7 * 11 * 12  # divided by any number of regions and peers here, and by their shards


def by_region(regions: list[str], sent: dict[tuple[int, int], float]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for (a, b), values in sent.items():
        found[regions[a], regions[b]] = found.get((regions[a], regions[b]), 0.0) + values / VALUES
    return found


@given(st.lists(st.sampled_from(["us", "eu", "asia", "aus", "sa"]), min_size=1, max_size=12))
def test_sent_bytes_match_the_peers(regions: list[str]) -> None:
    hierarchy = Hierarchy.of(regions)
    part = VALUES // (len(hierarchy.regions) * hierarchy.shards)
    done = by_region(regions, traffic(hierarchy, cut([VALUES], [part], hierarchy)))
    for kind, found in (
        ("hierarchical", done),
        ("flat", by_region(regions, flat_traffic(len(regions), VALUES))),
    ):
        expected = method_of(averaging=kind).exchange.sent(regions)
        assert {pair: float(v) for pair, v in expected.items() if v} == pytest.approx(found, rel=0.02)


def test_the_share_between_regions() -> None:
    assert between_share(["a", "a", "b", "b", "c", "c", "d", "d"]) == Fraction(1, 2)
    assert between_share(["a", "b", "c"]) == 1
    assert between_share(["a", "a"]) is None


def test_a_region_is_a_clouds_region_not_its_zone() -> None:
    assert region_of("gcp/us-central1/us-central1-a") == region_of("gcp/us-central1") == "gcp/us-central1"
    assert region_of("onprem/eu") == "onprem/eu"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("geo-c8", "sends 0.50 of flat averaging's bytes between the 4 regions"),
        ("geo-c4", "no region has two peers"),
        ("geo-a8", "all peers are in one region"),
    ],
)
def test_plan_reports_the_saving(name: str, says: str) -> None:
    flat, hierarchical = load(name), load(name, ["swarm.averaging=hierarchical"])
    regions = [region_of(slot.places[0].infra) for slot in slots(flat)]
    assert flat.swarm.method.plan_notes(regions, None, None) == []
    (note,) = hierarchical.swarm.method.plan_notes(regions, None, None)
    assert says in note
