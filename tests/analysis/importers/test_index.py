"""An index with missing files or unknown words, and an unreadable index."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_swarms import BAD, GOOD, HOSTS, imported, write_both
from wandb_logs import Truth, write_index

from analysis.importers.base import ImportFailed
from analysis.importers.wandb import WandbLogs


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Truth]:
    return tmp_path / "logs", write_both(tmp_path / "logs")


def test_index_with_missing_files(logs: tuple[Path, Truth], tmp_path: Path):
    folder, truth = logs
    rows = [
        {
            "run_id": run,
            "file": f"{run}-{host}.csv",
            "role": role,
            "location": "GC-US",
            "host": host,
            "gpu": "T4",
        }
        for run in (BAD, GOOD)
        for host, role in ((HOSTS[0], "bee"), (HOSTS[1], "bee"), ("vm-monitor", "monitor"))
    ]
    rows.append({**rows[0], "run_id": "hivemind-9", "file": "hivemind-9-gc-t4-1.csv"})
    write_index(folder, rows)
    truth.files[HOSTS[1]].unlink()
    names, problems, text, epochs = imported(folder, tmp_path)
    assert names == [BAD, GOOD]
    assert f"INDEX.csv:3: {BAD}-{HOSTS[1]}.csv does not exist" in text
    assert epochs == 3
    assert (
        "hivemind-9: nothing can be computed: INDEX.csv:8: hivemind-9-gc-t4-1.csv does not exist." in problems
    )


def test_index_with_unknown_words(logs: tuple[Path, Truth], tmp_path: Path):
    folder, _ = logs
    base = {
        "role": "bee",
        "location": "GC-US",
        "gpu": "T4",
        "target_batch_size": "2560",
        "model": "ConvNextLarge",
    }
    rows = [
        {**base, "run_id": run, "file": f"{run}-{host}.csv", "host": host}
        for run in (BAD, GOOD)
        for host in HOSTS
    ]
    rows[0] |= {"location": "GC-MOON", "gpu": "TPU9", "role": "wasp", "target_batch_size": "many"}
    write_index(folder, rows)
    _, _, text, epochs = imported(folder, tmp_path)
    for sentence in (
        "INDEX.csv:2: role 'wasp' is not one of bee, monitor, baseline; assumed to be bee.",
        "INDEX.csv:2: target_batch_size 'many' is not a number.",
        "INDEX.csv:2: gpu 'TPU9' is unknown",
        f"The place of {HOSTS[0]} is unknown ('GC-MOON' does not give its region)",
        "has no price for TPU9 at gcp",
    ):
        assert sentence in text
    assert epochs == 6


def test_unusable_index(logs: tuple[Path, Truth], tmp_path: Path):
    folder, _ = logs
    bad = tmp_path / "mine.csv"
    bad.write_text("a,b\n1,2\n")
    with pytest.raises(ImportFailed, match=r"mine\.csv:1: the index has no rows, or no column 'file'"):
        WandbLogs().import_runs(folder, tmp_path / "x", index=bad)
    with pytest.raises(ImportFailed, match=r"gone\.csv: the index cannot be read: No such file"):
        WandbLogs().import_runs(folder, tmp_path / "x", index=tmp_path / "gone.csv")
    (folder / "INDEX.csv").write_bytes(b"\xff\xfe\x00")
    names, problems, _, epochs = imported(folder, tmp_path)
    assert (names, epochs) == ([BAD, GOOD], 6)
    assert "Runs and hosts are taken from the files' names instead" in problems
