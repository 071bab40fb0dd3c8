"""`orch replay` from the command line: output formats, problems, --save."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_up_run import write_run

from analysis.replay import KEYS
from metrics.records import EpochRecord, VmRecord
from metrics.store.database import RunStore
from orchestrator.cli.app import run

pytestmark = pytest.mark.slow

Output = Callable[[], tuple[str, str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        shown = capsys.readouterr()
        return shown.out, shown.err

    return read


def logs(folder: Path, host_logs: dict[str, str]) -> Path:
    """A folder of W&B logs: {file name: content}."""
    folder.mkdir()
    for name, text in host_logs.items():
        (folder / name).write_text(text)
    return folder


def bee(load_s: float = 0.01, steps: int = 60, sync: tuple[int, ...] = (19, 39, 59)) -> str:
    """A VM's log: one step per second, averaging for 5 s at the end of each epoch. Different for each VM."""
    timers = ("dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step")
    names = [
        "_step", "_runtime", "_timestamp", "01_general/locally_processed_samples", "03_hivemind/global_epoch",
        "03_hivemind/num_peers", *(f"02_timing/{name}_time_s" for name in timers),
        "bandwidth/net_sent_sys_bandwidth_Mbits", "bandwidth/net_recv_sys_bandwidth_Mbits",
    ]  # fmt: skip
    lines, at, epoch = [",".join(names)], 10, 0
    for k in range(steps):
        long = k in sync
        at += 6 if long else 1
        epoch += long
        opt, sent = (5.0, 400.0) if long else (0.01, 0.1)
        cells = [
            k,
            at,
            1_680_000_000 + at,
            32 * (k + 1),
            epoch,
            2,
            load_s,
            0.01,
            0.1,
            0.01,
            0.4,
            opt,
            sent,
            sent + 50,
        ]
        lines.append(",".join(str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def monitor() -> str:
    names = ["_runtime", "_timestamp", *(f"03_hivemind/{name}" for name in (
        "global_epoch", "num_peers", "global_samples_accumulated", "epoch_based_sps", "per_epoch_training_samples",
        "epoch_s", "actual_total_samples_per_second", "eta_next_epoch_s",
    ))]  # fmt: skip
    lines = [",".join(names)]
    for at in range(10, 90):
        epoch = (at - 10) // 25
        ended = at in (35, 60, 85)
        tail = ["51.2", "1280", "25"] if ended else ["", "", ""]
        lines.append(",".join([str(at), str(1_680_000_000 + at), str(epoch), "2", "640", *tail, "51.2", "5"]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return logs(
        tmp_path / "logs",
        {
            "hivemind-7-gc-us-t4-1.csv": bee(),
            "hivemind-7-gc-us-t4-2.csv": bee(0.02),
            "hivemind-7-vm-monitor.csv": monitor(),
        },
    )


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_every_output_format(form: str, folder: Path, output: Output):
    assert run(["replay", str(folder), "-o", form]) == 0
    text, reported = output()
    assert f"reading {folder}" in reported
    if form == "csv":
        (row,) = csv.DictReader(io.StringIO(text))
        assert tuple(row) == KEYS
        assert row["run_id"] == "hivemind-7"
        assert "speedup and speedup_phase_timed are null" in row["warnings"]
    elif form == "table":
        assert text.startswith("RUN ")
        assert "hivemind-7: " in text
    else:
        document = json.loads(text) if form == "json" else yaml.safe_load(text)
        assert tuple(document) == ("schema_version", "runs", "problems")
        (row,) = document["runs"]
        assert tuple(row) == KEYS
        assert (row["sps"], row["peers"], row["n_epochs"]) == (pytest.approx(51.2), 2, 2)
        assert (row["calc_s"], row["comm_s"]) == (pytest.approx(20, abs=0.6), pytest.approx(5, abs=0.1))


def test_many_runs_warnings_are_counted(tmp_path: Path, output: Output):
    folder = logs(tmp_path / "logs", {f"hivemind-{n}-gc-us-t4-1.csv": bee() for n in range(1, 6)})
    assert run(["replay", str(folder)]) == 0
    text, _ = output()
    assert "warnings on 5 runs" in text.splitlines()[-1]
    assert len(text.splitlines()) == 1 + 5 + 1


def test_own_runs_show_where_they_ran(tmp_path: Path, output: Output):
    folders = [tmp_path / name for name in ("a", "b", "c", "d")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_run(folder)
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("run_id", f"r{number}")
            if number == 1:
                store.set_meta("host", {"contended": True, "reasons": ["late"]})
            if number == 2:
                store.set_meta("target", "loopback")
    places = [str(folder) for folder in folders]
    assert run(["replay", *places]) == 0
    header, *lines = output()[0].splitlines()
    assert header.split()[-3:] == ["ON", "HOST", "NOTES"]
    assert ["TOO BUSY" in line for line in lines[:4]] == [False, True, False, False]
    assert ["emulated" in line for line in lines[:4]] == [True, True, False, True]
    assert "loopback" in lines[2]
    assert run(["replay", *places, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(output()[0])))
    assert [row["host_contended"] for row in rows] == ["False", "True", "False", "False"]
    assert {(row["emulated"], row["scales"]) for row in rows} == {("True", "bytes 100, time 1, samples 8")}


def test_the_table_fits_120_columns(paper_traces: Path, output: Output):
    assert run(["replay", str(paper_traces)]) == 0
    assert max(len(line) for line in output()[0].splitlines()) <= 120


def test_unreadable_items_are_reported_and_the_rest_is_computed(folder: Path, output: Output):
    (folder / "hivemind-8-gc-us-t4-1.csv").write_bytes(bytes(range(256)) * 20)
    assert run(["replay", str(folder), "-o", "json"]) == 0
    text, reported = output()
    document = json.loads(text)
    assert [row["run_id"] for row in document["runs"]] == ["hivemind-7"]
    (problem,) = document["problems"]
    assert "hivemind-8-gc-us-t4-1.csv" in problem
    assert f"problem: {problem}" in reported


@pytest.mark.parametrize("broken", ["empty", "noise", "missing"])
def test_nothing_to_compute_exits_with_2_and_one_sentence(broken: str, tmp_path: Path, output: Output):
    folder = tmp_path / "logs"
    if broken != "missing":
        logs(folder, {"hivemind-9-gc-t4-1.csv": "\x00\x01\x02,\n\x03"} if broken == "noise" else {})
    assert run(["replay", str(folder), "-o", "json"]) == 2
    text, reported = output()
    assert text == ""
    assert "Traceback" not in reported
    assert reported.strip().splitlines()[-1].startswith("orch: ")


def test_missing_index_and_unknown_book_exit_with_2(folder: Path, output: Output):
    assert run(["replay", str(folder), "--index", str(folder / "nowhere.csv")]) == 2
    assert "nowhere.csv" in output()[1]
    assert run(["replay", str(folder), "--prices", "nobody-2020"]) == 2
    assert "there is no such price book" in output()[1]


def test_unselected_runs_are_omitted(folder: Path, output: Output):
    (folder / "hivemind-8-gc-us-t4-1.csv").write_text(bee())
    assert run(["replay", str(folder), "--run", "hivemind-8", "-o", "json"]) == 0
    assert [row["run_id"] for row in json.loads(output()[0])["runs"]] == ["hivemind-8"]


def test_saved_import_is_an_ordinary_run(folder: Path, own_home: Path, output: Output):
    assert run(["replay", str(folder), "--save", "-o", "json"]) == 0
    first, reported = output()
    assert "saved as hivemind-7" in reported
    assert run(["ls", "-o", "json"]) == 0
    (listed,) = json.loads(output()[0])["runs"]
    assert (listed["run"], listed["status"], listed["peers"], listed["epoch"]) == ("hivemind-7", "done", 2, 3)
    assert run(["status", "hivemind-7"]) == 0
    assert "gc-us-t4-2" in output()[0]
    assert run(["report", "hivemind-7"]) == 0
    assert Path(output()[0].strip()).is_file()
    for command in (["down", "hivemind-7"], ["reap"]):
        assert run(command) == 0
        assert "nothing is left" in output()[1]
    assert run(["replay", "hivemind-7", "-o", "json"]) == 0
    assert json.loads(output()[0])["runs"] == json.loads(first)["runs"]


def test_saved_import_is_replaced_only_by_the_same_logs(folder: Path, own_home: Path, output: Output):
    for _ in range(2):
        assert run(["replay", str(folder), "--save"]) == 0
    (folder / "hivemind-7-gc-us-t4-2.csv").rename(folder / "hivemind-7-gc-us-t4-9.csv")
    output()
    assert run(["replay", str(folder), "--save", "-o", "json"]) == 2
    text, reported = output()
    assert json.loads(text)["runs"][0]["run_id"] == "hivemind-7"  # computed all the same
    assert "another run with this id exists" in reported
    kept = json.loads(_meta(own_home / "runs" / "hivemind-7"))
    assert "hivemind-7-gc-us-t4-2.csv" in [file["file"] for file in kept["files"]]


def _meta(folder: Path) -> str:
    with RunStore.open_reader(folder / "run.db") as store:
        return json.dumps(store.meta("imported"))


def test_own_run_has_a_row(own_home: Path, output: Output):
    folder = own_home / "runs" / "local-2-20261121-7f3a"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: local-2\n")
    own_run(folder)
    assert run(["replay", "local-2", "-o", "json"]) == 0
    (row,) = json.loads(output()[0])["runs"]
    assert (row["label"], row["run_id"], row["peers"]) == ("local-2", "local-2-20261121-7f3a", 2)
    assert row["sps"] == row["sps_epoch_mean"] == pytest.approx(1000 / 30)
    assert run(["replay", "local-2", "--save"]) == 0  # nothing to keep: it is there
    assert "kept" not in output()[1]


def own_run(folder: Path) -> None:
    with RunStore.open_writer(folder / "run.db") as store:
        meta: dict[str, Any] = {
            "run_id": folder.name, "experiment": {"name": "local-2"}, "target": "local", "status": "done",
            "model": {"name": "ConvNextLarge"}, "target_batch_size": 1000, "raw_target_batch_size": 1000, "warmup_epochs": 1,
        }  # fmt: skip
        for key, value in meta.items():
            store.set_meta(key, value)
        for vm in ("a", "b"):
            store.upsert_vm(
                VmRecord(vm, vm, 0, "gcp/us-central1", "", "T4:1", True, None, "", vm, 0.0, 1.0, 99.0, "")
            )
            store.append("epochs", [EpochRecord(
                vm, k, 30.0 * (k - 1), 30.0 * k, 10, 500, 0, 0, 20.0, 0, 0, 10.0, 0, 20.0, 10.0, None, 2, "", "",
            ) for k in (1, 2, 3)])  # fmt: skip


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("logs/hivemind-7-vm-monitor.csv", "is a file; give the folder that contains it"),
        ("logs/nowhere", "no such folder"),
        ("nowhere", "there is no folder 'nowhere' here either"),
    ],
)
def test_invalid_targets(
    word: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch, output: Output
):
    monkeypatch.chdir(folder.parent)
    assert run(["replay", word]) == 2
    text, reported = output()
    assert text == ""
    assert reason in reported
