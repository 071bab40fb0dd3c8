"""`orch export --to tensorboard`, read back with TensorBoard's own readers."""

from __future__ import annotations

import resource
import signal
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from analysis.export.tables import ExportError
from analysis.export.tensorboard import open_log
from analysis.export.trackers import export_tracked
from analysis.export.tracking import settled, tracked_run
from analysis.importers.base import ImportFailed
from analysis.importers.orch_export import OrchExport
from metrics import tables
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from orchestrator.cli.app import run as orch

pytest.importorskip("tensorboard", reason="`make install` was run before the extra `dev` had tensorboard")
EventAccumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
metadata = import_module("tensorboard.plugins.hparams.metadata")
RUN = "geo-c8-20231114-aaaa"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / RUN)
    with RunStore.open_writer(tmp_path / RUN / "run.db") as store:
        experiment = {
            "name": "geo-c8", "spot": True, "swarm": {"target_batch_size": 32768, "optimizer": {"name": "adam", "lr": 0.01}},
            "peers": [{"name": "us", "count": 2}, {"name": "eu", "zones": ["a", "b"], "note": None}],
        }  # fmt: skip
        store.set_meta("experiment", experiment)
    return tmp_path / RUN


def read(out: Path) -> Any:
    found = EventAccumulator(str(out), size_guidance={"scalars": 0})
    found.Reload()
    return found


def session(found: Any, tag: str) -> bytes:
    return found.SummaryMetadata(tag).plugin_data.content


def test_tensorboard_reads_what_the_run_has(folder: Path, tmp_path: Path):
    export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    found = read(tmp_path / "out")
    with RunStore.open_reader(folder / "run.db") as store:
        numbers = RunNumbers.of(store)
    rows = tables.per_epoch(numbers)
    for column, tag in (("loss", "training/loss"), ("sps", "training/samples_per_s"), ("calc_s", "training/calculation_s"),
                        ("granularity", "training/granularity")):  # fmt: skip
        wanted = [(row["epoch"], row["ended_s"], row[column]) for row in rows if row[column] is not None]
        scalars = found.Scalars(tag)
        assert [(s.step, s.wall_time) for s in scalars] == [(epoch, at_s) for epoch, at_s, _ in wanted]
        assert [s.value for s in scalars] == pytest.approx([value for *_, value in wanted], rel=1e-6)
    (accuracy,) = found.Scalars("held_out/accuracy")
    assert (accuracy.step, accuracy.value) == (5, pytest.approx(0.934, rel=1e-6))
    (total,) = found.Scalars("final/total_usd")
    assert total.value == pytest.approx(float(numbers.bill.sum() or 0), rel=1e-6)
    spent = [s.value for s in found.Scalars("cost/usd")]
    assert len(spent) == len(rows)
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1] <= total.value


def test_settings_and_final_figures_are_hparams(folder: Path, tmp_path: Path):
    export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    found = read(tmp_path / "out")
    start = metadata.parse_session_start_info_plugin_data(session(found, metadata.SESSION_START_INFO_TAG))
    assert start.group_name == "geo-c8"
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {
        "name": "geo-c8", "spot": True, "swarm.target_batch_size": 32768.0, "swarm.optimizer.name": "adam",
        "swarm.optimizer.lr": 0.01, "peers.0.name": "us", "peers.0.count": 2.0, "peers.1.name": "eu",
        "peers.1.zones": '["a", "b"]',
        "orch.run_id": RUN, "orch.target": "local", "orch.emulated": True, "orch.price_book": "study-2023-04",
        "orch.price_book_sha256": "0", "orch.scales.bytes": 100.0, "orch.scales.time": 1.0, "orch.scales.samples": 8.0,
    }  # fmt: skip
    experiment = metadata.parse_experiment_plugin_data(session(found, metadata.EXPERIMENT_TAG))
    assert {info.name for info in experiment.hparam_infos} == set(values)
    assert {info.name.tag for info in experiment.metric_infos} == {
        tag for tag in found.Tags()["scalars"] if tag.startswith("final/")
    }
    end = metadata.parse_session_end_info_plugin_data(session(found, metadata.SESSION_END_INFO_TAG))
    assert end.status == 1  # success


