"""Damaged, duplicate or missing logs: one sentence each, and other runs are still imported."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from two_swarms import BAD, GOOD, HOSTS, imported, write_both
from wandb_logs import Swarm, Truth, write_swarm

from analysis.importers.base import ImportFailed
from analysis.importers.wandb import WandbLogs
from metrics.store.database import RunStore

OPT = "02_timing/opt_step_time_s"
EPOCH = "03_hivemind/global_epoch"
SENT = "bandwidth/net_sent_sys_bandwidth_Mbits"
SAMPLES = "01_general/locally_processed_samples"


def _edit(
    path: Path, change: Callable[[list[dict[str, str]]], None], rename: dict[str, str] | None = None
) -> None:
    """Change a log's rows and column names."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows, header = list(reader), list(reader.fieldnames or [])
    change(rows)
    renamed = rename or {}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [renamed.get(name, name) for name in header], restval="")
        writer.writeheader()
        writer.writerows({renamed.get(k, k): v for k, v in row.items()} for row in rows)


def _rename(path: Path, old: str, new: str) -> None:
    _edit(path, lambda rows: None, {old: new})


def _set(path: Path, column: str, value: str, pick: Callable[[list[dict[str, str]]], list[int]]) -> list[int]:
    """Put a value into a column of some rows; the file's lines that were changed."""
    lines: list[int] = []

    def change(rows: list[dict[str, str]]) -> None:
        for k in pick(rows):
            rows[k][column] = value
            lines.append(k + 2)

    _edit(path, change)
    return lines


def _filled(column: str) -> Callable[[list[dict[str, str]]], list[int]]:
    """The 10th row that has a value in the column."""
    return lambda rows: [[k for k, row in enumerate(rows) if row[column]][9]]


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Truth]:
    return tmp_path / "logs", write_both(tmp_path / "logs")


@pytest.mark.parametrize("data", [b"", b"\x00\x01\xfe" * 400], ids=["empty", "noise"])
def test_unreadable_log_does_not_affect_the_rest_of_its_run(
    logs: tuple[Path, Truth], tmp_path: Path, data: bytes
):
    folder, truth = logs
    truth.files[HOSTS[0]].write_bytes(data)
    _, problems, text, epochs = imported(folder, tmp_path)
    assert problems == ""
    assert epochs == 3
    assert f"{BAD}-{HOSTS[0]}.csv" in text
    assert "The monitor saw 2 peers, but only 1 have logs" in text


def test_run_without_usable_logs_is_one_problem(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    for path in truth.files.values():
        path.write_bytes(b"\x00noise" * 9)
    names, problems, _, _ = imported(folder, tmp_path)
    assert names == [GOOD]
    assert problems.startswith(f"{BAD}: nothing can be computed: {BAD}-")
    assert problems.count("\n") == 0


def test_import_fails_if_no_run_is_usable(tmp_path: Path):
    folder = tmp_path / "logs"
    folder.mkdir()
    with pytest.raises(ImportFailed, match="no run can be imported: it contains no logs"):
        WandbLogs().import_runs(folder, tmp_path / "into")
    truth = write_swarm(folder, Swarm())
    for path in truth.files.values():
        path.write_bytes(b"")
    with pytest.raises(ImportFailed, match="the file is empty"):
        WandbLogs().import_runs(folder, tmp_path / "into")


def test_a_run_without_a_finished_epoch_keeps_what_it_has(tmp_path: Path):
    folder = tmp_path / "logs"
    write_swarm(folder, Swarm(run_id=BAD, hosts=HOSTS, epochs=1, fails=dict.fromkeys(HOSTS, 1)))
    write_swarm(folder, Swarm(run_id=GOOD, hosts=HOSTS))
    names, problems, text, epochs = imported(folder, tmp_path)
    assert (set(names), problems, epochs) == ({BAD, GOOD}, "", 0)
    assert "no hivemind epoch ended while the monitor ran" in text
    assert "No VM's log shows a finished epoch" in text


def test_a_run_of_idle_vms_only_is_a_problem(tmp_path: Path):
    folder = tmp_path / "logs"
    write_swarm(folder, Swarm(run_id=BAD, hosts=HOSTS, idle=HOSTS[:1], fails={HOSTS[1]: 1}, monitor=False))
    path = folder / f"{BAD}-{HOSTS[1]}.csv"
    path.unlink()
    write_swarm(folder, Swarm(run_id=GOOD, hosts=HOSTS))
    names, problems, _, _ = imported(folder, tmp_path)
    assert names == [GOOD]
    assert "but no training step: it failed or idled" in problems


def test_truncated_file_is_used_up_to_its_end(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    path = truth.files[HOSTS[0]]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.8)])
    _, _, text, epochs = imported(folder, tmp_path)
    assert f"{path.name}:" in text
    assert "the file ends in the middle of this line" in text
    assert f"{HOSTS[0]} did not average after epoch 2 of 3" in text
    assert epochs == 5


