"""Multiplying back: identity, linearity, and a second implementation of the formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, random_run

from metrics.epochs.granularity import calculation, communication
from metrics.epochs.scaling import (
    PACKET_PER_LOAD,
    PhaseBytes,
    Scales,
    calculation_factor,
    counted_bytes,
    full_scale_bytes,
    full_scale_epochs,
    full_scale_ingress_bytes,
    full_scale_seconds,
    vm_epoch_seconds,
)
from metrics.epochs.throughput import swarm_epochs, throughput

_SIZES = st.floats(0, 1e12)
_SECONDS = st.floats(0.01, 1e4)


@given(st.integers(0, 10_000), st.one_of(st.none(), st.integers(1, 2000)))
def test_scales_of_one_change_nothing(seed, target):
    raw = swarm_epochs(random_run(seed), 1)
    for before, after in zip(raw, full_scale_epochs(raw, Scales(), target), strict=True):
        assert after.epoch == before.epoch
        if before.duration_s is None:
            assert after.duration_s is None
        else:
            assert after.duration_s == pytest.approx(before.duration_s, rel=1e-12)
        for p, q in zip(before.peers, after.peers, strict=True):
            assert (q.calc_s, q.comm_s, q.samples) == pytest.approx(
                (p.calc_s, p.comm_s, p.samples), rel=1e-12
            )


@given(_SIZES, _SECONDS, _SIZES, _SECONDS, st.booleans())
def test_bytes_at_scales_of_one_are_the_measured_ones(calc_bytes, calc_s, comm_bytes, comm_s, averages):
    found = full_scale_bytes(calc_bytes, calc_s, comm_bytes, comm_s, calc_s + comm_s, Scales(), averages)
    assert found == pytest.approx(calc_bytes + comm_bytes, rel=1e-9, abs=1e-3 + calc_bytes * 1e-6)


def test_full_scale_of_a_run_of_the_paper_by_hand():
    # TBS 32768 / 32 = 1024; 1056 samples were taken: 32 too many, which stay 32.
    records = [epoch(v, k, (k - 1) * 34.0, 16.5, 17.5, samples=528) for v in "ab" for k in (1, 2, 3)]
    study = full_scale_epochs(swarm_epochs(records, 1), Scales(bytes=100, samples=32), 1024)
    calc = 16.5 * 1024 / 1056 * 32 + 16.5 * (1 - 1024 / 1056)
    assert study[1].peers[0].calc_s == pytest.approx(calc)
    assert study[1].peers[0].comm_s == 17.5
    assert study[1].samples == pytest.approx(32768 + 32)
    assert study[1].duration_s == pytest.approx(calc + 17.5)
    found = throughput(study)
    assert found is not None
    assert found.value == pytest.approx((32768 + 32) / (calc + 17.5))


@given(st.floats(1, 100), st.floats(1, 100), st.floats(1, 5000), st.integers(1, 5000))
def test_the_factor_is_linear_in_the_samples_scale(m, k, samples, target):
    one = calculation_factor(samples, target, m)
    two = calculation_factor(samples, target, m + k)
    share = min(1.0, target / samples)
    assert two - one == pytest.approx(k * share, rel=1e-9, abs=1e-9)


@given(st.floats(1, 1e3), _SIZES, st.floats(0.1, 1e3))
def test_averaging_bytes_are_linear_in_the_bytes_scale(scale, averaged, comm_s):
    found = full_scale_bytes(0, 10, averaged, comm_s, 10 + comm_s, Scales(bytes=scale), averages=True)
    assert found == pytest.approx(averaged * scale, rel=1e-9)


def test_control_traffic_keeps_its_rate_and_store_traffic_is_not_scaled():
    # 100 B/s of control traffic for 20 s of calculation; the step of 10 s sent 1000 of it and 5000 of parts.
    scales = Scales(bytes=100, samples=10)
    assert full_scale_bytes(2000, 20, 6000, 10, 210, scales, averages=True) == 5000 * 100 + 100 * 210
    assert full_scale_bytes(2000, 20, 6000, 10, 210, scales, averages=False) == 5000 + 100 * 210


def test_time_scale_multiplies_every_second_and_no_byte_of_a_peer():
    raw = swarm_epochs([epoch("a", 1, 0, 10, 2), epoch("a", 2, 12, 10, 2)], 0)
    study = full_scale_epochs(raw, Scales(time=3), None)
    assert [e.duration_s for e in study] == [36.0, 36.0]
    assert full_scale_bytes(1000, 10, 500, 2, 36, Scales(time=3), averages=True) == pytest.approx(1500)
    assert full_scale_seconds(30, vm_epoch_seconds(raw, study)["a"], Scales(time=3)) == pytest.approx(90)


def test_seconds_outside_epochs_stay():
    raw = swarm_epochs([epoch("a", k, 50 + 12 * k, 10, 2) for k in (1, 2)], 0)
    study = full_scale_epochs(raw, Scales(samples=30), None)
    assert (
        full_scale_seconds(100, vm_epoch_seconds(raw, study)["a"], Scales(samples=30)) == 100 - 24 + 2 * 302
    )


def test_ingress():
    assert full_scale_ingress_bytes(77, 1000, None, Scales()) == 77
    assert full_scale_ingress_bytes(77, 1000, 124_000, Scales(samples=8)) == 124e6
    assert full_scale_ingress_bytes(77, 1000, None, Scales(bytes=8)) is None


@pytest.mark.parametrize("name", ["bytes", "time", "samples"])
def test_a_scale_is_positive(name):
    with pytest.raises(ValueError, match=f"{name} scale"):
        Scales(**{name: 0})


@given(st.integers(0, 10_000), st.integers(1, 1500), st.floats(1, 64), st.floats(1, 4))
def test_agrees_with_a_second_implementation(seed, target, m, c):
    records = random_run(seed)
    raw = swarm_epochs(records, 0)
    study = full_scale_epochs(raw, Scales(time=c, samples=m), target)
    for e, s in zip(raw, study, strict=True):
        mine = [r for r in records if r.epoch == e.epoch]
        total = sum(r.samples for r in mine)
        calc = {}
        for r in mine:
            if total > target:
                calc[r.vm] = c * (r.calc_s * target / total * m + r.calc_s * (1 - target / total))
            else:
                calc[r.vm] = c * r.calc_s * m
        assert {p.vm: p.calc_s for p in s.peers} == pytest.approx(calc, rel=1e-9)
        overshoot = max(0, total - target)
        assert s.samples == pytest.approx((total - overshoot) * m + overshoot, rel=1e-9)
        if e.duration_s is not None:
            there = [r for r in mine if r.vm not in e.joined] or mine
            grown = sum(calc[r.vm] - c * r.calc_s for r in there) / len(there)
            assert s.duration_s == pytest.approx(e.duration_s * c + grown, rel=1e-9, abs=1e-9)
    if calculation(study) is not None:
        assert communication(study).value == pytest.approx(communication(raw).value * c)
        assert math.isfinite(calculation(study).value)


_RATE = st.floats(0, 1e6)


@given(_RATE, _SECONDS, _SECONDS, _SIZES, _SIZES)
def test_counted_bytes_are_unchanged_at_scales_of_one(rate, calc_s, settling_s, in_round, model):
    load = model * PACKET_PER_LOAD
    sent = PhaseBytes(rate * calc_s, calc_s, rate * settling_s, settling_s, in_round + load, model)
    found = counted_bytes(sent, calc_s + settling_s, Scales())
    assert found == pytest.approx(sent.bytes, rel=1e-9, abs=1e-3)


@given(
    _RATE, st.floats(1, 1e3), st.just(0.0) | st.floats(1e-6, 100), _SIZES, st.floats(1, 1e9), st.floats(0, 1),
    st.floats(1, 1e3), st.floats(1, 64), st.floats(1, 4),
)  # fmt: skip
def test_payload_scales_with_bytes_and_the_rest_with_calculation(
    rate, calc_s, settling_s, in_round, model, late_share, s, m, c
):
    """Known traffic: reports at a rate while calculating, something else in the round, parts partly served after it."""
    load = model * PACKET_PER_LOAD
    settling = rate * settling_s + late_share * load
    sent = PhaseBytes(rate * calc_s, calc_s, settling, settling_s, in_round + (1 - late_share) * load, model)
    study_calc_s = (calc_s + settling_s) * m * c
    found = counted_bytes(sent, study_calc_s, Scales(bytes=s, samples=m, time=c))
    assert found == pytest.approx(load * s + rate / c * study_calc_s + in_round, rel=1e-9, abs=1e-2)


@given(_SIZES, _SIZES, st.floats(1, 1e3))
def test_a_state_sent_while_others_calculate_is_no_control_traffic(control, state, s):
    sent = PhaseBytes(control + state * PACKET_PER_LOAD, 10.0, 0.0, 0.0, 0.0, state)
    found = counted_bytes(sent, 100.0, Scales(bytes=s, samples=10))
    assert found == pytest.approx(state * PACKET_PER_LOAD * s + control * 10, rel=1e-9, abs=1e-2)


@given(_SIZES, _SIZES)
def test_payload_count_above_the_kernel_s_bytes_is_accepted(model, sent_bytes):
    sent = PhaseBytes(0.0, 10.0, 0.0, 0.0, sent_bytes, model)
    assert counted_bytes(sent, 100.0, Scales(bytes=50)) >= model * PACKET_PER_LOAD * 50


def test_matchmaking_traffic_is_counted_once_per_epoch():
    """A-2 CV at 1/100, 1/32: 58 kB to the other peer in the first half of the calculation, 454 kB in the second."""
    model = 3_955_346
    sent = PhaseBytes(453_837, 7.226, 58_420, 7.214, 4_253_418, model)
    found = counted_bytes(sent, 462.1, Scales(bytes=100, samples=32))
    reports = 58_420 / 7.214 * 462.1
    once = sent.bytes - model * PACKET_PER_LOAD - 58_420 / 7.214 * (7.226 + 7.214)
    assert found == pytest.approx(model * PACKET_PER_LOAD * 100 + reports + once)
    assert found / 1e9 == pytest.approx(0.414, abs=0.001)  # published: 0.40


def test_control_rate_subtracts_too_much_at_eight_peers():
    """One pair of A-8 CV at 1/100: 0.99 MB averaged in 12 s; 8.5 kB/s of reports, which pause in the round."""
    parameters, peers = 197_767_336, 8
    model = 2 * parameters * 2 / peers / 100
    sent = PhaseBytes(8_500 * 14.4, 14.4, 0.0, 0.0, model * PACKET_PER_LOAD, model)
    scales, study_calc_s = Scales(bytes=100, samples=8), 115.2
    truth = model * 100 * PACKET_PER_LOAD + 8_500 * study_calc_s
    assert counted_bytes(sent, study_calc_s, scales) == pytest.approx(truth)
    by_rate = full_scale_bytes(
        sent.calc_bytes, 14.4, sent.comm_bytes, 12.0, study_calc_s + 12.0, scales, True
    )
    assert by_rate / truth - 1 == pytest.approx(-0.10, abs=0.01)
