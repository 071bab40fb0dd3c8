"""From addresses to places, bytes at study scale, and meters against the switch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_runs import egress, epoch, vm

from metrics.epochs.scaling import PACKET_PER_LOAD, Scales, full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.traffic import agreement, flows, pair_bytes, switch_pairs, tails, traffic

ADDRESSES = {"10.0.0.1": "a", "10.0.0.2": "b", "10.0.0.9": "store", "10.0.0.8": "monitor"}
LOCATIONS = {
    "a": "gcp/us-central1/us-central1-a",
    "b": "gcp/europe-west1/europe-west1-b",
    "store": "b2/us-west-004",
}
RECORDS = [
    egress("a", 1, "10.0.0.2", "calc", 10, 1000),
    egress("a", 1, "10.0.0.2", "comm", 2, 50_200),
    egress("a", 1, "10.0.0.9", "calc", 10, 3000),
    egress("a", 1, "10.0.0.8", "comm", 2, 80),
    egress("a", 1, "192.0.2.7", "calc", 10, 5),
    egress("b", 1, "10.0.0.1", "comm", 2, 49_000),
]


def test_addresses_are_resolved_to_locations_and_classes():
    found = {(f.src, f.dst): f.kind for f in flows(RECORDS, ADDRESSES, LOCATIONS)}
    assert found == {
        ("a", "b"): "inter_continent",
        ("a", "store"): "store",
        ("a", "monitor"): "control",
        ("a", "192.0.2.7"): "unknown",
        ("b", "a"): "inter_continent",
    }


def test_unscaled_traffic_is_what_was_counted():
    study = swarm_epochs([epoch("a"), epoch("b")], 0)
    found = flows(RECORDS, ADDRESSES, LOCATIONS)
    rows = traffic(found, study, Scales(), ["a", "b"])
    assert {(r.src, r.dst): r.bytes for r in rows} == pytest.approx(pair_bytes(found))


def test_scaled_traffic_multiplies_what_was_averaged_and_keeps_the_control_rate():
    scales = Scales(bytes=100, samples=10)
    study = full_scale_epochs(swarm_epochs([epoch("a"), epoch("b")], 0), scales, None)
    rows = traffic(flows(RECORDS, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])
    found = {(r.src, r.dst): r.bytes for r in rows}
    assert found["a", "b"] == pytest.approx(50_000 * 100 + 100 * 102)
    assert found["a", "store"] == pytest.approx(300 * 100)  # none of it in the 2 s of averaging
    assert found["a", "monitor"] == 80
    assert found["b", "a"] == pytest.approx(49_000 * 100)


def test_bytes_to_a_joiner_are_scaled_in_any_phase():
    scales = Scales(bytes=100, samples=10)
    records = [epoch("a", k, 100.0 + 12 * k) for k in (1, 2, 3)] + [epoch("b", 3, 136.0)]
    study = full_scale_epochs(swarm_epochs(records, 0), scales, None)
    sent = [egress("a", k, "10.0.0.2", "calc", 10, 4000) for k in (1, 2, 3)]
    sent.append(egress("a", 1, "10.0.0.2", "comm", 2, 800))
    rows = traffic(flows(sent, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])
    assert rows[0].bytes == pytest.approx(400 * 102 + 2 * 4000 * 100)  # joined in 3: the state went in 2 or 3
    full_scale_emulation = swarm_epochs(records, 0)
    (row,) = traffic(flows(sent, ADDRESSES, LOCATIONS), full_scale_emulation, Scales(), ["a", "b"])
    assert row.bytes == pytest.approx(12_800)


def test_bytes_outside_the_phases_are_counted_once():
    scales = Scales(bytes=100, samples=10)
    study = full_scale_epochs(swarm_epochs([epoch("a"), epoch("b")], 0), scales, None)
    joining = [egress("a", 0, "10.0.0.2", "joining", 4, 777)]
    (row,) = traffic(flows(joining, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])
    assert row.bytes == 777


def counted(record, model_bytes):
    return replace(record, model_bytes=model_bytes)


def test_only_the_counted_payload_scales_with_bytes():
    scales = Scales(bytes=100, samples=10)
    study = full_scale_epochs(swarm_epochs([epoch("a"), epoch("b")], 0), scales, None)
    sent = [
        counted(egress("a", 1, "10.0.0.2", "calc", 10, 1000), 0),
        counted(egress("a", 1, "10.0.0.2", "comm", 2, 50_200), 48_000),
        counted(egress("a", 1, "10.0.0.9", "calc", 10, 3000), 0),
        counted(egress("a", 1, "10.0.0.9", "comm", 2, 70), 0),
    ]
    found = {r.dst: r.bytes for r in traffic(flows(sent, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])}
    load = 48_000 * PACKET_PER_LOAD
    assert found["b"] == pytest.approx(load * 100 + 100 * 100 + (50_200 - load))  # 100 s of calculation
    assert found["store"] == pytest.approx(300 * 100 + 70)
    full_scale_emulation = traffic(flows(sent, ADDRESSES, LOCATIONS), study, Scales(), ["a", "b"])
    assert {r.dst: r.bytes for r in full_scale_emulation} == {"b": 51_200, "store": 3070}


def test_parts_served_after_the_last_epoch_are_scaled():
    scales = Scales(bytes=100)
    study = full_scale_epochs(swarm_epochs([epoch("a"), epoch("b")], 0), scales, None)
    sent = [
        counted(egress("a", 1, "10.0.0.2", "comm", 2, 1100), 1000),
        counted(egress("a", 1, "10.0.0.2", "leaving", 5, 60), 50),
    ]
    (row,) = traffic(flows(sent, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])
    load = 1050 * PACKET_PER_LOAD
    assert row.bytes == pytest.approx(load * 100 + 1160 - load)


def test_meters_against_the_switch():
    meter = pair_bytes(flows(RECORDS, ADDRESSES, LOCATIONS))
    report = {
        "sent_bytes": {"a>b": 51_000, "b>a": 50_000, "a>store": 3000, "store>a": 10**6, "a>monitor": 80}
    }
    switch = switch_pairs(report)
    assert switch is not None
    found = agreement(meter, switch, ["a", "b"])
    assert found.switch_bytes == 104_080
    assert found.difference == pytest.approx((51_200 + 3000 + 80 + 5 + 49_000 - 104_080) / 104_080)
    assert found.worst is not None
    assert (found.worst.src, found.worst.dst) == ("b", "a")
    assert found.worst.difference == pytest.approx(-0.02)
    assert switch_pairs(None) is None
    assert agreement({}, {}, ["a"]).difference is None


def test_lost_vms_have_tails():
    switch = {("a", "b"): 900, ("b", "a"): 700}
    rows = [vm("a", end_cause="preempted"), vm("b", end_cause="terminated")]
    assert tails({("a", "b"): 600, ("b", "a"): 600}, switch, rows) == {("a", "b"): 300}


def test_parts_served_after_the_own_round_count_as_averaging():
    """Control traffic of 50 B/s and 1 MB of a round; a part of it may go while the sender calculates again."""
    scales = Scales(bytes=100, samples=10)
    study = full_scale_epochs(swarm_epochs([epoch("a", calc_s=20, comm_s=10), epoch("b")], 0), scales, None)
    late = [egress("a", 1, "10.0.0.2", "comm", 10, 1_000_500), egress("a", 1, "10.0.0.2", "calc", 20, 1_000)]
    early = [
        egress("a", 1, "10.0.0.2", "comm", 10, 800_500),
        egress("a", 1, "10.0.0.2", "settling", 10, 200_500),
        egress("a", 1, "10.0.0.2", "calc", 10, 500),
    ]
    sums = [
        traffic(flows(rows, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])[0].bytes
        for rows in (late, early)
    ]
    assert sums[0] == pytest.approx(100 * 1_000_000 + 50 * 210)
    assert sums[1] == pytest.approx(sums[0])


def test_bytes_to_unknown_addresses_of_a_rented_run_leave_its_cloud():
    found = [f for f in flows(RECORDS, ADDRESSES, LOCATIONS, "internet") if f.dst == "internet"]
    assert [(f.src, f.kind, f.bytes) for f in found] == [("a", "internet", 5)]


def test_state_sent_to_a_peer_out_of_sync_is_scaled():
    """Usually 100 bytes/s while it calculates; in epoch 3, after b fell out of sync in 2, 4000 more."""
    scales = Scales(bytes=100, samples=10)
    records = [epoch(name, k, 12.0 * (k - 1)) for name in "ab" for k in (1, 2, 3, 4)]
    why = "out of sync: own gradients dropped, state loaded from a peer"
    records = [replace(r, dropped=why) if (r.vm, r.epoch) == ("b", 2) else r for r in records]
    study = full_scale_epochs(swarm_epochs(records, 0), scales, None)
    sent = [egress("a", k, "10.0.0.2", "calc", 10, 5000 if k == 3 else 1000) for k in (1, 2, 3, 4)]
    (row,) = traffic(flows(sent, ADDRESSES, LOCATIONS), study, scales, ["a", "b"])
    assert row.bytes == pytest.approx(4 * 100 * 102 + 4000 * 100)
