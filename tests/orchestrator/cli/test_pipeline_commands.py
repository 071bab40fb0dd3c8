"""`orch pipeline show` and `trace` on real inputs from an embedded store, and what they refuse."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from chrome_format import problems

from experiments.peer.training.decoding import Workers
from orchestrator.cli.app import run
from orchestrator.pipeline.opened import open_input
from orchestrator.pipeline.target import find_target
from orchestrator.pipeline.tracing import record

pytestmark = pytest.mark.processes

Orch = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def orch(capsys: pytest.CaptureFixture[str]) -> Orch:
    """Run `orch pipeline`: exit code, stdout (parsed where it is JSON) and stderr."""

    def call(*arguments: str) -> tuple[int, Any, str]:
        code = run(["pipeline", *arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


@pytest.fixture
def broken_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> int:
    """Make mine.yaml with a task whose label cannot be read; returns the line that raises."""
    monkeypatch.chdir(tmp_path)
    assert run(["init", "mine", "--task", "python"]) == 0
    capsys.readouterr()
    text = Path("task.py").read_text()
    before, line, after = text.partition("return int(data)")
    assert line
    Path("task.py").write_text(f'{before}raise ValueError("the label is odd"){after}')
    return before.count("\n") + 1


def test_show_tells_what_may_be_stored_and_the_bytes_after_each_operation(orch: Orch, own_home: Path):
    code, found, err = orch("show", "imagenet", "--samples", "3", "-o", "json")
    assert code == 0, err
    assert (found["kind"], found["pipeline"], found["generated"], found["samples"]) == (
        "pipeline",
        "imagenet",
        True,
        3,
    )
    assert [op["name"] for op in found["operations"]] == [
        "decode",
        "crop",
        "flip",
        "to_tensor",
        "normalize",
        "label",
    ]
    assert found["storable_ops"] == 1
    decode, crop, flip = found["operations"][:3]
    assert (decode["storable"], decode["not_storable"]) == (True, None)
    assert crop["not_storable"] == {"code": "random", "op": "crop"}
    assert flip["not_storable"] == {"code": "behind_random", "op": "crop"}
    assert len({op["fingerprint"] for op in found["operations"]}) == 6
    assert crop["mean_bytes_out"] == 224 * 224 * 3 + 1  # the label's byte
    assert decode["mean_bytes_out"] > found["mean_bytes_stored"] > 1000
    assert [path for path in own_home.iterdir() if path.name.startswith("pipeline-store")] == []


def test_show_without_samples_starts_no_store(orch: Orch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrator.pipeline.opened._embedded_store", None)
    code, found, err = orch("show", "geo-b2", "--samples", "0", "-o", "json")
    assert (code, err) == (0, "")
    assert (found["kind"], found["target"], found["generated"]) == ("experiment", "geo-b2", None)
    assert [op["mean_bytes_out"] for op in found["operations"]] == [None, None]
    code, shown, _ = orch("show", "geo-b2", "--samples", "0")
    assert code == 0
    assert "experiment geo-b2, pipeline digits: 2 operations; all can be stored" in shown
    assert found["operations"][1]["fingerprint"][:12] in shown
    assert "BYTES OUT" not in shown


def test_a_trace_of_several_worker_counts(orch: Orch, own_home: Path, tmp_path: Path):
    drawn, tables = tmp_path / "trace.json", tmp_path / "tables"
    code, found, err = orch(
        *("trace", "digits", "--batches", "3", "--workers", "2,1", "--streams", "2", "--no-in-order"),
        *("--perfetto", str(drawn), "--parquet", str(tables), "-o", "json"),
    )
    assert code == 0, err
    (saved,) = (own_home / "traces").glob("digits-*/trace.json")
    assert json.loads(saved.read_text()) == found
    assert f"saved as {saved}" in err
    code, reported, err = orch("report", "digits", "-o", "json")
    assert (code, reported["parts"]["trace"]) == (0, str(saved)), err
    assert (found["generated"], found["shards"], found["batch_size"]) == (True, 8, 32)
    assert [one["workers"] for one in found["traces"]] == [1, 2]
    for one in found["traces"]:
        assert (one["worker_kind"], one["in_order"], one["streams"]) == ("thread", False, 2)
        assert [(op["name"], op["n"]) for op in one["ops"]] == [("image", 96), ("label", 96)]
        assert all(0 < op["mean_ms"] <= op["p90_ms"] * 10 and op["cpu_s"] > 0 for op in one["ops"])
        assert one["collate"]["n"] == one["batches"]["n"] == 3
        assert one["samples_per_s"] > 0
        assert 0 < one["busy_share"] <= 1
        assert one["dropped"] == one["bad_samples"] == 0
    document = json.loads(drawn.read_text())
    assert problems(document) == []
    names = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert names.count("SImage") == 192
    assert names.count("SBatchConsumed_3") == 2
    assert sum(event["ph"] == "s" for event in document["traceEvents"]) == 6
    assert parquet.read_table(tables / "ops.parquet").num_rows == 2 * 2 * 96
    assert parquet.read_table(tables / "batches.parquet").num_rows == 6
    assert (tables / "phases.parquet").is_file()
    assert (tables / "threads.parquet").is_file()


def test_a_trace_of_processes_over_a_link_as_a_table(orch: Orch):
    code, shown, err = orch(
        *("trace", "geo-b2", "--batches", "2", "--workers", "1,2", "--kind", "process", "--link", "800,1")
    )
    assert code == 0, err
    for words in (
        "experiment geo-b2, pipeline digits\nThis is what the input can deliver to a consumer that does nothing.",
        "\nData: generated samples in 8 shards of an embedded store, over 800 Mb/s a stream and 1 ms; 32 samples a batch",
        "\n1 process, 1 stream: ",
        "\n2 processes, 1 stream: ",
        "(collate, by batch)  2 ",
        "2 batches: mean ",
        "By number of workers:",
    ):
        assert words in shown
    assert "making 128 samples of digits" in err


def test_a_run_with_a_trace(orch: Orch, own_home: Path, tmp_path: Path):
    folder = own_home / "runs" / "digits-20261121-7f3a"
    (folder / "vms" / "us-0").mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: digits-20261121\n")
    code, _, err = orch("trace", "latest")
    assert code == 2
    assert "; record some with `orch launch ... --set data.trace=ops`" in err
    with open_input(find_target("power"), samples=64) as opened:
        record(opened, Workers(), 1, 2, lambda _: None)
        shutil.copytree(opened.folder / "trace-1", folder / "vms" / "us-0" / "trace")
    for name in ("latest", "digits-2026", folder.name):
        code, found, err = orch("trace", name, "-o", "json", "--parquet", str(tmp_path / "tables"))
        assert code == 0, err
        assert (found["kind"], found["target"], found["vms"]) == ("run", folder.name, ["1 worker"])
        assert found["traces"][0]["batches"]["n"] >= 4
        assert found["traces"][0]["workers"] is None
    code, shown, _ = orch("trace", "latest")
    assert code == 0
    assert shown.startswith(f"run {folder.name}\nTrace of 1 VM: 1 worker.\n\nAll VMs: ")
    code, _, err = orch("trace", "latest", "--workers", "2")
    assert code == 2
    assert "--workers: digits-20261121-7f3a is a run, whose trace has been recorded" in err
    code, found, _ = orch("trace", "digits", "--batches", "1", "-o", "json")
    assert (code, found["kind"]) == (0, "pipeline")  # though a run's id begins so
    (trace_file,) = list(folder.rglob("*.trace"))[:1]
    trace_file.write_bytes(b"no trace")
    code, _, err = orch("trace", "latest")
    assert code == 1
    assert trace_file.name in err


@pytest.mark.parametrize("command", [("trace", "--batches", "1"), ("show",)])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_an_operation_that_raises_names_shard_key_and_operation(
    orch: Orch, broken_task: int, command: tuple[str, ...], kind: str
):
    if kind == "process":
        command = (*command, "--set", "data.workers.kind=process")
    code, out, err = orch(command[0], "mine.yaml", *command[1:])
    assert (code, out) == (1, "")
    assert "orch: s3://" in err
    assert ".tar: sample " in err
    assert (
        f", operation digit: {Path.cwd()}/task.py:{broken_task}: ValueError: the label is odd; correct the sample"
        in err
    )
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "digits", "--samples", "-1"), "--samples -1: use a whole number from 0"),
        (("show", "speech"), "this pipeline needs the settings of an experiment"),
        (("trace", "digits", "--set", "seed=1"), "digits is a pipeline, not an experiment"),
        (("trace", "digits", "--workers", "0"), "--workers: '0' is not a whole number from 1 to 256"),
        (("trace", "digits", "--workers", "1,1"), "a number is given twice"),
        (("trace", "digits", "--link", "fast"), "--link: 'fast' is not a link; write Mb/s"),
        (("trace", "digits", "--link", "0,10"), "the rate must be above 0"),
        (("trace", "digits", "--batches", "0"), "--batches 0: use a whole number from 1"),
        (("trace", "digits", "--streams", "65"), "--streams 65: use a whole number from 1 to 64"),
        (("trace", "digits", "--perfetto", "/proc/none/x.json"), "/proc/none/x.json cannot be written"),
        (("trace", "digits", "--perfetto", "/tmp"), "/tmp is a folder; name a file"),
        (("trace", "digits", "--parquet", "/dev/null"), "/dev/null is not a folder; name another one"),
        (("trace", "digits", "--parquet", "/proc/none"), "/proc/none cannot be written"),
        (("trace", "digits", "--out", "/proc/none"), "/proc/none cannot be written"),
        (("trace", "nothing-here"), "no such pipeline, experiment or run"),
        (("trace", "nothing-here.yaml"), "no such file"),
        (("trace", "latest"), "no run yet"),
    ],
)
def test_what_is_refused_before_anything_starts(
    orch: Orch, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
):
    monkeypatch.setattr("orchestrator.pipeline.opened._embedded_store", None)
    code, out, err = orch(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_ctrl_c_leaves_nothing_behind(own_home: Path, tmp_path: Path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    begun = subprocess.Popen(
        [
            *(
                sys.executable,
                "-c",
                "import sys; from orchestrator.cli.app import run; sys.exit(run(sys.argv[1:]))",
            ),
            *("pipeline", "trace", "digits", "--batches", "100000", "--kind", "process", "--workers", "2"),
        ],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(temporary.rglob("*.trace")) and begun.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=60)
    assert begun.returncode == 130, err
    assert err == "making 512 samples of digits\n"
    assert list(temporary.iterdir()) == []
    assert [path for path in own_home.iterdir() if path.name.startswith("pipeline-store")] == []
    deadline = time.monotonic() + 10
    while living(begun.pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # Python's own process for semaphores ends after its parent
    assert living(begun.pid) == []


def living(group: int) -> list[str]:
    """The processes of a group that have not ended; a zombie has."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = file.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                found.append(file.parent.name)
    return found
