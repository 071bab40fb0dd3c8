"""Profiles over a real embedded store: bytes as in the shards, nothing left behind, and what is refused."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.pipeline.profile_file import from_json, to_json
from analysis.pipeline.profile_records import Strategy
from cloud.storage.errors import StoreRefusedError
from cloud.storage.publish import list_objects, read_index
from experiments.peer.processes import descendants
from experiments.peer.training.decoding import Workers
from experiments.pipeline.builtin import imagenet_resize, power
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import STORED_CODECS
from orchestrator.cli.app import run
from orchestrator.errors import UsageError
from orchestrator.pipeline.host_watch import HostWatch
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.profiling import Wanted, check_memory, profile, strategies
from orchestrator.pipeline.strategy_runs import (
    ProfileError,
    delete,
    deliver,
    record_bytes,
    samples_of,
    source_bytes,
    store,
    temporary_prefix,
    wire_bytes,
)
from orchestrator.pipeline.target import Target, find_target

pytestmark = pytest.mark.processes

HERE = "tests.orchestrator.pipeline.test_profiling"
PLACE = "s3://orch-pipeline/stored"


def refuse(data: bytes) -> bytes:
    raise ValueError("not this one")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        folder = tmp_path_factory.mktemp("home")
        environment.setenv("ORCH_HOME", str(folder))
        if "ORCH_SWIFT_VENV" not in os.environ:  # tests/conftest.py sets it for each test only
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            environment.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        yield folder
        assert [path.name for path in folder.iterdir()] == []


@pytest.fixture(scope="module")
def opened(home: Path) -> Iterator[OpenInput]:
    with open_input(find_target("power"), samples=16) as found:
        yield found


def silent(_: str) -> None:
    pass


def own_store(made: OpenInput, environment: pytest.MonkeyPatch) -> Target:
    """An experiment whose store is that of `made`."""
    keys = made.client()._request_signer._credentials
    environment.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    environment.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    return find_target("local-2", [f"data.endpoint={made.endpoint}", f'data.shards="{made.shards[0]}"'])


def test_a_profile_of_power() -> None:
    steps: list[str] = []
    host = HostWatch()
    found = profile(find_target("power"), Wanted(samples=8, splits=(0, 2)), silent, steps.append, host=host)
    online, stored = found.measurements
    assert (found.pipeline, found.ops, found.storable, found.generated) == (
        "power",
        ("decode", "features"),
        2,
        True,
    )
    assert (online.strategy, stored.strategy) == (Strategy(0), Strategy(2))
    assert (online.after, stored.after) == ("", "features")
    assert online.samples == stored.samples == 8
    assert (online.offline_s, online.write_sps, online.stored_read_sps) == (None, None, None)
    # a double for voltage and current each, 64000 times; a double for 3 values of 500 periods
    assert 2 * 64000 * 8 < online.wire_bytes < online.stored_bytes + 1
    assert 3 * 500 * 8 < stored.wire_bytes < stored.stored_bytes + 1
    assert stored.stored_bytes < online.stored_bytes / 10
    assert stored.delivered_sps.n == online.delivered_sps.n == 5
    assert stored.cpu_s.value > 0
    assert stored.write_sps is not None
    assert stored.write_sps.value > 0
    assert stored.save_s is not None
    assert stored.save_s > 0
    labels = dict(found.extrapolations)
    assert labels[Strategy(2).label].total_samples == 16 * 64
    assert labels[Strategy(2).label].second_samples == 8
    assert labels[Strategy(2).label].second_error_percent == pytest.approx(0, abs=1)
    assert any(step.startswith("run 2 of 2") for step in steps)
    assert from_json(to_json(found)) == found
    for one in (online, stored):
        assert one.host is not None
        assert one.host.cpu_share is not None
        assert one.host.cpu_share > 0
        assert one.host.seconds >= 2.5  # five windows of half a second
        assert any(row.strategy == one.strategy.label for row in host.samples)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bytes_are_those_of_the_shards_in_the_index(opened: OpenInput, tmp_path: Path, codec: str) -> None:
    place = f"{PLACE}-{codec}"
    stored = store(opened, 2, codec, opened.shards[:3], place, tmp_path)  # pyright: ignore[reportArgumentType]
    index = read_index(opened.client(), place)
    assert index is not None
    objects = list_objects(opened.client(), place)
    sizes = [objects[shard.name] for shard in index.shards]
    assert stored.stored_bytes == sum(sizes) == sum(shard.size_bytes for shard in index.shards)
    assert stored.shard_samples == tuple(shard.samples for shard in index.shards) == (2, 2, 2)
    assert all(seconds > 0 for seconds in (*stored.save_s, *stored.offline_s))
    # a tar ends with two blocks of zeros and is filled to 10,240 bytes
    for at, size in enumerate(sizes):
        content = sum(stored.sample_bytes[2 * at : 2 * at + 2])
        assert -(-(content + 1024) // 10240) * 10240 == size
    read = list(samples_of(opened, stored.shards))
    assert [source_bytes(sample) for sample in read] == list(stored.sample_bytes)
    source = list(samples_of(opened, opened.shards[:3]))
    assert record_bytes(opened, 2, codec, source) == list(stored.sample_bytes)  # pyright: ignore[reportArgumentType]
    wire = wire_bytes(opened, stored.shards)
    assert sum(stored.sample_bytes) <= wire <= stored.stored_bytes
    delete(opened, place)
    assert list_objects(opened.client(), place) == {}


@pytest.mark.parametrize(
    ("cache", "workers"),
    [
        ("none", Workers()),
        ("none", Workers("process", 2)),
        ("disk", Workers()),
        ("memory", Workers("thread", 2)),
        ("memory", Workers("process", 1)),
    ],
)
def test_later_passes_read_the_store_or_the_cache(
    opened: OpenInput, tmp_path: Path, cache: str, workers: Workers
) -> None:
    shards = opened.shards[:4]
    found = deliver(
        opened,
        opened.pipeline,
        shards,
        8,
        streams=2,
        workers=workers,
        cache=cache,
        windows=5,
        link=None,
        folder=tmp_path / "cache",
    )
    windows = found.windows
    assert all(samples >= 8 for samples in windows.samples)
    assert all(wall >= 0.5 for wall in windows.wall_s)
    assert windows.rate_sps.value == pytest.approx(sum(windows.samples) / sum(windows.wall_s))
    assert windows.cpu_s_per_sample.value == pytest.approx(sum(windows.cpu_s) / sum(windows.samples))
    assert windows.cpu_s_per_sample.value > 0
    assert not (tmp_path / "cache").exists()
    each = wire_bytes(opened, shards) / 8
    if cache == "none":
        assert found.later_wire_bytes == pytest.approx(each, rel=0.3)  # some shards are begun or read ahead
        assert found.cached_bytes == 0
    else:
        assert found.later_wire_bytes == 0
    if cache == "disk":
        assert found.cached_bytes == pytest.approx(each, rel=0.05)
    if cache == "memory":
        assert found.cached_bytes == 3 * 500 * 8  # doubles


def test_your_own_store_must_be_told_where_stored_values_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_input(find_target("digits"), samples=16) as made:
        target = own_store(made, monkeypatch)
        with pytest.raises(UsageError, match="name one with --to s3://bucket/prefix, or --splits 0"):
            profile(target, Wanted(samples=2), silent, silent)
        before = list_objects(made.client(), "s3://orch-pipeline")
        found = profile(
            target, Wanted(samples=2, splits=(1,), to_url="s3://orch-pipeline/here"), silent, silent
        )
        assert not found.generated
        assert found.measurements[0].strategy.split == 1
        assert everything(made) == set(before)

        def interrupt(step: str) -> None:
            if step.startswith("run 1"):
                assert len(everything(made)) > len(before)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            profile(target, Wanted(samples=2, splits=(1,), to_url="s3://orch-pipeline"), silent, interrupt)
        assert everything(made) == set(before)


def denied(*_: object, **__: object) -> None:
    raise StoreRefusedError("the store refuses to delete")


@pytest.mark.parametrize("error", [ValueError("an error of the block"), KeyboardInterrupt(), None])
def test_a_prefix_that_cannot_be_deleted_is_named_and_hides_no_error(
    opened: OpenInput, error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    own = replace(opened, generated=False)
    monkeypatch.setattr("orchestrator.pipeline.strategy_runs.delete", denied)

    def block() -> None:
        with temporary_prefix(own, "s3://orch-pipeline/my own-2-none", left.append):
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(type(error)) as raised:
            block()
        assert raised.value is error
    assert left == [
        "stored values are left under s3://orch-pipeline/my own-2-none (the store refuses to delete); delete them with: "
        f"aws s3 rm --recursive 's3://orch-pipeline/my own-2-none/' --endpoint-url {opened.endpoint}"
    ]
    with temporary_prefix(opened, PLACE, left.append):  # an embedded store goes as a whole
        pass
    assert len(left) == 1


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupted_deletion_is_finished(
    opened: OpenInput, interrupts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{PLACE}-interrupted"
    calls: list[str] = []
    left: list[str] = []

    def interrupted(to_open: OpenInput, to_url: str) -> None:
        calls.append(to_url)
        if len(calls) <= interrupts:
            raise KeyboardInterrupt
        delete(to_open, to_url)

    monkeypatch.setattr("orchestrator.pipeline.strategy_runs.delete", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        temporary_prefix(replace(opened, generated=False), place, left.append),
    ):
        store(opened, 2, "none", opened.shards[:1], place, tmp_path)
    assert len(calls) == 2
    if interrupts == 1:
        assert list_objects(opened.client(), place) == {}
        assert left == []
    else:
        assert "(interrupted); delete them with" in left[0]
        delete(opened, place)


def test_a_profile_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_input(find_target("digits"), samples=16) as made:
        target = own_store(made, monkeypatch)
        monkeypatch.setattr("orchestrator.pipeline.strategy_runs.delete", denied)
        left: list[str] = []
        wanted = Wanted(samples=2, splits=(1,), to_url="s3://orch-pipeline/here")
        found = profile(target, wanted, silent, silent, left.append)
        assert len(found.measurements) == 1
        [sentence] = left
        prefix = sentence.split(" (")[0].rpartition(" ")[2]
        assert list_objects(made.client(), prefix) != {}


def test_a_bucket_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_input(find_target("digits"), samples=16) as made:
        target = own_store(made, monkeypatch)
        wanted = Wanted(samples=2, splits=(1,), to_url="s3://another/here")
        with pytest.raises(
            UsageError, match="--to s3://another/here: there is no bucket another; create it, or name"
        ):
            profile(target, wanted, silent, silent)
        assert [bucket["Name"] for bucket in made.client().list_buckets()["Buckets"]] == ["orch-pipeline"]


@pytest.mark.parametrize(
    ("number", "own"), [(signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGTERM, False)]
)
def test_a_signal_removes_what_was_stored_and_started(
    number: signal.Signals, own: bool, tmp_path: Path
) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    with open_input(find_target("digits"), samples=16) as made:
        before = everything(made)
        keys = made.client()._request_signer._credentials
        at = [
            *("--set", f"data.endpoint={made.endpoint}", "--set", f'data.shards="{made.shards[0]}"'),
            *("--to", "s3://orch-pipeline/here"),
        ]
        options = ["--splits", "1", "--samples", "2", "--windows", "1000", "--kind", "process"]
        code = "import sys; from orchestrator.cli.app import main; sys.exit(main())"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "pipeline", "profile", "local-2", *(at if own else ()), *options],
            env={
                **os.environ,
                "ORCH_HOME": str(home),
                "TMPDIR": str(temporary),
                "AWS_ACCESS_KEY_ID": keys.access_key,
                "AWS_SECRET_ACCESS_KEY": keys.secret_key,
                "PYTHONPATH": str(Path(__file__).parents[3]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            deadline = time.monotonic() + 120
            while not any("spawn_main" in command(pid) for pid in descendants(process.pid)):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            started = descendants(process.pid)
            if own:
                assert len(everything(made)) > len(before)
            process.send_signal(number)
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 130, output
            assert everything(made) == before
        finally:
            process.kill()
            process.wait()
    while any(command(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []
    assert list(home.iterdir()) == [] if home.exists() else own


def command(pid: int) -> str:
    """The command line of a living process, otherwise ""."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def everything(made: OpenInput) -> set[str]:
    pages = made.client().get_paginator("list_objects_v2").paginate(Bucket="orch-pipeline")
    return {item["Key"] for page in pages for item in page.get("Contents", ())}


