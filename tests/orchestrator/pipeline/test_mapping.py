"""Mapping a pipeline: the measured process is real; perf and valgrind are replaced by programs with recorded output."""

import io
import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import profilers
import pytest
from PIL import Image

from experiments.pipeline.builtin.imagenet import FIELDS, decode_op, image_op
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from orchestrator.errors import UsageError
from orchestrator.pipeline import map_programs
from orchestrator.pipeline.map_job import JOB, TRACE, MapJob
from orchestrator.pipeline.map_programs import MapError, check_frequency, program, unknown_events
from orchestrator.pipeline.mapping import (
    map_by_instructions,
    map_by_samples,
    map_document,
    read_samples,
    regressions,
)
from orchestrator.pipeline.opened import OpenInput, stacked

pytestmark = pytest.mark.processes

_PIPELINE = Pipeline("two", FIELDS, (decode_op(3), image_op("flip", "flip", {}, random=True)))


def _samples(count=3):
    found = []
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        found.append(
            {"__key__": f"p{number}", "__url__": "s3://b/a.tar", "jpg": file.getvalue(), "cls": b"1"}
        )
    return tuple(found)


def _opened(pipeline=_PIPELINE, **other):
    values = {
        "name": "photos",
        "pipeline": pipeline,
        "collate": stacked,
        "batch_size": 1,
        "seed": 0,
        "shards": (),
        "endpoint": "",
        "client": None,
        "opener": None,
        "generated": True,
        "location": "",
        "spec": None,
        "folder": Path(),
    }
    return OpenInput(**(values | other))


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Each test has a temporary folder of its own, which must be empty afterwards."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    yield made
    assert list(made.iterdir()) == []


@pytest.fixture
def recording(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PATH", f"{profilers.install(tmp_path / 'bin', profilers.RECORDING)}:{os.environ['PATH']}"
    )


def _sampled(opened=None, samples=None, **other):
    options = {
        "seconds": 0.05,
        "frequency_hz": 1000,
        "events": (),
        "lotus": False,
        "progress": lambda _: None,
    }
    return map_by_samples(opened or _opened(), samples or _samples(), **(options | other))


def _counted(samples):
    return map_by_instructions(_opened(), samples, progress=lambda _: None)


@pytest.fixture(autouse=True)
def kernel(tmp_path_factory, monkeypatch):
    """A kernel that allows sampling."""
    folder = tmp_path_factory.mktemp("kernel")
    for name, value in (("_PARANOID", "2"), ("_MOST_SAMPLES_HZ", "100000")):
        (folder / name).write_text(value)
        monkeypatch.setattr(map_programs, name, folder / name)


def _rows(found, op):
    return {row.function: row for row in found.functions if row.op == op}


@pytest.mark.usefixtures("recording")
def test_samples_are_joined_to_the_operations_of_the_real_process():
    found = _sampled()
    decode, flip = found.ops
    assert (decode.op, flip.op) == ("decode", "flip")
    assert decode.calls == flip.calls >= 1
    # one sample a span, one more at the first span
    assert (decode.count, flip.count) == (decode.calls + 1, flip.calls)
    assert found.between == found.other_threads == 0
    jpeg = _rows(found, "decode")["libjpeg.so.62.4.0 (no symbols)"]
    assert (jpeg.count, jpeg.library) == (decode.calls, "libjpeg.so.62.4.0")
    assert jpeg.low is not None
    assert jpeg.low < jpeg.share < 1
    assert _rows(found, "decode")["__memmove_avx512_unaligned_erms"].count == 1
    assert set(_rows(found, "flip")) == {"ImagingFlipLeftRight"}
    assert decode.wall_ns is not None
    assert decode.wall_ns > 10_000
    assert found.seconds is not None
    assert found.seconds >= 0.05
    assert json.loads(json.dumps(map_document(found)))["ops"][0]["events"] == {}


@pytest.mark.usefixtures("recording")
def test_events_are_summed_by_operation_or_unknown_with_the_reason():
    found = _sampled(events=["cycles", "page-faults", "major-faults"])
    decode = found.ops[0]
    assert decode.events == {"cycles": None, "page-faults": 270 * decode.calls, "major-faults": None}
    assert decode.count == decode.calls  # periods of cpu-clock are nanoseconds, not samples
    assert "not supported" in found.unknown_events["cycles"]
    assert found.unknown_events["major-faults"] == "perf recorded no sample of it under this name"
    with pytest.raises(UsageError, match="perf cannot count nothing"):
        unknown_events(["nothing"])