def test_equal_records_give_equal_bytes(folder: Path, tmp_path: Path):
    for name in ("a", "b"):
        export_tracked(folder / "run.db", tmp_path / name, "tensorboard")
    (one,), (other,) = ((tmp_path / name).glob("*tfevents*") for name in ("a", "b"))
    assert (one.name, one.read_bytes()) == (other.name, other.read_bytes())


def test_a_run_without_an_epoch_is_exported(tmp_path: Path):
    write_run(tmp_path / RUN, epochs=0)
    export_tracked(tmp_path / RUN / "run.db", tmp_path / "out", "tensorboard")
    assert not any(tag.startswith("training/") for tag in read(tmp_path / "out").Tags()["scalars"])


def test_writing_again_appends_only_what_is_new(folder: Path, tmp_path: Path):
    with RunStore.open_reader(folder / "run.db") as store:
        run = tracked_run(store)
    begun = settled(replace(run, status="running"))
    assert [point.epoch for point in begun.points] == [1, 2, 3, 4]
    assert not begun.final
    log = open_log(str(tmp_path / "tb"), RUN)
    for _ in range(2):
        log.write(begun, last=False)
    log.close()
    (file,) = (tmp_path / "tb" / RUN).iterdir()
    complete = file.read_bytes()
    log = open_log(str(tmp_path / "tb"), RUN)
    log.write(begun, last=False)
    assert file.read_bytes() == complete
    log.close()
    file.write_bytes(complete[:-3])  # the machine crashed within a record
    for _ in range(2):
        log = open_log(str(tmp_path / "tb"), RUN)
        log.write(run, last=True)
        log.close()
    export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    live, exported = read(tmp_path / "tb" / RUN), read(tmp_path / "out")
    assert live.Tags() == exported.Tags()
    for tag in exported.Tags()["scalars"]:
        assert live.Scalars(tag) == exported.Scalars(tag)
    assert session(live, metadata.SESSION_END_INFO_TAG) == session(exported, metadata.SESSION_END_INFO_TAG)


def test_a_full_disk_loses_and_repeats_nothing(folder: Path, tmp_path: Path):
    with RunStore.open_reader(folder / "run.db") as store:
        run = tracked_run(store)
    log = open_log(str(tmp_path / "tb"), RUN)
    log.write(settled(replace(run, status="running")), last=False)
    (file,) = (tmp_path / "tb" / RUN).iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, limits[1]))
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                log.write(run, last=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    log.write(run, last=True)
    log.close()
    assert [s.step for s in read(tmp_path / "tb" / RUN).Scalars("training/loss")] == [1, 2, 3, 4, 5]
    export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    assert read(tmp_path / "tb" / RUN).Tags() == read(tmp_path / "out").Tags()


def test_from_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["export", str(folder), "--to", "tensorboard", "--out", str(tmp_path / "out")]
    assert orch(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert orch(arguments) == 2  # it exists
    assert "--force" in capsys.readouterr().err
    assert orch([*arguments, "--force"]) == 0
    assert len(list((tmp_path / "out").glob("*tfevents*"))) == 1


def test_such_an_export_is_no_run(folder: Path, tmp_path: Path):
    export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    with pytest.raises(
        ImportFailed, match="a tensorboard export contains the run's figures, not its records"
    ):
        OrchExport().import_runs(tmp_path / "out", tmp_path / "back")


def test_a_missing_package_is_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        ExportError, match=r"needs the package tensorboard.*pip install -e '\.\[tensorboard\]'"
    ):
        export_tracked(folder / "run.db", tmp_path / "out", "tensorboard")
    assert not (tmp_path / "out").exists()