def with_a_bad_sample(made: OpenInput) -> tuple[str, str, int]:
    """Store the first shard again, its third sample damaged. Returns the shard, the key and the bytes."""
    found = io.BytesIO()
    samples = list(samples_of(made, made.shards[:1]))
    with tarfile.open(fileobj=found, mode="w") as tar:
        for number, sample in enumerate(samples):
            for name, data in sample.items():
                if name.startswith("__"):
                    continue
                member = tarfile.TarInfo(f"{sample['__key__']}.{name}")
                content = b"no image" if number == 2 and name == "png" else data
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    made.client().put_object(Bucket="orch-pipeline", Key="bad/train-000000.tar", Body=found.getvalue())
    return "s3://orch-pipeline/bad/train-000000.tar", samples[2]["__key__"], len(found.getvalue())


def test_bad_samples_are_left_out_and_counted_or_end_the_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_input(find_target("digits"), samples=64) as made:
        shard, key, size = with_a_bad_sample(made)
        own_store(made, monkeypatch)
        settings = [f"data.endpoint={made.endpoint}", f'data.shards="{shard}"']
        wanted = Wanted(
            samples=8, splits=(0, 1), caches=("none", "memory"), to_url="s3://orch-pipeline/stored"
        )
        said: list[str] = []
        skipping = find_target("local-2", [*settings, "data.bad_samples=skip"])
        found = profile(skipping, wanted, said.append, silent)
        assert [one.strategy.split for one in found.measurements] == [0, 0, 1, 1]
        for one in found.measurements:
            assert (one.samples, one.bad_samples) == (8, 1)
        online, _, stored, kept = found.measurements
        assert online.stored_bytes == size / 7
        assert stored.offline_s is not None
        assert kept.cached_bytes > 0
        named = [line for line in said if "the first:" in line]
        assert len(named) == 1
        assert f"{shard}: sample {key}, operation image" in named[0]
        assert from_json(to_json(found)) == found

        for split in ("0", "1"):
            options = [word for one in settings for word in ("--set", one)]
            options += ["--splits", split, "--samples", "8", "--to", "s3://orch-pipeline/stored"]
            capsys.readouterr()
            assert run(["pipeline", "profile", "local-2", *options]) == 1
            error = " ".join(capsys.readouterr().err.split())
            assert f"{shard}: sample {key}, operation image" in error
            assert "correct the sample, or leave it out with data.bad_samples: skip" in error


