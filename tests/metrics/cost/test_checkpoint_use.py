"""Dollars of downloads and of kept checkpoints, from what the journal says was stored and downloaded."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import PriceBook, load
from metrics.cost.checkpoints import CheckpointUse
from metrics.cost.ledger import MONTH_S
from metrics.events.checkpoints import Restored, Stored
from metrics.records import CHECKPOINT_RESTORED, CHECKPOINT_STORED, EventRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.cli.render.summary import summary_lines

GB = 10**9


def stored(number: int, at_s: float, name: str = "", size: int = GB) -> Stored:
    return Stored(name or f"epoch-{number:08d}-a", "a", number, size, size, 0.1, 1.0, at_s)


def restored(vm_name: str, at_s: float, size: int = GB) -> Restored:
    return Restored("epoch-00000001-a", "s3://b/p/r", vm_name, 1, size, 9.0, at_s)


def test_a_checkpoint_is_kept_until_retention_deletes_it() -> None:
    one = CheckpointUse(tuple(stored(n, 10.0 * n) for n in (1, 2, 3)), keep=2)
    assert sorted(one.kept(100.0)) == [(GB, 20.0), (GB, 70.0), (GB, 80.0)]
    assert CheckpointUse(one.stored, keep=1).kept(100.0) == [(GB, 10.0), (GB, 10.0), (GB, 70.0)]
    assert one.until(15.0).kept(15.0) == [(GB, 5.0)]
    assert CheckpointUse().kept(100.0) == []


def test_greater_epochs_that_were_passed_over_stay() -> None:
    """Peers went on from epoch 1; what was stored of epoch 9 before is not deleted, and does not count."""
    use = CheckpointUse((stored(1, 10.0), stored(9, 20.0), stored(2, 30.0), stored(3, 40.0)), keep=2)
    assert sorted(s for _, s in use.kept(100.0)) == [30.0, 60.0, 70.0, 80.0]


def test_one_that_is_stored_again_takes_its_own_place() -> None:
    use = CheckpointUse((stored(1, 10.0), stored(1, 30.0, size=2 * GB)), keep=2)
    assert use.kept(50.0) == [(GB, 20.0), (2 * GB, 20.0)]


def test_downloads_are_added_up_by_vm() -> None:
    use = CheckpointUse(restored=(restored("a", 5.0), restored("b", 6.0), restored("b", 20.0)))
    assert use.read_bytes() == {"a": GB, "b": 2 * GB}
    assert use.until(6.0).read_bytes() == {"a": GB, "b": GB}


def note(seq: int, kind: str, vm_name: str, entry: dict) -> EventRecord:
    return EventRecord(seq, 40.0, kind, "a", 0, vm_name, "", "", "", json.dumps({"key": str(seq), **entry}))


@pytest.fixture
def store(tmp_path: Path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.append("vms", [vm("a", ended_s=100.0), vm("b", ended_s=100.0)])
        store.append("epochs", [epoch(name, k, 12.0 * k) for k in (1, 2) for name in "ab"])
        store.append("egress", [egress(name, 2, "10.0.0.9", "calc", 9.0, 5 * GB) for name in "ab"])
        sent = {"name": "epoch-00000001-a", "epoch": 1, "bytes": 4 * GB, "sent_bytes": 4 * GB, "copy_s": 0.1,
                "upload_s": 9.0, "at_s": 30.0}  # fmt: skip
        came = {
            "name": "epoch-00000001-a",
            "prefix": "s3://b/p/r",
            "epoch": 1,
            "bytes": 4 * GB,
            "seconds": 9.0,
            "at_s": 50.0,
        }
        store.append(
            "events", [note(0, CHECKPOINT_STORED, "a", sent), note(1, CHECKPOINT_RESTORED, "b", came)]
        )
        places = {name: "gcp/us-central1/us-central1-a" for name in "ab"} | {"store": "b2/us-west-1"}
        for key, value in {
            "addresses": {"10.0.0.9": "store"}, "locations": places,
            "experiment": {"checkpoint": {"every_epochs": 1, "keep": 1}},
        }.items():  # fmt: skip
            store.set_meta(key, value)
        yield store


def with_book(store: RunStore, text: str) -> RunNumbers:
    store.set_meta("price_book", {"name": "list", "csv": text})
    return RunNumbers.of(store)


def test_bill_and_summary_have_downloads_and_storage(store: RunStore) -> None:
    book = load("list-2026-11")
    run = with_book(store, book.text)
    lines = {(line.what, line.dst): line for line in run.bill.lines}
    read, kept = lines["reading checkpoints", "b"], lines["checkpoints kept", ""]
    assert (read.kind, read.quantity, kept.kind, kept.quantity) == ("data", 4 * GB, "storage", 4 * GB)
    assert read.usd == book.store_egress("b2/us-west-1", "gcp/us-central1/us-central1-a", 4 * GB)
    ladder = book.storage_ladder("b2/us-west-1")
    assert ladder is not None
    assert kept.usd == pytest.approx(ladder.tiers[0].usd * 4 * 70 / MONTH_S)
    sent = run.bill.class_usd("checkpoint")
    assert None not in (sent, read.usd, kept.usd)
    total = sum((usd for usd in (sent, read.usd, kept.usd) if usd is not None), Decimal(0))
    assert summarise(run)["cost"]["checkpoint_usd"] == pytest.approx(float(total), abs=1e-6)
    assert summarise(run)["cost"]["storage_usd"] == pytest.approx(float(kept.usd or 0), abs=1e-6)
    so_far = run.spending.until(200.0)
    assert [line for line in so_far.lines if line.what == read.what] == [read]
    assert [line for line in so_far.lines if line.what == kept.what] == [kept]
    assert ("reading checkpoints" in {line.what for line in run.spending.until(45.0).lines}) is False


def test_without_a_price_they_are_unknown(store: RunStore) -> None:
    rows = load("list-2026-11").text.splitlines()
    lacking = "\n".join(row for row in rows if not row.startswith("b2,storage")) + "\n"
    PriceBook.from_text(lacking, "lacking.csv")
    run = with_book(store, lacking)
    assert run.bill.checkpoints_usd() is None
    assert summarise(run)["cost"]["checkpoint_usd"] is None
    assert any("no price for storage at b2/us-west-1" in reason for reason in run.bill.unknown)


def test_epochs_without_a_record_are_counted_and_named(store: RunStore) -> None:
    """A checkpoint of epoch 4 was stored before all peers died: nobody's records of epochs 3 and 4 arrived."""
    assert RunNumbers.of(store).unrecorded == ()
    assert summarise(store)["epochs"]["unrecorded"] == 0
    sent = {
        "name": "epoch-00000004-a",
        "epoch": 4,
        "bytes": 1,
        "sent_bytes": 1,
        "copy_s": 0.1,
        "upload_s": 9.0,
        "at_s": 60.0,
    }
    store.append("events", [note(2, CHECKPOINT_STORED, "a", sent)])
    store.append("epochs", [epoch(name, 5, 60.0) for name in "ab"])
    assert RunNumbers.of(store).unrecorded == (3, 4)
    summary = summarise(store)
    assert summary["epochs"]["unrecorded"] == 2
    [said] = [line for line in summary["warnings"] if line.startswith("No record is known of")]
    assert said.startswith("No record is known of 2 epochs (3, 4): their samples and times are unknown")
    assert any("2 without a record" in line for line in summary_lines(summary, "report"))


def test_without_any_record_the_number_of_epochs_without_one_is_unknown(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as empty:
        empty.set_meta("run_id", "x-20231114-aaaa")
        assert RunNumbers.of(empty).unrecorded is None
        assert summarise(empty)["epochs"]["unrecorded"] is None
