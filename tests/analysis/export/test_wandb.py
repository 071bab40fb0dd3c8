"""`orch export --to wandb`, read back with W&B's own reader of such folders."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from analysis.export.tables import ExportError
from analysis.export.trackers import export_tracked
from analysis.export.tracking import TrackedRun, settled, tracked_run
from analysis.export.wandb import open_log
from experiments.peer.processes import descendants
from metrics.store.database import RunStore
from orchestrator.cli.app import run as orch

pytestmark = pytest.mark.skipif(
    find_spec("wandb") is None, reason="`make install` was run before the extra `dev` had wandb"
)
RUN = "geo-c8-20231114-aaaa"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / RUN)
    with RunStore.open_writer(tmp_path / RUN / "run.db") as store:
        store.set_meta("experiment", {"name": "geo-c8", "swarm": {"target_batch_size": 32768}})
    return tmp_path / RUN


def tracked(folder: Path) -> TrackedRun:
    with RunStore.open_reader(folder / "run.db") as store:
        return tracked_run(store)


def records(folder: Path, kind: str) -> list[Any]:
    """The records of this kind in the only W&B run below `folder`."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    reader = import_module("wandb.sdk.internal.datastore").DataStore()
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    reader.open_for_scan(str(file))
    found = []
    try:
        while (data := reader.scan_data()) is not None:
            one = record.FromString(data)
            if one.WhichOneof("record_type") == kind:
                found.append(getattr(one, kind))
    finally:
        reader._fp.close()
    return found


def items(values: Any) -> dict[str, Any]:
    return {".".join(v.nested_key) or v.key: json.loads(v.value_json) for v in values}


def history(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Epoch, unix seconds and value by name."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in records(folder, "history"):
        values = items(row.item)
        for name in values.keys() - {"epoch", "_timestamp", "_runtime", "_step"}:
            found.setdefault(name, []).append((values["epoch"], values["_timestamp"], values[name]))
    return found


def wanted(run: TrackedRun) -> dict[str, list[tuple[int, float, float]]]:
    found: dict[str, list[tuple[int, float, float]]] = {}
    for point in run.points:
        for name, value in point.values.items():
            found.setdefault(name, []).append((point.epoch, point.at_s, value))
    return found


def summary(folder: Path) -> dict[str, Any]:
    return {name: value for one in records(folder, "summary") for name, value in items(one.update).items()}


def helpers() -> set[int]:
    """Pids of the W&B processes that this process started. Other tests may be running W&B at the same time."""
    return {pid for pid in descendants(os.getpid()) if _is_helper(Path(f"/proc/{pid}"))}


def _is_helper(process: Path) -> bool:
    try:
        return b"wandb-core" in (process / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def no_new_helpers() -> Callable[[], set[int]]:
    before = helpers()

    def new() -> set[int]:
        deadline = time.monotonic() + 30.0
        while (left := helpers() - before) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    return new


def test_wandb_reads_what_the_run_has(folder: Path, tmp_path: Path, no_new_helpers: Callable[[], set[int]]):
    export_tracked(folder / "run.db", tmp_path / "out", "wandb")
    assert not no_new_helpers()
    run = tracked(folder)
    assert history(tmp_path / "out") == wanted(run)
    found = summary(tmp_path / "out")
    assert {n: v for n, v in found.items() if n.startswith("final/")} == {
        f"final/{name}": pytest.approx(value) for name, value in run.final.items()
    }
    assert found["orch.status"] == "done"
    (begun,) = records(tmp_path / "out", "run")
    assert (begun.run_id, begun.project, list(begun.tags)) == (RUN, "geo-c8", ["emulated"])
    config = items(begun.config.update)
    assert (config["swarm.target_batch_size"], config["orch.emulated"]) == (32768, True)
    assert len(records(tmp_path / "out", "exit")) == 1


def test_a_new_log_replaces_the_one_before(
    folder: Path, tmp_path: Path, no_new_helpers: Callable[[], set[int]]
):
    run = tracked(folder)
    begun = settled(replace(run, status="running"))
    other = tmp_path / "store" / "wandb" / "offline-run-20260101_000000-other"
    other.mkdir(parents=True)
    settings = {"project": "mine", "folder": str(tmp_path / "store")}
    log = open_log(settings, RUN)
    log.write(begun, last=False)
    log.write(begun, last=False)
    log.close()
    assert history(tmp_path / "store") == wanted(begun)
    for _ in range(2):
        log = open_log(settings, RUN)
        log.write(begun, last=False)
        log.write(run, last=True)
        log.close()
        assert history(tmp_path / "store") == wanted(run)
    assert other.is_dir()
    assert not no_new_helpers()


def test_from_the_command_line(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    arguments = ["export", str(folder), "--to", "wandb", "--out", str(tmp_path / "out")]
    assert orch(arguments) == 0
    assert capfd.readouterr() == (f"{tmp_path / 'out'}\n", "")
    assert orch(arguments) == 2  # it exists
    assert "--force" in capfd.readouterr().err
    assert orch([*arguments, "--force"]) == 0
    assert len(history(tmp_path / "out")["training/loss"]) == 5


def test_a_missing_package_is_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ExportError, match=r"needs the package wandb,.*pip install -e '\.\[wandb\]'"):
        export_tracked(folder / "run.db", tmp_path / "out", "wandb")
    assert not (tmp_path / "out").exists()