@pytest.mark.usefixtures("recording")
def test_lotus_runs_each_operation_alone_and_is_compared():
    found = _sampled(lotus=True)
    assert found.lotus is not None
    decode, flip = found.lotus.ops
    assert decode.interval_ns == 1e6
    assert decode.runs >= 1
    assert decode.functions == 2  # the first run's memmove, too
    assert flip.functions == 1
    # memmove is decode's alone, and libjpeg too
    assert (decode.attributed, flip.attributed) == (found.ops[0].count, found.ops[1].count)
    assert (found.lotus.error, found.lotus.unmapped) == (0.0, 0.0)


@pytest.mark.usefixtures("recording")
def test_instructions_are_summed_over_dumps_and_compared_with_an_earlier_map():
    found = _counted(_samples(2))
    assert [(row.op, row.calls, row.count) for row in found.ops] == [
        ("decode", 2, 2 * 60320),
        ("flip", 2, 2 * 353047),
    ]
    assert found.between is None
    before = map_document(found)
    assert regressions(before, found, 2.0, "old.json") == ""
    flip = replace(found.ops[1], count=round(2 * 353047 * 1.03))
    slower = replace(found, ops=(found.ops[0], flip))
    assert regressions(before, slower, 4.0, "old.json") == ""
    sentence = regressions(before, slower, 2.0, "old.json")
    assert "beyond 2 %: flip +3.00 % (353047 to 363638)" in sentence
    assert "decode" not in sentence
    with pytest.raises(UsageError, match="made with other samples"):
        regressions({**before, "data_sha256": "0"}, found, 2.0, "old.json")
    with pytest.raises(UsageError, match="is of other operations"):
        regressions({**before, "ops": [{"op": "x", "count": 1, "calls": 1}]}, found, 2.0, "old.json")
    with pytest.raises(UsageError, match="made with --exact"):
        regressions({**before, "unit": "samples"}, found, 2.0, "old.json")
    for damaged in (
        [],
        {},
        {"unit": "instructions"},
        {**before, "ops": []},
        {**before, "ops": [{"op": "x"}]},
    ):
        with pytest.raises(UsageError, match="is not a map"):
            regressions(damaged, found, 2.0, "old.json")


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("measure", [_sampled, _counted])
def test_a_bad_sample_is_named(measure):
    samples = (*_samples(1), {**_samples(1)[0], "__key__": "broken", "jpg": b"no image"})
    with pytest.raises(
        MapError, match=r"s3://b/a.tar: sample broken, operation decode: .*; correct the sample"
    ):
        measure(samples=samples)


@pytest.mark.usefixtures("recording")
def test_an_operation_that_cannot_be_imported_is_named():
    pipeline = Pipeline("lost", FIELDS, (Op("decode", "nowhere:f", "image", "bytes", "image"),))
    with pytest.raises(MapError, match="nowhere"):
        _sampled(_opened(pipeline))


def test_a_target_without_samples_is_refused():
    with pytest.raises(MapError, match="photos: its shards contain no samples"):
        read_samples(_opened(), 3)


@pytest.mark.parametrize("name", ["perf", "valgrind", "vgdb"])
def test_a_missing_program_is_named_with_its_package(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MapError, match=f"^{name} is not installed; install it .*apt install "):
        program(name)


@pytest.mark.usefixtures("recording")
def test_a_forbidding_kernel_is_named_with_its_setting(tmp_path, monkeypatch):
    level = tmp_path / "level"
    level.write_text("4\n")
    monkeypatch.setattr(map_programs, "_PARANOID", level)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        MapError, match=r"kernel.perf_event_paranoid is 4.*sudo sysctl kernel.perf_event_paranoid=2"
    ):
        _sampled()


def test_what_perf_says_when_it_fails_is_passed_on(tmp_path, monkeypatch):
    fails = "import sys; sys.exit('Error:\\nNo permission to enable cpu-clock event.\\n')"
    monkeypatch.setenv("PATH", str(profilers.install(tmp_path / "bin", {"perf": fails})))
    with pytest.raises(MapError, match=r"\(No permission to enable cpu-clock event\); allow it with"):
        _sampled()


