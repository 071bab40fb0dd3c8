"""A peer's sums of its trace: what it publishes while it trains, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trace_rig import EPOCHS, MS, batch, buffer, op

from experiments.peer.reporting.input_sums import InputSums
from experiments.pipeline.trace_format import Code
from experiments.pipeline.trace_sums import TraceSums, row_key
from experiments.wire.input_sums import FILE, IN_STATUS, from_json

WAIT_S = 20.0  # a limit for a thread, not a measurement


def sums_in(folder: Path, published: SimpleQueue[Any], warned: list[str]) -> InputSums:
    found = InputSums(
        folder / "trace", folder, "eu-0", published.put, lambda key, text: warned.append(f"{key}: {text}")
    )
    found.start()
    return found


def rows_of(entries: Any) -> dict[Any, Any]:
    rows = [from_json("eu-0", entry) for entry in json.loads(json.dumps(entries))]
    return {row_key(row): row for row in rows if row is not None}


def test_an_epoch_is_published_when_it_ends_and_the_file_has_all(tmp_path: Path):
    published, warned = SimpleQueue[Any](), list[str]()
    worker, consumer = buffer(tmp_path / "trace", "worker"), buffer(tmp_path / "trace", "consumer")
    sums = sums_in(tmp_path, published, warned)
    op(worker, "decode", 1000, 3)
    batch(worker, consumer, 0, 1000, arrived_ms=1026, wait_ms=2)
    consumer.event(Code.CONSUMED, 1032 * MS, 68 * MS, batch=0)
    sums.epoch_ended(EPOCHS[0])
    # A VM that ends now, without notice, has told all of its first epoch.
    assert rows_of(published.get(timeout=WAIT_S)) == {
        row_key(row): row for row in TraceSums(tmp_path / "trace", "eu-0").update(EPOCHS[:1])
    }
    op(worker, "crop", 2500, 3)
    sums.epoch_ended(EPOCHS[1])
    op(worker, "crop", 4500, 3)
    sums.close()
    wanted = {row_key(row): row for row in TraceSums(tmp_path / "trace", "eu-0").finish(EPOCHS)}
    assert rows_of([json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]) == wanted
    while not published.empty():
        newest = published.get()
    assert rows_of(newest) == wanted
    assert warned == []


def test_what_is_published_does_not_grow_with_the_run(tmp_path: Path):
    published, warned = SimpleQueue[Any](), list[str]()
    to = buffer(tmp_path / "trace", "ops", records=1000)
    for number in range(2 * IN_STATUS):
        op(to, f"op{number}", 1000 + number, 1)
    sums = sums_in(tmp_path, published, warned)
    sums.epoch_ended(EPOCHS[0])
    sums.close()
    newest = published.get(timeout=WAIT_S)
    assert len(newest) == IN_STATUS
    assert len(json.dumps(newest)) < 100 * IN_STATUS
    assert len((tmp_path / FILE).read_text().splitlines()) == 2 * IN_STATUS + 1


def test_a_full_disk_costs_the_file_only(tmp_path: Path):
    published, warned = SimpleQueue[Any](), list[str]()
    (tmp_path / FILE).mkdir()
    op(buffer(tmp_path / "trace", "ops"), "decode", 1000, 1)
    sums = sums_in(tmp_path, published, warned)
    sums.epoch_ended(EPOCHS[0])
    sums.close()
    assert len(published.get(timeout=WAIT_S)) == 2
    assert [text.split(":")[0] for text in warned] == ["input sums"]
