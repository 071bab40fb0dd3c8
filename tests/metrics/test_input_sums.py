"""Sums of a run's traces by operation, epoch and VM."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from metrics.input_sums import run_input
from metrics.records import NO_EPOCH, InputBatchRecord, InputOpRecord, InputTraceRecord

BATCHES = InputBatchRecord("a", 1, 10, 320, 4.0, 1.0, 0.5, 2.0, 1, 0)
TRACES = (InputTraceRecord("a", 2, 0, 0), InputTraceRecord("b", 3, 1, 7))


def test_a_run_without_a_trace_has_no_input():
    assert run_input([], [], [], {("a", 1): 3.0}) is None


def test_sums_over_vms_and_epochs():
    ops = [
        InputOpRecord("a", 1, "decode", 10, 1.0, 0.5, 100),
        InputOpRecord("b", 1, "decode", 5, 2.0, None, 50),
        InputOpRecord("a", NO_EPOCH, "crop", 2, 0.25, 0.25, None),
    ]
    batches = [BATCHES, replace(BATCHES, vm="b", wait_s=None, dropped=None), replace(BATCHES, epoch=NO_EPOCH)]
    loads_s = {("a", 1): 0.6, ("b", 1): 0.4, ("a", 2): 0.1, ("untraced", 1): 90.0}
    found = run_input(ops, batches, TRACES, loads_s)
    assert found is not None
    made = found.to_json(lambda vm: f"slot of {vm}")
    assert made["ops"] == [
        {"op": "decode", "n": 15, "wall_s": 3.0, "cpu_s": None, "bytes_out": 150},
        {"op": "crop", "n": 2, "wall_s": 0.25, "cpu_s": 0.25, "bytes_out": None},
    ]
    outside, first = made["epochs"]
    assert (outside["epoch"], outside["batches"], outside["stall_s"]) == (None, 10, None)
    assert first == {
        "epoch": 1, "batches": 20, "samples": 640, "fetch_s": 8.0, "collate_s": 2.0, "wait_s": None, "delay_s": 4.0,
        "stall_s": 1.0, "out_of_order": 2, "complete": False,
    }  # fmt: skip
    a, b = made["vms"]
    assert (a["vm"], a["slot"], a["batches"], a["stall_s"], a["complete"]) == (
        "a",
        "slot of a",
        20,
        0.7,
        True,
    )
    assert (b["wait_s"], b["complete"], b["files"], b["damaged"], b["dropped"]) == (None, False, 3, 1, 7)


def test_a_vm_without_batches_has_unknown_sums():
    found = run_input([], [], TRACES[:1], {})
    assert found is not None
    ((_, alone),) = found.vms
    assert (alone.batches, alone.wait_s, alone.stall_s, alone.out_of_order, found.epochs) == (
        0,
        None,
        None,
        None,
        (),
    )


_ROWS = st.lists(
    st.builds(
        InputBatchRecord,
        st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 99), st.none() | st.integers(0, 99),
        *[st.none() | st.integers(0, 1000).map(float)] * 4, st.none() | st.integers(0, 9), st.none() | st.just(0),
    ),
    max_size=8, unique_by=lambda row: (row.vm, row.epoch),
)  # fmt: skip


@given(_ROWS)
def test_sums_by_epoch_and_by_vm_agree(rows: list[InputBatchRecord]):
    found = run_input([], rows, TRACES, {})
    assert found is not None
    for of in ("batches", "samples", "wait_s", "delay_s", "out_of_order"):
        parts = [getattr(row, "n" if of == "batches" else of) for row in rows]
        for groups in (found.epochs, found.vms):
            sums = [getattr(one, of) for _, one in groups if one.batches]
            assert (None in parts) == (None in sums)
            if None not in parts:
                assert sum(sums) == sum(parts)
