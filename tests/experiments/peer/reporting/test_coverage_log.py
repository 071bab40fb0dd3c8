"""A peer's reports of used samples: what its replacement repeats, and what nobody used, is in them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from storage_fakes import FakeStore, make_tar, opener

from cloud.storage.samples import Cursor
from cloud.storage.shares import shards_for
from experiments.peer.reporting.coverage_log import CoverageLog
from experiments.peer.training.bad_samples import BadSamples
from experiments.peer.training.data_position import cursor_at, position_of
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.loader import Loaded, Span, TaskSource
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.wire import coverage as wire
from experiments.wire.coverage import IN_STATUS, from_json
from metrics.coverage import Coverage, coverage_of
from metrics.records import CoverageRecord, VmRecord
from orchestrator.controller.finish import read_coverage

SAMPLES, BATCH = 40, 8  # samples per shard and per batch
TARS = {
    f"{shard}.tar": make_tar(
        {
            f"{shard}{n:02d}": {"dat": b"bad" if (shard, n) == ("b", 7) else bytes([n, n + 1])}
            for n in range(SAMPLES)
        }
    )
    for shard in "abcdef"
}
URLS = tuple(f"s3://b/{name}" for name in TARS)
OP = Op("decode", "decode_ops:noisy", "data", "bytes", "array", random=True)
PIPELINE = Pipeline("test", {"data": ("dat",)}, (OP,))


class ReadingPeer:
    """The part of a peer that reads, uses and reports samples; no process."""

    def __init__(self, folder: Path, vm: str, slots: Sequence[str], at: Cursor | None = None) -> None:
        self.vm, self.path = vm, folder / f"{vm}.csv"
        share = shards_for(vm.partition("-")[0], slots, URLS)
        self.source = TaskSource(
            share, opener(FakeStore(TARS)).open, Decoder(PIPELINE, 5), list, Workers("thread", 3, in_order=False),
            BadSamples("skip", lambda _: None), shuffle=7, cursor=at,
        )  # fmt: skip
        self.log = CoverageLog(self.path, vm, URLS, self.source.shard_samples)
        self.used: list[tuple[int, str, str]] = []  # (pass, shard, key)
        self.loaded: list[Loaded] = []

    def train(self, batches: int) -> None:
        """Use some batches; the next one is loaded, but its step does not end."""
        for _ in range(batches):
            loaded = self.source.next_batch(BATCH)
            self.loaded.append(loaded)
            self.log.used(loaded.spans)
            passes = [span.pass_number for span in loaded.spans for _ in range(span.first, span.end)]
            self.used += [(number, *place) for number, place in zip(passes, loaded.samples, strict=True)]

    def position(self) -> Cursor:
        """What its replacement starts from, as the controller passes it on."""
        document = position_of(self.loaded[-1].cursor, URLS).to_json()
        assert document is not None
        return cursor_at(document, URLS)

    def rows(self) -> list[CoverageRecord]:
        return list(read_coverage(self.path, self.vm, shards=len(URLS)))


def row_of(vm: str, *, ended: bool = False) -> VmRecord:
    slot, _, generation = vm.partition("-")
    return VmRecord(
        vm, slot, int(generation), "gcp/us/a", "n1", "T4:1", True, Decimal(1), "", "", 0.0, 1.0, 9.0 if ended else None, ""
    )  # fmt: skip


def coverage(peers: Sequence[ReadingPeer], ended: Sequence[str] = ()) -> Coverage:
    rows = [row for peer in peers for row in peer.rows()]
    vms = [row_of(peer.vm, ended=peer.vm in ended) for peer in peers]
    found = coverage_of(rows, len(URLS), vms, [peer.vm for peer in peers])
    assert found is not None
    return found


@pytest.mark.parametrize("after_its_report", [0, 1, 4])
def test_a_preempted_peer_is_replaced_within_one_shard_of_where_its_slot_was(
    tmp_path: Path, after_its_report: int
) -> None:
    """What the reports say is what was used, sample by sample. The second slot goes into its second pass."""
    first, other = (ReadingPeer(tmp_path, f"{slot}-0", ["a", "b"]) for slot in "ab")
    first.train(9)
    first.log.report()
    position = first.position()
    first.train(after_its_report)  # not reported: it is killed
    other.train(20)
    other.log.end()
    replacement = ReadingPeer(tmp_path, "a-1", ["a", "b"], position)
    replacement.train(6)
    replacement.log.end()
    peers = [first, other, replacement]
    for peer in peers:
        peer.source.close()

    found = coverage(peers, ended=[peer.vm for peer in peers])
    (handover,) = found.handovers
    assert (handover.vm, handover.replaced_by) == ("a-0", "a-1")
    assert handover.repeated_shards <= 1
    assert handover.repeated_samples <= 3 * 16  # samples that were delivered out of order
    assert handover.skipped_samples in (0, None)
    assert found.open_vms == ("a-0",)

    known = [place for peer in (other, replacement) for place in peer.used] + first.used[: 9 * BATCH]
    times = Counter(known)
    alive = coverage(peers)  # without the samples that became unknown when the VM died
    assert [one.number for one in alive.passes] == [1, 2]
    for one in alive.passes:
        counts = [count for place, count in times.items() if place[0] == one.number - 1]
        assert (one.once, one.more) == (counts.count(1), len(counts) - counts.count(1))
    unreported = {place for place in first.used[9 * BATCH :] if place[1] == URLS[first_tail(first)]}
    assert sum(one.unknown for one in found.passes) >= len(unreported - set(known))


def first_tail(peer: ReadingPeer) -> int:
    return peer.rows()[-1].shard if peer.rows()[-1].what == "used" else next(
        row.shard for row in reversed(peer.rows()) if row.what == "used"
    )  # fmt: skip


def test_every_sample_of_a_pass_is_seen_once_except_a_bad_one(tmp_path: Path) -> None:
    peer = ReadingPeer(tmp_path, "a-0", ["a"])
    peer.train(2 * len(URLS) * SAMPLES // BATCH)
    peer.log.end()
    peer.source.close()
    first = coverage([peer], ended=["a-0"]).passes[0]
    assert first.sentence == "pass 1: 240 samples: 239 seen once, 1 not (yet)"


def test_a_loaded_batch_whose_step_did_not_end_is_not_reported(tmp_path: Path) -> None:
    peer = ReadingPeer(tmp_path, "a-0", ["a"])
    peer.train(2)
    peer.source.next_batch(BATCH)
    peer.log.end()
    peer.source.close()
    assert coverage([peer]).passes[0].once == 2 * BATCH


def test_a_status_has_the_newest_rows_and_the_file_has_all(tmp_path: Path) -> None:
    log = CoverageLog(tmp_path / "coverage.csv", "r-a-0", URLS, lambda: {URLS[0]: 500, "s3://other/1.tar": 9})
    for number in range(3 * IN_STATUS):
        log.used([Span(0, URLS[0], 2 * number, 2 * number + 1), Span(0, "s3://other/1.tar", 0, 1)])
        newest = log.report()
    assert len(newest) == IN_STATUS
    assert newest == log.report()  # nothing was used since
    with (tmp_path / "coverage.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [int(row["number"]) for row in written] == list(range(3 * IN_STATUS + 1))  # and the size
    assert all(from_json("r-a-0", row, len(URLS)) is not None for row in newest)


def test_a_peer_stops_reporting_before_the_controller_refuses_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.peer.reporting.coverage_log.MAX_ROWS", 2)
    log = CoverageLog(tmp_path / "coverage.csv", "r-a-0", URLS, dict)
    log.used([Span(0, URLS[0], 2 * number, 2 * number + 1) for number in range(5)])
    assert [row[0] for row in log.end()] == [0, 1]
    assert wire.MAX_ROWS > 2