def test_only_bad_samples_are_an_error(opened: OpenInput, tmp_path: Path) -> None:
    bad = Pipeline(
        "bad", opened.pipeline.fields, (Op("refuse", f"{HERE}:refuse", "power", "bytes", "bytes"),)
    )
    spec = find_target("local-2", ["data.bad_samples=skip"]).spec
    for cache in ("none", "memory"):
        with pytest.raises(PipelineError, match="samples are all bad, so the pipeline does not fit the data"):
            deliver(
                replace(opened, spec=spec),
                bad,
                opened.shards[:2],
                4,
                streams=1,
                workers=Workers(),
                cache=cache,
                windows=5,
                link=None,
                folder=tmp_path / "cache",
            )


def test_an_operation_that_raises_leaves_nothing_stored(opened: OpenInput, tmp_path: Path) -> None:
    bad = Pipeline(
        "bad", opened.pipeline.fields, (Op("refuse", f"{HERE}:refuse", "power", "bytes", "bytes"),)
    )
    place = f"{PLACE}-bad"
    with pytest.raises(
        BadSampleError, match=r"train-000000\.tar: sample .*, operation refuse: .*not this one"
    ):
        store(replace(opened, pipeline=bad), 1, "none", opened.shards[:1], place, tmp_path)
    delete(opened, place)
    assert list_objects(opened.client(), place) == {}
    assert list(tmp_path.rglob("*.tar")) == []


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(splits=(5,)), "may store its first 3 operations at most .operation crop is random"),
        (Wanted(codecs=("lz4",)), "not a codec; choose from none, gzip"),
    ],
)
def test_strategies_that_cannot_be(wanted: Wanted, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        strategies(imagenet_resize.pipeline(), wanted)


def test_all_combinations_are_measured_and_codecs_only_of_stored_values() -> None:
    wanted = Wanted(
        codecs=STORED_CODECS, streams=(1, 4), workers=(1, 2), caches=("none", "disk"), kind="process"
    )
    found = strategies(power.pipeline(), wanted)
    assert len(found) == len(set(found)) == (1 + 2 * len(STORED_CODECS)) * 8
    assert {one.codec for one in found if not one.split} == {"none"}
    assert {one.worker_kind for one in found} == {"process"}


def test_a_cache_above_the_memory_is_refused_with_the_estimate() -> None:
    check_memory(1000, 1000, 1_000_000)
    with pytest.raises(
        ProfileError, match=r"1000 items would take 0\.002 GB \(2 kB each\), and 0\.001 GB are"
    ):
        check_memory(2000, 1000, 1_000_000)


def test_a_disk_cache_that_does_not_fit_is_refused(
    opened: OpenInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: Callable[[Path], object] = lambda _: type("Usage", (), {"free": 1_000_000})  # noqa: E731
    monkeypatch.setattr("shutil.disk_usage", free)
    with pytest.raises(ProfileError, match="does not fit on the disk"):
        deliver(
            opened,
            opened.pipeline,
            opened.shards[:1],
            2,
            streams=1,
            workers=Workers(),
            cache="disk",
            windows=5,
            link=None,
            folder=tmp_path / "cache",
        )


def test_the_target_of_a_file_is_its_experiment(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((Path("experiments") / "library" / "local-2.yaml").read_text())
    found = profile(find_target(str(file)), Wanted(samples=8, splits=(0,)), silent, silent)
    assert (found.target, found.pipeline) == ("local-2", "digits")
