"""The two-stage profile over a real embedded store."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.storage.samples import Sample
from experiments.pipeline.errors import BadSampleError, PipelineError
from orchestrator.cli.app import run
from orchestrator.pipeline.offload.find_profile import read_offload_profile
from orchestrator.pipeline.offload.profiling import OffloadWanted, offload_profile
from orchestrator.pipeline.offload.sample_steps import steps_of
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.strategy_runs import ProfileError, samples_of
from orchestrator.pipeline.target import Target, find_target

pytestmark = pytest.mark.processes

SHARD = "s3://orch-pipeline/own/train-000000.tar"
WANTED = OffloadWanted(samples=8, batches=3, workers=2)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        folder = tmp_path_factory.mktemp("home")
        environment.setenv("ORCH_HOME", str(folder))
        if "ORCH_SWIFT_VENV" not in os.environ:  # tests/conftest.py sets it for each test only
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            environment.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        yield folder


@pytest.fixture(scope="module")
def digits(home: Path) -> Iterator[OpenInput]:
    with open_input(find_target("digits"), samples=64) as found:
        yield found


def silent(_: str) -> None:
    pass


def own_store(made: OpenInput, environment: pytest.MonkeyPatch, samples: list[Sample], *more: str) -> Target:
    """An experiment whose only shard holds these samples."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for sample in samples:
            for name, data in sample.items():
                if not name.startswith("__"):
                    member = tarfile.TarInfo(f"{sample['__key__']}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    made.client().put_object(Bucket="orch-pipeline", Key="own/train-000000.tar", Body=file.getvalue())
    keys = made.client()._request_signer._credentials
    environment.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    environment.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    return find_target("local-2", [f"data.endpoint={made.endpoint}", f'data.shards="{SHARD}"', *more])


def test_a_profile_of_an_experiment_and_a_plan_with_it(own_home: Path, capsys: pytest.CaptureFixture[str]):
    command = ["pipeline", "profile", "local-2", "--offload", "--samples", "16", "--batches", "4"]
    assert run([*command, "--codecs", "zstd", "--out", str(own_home / "p"), "-o", "json"]) == 0
    done = capsys.readouterr()
    printed = json.loads(done.out)
    assert f"saved as {own_home / 'p' / 'offload.json'}" in " ".join(done.err.split())
    found = read_offload_profile(own_home / "p" / "offload.json")
    stage = found.head.stage_1
    assert (found.head.target, found.head.pipeline, found.head.ops) == (
        "local-2",
        "digits",
        ("image", "label"),
    )
    assert (found.head.samples, found.head.bad_samples, found.head.generated) == (16, 0, True)
    for rate in (stage.fetch_sps, stage.preprocess_sps, stage.trainer_sps):
        assert rate is not None
        assert rate.n == 4
        assert rate.value > 0
    assert stage.workers == found.head.cores
    assert [one.place.name for one in found.codecs] == ["zstd:1", "zstd:2"]
    assert (found.samples.size_bytes[:, 0] == 64 * 4 + 1).all()  # float32 for 8 x 8 pixels, and b"7"
    assert found.samples.op_s is not None
    assert (found.samples.op_s > 0).all()
    assert [(row["after"], row["codec"]) for row in printed["steps"]] == [
        *(("", "none"), ("image", "none"), ("label", "none"), ("image", "zstd"), ("label", "zstd"))
    ]
    assert printed["steps"][1]["mean_bytes"] == 257
    assert printed["stage_1"]["io_bound"] == stage.io_bound
    capsys.readouterr()
    assert run(["pipeline", "profile", "--help"]) == 0
    said = set(re.findall(r'"([a-z0-9_:]+)"', capsys.readouterr().out.partition("JSON with --offload")[2]))
    assert {*printed, *printed["steps"][0], *printed["stage_1"], *printed["codecs"][0]} <= said

    arguments = ["--profile", str(own_home / "p"), "--storage-cores", "1", "-o", "json"]
    assert run(["pipeline", "plan", *arguments]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["samples"] == 16
    assert planned["policies"]["none"]["t_net_s"] == pytest.approx(16 / stage.fetch_sps.value)


def test_a_pipeline_alone_has_no_trainer_unless_its_rate_is_given():
    found = offload_profile(find_target("digits"), WANTED, silent, silent)
    assert found.head.stage_1.trainer_sps is None
    assert not found.head.stage_1.trainer_given
    given = OffloadWanted(samples=8, batches=2, trainer_sps=12.5, kind="process", workers=1)
    stage = offload_profile(find_target("digits"), given, silent, silent).head.stage_1
    assert stage.trainer_sps is not None
    assert (stage.trainer_sps.value, stage.trainer_given, stage.worker_kind) == (12.5, True, "process")


def test_samples_are_those_of_the_given_pass(home: Path):
    target = find_target("imagenet")
    wanted = OffloadWanted(samples=2, batches=2, pass_number=3, workers=1, codecs=("zstd",))
    found = offload_profile(target, wanted, silent, silent)
    assert found.head.pass_number == 3
    with open_input(target, samples=2) as opened:
        sample = next(samples_of(opened, sorted(opened.shards)[:1]))
        again = [steps_of(opened.pipeline, sample, opened.seed, n, (("zstd", 2),)) for n in (3, 4)]
    assert found.samples.keys[0] == again[0].key
    place = [one.place.name for one in found.codecs].index("zstd:2")
    assert found.codecs[place].size_bytes[0] == again[0].coded[0].size_bytes != again[1].coded[0].size_bytes


def test_bad_samples_are_left_out_and_counted_or_end_the_profile(
    digits: OpenInput, monkeypatch: pytest.MonkeyPatch
):
    samples = list(samples_of(digits, digits.shards[:1]))
    samples[2] = {**samples[2], "png": b"no image"}
    said: list[str] = []
    target = own_store(digits, monkeypatch, samples, "data.bad_samples=skip")
    found = offload_profile(target, WANTED, said.append, silent)
    assert (found.head.samples, found.head.bad_samples) == (len(samples) - 1, 1)
    assert samples[2]["__key__"] not in found.samples.keys
    [named] = [line for line in said if "the first:" in line]
    assert f"{SHARD}: sample {samples[2]['__key__']}, operation image" in named
    with pytest.raises(BadSampleError, match=r"data\.bad_samples: skip"):
        offload_profile(own_store(digits, monkeypatch, samples), WANTED, silent, silent)
    none_good = [{**sample, "png": b"no image"} for sample in samples]
    target = own_store(digits, monkeypatch, none_good, "data.bad_samples=skip")
    with pytest.raises(PipelineError, match="samples are all bad, so the pipeline does not fit the data"):
        offload_profile(target, WANTED, silent, silent)


def test_two_samples_of_one_key_cannot_be_told_apart(digits: OpenInput, monkeypatch: pytest.MonkeyPatch):
    first, second, *_ = samples_of(digits, digits.shards[:1])
    one = {**second, "__key__": "b"}
    target = own_store(digits, monkeypatch, [first, one, {**first, "__key__": "c"}, one])
    with pytest.raises(ProfileError, match="2 samples have the key b, and offloading chooses samples by"):
        offload_profile(target, WANTED, silent, silent)
