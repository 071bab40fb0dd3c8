"""The published sizes with assumed times give the known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_samples import write_times

from analysis.pipeline.offload.choices import Codec
from analysis.pipeline.offload.compare import (
    PolicyRow,
    compare_policies,
    least_bytes,
    shrinking,
    shrinking_by_op,
)
from analysis.pipeline.offload.pass_time import Machines, Prices
from analysis.pipeline.offload.sample_profile import SampleProfile
from analysis.pipeline.offload.sophon_file import read_sophon

SLOW = Codec("slow", 2, 0.392, 0.048, 0.0012)
USD_PER_GIB = 0.08


@pytest.fixture
def openimages(sophon_sizes: Path, tmp_path: Path) -> SampleProfile:
    """The published sizes, with times."""
    write_times(sophon_sizes, tmp_path / "times.csv")
    return read_sophon(sophon_sizes, tmp_path / "times.csv")


def rows(profile: SampleProfile, cores: float, **options: object) -> dict[str, PolicyRow]:
    return {row.policy: row for row in compare_policies(profile, Machines(20, 430e6, 48, cores), **options)}


def epoch_s(row: PolicyRow) -> float:
    assert row.found is not None
    return row.found.seconds


def test_traffic(openimages: SampleProfile):
    assert shrinking(openimages) == 15_017
    assert shrinking_by_op(openimages)["RandomResizedCrop"] == 15_017
    found = rows(openimages, 1)
    raw = found["none"].sent_bytes
    assert raw is not None
    assert (found["all"].sent_bytes or 0) / raw == pytest.approx(1.8926, abs=5e-5)
    assert raw / (found["prefix:2"].sent_bytes or 1) == pytest.approx(2.1135, abs=5e-5)
    assert raw / least_bytes(openimages) == pytest.approx(2.2921, abs=5e-5)


def test_one_and_three_cores(openimages: SampleProfile):
    one, three = rows(openimages, 1), rows(openimages, 3)
    assert epoch_s(one["none"]) == pytest.approx(118.38, abs=5e-3)
    assert (epoch_s(one["greedy"]), one["greedy"].offloaded) == (pytest.approx(76.69, abs=5e-3), 4411)
    assert epoch_s(one["prefix:2"]) == pytest.approx(347.47, abs=5e-3)
    assert (epoch_s(three["greedy"]), three["greedy"].offloaded) == (pytest.approx(56.76, abs=5e-3), 9789)
    assert epoch_s(three["prefix:2"]) == pytest.approx(115.82, abs=5e-3)
    for found in (one, three):
        assert found["fastflow"].offloaded == 0
        assert found["best"].bound_s is not None
        assert epoch_s(found["best"]) <= min(epoch_s(row) for row in found.values())
        assert epoch_s(found["best"]) <= found["best"].bound_s * 1.001
        assert (found["greedy"].verdict, found["all"].verdict, found["fastflow"].verdict) == (
            "pays",
            "does_not",
            "no_difference",
        )


@pytest.mark.parametrize(("cores", "greedy_s", "best_s"), [(1, 96.1, 76.7), (2, 84.4, 63.6)])
def test_a_slow_codec_misleads_greedy_and_not_best(
    openimages: SampleProfile, cores: float, greedy_s: float, best_s: float
):
    found = rows(openimages, cores, codecs=[SLOW])
    assert epoch_s(found["greedy"]) == pytest.approx(greedy_s, abs=0.05)
    assert epoch_s(found["best"]) == pytest.approx(best_s, abs=0.05)


def test_dollars_decide(openimages: SampleProfile):
    """From a bucket at Google to Europe the least bytes pay; through a server with billed egress, from B2, nothing does."""
    by_byte = USD_PER_GIB / 2**30
    beside = rows(openimages, 8, aim="usd", prices=Prices(0.0, by_byte, 0.0, by_byte))
    assert beside["none"].usd_per_1m == pytest.approx(23.70, abs=5e-3)
    assert beside["best"].usd_per_1m == pytest.approx(10.34, abs=5e-3)
    assert (beside["best"].verdict, beside["best"].offloaded) == ("pays", 15_017)
    assert beside["best"].bound_s is None
    b2 = rows(openimages, 8, aim="usd", prices=Prices(0.0, 0.01e-9, 0.01e-9, by_byte))
    assert b2["none"].usd_per_1m == pytest.approx(3.18, abs=5e-3)
    assert (b2["best"].verdict, b2["best"].offloaded) == ("no_difference", 0)
    assert (b2["greedy"].usd_per_1m or 0) == pytest.approx(4.25 * 3.18, rel=0.01)
    assert b2["greedy"].verdict == "does_not"


def test_without_times_only_traffic_is_known(sophon_sizes: Path):
    found = rows(read_sophon(sophon_sizes), 1)
    assert found["all"].net_s == pytest.approx(118.378 * 1.8926, rel=1e-4)
    for name, row in found.items():
        shown = row.to_json()
        assert shown["epoch_s"] is shown["t_cc_s"] is shown["storage_cpu_s"] is None
        assert (shown["bytes"] is None) == (name in ("fastflow", "greedy", "best"))
        assert "--times" in row.why


def test_nothing_to_pay_is_not_dear(openimages: SampleProfile):
    free = rows(openimages, 1, aim="usd", prices=Prices(0.0, 0.0, 0.0, 1e-10))
    assert (free["none"].usd_per_1m, free["best"].offloaded, free["all"].verdict) == (0.0, 0, "does_not")
    paid = rows(openimages, 1, aim="usd", prices=Prices(0.0, 1e-10, 0.0, 0.0))
    assert (paid["all"].usd_per_1m, paid["all"].verdict, paid["best"].usd_per_1m) == (0.0, "pays", 0.0)


def test_no_storage_cores(openimages: SampleProfile):
    found = rows(openimages, 0)
    assert (found["best"].offloaded, found["best"].verdict) == (0, "no_difference")
    assert found["all"].to_json()["epoch_s"] is None
    assert "the storage has no core" in found["all"].why
