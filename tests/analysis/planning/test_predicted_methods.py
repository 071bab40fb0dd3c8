"""Predictions of averaging methods and tuned kernels: identities, limits, bytes of the records, and what was measured."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.epoch_time import epoch_s, epochs_s
from analysis.planning.method_assumptions import AVERAGING, OVERLAP, ROUNDS, TUNING
from analysis.planning.prediction import as_json, inputs_of, predict
from analysis.planning.round_time import expected_spell_s, limits, longest_round_trip_s, transfer
from analysis.planning.sent_bytes import whole_packets
from benchmarks.options_accuracy import errors, expected, gain, measured, predicted
from cloud.networks import NO_PATH_MODEL, Network, Path, PathModel, path_model
from cloud.networks.tuning import tuned, window_factor
from cloud.prices.book import load as load_book
from experiments.averaging.flat import FLAT
from experiments.averaging.hierarchical import HIERARCHICAL
from experiments.averaging.methods import OVERLAPS, compression_of
from experiments.averaging.overlap import BLOCKING, DELAYED
from experiments.averaging.records import Exchange
from experiments.parse import load

NETWORK = Network.load("study-2023-04")
STUDY = path_model("study")
US, EU, ASIA, AUS = (
    "gcp/us-central1/us-central1-a",
    "gcp/europe-west1/europe-west1-b",
    "gcp/asia-east1/asia-east1-a",
    "gcp/australia-southeast1/australia-southeast1-a",
)
PEERS = st.lists(st.sampled_from([US, EU, ASIA, AUS]), min_size=2, max_size=8)
PATHS = st.builds(Path, rtt_s=st.floats(0.001, 0.4), stream_bps=st.floats(1e6, 1e10), source=st.just("test"))


# network_tuning


def test_default_tuning_changes_no_path_model():
    assert tuned(STUDY, "default") is STUDY
    assert predict(load("geo-c8", shipped=True)) == predict(
        load("geo-c8", ["network_tuning=default"], shipped=True)
    )


@given(PATHS, st.integers(1, 15), st.sampled_from([STUDY, path_model("study-calm"), NO_PATH_MODEL]))
def test_a_wider_window_is_never_slower(path: Path, streams: int, model: PathModel):
    assert tuned(model, "wan").stream_bps(path, streams) >= model.stream_bps(path, streams)


def test_a_tuned_stream_carries_the_emulations_window_a_round_trip():
    path = NETWORK.path(EU, AUS)
    assert path.rtt_s > 0.2
    window_bytes = STUDY.window_bytes * window_factor("wan")
    assert window_bytes == pytest.approx(30.8e6, rel=0.01)
    got = tuned(STUDY, "wan").stream_bps(path, 7)
    assert got == pytest.approx(window_bytes * 8 / (path.rtt_s + 6 * STUDY.hold_s))


def test_what_limits_a_path_besides_the_window_limits_it_tuned_too():
    slow = Path(0.1, 50e6, "a slow link: 0.6 MB a round trip")
    assert tuned(STUDY, "wan").stream_bps(slow) == STUDY.stream_bps(slow) == 50e6


def test_distance_costs_nothing_with_wide_windows_where_the_vm_is_the_limit():
    near, far = (predict(load(name, ["network_tuning=wan"], shipped=True)) for name in ("geo-a8", "geo-c8"))
    assert near.sps is not None
    assert far.sps is not None
    assert far.sps.value == pytest.approx(near.sps.value)
    assert inputs_of(load("geo-c8", ["network_tuning=wan"], shipped=True))[0].transfer().limit == "vm"


# overlap


@given(
    calc_s=st.floats(0.1, 1e4), hidden_s=st.floats(0.01, 1e3), work_s=st.floats(0, 10), step_s=st.floats(0, 5)
)
def test_overlap_is_never_slower_than_waiting_and_never_faster_than_either(
    calc_s: float, hidden_s: float, work_s: float, step_s: float
):
    comm_s = hidden_s + work_s
    blocking = epoch_s(BLOCKING, calc_s, comm_s, work_s, step_s)
    assert blocking == calc_s + comm_s
    for one in OVERLAPS:
        found = epoch_s(one, calc_s, comm_s, work_s, step_s)
        assert found <= blocking * (1 + 1e-12)
        assert found >= max(calc_s + work_s, comm_s) * (1 - 1e-12)


def test_simulated_epochs_are_single_epochs():
    calc, comm = np.array([10.0, 20.0, 3.0]), np.array([15.0, 4.0, 3.0])
    for one in OVERLAPS:
        found = epochs_s(one, calc, comm, 2.0, 0.5)
        assert found.tolist() == [
            epoch_s(one, c, m, 2.0, 0.5) for c, m in zip(calc.tolist(), comm.tolist(), strict=True)
        ]


def test_an_overlapped_epoch_by_hand():
    # The round without the VM's own 2 s takes 13 s, longer than 10 s of calculation; its last step follows.
    assert epoch_s(DELAYED, 10.0, 15.0, 2.0, 0.5) == pytest.approx(13 + 0.5 + 2)
    # 40 s of calculation hide it, but for the VM's own work.
    assert epoch_s(DELAYED, 40.0, 15.0, 2.0, 0.5) == pytest.approx(40 + 2)


def test_an_overlapped_prediction_has_its_own_epoch_and_the_same_round():
    blocking, delayed = (
        predict(load("geo-c8-nlp", changes, shipped=True)) for changes in ([], ["swarm.overlap=delayed"])
    )
    assert delayed.comm_s == blocking.comm_s
    assert delayed.calc_s == blocking.calc_s
    assert delayed.egress == blocking.egress
    assert delayed.sps is not None
    assert blocking.sps is not None
    assert delayed.epoch_s is not None
    assert delayed.sps.value > blocking.sps.value
    assert delayed.sps.value == pytest.approx(32768 / delayed.epoch_s.value)
    assert delayed.sps.low < delayed.sps.value < delayed.sps.high


# hierarchical averaging


@given(st.sampled_from([US, EU]), st.integers(2, 8), st.floats(1e6, 1e10))
def test_in_one_region_it_is_flat(place: str, peers: int, gradient_bytes: float):
    flat, two = (
        transfer([place] * peers, gradient_bytes, NETWORK, STUDY, 1.1e9, exchange)
        for exchange in (FLAT, HIERARCHICAL)
    )
    assert flat == two


def test_with_one_peer_a_region_it_is_flat():
    places = [US, EU, ASIA, AUS]
    flat, two = (transfer(places, 1e9, NETWORK, STUDY, 1.1e9, exchange) for exchange in (FLAT, HIERARCHICAL))
    assert flat == two
    changes = ["swarm.averaging=hierarchical"]
    a, b = (predict(load("geo-c4", more, shipped=True), load_book("study-2023-04")) for more in ([], changes))
    assert (a.sps, a.comm_s, a.egress, a.egress_usd_per_epoch) == (
        b.sps,
        b.comm_s,
        b.egress,
        b.egress_usd_per_epoch,
    )


def test_c8_hierarchically_by_hand():
    # Two peers a region: a shard is half a gradient. Representatives exchange 2 / (2 x 4) with three others, and with the
    # other peer of their region a whole gradient each way. Four streams a VM instead of seven.
    places = [place for place in (US, EU, ASIA, AUS) for _ in range(2)]
    found = transfer(places, 1e9, NETWORK, path_model("study-calm"), 1e12, HIERARCHICAL)
    slowest = max(NETWORK.path(a, b).rtt_s for a in places for b in places if a != b)
    assert found.seconds == pytest.approx(
        0.25 * 8e9 / (STUDY.window_bytes * 8 / (slowest + 3 * STUDY.hold_s))
    )
    limited = transfer(places, 1e9, NETWORK, STUDY, 1e8, HIERARCHICAL)
    assert limited.limit == "vm"
    assert limited.seconds == pytest.approx(1.75 * 8e9 * 1500 / 1448 / 1e8)
    assert limited.seconds == pytest.approx(transfer(places, 1e9, NETWORK, STUDY, 1e8, FLAT).seconds)


@given(PEERS, st.sampled_from([FLAT, HIERARCHICAL]), st.sampled_from([STUDY, tuned(STUDY, "wan")]))
def test_limits_give_the_transfer(places: list[str], exchange: Exchange, model: PathModel):
    found = transfer(places, 1e8, NETWORK, model, 1.1e9, exchange)
    assert limits(places, 1e8, NETWORK, exchange).seconds(model, 1.1e9) == found.seconds
    assert expected_spell_s(found, model) >= 0


@given(PEERS, st.sampled_from([FLAT, HIERARCHICAL]), st.floats(1.0, 50.0))
def test_a_faster_network_or_vm_is_never_slower(places: list[str], exchange: Exchange, factor: float):
    calm = path_model("study-calm")
    usual = transfer(places, 1e8, NETWORK, calm, 1.1e9, exchange).seconds
    assert transfer(places, 1e8, NETWORK, calm, 1.1e9 * factor, exchange).seconds <= usual
    faster = replace(calm, window_factor=factor)
    assert transfer(places, 1e8, NETWORK, faster, 1.1e9, exchange).seconds <= usual
    assert transfer(places, 2e8, NETWORK, calm, 1.1e9, exchange).seconds == pytest.approx(2 * usual)


def test_hierarchical_egress_differs_by_pair_and_is_priced_by_pair():
    book = load_book("study-2023-04")
    flat, two = (
        predict(load("geo-c8-nlp", changes, shipped=True), book)
        for changes in ([], ["swarm.averaging=hierarchical"])
    )
    assert flat.egress is not None
    assert two.egress is not None
    inputs, _ = inputs_of(load("geo-c8-nlp", ["swarm.averaging=hierarchical"], shipped=True))
    control = inputs.control_bytes(8, inputs.step_samples, inputs.tbs / sum(inputs.rates_sps))
    gradient = 560_142_482 * 2 * whole_packets()
    amounts = sorted({round(pair.bytes_per_epoch) for pair in two.egress})
    assert amounts == pytest.approx([control, gradient / 4 + control, gradient + control], abs=1)
    between = [sum(p.bytes_per_epoch for p in e if p.src[:2] != p.dst[:2]) for e in (flat.egress, two.egress)]
    pairs = 8 * 6  # of two regions
    assert (between[1] - pairs * control) / (between[0] - pairs * control) == pytest.approx(0.5)
    for pair in two.egress:
        src, dst = (
            next(place for key, place in zip(("us", "eu", "asia", "aus"), (US, EU, ASIA, AUS), strict=True)
                 if name.rpartition("-")[0] == key)
            for name in (pair.src, pair.dst)
        )  # fmt: skip
        priced = book.egress(src, dst, round(pair.bytes_per_epoch))
        assert priced is not None
        assert pair.usd_per_epoch is not None
        assert abs(pair.usd_per_epoch - priced) < Decimal("1e-20")
    assert two.egress_usd_per_epoch is not None
    assert flat.egress_usd_per_epoch is not None
    assert two.egress_usd_per_epoch < flat.egress_usd_per_epoch


# PowerSGD


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_powersgd_sends_the_bytes_of_its_record_in_two_all_reduces(rank: int):
    spec = load("geo-c8-nlp", [f"swarm.compression=powersgd:{rank}"], shipped=True)
    p = predict(spec)
    compression = compression_of(f"powersgd:{rank}")
    sent = compression.gradient_bytes("RoBERTaXLM", 560_142_482)
    assert p.egress is not None
    inputs, _ = inputs_of(spec)
    control = 8 * 7 * inputs.control_bytes(8, inputs.step_samples, inputs.tbs / sum(inputs.rates_sps))
    total = sum(pair.bytes_per_epoch for pair in p.egress)
    assert total == pytest.approx(2 * 7 * sent * whole_packets() + control)
    # As flat averaging of so many bytes, and once more the longest round trip.
    assert compression.exchanges == 2
    assert inputs.gradient_bytes == sent
    trip_s = longest_round_trip_s(inputs.locations, NETWORK)
    assert inputs.further_trips_s() == trip_s == 0.2721  # Belgium and Sydney
    one = replace(inputs, method=replace(inputs.method, compression=replace(compression, exchanges=1)))
    assert one.transfer() == inputs.transfer()
    assert one.further_trips_s() == 0


# what is assumed


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("network_tuning=wan", TUNING),
        ("swarm.overlap=delayed", OVERLAP),
        ("swarm.averaging=hierarchical", AVERAGING),
        ("swarm.compression=powersgd:4", ROUNDS),
    ],
)
def test_what_no_rented_run_has_shown_is_an_assumption(change: str, name: str):
    plain, changed = (predict(load("geo-c8", more, shipped=True)) for more in ([], [change]))
    assert name not in {a.name for a in plain.assumptions}
    (found,) = [a for a in changed.assumptions if a.name == name]
    assert found.share is None
    assert "no rented VMs yet" in found.source
    assert name in {a["name"] for a in as_json(changed)["assumptions"]}


# what was measured


def test_every_row_of_the_study_of_options_is_predicted():
    assert set(measured()) == set(predicted())
    assert len(measured()) == 25


def test_predicted_gains_of_options_are_close_to_the_measured_ones():
    """NLP delayed is left out: the 95 % interval of its measured gain is 0.6 to 4.4 (docs/study-run.md)."""
    found = {row: each for row, each in errors().items() if row != ("NLP", "delayed")}
    assert max(abs(sps) for sps, _ in found.values()) < 0.10
    assert max(abs(of) for _, of in found.values()) < 0.08


def test_predictions_meet_what_the_study_expects_but_for_one():
    found = expected()
    assert len(found) == 13
    missed = {(*one.row, one.against, one.figure) for one in found if not one.met}
    assert missed == {("NLP", "wan", "default", "sps")}  # 1.37 instead of 1.4 (docs/prediction.md)


def test_options_rank_as_measured():
    for kind in ("NLP", "CV"):
        gains = {
            row: (gain(measured(), kind, row), gain(predicted(), kind, row))
            for k, row in measured()
            if k == kind
        }
        for one, (was, is_) in gains.items():
            for other, (was_other, is_other) in gains.items():
                if was > 1.1 * was_other:
                    assert is_ > is_other, (kind, one, other)