def test_truncated_gz_is_used_up_to_its_end(tmp_path: Path):
    folder = tmp_path / "logs"
    truth = write_swarm(folder, Swarm(run_id=BAD, hosts=HOSTS, gz=True, steps=120))
    write_swarm(folder, Swarm(run_id=GOOD, hosts=HOSTS))
    path = truth.files[HOSTS[1]]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.8)])
    _, _, text, epochs = imported(folder, tmp_path)
    assert f"{path.name}: the .gz file is truncated or damaged" in text
    assert epochs == 5


def test_duplicate_logs_count_once_and_the_longer_log_wins(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    (folder / "again").mkdir()
    shutil.copy(truth.files[HOSTS[0]], folder / "again")
    lines = truth.files[HOSTS[1]].read_text().splitlines(keepends=True)
    (folder / "again" / truth.files[HOSTS[1]].name).write_text("".join(lines[: len(lines) // 2]))
    _, problems, text, epochs = imported(folder, tmp_path)
    assert (problems, epochs) == ("", 6)
    assert f"identical to again/{BAD}-{HOSTS[0]}.csv; counted once" in text
    assert f"again/{BAD}-{HOSTS[1]}.csv: a second log of {HOSTS[1]}" in text
    assert f"{BAD}-{HOSTS[1]}.csv with {len(lines) - 1} rows is used" in text


def test_one_log_under_two_hosts_names_is_one_vm(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    shutil.copy(truth.files[HOSTS[0]], folder / f"{BAD}-gc-us-t4-9.csv")
    _, _, text, epochs = imported(folder, tmp_path)
    assert f"{BAD}-gc-us-t4-9.csv: identical to {BAD}-{HOSTS[0]}.csv; counted once" in text
    assert epochs == 6


def test_sparse_counters_are_reported(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs

    def thin(rows: list[dict[str, str]]) -> None:
        seconds = [row for row in rows if row[SENT]]
        for k, row in enumerate(seconds):
            if k % 5:
                rows.remove(row)

    _edit(truth.files[HOSTS[0]], thin)
    _, _, text, _ = imported(folder, tmp_path)
    assert f"{BAD}-{HOSTS[0]}.csv: the network counters are logged every 5 s, not every second" in text
    assert "pause" not in text


@pytest.mark.parametrize(
    ("value", "what"), [("soon", "is not a number ('soon')"), ("inf", "is infinite"), ("-3", "is negative"),
                        ("NaN", "is not a number ('NaN')")],
)  # fmt: skip
def test_impossible_cells_are_reported_with_file_line_and_column(
    logs: tuple[Path, Truth], tmp_path: Path, value: str, what: str
):
    folder, truth = logs
    path = truth.files[HOSTS[0]]
    (line,) = _set(path, OPT, value, _filled(OPT))
    _, _, text, epochs = imported(folder, tmp_path)
    assert f"{path.name}:{line}: column '{OPT}' {what}" in text
    assert epochs == 6


def test_timer_longer_than_the_log_is_ignored(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    (line,) = _set(
        truth.files[HOSTS[0]], "02_timing/forward_time_s", "1e9", _filled("02_timing/forward_time_s")
    )
    _, _, text, epochs = imported(folder, tmp_path)
    assert f":{line}: column '02_timing/forward_time_s' is 1e+09 s, but the whole log" in text
    assert epochs == 6


def test_negative_run_time_and_clock_jumps_are_corrected(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    path = truth.files[HOSTS[0]]
    (line,) = _set(path, "_runtime", "-5", lambda rows: [20])

    def jump(rows: list[dict[str, str]]) -> None:
        for row in rows[60:]:
            row["_timestamp"] = str(int(row["_timestamp"]) + 7200)

    _edit(path, jump)
    _, _, text, epochs = imported(folder, tmp_path)
    assert f"{path.name}:{line}: column '_runtime' is negative" in text
    assert f"{path.name}: the clock jumps once (first at line 62)" in text
    assert epochs == 6
    with RunStore.open_reader(tmp_path / "into" / BAD / "run.db") as store:
        for row in store.records("epochs"):
            assert row.ended_s - row.began_s < 60
            assert row.comm_s == pytest.approx(truth.comm_s[row.vm, row.epoch] - 0.02, abs=0.02)


def test_leap_of_both_clocks_is_detected_by_the_monitor(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs

    def leap(rows: list[dict[str, str]]) -> None:
        for row in rows[len(rows) // 2 :]:
            for clock in ("_runtime", "_timestamp"):
                row[clock] = str(int(row[clock]) + 3600)

    _edit(truth.files[HOSTS[1]], leap)
    _, _, text, _ = imported(folder, tmp_path)
    assert "for the monitor: one of the clocks jumped, or the VM missed an epoch's end" in text
    assert "the network counters pause once for 3 s or more" in text


def test_rows_out_of_order_are_sorted(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    _edit(truth.files[HOSTS[0]], lambda rows: rows.reverse())
    _, _, text, epochs = imported(folder, tmp_path)
    assert "the rows are out of order and were sorted by '_step'" in text
    assert epochs == 6


@pytest.mark.parametrize(
    ("column", "therefore", "epochs"),
    [
        (EPOCH, None, 6),  # the authors' rule, checked with the monitor
        (OPT, "it is computed as '02_timing/step_time_s' minus the other timers", 6),
        ("02_timing/backward_time_s", "phase-timed figures are unknown", 6),
        (SAMPLES, "the VM's samples are unknown", 6),
        (SENT, "the VM's bytes are unknown", 6),
        ("_timestamp", "its date is derived from the epochs in the other logs", 6),
        ("_runtime", None, 6),
    ],
)
def test_renamed_column_affects_only_dependent_figures(
    logs: tuple[Path, Truth], tmp_path: Path, column: str, therefore: str | None, epochs: int
):
    folder, truth = logs
    path = truth.files[HOSTS[0]]
    _rename(path, column, f"{column}_v2")
    _, _, text, found = imported(folder, tmp_path)
    assert found == epochs
    if therefore:
        assert f"{path.name}:1: no column '{column}' (there is '{column}_v2'): {therefore}." in text
    with RunStore.open_reader(tmp_path / "into" / BAD / "run.db") as store:
        meta = store.meta("imported")
        for row in store.records("epochs"):
            assert row.comm_s == pytest.approx(truth.comm_s[row.vm, row.epoch] - 0.02, abs=0.03)
            assert row.samples == truth.samples[row.vm, row.epoch]
            assert row.ended_s == pytest.approx(truth.ended_s[row.vm, row.epoch], abs=2)
    assert meta["sync"][HOSTS[0]]["rule"] == ("opt_step" if column == EPOCH else "epochs")
    known = {"02_timing/backward_time_s", SAMPLES}
    assert meta["missing_columns"].get(HOSTS[0], []) == ([column] if column in known else [])
    assert (HOSTS[0] in meta["nic"]) == (column != SENT)


def test_bytes_decide_without_epochs_if_the_authors_rule_fails(tmp_path: Path):
    folder = tmp_path / "logs"
    truth = write_swarm(folder, Swarm(run_id=BAD, hosts=HOSTS, steps=2, epochs=8, comm_s=30))
    write_swarm(folder, Swarm(run_id=GOOD, hosts=HOSTS))
    for host in HOSTS:
        _rename(truth.files[host], EPOCH, "epoch")
    _, _, text, epochs = imported(folder, tmp_path)
    assert epochs == 16
    assert "the rule 'bytes' finds 8; the latter are used" in text


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("03_hivemind/epoch_based_sps", "rates are computed as samples over time of the logged epochs"),
        (
            "03_hivemind/per_epoch_training_samples",
            "the samples of epoch 2 are not logged and assumed to be 2560",
        ),
        (EPOCH, "epochs are counted by the logged rates"),
    ],
)
def test_monitor_without_a_column_is_used_partly(
    logs: tuple[Path, Truth], tmp_path: Path, column: str, text: str
):
    folder, truth = logs
    _rename(truth.files["monitor"], column, "x")
    _, _, notes, epochs = imported(folder, tmp_path)
    assert text in notes
    assert epochs == 6


def test_a_monitors_zero_rate_is_kept(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    rate = "03_hivemind/epoch_based_sps"
    _set(truth.files["monitor"], rate, "0", lambda rows: [[k for k, r in enumerate(rows) if r[rate]][1]])
    imported(folder, tmp_path)
    with RunStore.open_reader(tmp_path / "into" / BAD / "run.db") as store:
        assert store.meta("imported")["zero_rate_epochs"] == [2]
        assert [(n, sps == 0) for n, sps in store.meta("imported")["epoch_rates"]] == [
            (1, False), (2, True), (3, False),
        ]  # fmt: skip
        assert [e.sps == 0 for e in store.records("swarm_epochs")] == [False, True, False]


def test_file_without_a_run_is_reported_and_others_are_read(logs: tuple[Path, Truth], tmp_path: Path):
    folder, _ = logs
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    _, problems, _, epochs = imported(folder, tmp_path)
    assert problems.startswith("notes.csv: skipped, because its name has no run and host")
    assert epochs == 6
