"""Rounds behind calculation: the seconds of an epoch stay those of the wall."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dht_entries import NOW_S, egress, epoch_record, ingress
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch

from experiments.wire.dht_records import EpochReport, RecordError, decode_epochs, encode_epochs
from metrics.epochs.granularity import calculation, communication, granularity, overlapped
from metrics.epochs.scaling import Scales, full_scale_epochs, vm_epoch_seconds
from metrics.epochs.throughput import epoch_seconds, swarm_epochs

SECONDS = st.floats(0.1, 500.0)


def hidden(vm: str, number: int, began_s: float, wall_s: float, round_s: float, exposed_s: float):
    """An epoch of `wall_s`, in which a round took `round_s`, of which the peer waited `exposed_s`."""
    return replace(epoch(vm, number, began_s, wall_s - exposed_s, exposed_s), comm_s=round_s)


@given(SECONDS, SECONDS, st.floats(0.0, 1.0))
def test_overlapped_seconds_are_counted_once(wall_s: float, share_s: float, exposed: float) -> None:
    round_s = min(wall_s, share_s)
    record = hidden("a", 1, 0.0, wall_s, round_s, exposed * round_s)
    (found,) = swarm_epochs([record], 0)
    (peer,) = found.peers
    assert math.isclose(peer.wall_s, wall_s)
    assert math.isclose(peer.overlapped_s, round_s - exposed * round_s, abs_tol=1e-9)
    raw, study = [found], full_scale_epochs([found], Scales(bytes=40), None)
    ((raw_s, study_s),) = vm_epoch_seconds(raw, study)["a"]
    assert math.isclose(raw_s, wall_s)
    assert math.isclose(study_s, wall_s)


def test_figures_of_a_run_with_overlapped_rounds() -> None:
    rows = [hidden(vm, k, 30.0 * (k - 1), 30.0, 12.0, 2.0) for vm in "ab" for k in (1, 2, 3)]
    epochs = swarm_epochs(rows, 1)
    found = [f(epochs) for f in (calculation, communication, overlapped, granularity, epoch_seconds)]
    assert [round(e.value, 6) for e in found if e is not None] == [
        28.0,
        12.0,
        10.0,
        round(28.0 / 12.0, 6),
        30.0,
    ]


def test_without_overlap_no_seconds_are_overlapped() -> None:
    assert overlapped(swarm_epochs([epoch("a", k) for k in (1, 2)], 1)) is None


def told(**changes: float) -> list[EpochReport]:
    report = EpochReport(epoch_record("a-0", 1, **changes), (egress("a-0", 1),), ingress("a-0", 1))
    return decode_epochs(encode_epochs("a", 0, 1, [report]), "a-0", "a", 0, NOW_S)[1]


def test_peer_publishes_the_overlapped_seconds() -> None:
    (report,) = told(comm_s=7.5)
    assert report.epoch.overlapped_s == pytest.approx(5.5)


@pytest.mark.parametrize("comm_s", [1.0, 14.0])
def test_impossible_round_is_rejected(comm_s: float) -> None:
    """Shorter than the peer waited for it, or longer than the epoch."""
    with pytest.raises(RecordError, match="a round of"):
        told(comm_s=comm_s)
