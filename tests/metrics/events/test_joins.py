"""What a join took and cost, and who sees it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import content
from analysis.report.build import build
from metrics import tables
from metrics.epochs.scaling import Scales
from metrics.events.joins import join_costs
from metrics.records import JoinRecord, VmRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore

PER_GB = {("gcp/us-central1", "gcp/europe-west1"): Decimal("0.05")}


def price(src: str, dst: str, size: int) -> Decimal | None:
    usd = PER_GB.get((src, dst))
    return None if usd is None else usd * size / 1_000_000_000


def vm(slot: str, location: str) -> VmRecord:
    return VmRecord(
        vm=f"r-{slot}-0",
        slot=slot,
        generation=0,
        location=location,
        accelerator="T4:1",
        use_spot=True,
        instance="n1",
        requested_s=0.0,
        ready_s=1.0,
        ended_s=100.0,
        end_cause="",
        usd_per_h=Decimal("0.36"),
        price_source="x",
        address="10.0.0.1",
    )


VMS = [vm("a", "gcp/us-central1"), vm("b", "gcp/europe-west1"), vm("c", "gcp/asia-east1")]
JOIN = JoinRecord("r-b-0", 50.0, 3.0, 20_000_000, 4, "r-a-0", 2)
FIRST = JoinRecord("r-a-0", 10.0, 0.0, 0, 0, "", 0)


def test_join_is_priced_from_its_donor_s_location_at_full_scale() -> None:
    (row,) = join_costs([JOIN, FIRST], VMS, Scales(time=2.0, bytes=100.0), price)
    assert (row.slot, row.donor, row.donor_location) == ("b", "a", "gcp/us-central1")
    assert (row.seconds, row.bytes, row.resumed, row.from_epoch) == (6.0, 2e9, 2, 4)
    assert row.usd == Decimal("0.1")


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"donor": None}, {"donor", "donor_location", "usd"}),
        ({"donor": "somebody"}, {"donor", "donor_location", "usd"}),
        ({"state_bytes": None}, {"bytes", "usd"}),
        ({"donor": "r-c-0"}, {"usd"}),  # no price from there
        ({"resumed": None}, {"resumed"}),
    ],
)
def test_unknown_values_stay_unknown(change: dict[str, object], unknown: set[str]) -> None:
    (row,) = join_costs([replace(JOIN, **change)], VMS, Scales(), price)  # type: ignore[arg-type]
    assert {
        name for name in ("donor", "donor_location", "bytes", "resumed", "usd") if getattr(row, name) is None
    } == (unknown)


@given(st.integers(0, 10**12), st.integers(1, 400), st.floats(0.0, 1e6))
def test_more_bytes_never_cost_less(size: int, scale: int, seconds: float) -> None:
    scales = Scales(bytes=float(scale))
    rows = [
        join_costs([replace(JOIN, state_bytes=n, state_s=seconds + 1.0)], VMS, scales, price)[0]
        for n in (size, size + 1)
    ]
    usd = [row.usd for row in rows]
    assert usd[0] is not None
    assert usd[1] is not None
    assert usd[0] <= usd[1]


def test_the_report_has_a_line_for_each_join(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        meta = {
            "run_id": "r", "experiment": {"name": "x"}, "status": "done", "emulated": False, "target": "sky",
            "started_s": 0.0, "ended_s": 120.0, "warmup_epochs": 1, "warnings": [],
        }  # fmt: skip
        for key, value in meta.items():
            store.set_meta(key, value)
        for row in VMS:
            store.upsert_vm(row)
        store.append("joins", [JOIN, FIRST])
    with RunStore.open_reader(tmp_path / "run.db") as store:
        rows = tables.joins(RunNumbers.of(store))
    assert [(row["slot"], row["bytes"], row["usd"]) for row in rows] == [("b", 20_000_000, None)]
    assert content.join_table(rows) == [
        {"slot": "b", "from": "a", "epoch": 4, "state s": "3", "state": "20 MB", "resumed after an interruption": 2,
         "cost": "unknown"}
    ]  # fmt: skip
    page = build(tmp_path).read_text()
    assert "Joins" in page
    assert (tmp_path / "report" / "joins.csv").read_text().splitlines()[1].startswith("r-b-0,b,")
