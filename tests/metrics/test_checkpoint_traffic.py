"""Bytes of checkpoints are a class of their own, never more than was measured."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import newest
from metrics.records import CHECKPOINT_STORED, EventRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from metrics.tables import traffic as traffic_rows
from metrics.traffic import CHECKPOINT, Flow, pair_bytes, split_checkpoints


def to_store(src: str, number: int, count: int, phase: str = "calc") -> Flow:
    return Flow(src, "store", None, None, "store", number, phase, 1.0, count)


def test_they_are_what_was_sent_after_their_epoch() -> None:
    sent = [to_store("a", 1, 50), to_store("a", 2, 500), to_store("a", 3, 300), to_store("b", 2, 70)]
    found = split_checkpoints(sent, [("a", 1, 600), ("b", 2, 10)])
    assert [(f.src, f.epoch, f.bytes) for f in found if f.kind == CHECKPOINT] == [
        ("a", 2, 500),
        ("a", 3, 100),
    ]
    assert [(f.src, f.epoch, f.bytes) for f in found if f.kind == "store"] == [
        ("a", 1, 50), ("a", 2, 0), ("a", 3, 200), ("b", 2, 70),
    ]  # fmt: skip
    last = split_checkpoints([to_store("a", 3, 900, "leaving")], [("a", 3, 800)])
    assert [(f.kind, f.bytes) for f in last] == [("store", 100), (CHECKPOINT, 800)]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.integers(0, 100)), max_size=8),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 300)), max_size=4),
)
def test_no_byte_is_added_or_lost(
    sent: list[tuple[str, int, int]], uploads: list[tuple[str, int, int]]
) -> None:
    before = [to_store(*one) for one in sent]
    after = split_checkpoints(before, uploads)
    assert pair_bytes(after) == pair_bytes(before)
    assert all(flow.bytes >= 0 for flow in after)
    for name in "ab":
        reported = sum(count for who, _, count in uploads if who == name)
        assert sum(f.bytes for f in after if f.src == name and f.kind == CHECKPOINT) <= reported


def test_bill_and_summary_have_their_dollars(tmp_path: Path) -> None:
    entry = {"name": "epoch-00000001-a", "epoch": 1, "bytes": 4_000_000_000, "sent_bytes": 4_000_000_000,
             "copy_s": 0.1, "upload_s": 9.0, "at_s": 30.0}  # fmt: skip
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.append("vms", [vm("a", ended_s=100.0), vm("b", ended_s=100.0)])
        store.append("epochs", [epoch(name, k, 12.0 * k) for k in (1, 2) for name in "ab"])
        store.append("egress", [egress(name, 2, "10.0.0.9", "calc", 9.0, 5_000_000_000) for name in "ab"])
        note = EventRecord(
            0, 40.0, CHECKPOINT_STORED, "a", 0, "a", "", "", "", json.dumps({"key": "x", **entry})
        )
        store.append("events", [note])
        for key, value in {
            "addresses": {"10.0.0.9": "store"},
            "locations": {
                "a": "gcp/us-central1/us-central1-a",
                "b": "gcp/us-central1/us-central1-a",
                "store": "aws/eu-west-1",
            },
            "price_book": {"name": "list", "csv": newest().text},
        }.items():
            store.set_meta(key, value)
        run = RunNumbers.of(store)
        summary = summarise(run)
        rows = traffic_rows(run)
    usd = {(line.src, line.what): line.usd for line in run.bill.lines if line.kind == "egress"}
    share = usd["a", "egress checkpoint"] / (usd["a", "egress checkpoint"] + usd["a", "egress store"])
    assert share == pytest.approx(Decimal("0.8"))
    (kept,) = [line.usd for line in run.bill.lines if line.what == "checkpoints kept"]
    assert summary["cost"]["checkpoint_usd"] == pytest.approx(
        float(usd["a", "egress checkpoint"] + kept), abs=2e-6
    )
    assert {(row["src"], row["class"]): row["bytes"] for row in rows} == {
        ("a", "checkpoint"): 4e9, ("a", "store"): 1e9, ("b", "store"): 5e9,
    }  # fmt: skip
