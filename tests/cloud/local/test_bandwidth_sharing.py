"""Several streams of one VM, and slow spells: no socket, no clock."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.local.network.shaper import Node, Shaper
from cloud.local.network.slowdowns import Spells
from cloud.local.options import LocalOptions
from cloud.networks import NO_PATH_MODEL, Network, PathModel, path_model

US, EU, AUS = "gcp/us-central1/a", "gcp/europe-west1/b", "gcp/australia-southeast1/a"
NETWORK, STUDY = Network.load("study-2023-04"), path_model("study")
CALM = PathModel("calm", STUDY.window_bytes, STUDY.hold_s, 0.0, 1.0, 0.0)
FULL = 1448


def packet(payload: int, port: int = 1) -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 52 + payload, 0, 0, 64, 6, 0, bytes(4), bytes(4))
    return ip + struct.pack("!HHIIBBHHH12x", port, 2, 0, 0, 8 << 4, 0x18, 0, 0, 0) + bytes(payload)


def swarm(places: list[str], model: PathModel = CALM, **more) -> Shaper:
    """A VM in each place, with index 1, 2, ...; at the scales of a run of the study."""
    made = Shaper(NETWORK, **{"bytes_scale": 100, "time_scale": 1, "vm_bps": 1e15, "model": model, **more})
    for index, place in enumerate(places, start=1):
        made.add(index, Node(f"vm-{index}", "vm", place))
    return made


def rate_bps(made: Shaper, pairs: list[tuple[int, int]], seconds: float, scale: float = 100) -> dict:
    """Study-scale payload bits/s of each pair when each sends the next packet as soon as its last one arrived there.

    The first second, in which the switch learns what is busy, is left out.
    """
    now = dict.fromkeys(pairs, 0.0)
    carried = dict.fromkeys(pairs, 0)
    while (pair := min(now, key=now.__getitem__)) and now[pair] < seconds:
        arrives = made.due(now[pair], *pair, packet(FULL))
        if now[pair] >= 1.0:
            carried[pair] += FULL
        now[pair] = max(now[pair], arrives - made._routes[pair].delay_s)
    return {pair: 8 * size * scale / (seconds - 1) for pair, size in carried.items()}


def flat(peers: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(1, peers + 1) for b in range(1, peers + 1) if a != b]


def test_one_stream_carries_the_window_a_round_trip():
    rate = rate_bps(swarm([US, EU]), [(1, 2)], 20.0)[1, 2]
    assert rate == pytest.approx(STUDY.window_bytes * 8 / 0.1031, rel=0.01)


@pytest.mark.parametrize("each", [1, 2, 3, 4])
def test_streams_of_one_vm_hold_each_others_windows(each):
    made = swarm([US] * each + [EU] * each)
    n = 2 * each
    cross = [(a, b) for a, b in flat(n) if (a <= each) != (b <= each)]
    near = [pair for pair in flat(n) if pair not in cross]
    now = 0.0
    while now < 3.0:  # all to all, the streams inside a region at the others' pace
        now += 0.05
        for pair in flat(n):
            made.due(now, *pair, packet(FULL * 5))
    wished = STUDY.window_bytes * 8 / (0.1031 + STUDY.hold_s * (n - 2))
    for pair in cross:
        assert 8 / made._routes[pair].s_per_stream_byte * 100 == pytest.approx(wished)
    for pair in near:
        assert 8 / made._routes[pair].s_per_stream_byte * 100 == pytest.approx(6904e6, rel=0.02)


def test_control_traffic_is_no_further_stream():
    made = swarm([US, US, US, EU])
    now = 0.0
    while now < 5.0:
        now += 0.02
        made.due(now, 1, 4, packet(FULL * 2))
        for other in (2, 3):
            made.due(now, 1, other, packet(700))  # 35 kB/s, an eighth of a stream
            made.due(now, other, 1, packet(700))
    assert 8 / made._routes[1, 4].s_per_stream_byte * 100 == pytest.approx(
        STUDY.stream_bps(NETWORK.path(US, EU))
    )


def test_a_pair_is_forgotten_after_a_second_and_after_silence():
    made = swarm([US, EU, EU])
    for k in range(40):
        for target in (2, 3):
            made.due(k * 0.05, 1, target, packet(FULL * 5))
    shared = made._routes[1, 2].s_per_stream_byte
    for k in range(40):
        made.due(2.0 + k * 0.05, 1, 2, packet(FULL * 5))
    alone = made._routes[1, 2].s_per_stream_byte
    assert shared == pytest.approx(alone * (0.1031 + STUDY.hold_s) / 0.1031)
    for k in range(40):
        for target in (2, 3):
            made.due(10 + k * 0.05, 1, target, packet(FULL * 5))
    made.due(60.0, 1, 2, packet(FULL))
    assert made._routes[1, 2].s_per_stream_byte == pytest.approx(alone)


@pytest.mark.parametrize("model", [CALM, STUDY])
def test_one_zone_is_as_without_a_model(model):
    """Each packet of eight VMs in one zone arrives when it would have."""
    with_model, without = swarm([US] * 8, model, vm_bps=1.1e9), swarm([US] * 8, NO_PATH_MODEL, vm_bps=1.1e9)
    now = 0.0
    while now < 4.0:
        now += 0.013
        for pair in flat(8):
            assert with_model.due(now, *pair, packet(FULL)) == without.due(now, *pair, packet(FULL))


def test_the_default_is_the_files_single_stream_whoever_else_sends():
    made = Shaper(NETWORK, 100, 1, 1e15)
    for index, place in enumerate([US, US, EU, EU], start=1):
        made.add(index, Node(f"vm-{index}", "vm", place))
    assert rate_bps(made, flat(4), 6.0)[1, 3] == pytest.approx(210e6, rel=0.01)
    assert made.spells(1e9) == []


@pytest.mark.parametrize(("bytes_scale", "time_scale"), [(100, 1), (20, 1), (100, 2)])
def test_the_pace_at_study_scale_does_not_depend_on_the_scales(bytes_scale, time_scale):
    made = swarm([US, EU, EU], bytes_scale=bytes_scale, time_scale=time_scale)
    found = rate_bps(made, [(1, 2), (1, 3)], 12.0, bytes_scale / time_scale)
    wished = STUDY.window_bytes * 8 / (0.1031 + STUDY.hold_s)
    assert found == pytest.approx({(1, 2): wished, (1, 3): wished}, rel=0.02)


def test_unpaced_streams_get_the_model_as_delay_and_keep_their_order():
    """A window W of a stream that the switch does not pace then carries W / (RTT + hold x others)."""
    made = swarm([US, EU, EU], paced=False)
    arrivals = []
    for k in range(400):
        now = k * 0.05
        arrivals.append(made.due(now, 1, 2, packet(FULL * 5)))
        if k < 200:
            made.due(now, 1, 3, packet(FULL * 5))
        if k == 150:
            assert arrivals[-1] - now == pytest.approx(0.1031 / 2 + STUDY.hold_s)
    assert arrivals == sorted(arrivals), "no packet overtakes another of its stream"
    assert arrivals[-1] - now == pytest.approx(0.1031 / 2)


SPELLS = PathModel("spells", STUDY.window_bytes, 0.0, 0.02, 0.4, 9.0)


def test_a_spell_slows_both_directions_of_its_pair_and_no_other():
    made = swarm([US, EU, EU], SPELLS, seed="x")
    spell = next(s for s in _spells(made, 1e4) if s.pair == ("vm-2", "vm-1") and s.lasts_s > 2)
    calm = STUDY.stream_bps(NETWORK.path(US, EU))
    others = [s for s in _spells(made, 1e4) if s.pair == ("vm-3", "vm-1")]
    at_s = spell.begins_s + 1
    assert not any(s.begins_s <= at_s < s.begins_s + s.lasts_s for s in others), "the seed was chosen so"
    made.due(at_s, 1, 2, packet(FULL))
    paces = {pair: 8 / made._routes[pair].s_per_stream_byte * 100 for pair in ((1, 2), (2, 1), (1, 3))}
    assert paces == pytest.approx({(1, 2): 0.4 * calm, (2, 1): 0.4 * calm, (1, 3): calm})
    made.due(spell.begins_s + spell.lasts_s + 0.3, 1, 2, packet(FULL))
    assert 8 / made._routes[1, 2].s_per_stream_byte * 100 == pytest.approx(calm)


def _spells(made: Shaper, now: float):
    return sorted(made.spells(now), key=lambda spell: spell.begins_s)


def test_spells_are_of_the_seed_and_the_slots_not_of_the_run():
    def drawn(run_id: str, seed: str = "geo-b2/0"):
        made = Shaper(NETWORK, 100, 1, 1e9, model=SPELLS, seed=seed, run_id=run_id, began_s=100.0)
        made.add(1, Node(f"{run_id}-us-0-0", "vm", US))
        made.add(2, Node(f"{run_id}-eu-0-0", "vm", EU))
        return [spell[1:] for spell in made.spells(1100.0)]

    assert drawn("geo-b2-1") == drawn("geo-b2-2") != drawn("geo-b2-1", "geo-b2/1")
    assert min(begins_s for begins_s, _ in drawn("geo-b2-1")) > 100.0


@given(st.text(max_size=5), st.lists(st.floats(0, 5000), max_size=20), st.sampled_from([1.0, 2.0]))
def test_spells_do_not_depend_on_query_times(seed, asked, time_scale):
    made = Spells(seed, ("a", "b"), SPELLS, time_scale)
    for at_s in asked:
        made.slow(at_s)
    fresh = Spells(seed, ("b", "a"), SPELLS, time_scale)
    assert made.begun(5000.0) == fresh.begun(5000.0)
    begun = made.begun(5000.0)
    assert all(begins < ends for begins, ends in begun)
    assert all(a[1] <= b[0] for a, b in pairwise(begun)), "one at a time"
    assert all(made.slow((begins + ends) / 2) for begins, ends in begun if (begins + ends) / 2 <= 5000)


@pytest.mark.parametrize("time_scale", [1.0, 2.0])
def test_spells_have_the_models_rate_and_length(time_scale):
    begun = [s for k in range(80) for s in Spells(str(k), ("a", "b"), SPELLS, time_scale).begun(1000.0)]
    cycle_s = (1 / SPELLS.spell_rate_per_s + SPELLS.spell_mean_s) / time_scale
    assert len(begun) == pytest.approx(80 * 1000 / cycle_s, rel=0.1)
    mean_s = sum(ends - begins for begins, ends in begun) / len(begun)
    assert mean_s == pytest.approx(SPELLS.spell_mean_s / time_scale, rel=0.1)


def test_a_network_is_checked_without_the_model():
    assert LocalOptions().path_model == "none"


def test_no_spells_without_a_rate():
    assert Spells("x", ("a", "b"), CALM).begun(1e9) == []