def test_output_of_another_perf_is_refused(tmp_path, monkeypatch):
    other = profilers.RECORDING["perf"].replace('print("\\n".join(lines))', 'print("python 7 [000] what")')
    assert other != profilers.RECORDING["perf"]
    monkeypatch.setenv("PATH", f"{profilers.install(tmp_path / 'bin', {'perf': other})}:{os.environ['PATH']}")
    with pytest.raises(MapError, match=r"not a sample \('python 7 \[000\] what'\)"):
        _sampled()


def test_vgdb_that_fails_ends_valgrind(tmp_path, monkeypatch):
    programs = {**profilers.RECORDING, "vgdb": "import sys; sys.exit('vgdb error: no FIFO found')"}
    monkeypatch.setenv("PATH", f"{profilers.install(tmp_path / 'bin', programs)}:{os.environ['PATH']}")
    with pytest.raises(MapError, match=r"vgdb could not switch callgrind on \(vgdb error: no FIFO found\)"):
        _counted(_samples(1))


@pytest.mark.parametrize(
    ("hangs", "measure", "limit", "sentence"),
    [
        ("perf script", _sampled, "_SCRIPT_S", "use fewer --seconds, or a lower --frequency"),
        (
            "perf stat",
            lambda: unknown_events(["cycles"]),
            "_START_S",
            "did not count cycles within .* leave it out of --events",
        ),
        (
            "vgdb",
            lambda: _counted(_samples(1)),
            "_START_S",
            "switch callgrind on within .* use valgrind 3.19",
        ),
    ],
)
def test_a_program_that_hangs_is_ended_with_what_it_started(
    hangs, measure, limit, sentence, tmp_path, monkeypatch
):
    name, _, command = hangs.partition(" ")
    asleep = (
        "import pathlib, subprocess, sys\n"
        f"if sys.argv[1].startswith({command!r}):\n"
        "    p = subprocess.Popen(['sleep', '600'])\n"
        f"    f = pathlib.Path({str(tmp_path)!r}) / 'new'; f.write_text(str(p.pid)); f.rename(f.with_name('pid'))\n"
        "    p.wait()\n"
    )
    programs = {**profilers.RECORDING, name: asleep + profilers.RECORDING[name]}
    monkeypatch.setenv("PATH", f"{profilers.install(tmp_path / 'bin', programs)}:{os.environ['PATH']}")
    real = subprocess.Popen.communicate

    def communicate(process, *arguments, **options):  # the limit is over once the program sleeps
        _until((tmp_path / "pid").exists)
        return real(process, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    monkeypatch.setattr(map_programs, limit, 0.5)
    with pytest.raises(MapError, match=sentence):
        measure()
    _until(lambda: not _lives(int((tmp_path / "pid").read_text())))


def test_an_interrupt_ends_the_program_and_what_it_started(tmp_path, monkeypatch):
    asleep = (
        "import subprocess, sys, pathlib; p = subprocess.Popen(['sleep', '600']);"
        f"f = pathlib.Path({str(tmp_path)!r}) / 'new'; f.write_text(str(p.pid)); f.rename(f.with_name('pid')); p.wait()"
    )
    monkeypatch.setenv(
        "PATH", f"{profilers.install(tmp_path / 'bin', {'perf': asleep})}:{os.environ['PATH']}"
    )

    def interrupt(process, deadline):
        _until((tmp_path / "pid").exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(map_programs, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _sampled()
    pid = int((tmp_path / "pid").read_text())
    _until(lambda: not _lives(pid))


def test_the_measured_process_ends_with_its_parent(tmp_path):
    (tmp_path / JOB).write_bytes(pickle.dumps(MapJob(_PIPELINE, _samples(), 0, False, 600.0, 1e6, False)))
    child = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.pipeline.map_child"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
    )
    try:
        _until(lambda: (tmp_path / TRACE).exists() or child.poll() is not None)
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(10) == 1
    finally:
        child.kill()
        child.wait()


def _until(holds, limit_s=60):
    """Wait until `holds()` is true. Fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_frequency_that_the_kernel_refuses_is_refused(tmp_path, monkeypatch):
    most = tmp_path / "most"
    most.write_text("4000\n")
    monkeypatch.setattr(map_programs, "_MOST_SAMPLES_HZ", most)
    check_frequency(4000)
    for wrong in (0, -1, 4001):
        with pytest.raises(UsageError, match=f"--frequency: {wrong} samples/s .* use 1 to 4000"):
            check_frequency(wrong)
