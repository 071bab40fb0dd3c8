"""The report on a profile of each sample: its figures' numbers, and what is left out without times or prices."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from analysis.pipeline.offload.compare import compare_by_cores, compare_policies
from analysis.pipeline.offload.pass_time import BILL_WORDS, Machines, Prices
from analysis.pipeline.offload.passes import Caches
from analysis.pipeline.offload.sample_profile import SampleProfile
from analysis.report.pipeline.build import build
from analysis.report.pipeline.parts import OffloadPart, Parts

MACHINES = Machines(0.01, 8e6, 4, 1)
PRICES = Prices(1.0, 1e-6, 2e-7, 3e-7, 0.5)


def profile(*, timed: bool = True) -> SampleProfile:
    """Three samples, two of which shrink; one of these needs no CPU time."""
    return SampleProfile(
        ["a", "b", "c"],
        ("decode", "crop"),
        np.array([3e5, 9e4, 5e5]),
        np.array([[2.4e6, 1.5e5], [2.4e6, 1.5e5], [4e5, 1.5e5]]),
        np.array([[0.016, 0.002], [0.008, 0.002], [0.0, 0.0]]) if timed else None,
    )


def page(
    folder: Path, *, timed: bool = True, prices: Prices | None = PRICES, caches: Caches = Caches()
) -> Path:
    """Build the report."""
    own = profile(timed=timed)
    settings = {"prices": prices, "caches": caches}
    part = OffloadPart(
        own,
        "8 Mb/s & a trainer.",
        2.0,
        compare_policies(own, MACHINES, **settings),
        compare_by_cores(own, MACHINES, 8, **settings) if timed else {},
    )
    return build(Parts("sizes", offload=part, missing=("It lacks <times>.",)), folder)


def rows(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of a figure's CSV, whose PNG and SVG must be there."""
    for kind in ("png", "svg"):
        assert (page.parent / f"{name}.{kind}").stat().st_size > 1000
    with (page.parent / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_all_figures(tmp_path: Path):
    made = page(tmp_path / "report")
    assert [(row["op"], row["smaller"], row["smallest"]) for row in rows(made, "shrinking")] == [
        ("decode", "1", "0"),
        ("crop", "2", "2"),
    ]
    first, second = rows(made, "benefit")
    assert (first["sample"], first["mb_per_cpu_s"]) == ("c", ""), "no CPU time is needed"
    assert (second["sample"], float(second["saved_bytes"])) == ("a", 1.5e5)
    assert float(second["mb_per_cpu_s"]) == pytest.approx(0.15 / (2 * 0.018))
    found = {row["policy"]: row for row in rows(made, "policies")}
    assert list(found) == ["none", "all", "prefix:2", "fastflow", "greedy", "best"]
    assert float(found["none"]["epoch_s"]) == pytest.approx(0.89)
    assert float(found["greedy"]["sent_gb"]) == pytest.approx(3.9e-4)
    by_cores = {(row["cores"], row["policy"]): row["epoch_s"] for row in rows(made, "cores")}
    assert len(by_cores) == 9 * 6
    assert by_cores["0", "all"] == ""
    assert float(by_cores["0", "best"]) == float(by_cores["0", "none"]) == pytest.approx(0.89)
    assert by_cores["1", "greedy"] == found["greedy"]["epoch_s"]
    for row in rows(made, "bill"):
        assert sum(float(row[part]) for part in BILL_WORDS) == pytest.approx(float(row["usd_per_1m"]))
        used = row["strategy"] != "none"
        assert (float(row["server"]) > 0, float(row["store_to_client"]) > 0) == (used, not used)
    text = made.read_text()
    for words in (
        "A profile of 3 samples.",
        "8 Mb/s &amp; a trainer.",
        "66.7 %",
        "It lacks &lt;times&gt;.",
        "The bill",
    ):
        assert words in text
    assert "Nothing was measured" not in text


def test_means_with_caches(tmp_path: Path):
    made = page(tmp_path / "report", caches=Caches(4, 4e5, 3e5))
    found = {row["policy"]: row for row in rows(made, "policies")}
    assert found["none"]["client_cached"] == "2"
    assert float(found["none"]["sent_gb"]) == pytest.approx((8.9e5 + 3 * 5e5) / 4 / 1e9)
    for row in rows(made, "bill"):
        assert sum(float(row[part]) for part in BILL_WORDS) == pytest.approx(float(row["usd_per_1m"]))


def test_without_times_and_prices(tmp_path: Path):
    made = page(tmp_path / "report", timed=False, prices=None)
    assert {path.stem for path in made.parent.glob("*.csv")} == {"shrinking", "policies"}
    found = {row["policy"]: row for row in rows(made, "policies")}
    assert (found["best"]["epoch_s"], found["best"]["sent_gb"]) == ("", "")
    assert float(found["all"]["sent_gb"]) == pytest.approx(4.5e-4)
    again = page(made.parent, prices=None)
    assert {path.stem for path in again.parent.glob("*.csv")} == {"shrinking", "benefit", "policies", "cores"}
    assert {path.stem for path in page(made.parent, timed=False).parent.glob("*.csv")} == {
        "shrinking",
        "policies",
    }


def test_samples_that_all_grow(tmp_path: Path):
    own = SampleProfile(["a"], ("decode",), np.array([10.0]), np.array([[20.0]]), np.array([[0.1]]))
    compared = compare_policies(own, MACHINES, prefix_ops=1)
    part = OffloadPart(own, "", 1.0, compared, compare_by_cores(own, MACHINES, 1, prefix_ops=1))
    made = build(Parts("grown", offload=part), tmp_path / "report")
    assert rows(made, "benefit") == []
    assert "0.0 %" in made.read_text()
