"""Utilisation from status.json and utilisation.csv, valid or not, is one row per VM and time."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.provider import Observed
from cloud.vm_report import status_of
from metrics.records import UtilisationRecord
from metrics.store.database import RunStore
from orchestrator.controller.finish import read_utilisation
from orchestrator.controller.utilisation import Utilisation, utilisation_of

VM = "r-a-1"
ROW = UtilisationRecord(
    VM, 1000.5, 10.01, 10, "peer", 2, 0.5, 0.9, 5_000_000, 24_000_000, 700, 400.5, 0, 0.0
)  # GPUs unknown


def entry(row: UtilisationRecord, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "vm"} | changes


def seen(utilisation: Any, vm: str = VM) -> Observed:
    status = {"phase": "training", "utilisation": utilisation}
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def test_each_summary_is_stored_once(tmp_path: Path):
    rows = [replace(ROW, began_s=1000.5 + 10 * n) for n in range(4)]
    other = replace(ROW, vm="r-b-0", gpus=1, gpu_mean=1, gpu_peak=1.0, gpu_memory_bytes=5)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        utilisation = Utilisation(store)
        utilisation.write([seen(None), seen([entry(rows[0])]), seen([entry(other)], "r-b-0")])
        utilisation.write([seen([entry(rows[0]), entry(rows[1])])])
        Utilisation(store).write([seen([entry(row) for row in rows[:3]])])  # after a restart
        assert store.records("utilisation") == [rows[0], other, rows[1], rows[2]]
        path = tmp_path / "utilisation.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([field.name for field in fields(UtilisationRecord)])
            writer.writerows(astuple(row) for row in rows)
            file.write("r-a-1,1040.5,10.0,1")  # cut off by the VM's end
        store.append("utilisation", read_utilisation(path, VM))
        assert store.records("utilisation") == [rows[0], other, rows[1], rows[2], rows[3]]


WRONG = [
    {"vm": "r-b-0"}, {"more": 1}, {"began_s": None}, {"began_s": math.inf}, {"began_s": -1.0}, {"began_s": True},
    {"wall_s": 0.0}, {"readings": 1.5}, {"scope": "host"}, {"cores": 0}, {"cpu_mean": 1.01}, {"cpu_peak": math.nan},
    {"cpu_mean": -0.1}, {"memory_bytes": 2**63}, {"memory_bytes": "much"}, {"gpu_peak": 2.0}, {"sent_bytes": -1},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_summary_gives_no_row(tmp_path: Path, wrong: dict[str, Any]):
    later = replace(ROW, began_s=2000.0)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        Utilisation(store).write([seen([entry(ROW, **wrong), entry(later)])])
        assert store.records("utilisation") == [later]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_other_values_are_no_summary(said: Any):
    assert utilisation_of(VM, said) is None


def test_a_status_passes_it_through_whole():
    assert status_of('{"utilisation": [{"began_s": 1.5, "scope": "vm"}]}') == {
        "utilisation": [{"began_s": 1.5, "scope": "vm"}]
    }
    assert status_of('{"utilisation": "much"}') == {}


@pytest.mark.parametrize(("cell", "text"), [("cpu_mean", "7"), ("began_s", "nan"), ("scope", "host")])
def test_a_file_with_an_impossible_row_is_refused(tmp_path: Path, cell: str, text: str):
    path = tmp_path / "utilisation.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(UtilisationRecord)])
        writer.writeheader()
        writer.writerow(asdict(ROW) | {cell: text})
    with pytest.raises(ValueError, match=r"utilisation\.csv"):
        read_utilisation(path, VM)
