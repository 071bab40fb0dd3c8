"""`orch checkpoints`, `pull` and `evaluate` on prepared runs, with checkpoints in a store of this process or in a folder."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from moto import mock_aws
from safetensors.torch import load_file, save_file

from cloud.storage.client import ClientPerProcess, make_client
from cloud.storage.digits import make_digits
from cloud.storage.opener import ShardOpener
from experiments.checkpoints.folder import CheckpointFolder
from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.state import copy_state, save_state
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import describe, upload
from experiments.parse.load import load, to_document
from experiments.peer.checkpoints.schedule import Checkpointing, Start, writing_slot
from experiments.schema.models import ExperimentSpec, Optimizer
from metrics.records import EventRecord
from metrics.store.database import RunStore
from orchestrator.checkpoints.pulled import pull
from orchestrator.checkpoints.start import find_start
from orchestrator.cli.app import run
from orchestrator.controller import client
from orchestrator.errors import UsageError
from orchestrator.first_steps.trial import as_on_a_peer, copied_code, lone_config
from orchestrator.home import run_folder
from orchestrator.launch.checkpoint_config import checkpoint_config
from orchestrator.launch.prepare import _local_options
from orchestrator.launch.start_from import training_settings
from orchestrator.launch.task_facts import resolve_task

STORED, LOCAL = (
    "mine-20261127-aaaa",
    "mine-20261127-bbbb",
)  # its store exists; it was copied out of the embedded one
PREFIX = "digits/checkpoints"
Call = Callable[..., tuple[int, Any, str]]


@dataclass(frozen=True)
class World:
    """Two runs that stored the checkpoints of epochs 1 and 2, and what peers report for epoch 2."""

    home: Path
    spec: ExperimentSpec
    figures: Mapping[str, float]
    samples: int
    checkpoints: tuple[Manifest, Manifest]
    folder: Path  # their files, by epoch

    def key(self, number: int, file: str) -> str:
        return f"checkpoints/{STORED}/{self.checkpoints[number].name}/{file}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Train a user's task a little, twice, and evaluate it on the whole data set as a peer does."""
    user, folder = tmp_path_factory.mktemp("user"), tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.chdir(user)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        assert run(["init", "mine", "--task", "python"]) == 0
        spec = load("mine.yaml", ["checkpoint.every_epochs=1"], ())
        make_digits(2, "s3://digits", make_client(), folder=folder / "data", seed=spec.seed)
        code = copied_code(spec, folder / "peer")
        assert code is not None
        with as_on_a_peer(spec, folder / "peer"):
            from experiments.peer.training.task import build_runner
            from experiments.peer.training.task_data import held_out

            config = lone_config(spec, code, folder / "peer", spec.swarm.batch_size)
            runner = build_runner(config)
            optimizer = torch.optim.Adam(runner.parameter_groups(), lr=0.01)
            data = held_out(config, ShardOpener(ClientPerProcess()), runner, lambda _: None)
            assert data is not None
            for epoch in (1, 2):
                for _ in range(3):
                    optimizer.zero_grad()
                    for batch in data.batches():
                        runner.loss(runner.move(batch)).backward()
                    optimizer.step()
                copied = copy_state(runner.model, optimizer)
                save_state(folder / str(epoch), runner.task, copied, cast(Any, config.task))
            figures = runner.evaluate(data.batches())
    manifests = tuple(
        Manifest(STORED, epoch, f"{STORED}-a-1", "a", 1e9, 100 * epoch, "task:build", code.sha256(),
                 files=describe(folder / str(epoch)))
        for epoch in (1, 2)
    )  # fmt: skip
    return folder, (user, spec, figures, data.samples, manifests)


@pytest.fixture
def world(made: tuple[Path, Any], own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, (user, spec, figures, samples, manifests) = made
    monkeypatch.chdir(shutil.copytree(user, tmp_path / "work"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for run_id, target in ((STORED, "sky"), (LOCAL, "local")):
        place = run_folder(own_home, run_id)
        place.mkdir(parents=True)
        (place / "experiment.yaml").write_text("")
        copied_code(spec, place)
        row = {"vm": "a", "epoch": 2, "at_s": 1.0, "samples": samples, "metrics": figures}
        with RunStore.open_writer(place / "run.db") as store:
            for key, value in {
                "run_id": run_id, "target": target, "experiment": to_document(spec), "evaluations": [row],
            }.items():  # fmt: skip
                store.set_meta(key, value)
            for seq, manifest in enumerate(manifests):
                note = {
                    "name": manifest.name, "epoch": manifest.epoch, "bytes": 7, "sent_bytes": 7, "copy_s": 0.1,
                    "upload_s": 1.0, "at_s": 1e9 + seq,
                }  # fmt: skip
                event = EventRecord(
                    seq, 1e9, "checkpoint_stored", "a", 1, "vm-a", "", "", "", json.dumps(note)
                )
                store.append("events", [event])
    kept = run_folder(own_home, LOCAL) / "checkpoints"
    for epoch, manifest in zip((1, 2), manifests, strict=True):
        there = shutil.copytree(folder / str(epoch), kept / manifest.name)
        (there / "manifest.json").write_text(replace(manifest, run_id=LOCAL).to_json())
    with mock_aws():
        client = make_client()
        client.create_bucket(Bucket="digits")
        make_digits(1, "s3://digits", client, folder=tmp_path / "digits", seed=spec.seed)
        store = CheckpointStore(f"s3://{PREFIX}/{STORED}")
        for epoch, manifest in zip((1, 2), manifests, strict=True):
            upload(store, folder / str(epoch), manifest)
        yield World(own_home, spec, figures, samples, manifests, folder)


@pytest.fixture
def orch(world: World, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command: exit code, stdout (parsed where it is JSON) and stderr."""
    capsys.readouterr()

    def call(*arguments: object) -> tuple[int, Any, str]:
        code = run([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


@pytest.mark.parametrize("run_id", [STORED, LOCAL])
def test_checkpoints_are_listed_newest_first(world: World, orch: Call, run_id: str):
    code, found, err = orch("checkpoints", run_id, "-o", "json")
    assert (code, err) == (0, "")
    assert found["source"] == ("store" if run_id == STORED else "folder")
    assert [(c["epoch"], c["samples"], c["complete"], c["problem"]) for c in found["checkpoints"]] == [
        (2, 200, True, None),
        (1, 100, True, None),
    ]
    assert found["checkpoints"][0]["bytes"] == world.checkpoints[1].size_bytes
    code, text, err = orch("checkpoints", run_id)
    head = "NAME  EPOCH  SAMPLES (EPOCHS X BATCH)  SIZE  AGE  VM  COMPLETE"
    assert text.splitlines()[0].split() == head.split()
    assert text.splitlines()[1].split()[:3] == [world.checkpoints[1].name, "2", "200"]
    assert f"read from {found['where']}" in err
    code, text, _ = orch("checkpoints", run_id, "-o", "csv")
    assert text.splitlines()[0] == "name,epoch,samples,bytes,age_s,vm,complete,problem"


def test_problems_are_named(world: World, orch: Call):
    make_client().delete_object(Bucket="digits", Key=world.key(1, "manifest.json"))
    make_client().put_object(Bucket="digits", Key=world.key(0, "state/state.json"), Body=b"{}")
    code, found, _ = orch("checkpoints", STORED, "-o", "json")
    assert code == 0
    assert [c["problem_code"] for c in found["checkpoints"]] == ["incomplete", "corrupt"]
    _, _, err = orch("checkpoints", STORED)
    assert "its upload did not finish" in err
    assert "state/state.json is cut" in err
    code, _, err = orch("pull", STORED)
    assert code == 1
    assert "can be used" in err
    assert "state/state.json is cut" in err


def test_an_unreachable_store_leaves_the_journals_notes(world: World, orch: Call):
    shutil.rmtree(run_folder(world.home, LOCAL) / "checkpoints")
    code, found, err = orch("checkpoints", LOCAL, "-o", "json")
    assert (code, found["source"]) == (0, "journal")
    assert [(c["name"], c["complete"], c["bytes"]) for c in found["checkpoints"]] == [
        (manifest.name, None, 7) for manifest in reversed(world.checkpoints)
    ]
    assert "what the run's journal says was stored" in err
    assert "the run's embedded store is gone" in err
    code, _, err = orch("pull", LOCAL)
    assert code == 2
    assert "embedded store is gone" in err
    state = {"endpoint": "http://10.77.0.1:8080", "access_key": "a", "secret_key": "s"}
    path = run_folder(world.home, LOCAL) / "cloud/store/store.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(state))  # the run goes on: its store is in the emulated network
    code, _, err = orch("checkpoints", LOCAL)
    assert code == 0
    assert "the newest checkpoint is copied out of it when the run ends" in err
    path.write_text(json.dumps({**state, "endpoint": "http://127.0.0.1:9"}))  # loopback
    code, found, err = orch("checkpoints", LOCAL, "-o", "json")
    assert (code, found["source"]) == (0, "journal")
    assert "127.0.0.1:9" in err


def test_a_run_without_checkpoints_says_how_to_store_some(world: World, orch: Call):
    with RunStore.open_writer(run_folder(world.home, LOCAL) / "run.db") as store:
        store.set_meta("experiment", {**to_document(world.spec), "checkpoint": None})
    for command in ("checkpoints", "pull", "evaluate"):
        code, _, err = orch(command, LOCAL)
        assert code == 2
        assert "has no section 'checkpoint'" in err


@pytest.mark.parametrize("run_id", [STORED, LOCAL])
def test_pull_gives_the_models_files_and_the_state(world: World, orch: Call, run_id: str):
    code, out, err = orch("pull", run_id)
    assert code == 0, err
    assert out == f"{run_id}-epoch-2\n"
    assert "verified; model.safetensors has its weights" in err
    folder = Path(f"{run_id}-epoch-2")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "model.safetensors", "task.json", "state/optimizer.safetensors", "state/state.json", "manifest.json",
    }  # fmt: skip
    assert load_file(folder / "model.safetensors").keys()
    code, found, _ = orch("pull", run_id, "-o", folder, "--output", "json")  # already there
    assert (code, found["name"]) == (0, world.checkpoints[1].name)


def test_pull_of_an_epoch_without_the_state(world: World, orch: Call):
    code, found, err = orch("pull", STORED, "-o", "m", "--epoch", "1", "--model-only", "--output", "json")
    assert code == 0, err
    assert (found["epoch"], found["folder"], found["model_only"]) == (1, "m", True)
    assert found["bytes"] == sum(path.stat().st_size for path in Path("m").glob("[!m]*")) + (
        Path("m/model.safetensors").stat().st_size
    )
    assert sorted(path.name for path in Path("m").iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "task.json",
    ]
    code, _, err = orch("pull", STORED, "--epoch", "7")
    assert code == 2
    assert "there is no checkpoint of epoch 7" in err
    assert "only of 2, 1" in err


def test_pull_does_not_touch_other_content(world: World, orch: Call):
    Path("thesis").mkdir()
    Path("thesis/text").write_text("precious")
    for place in ("thesis", "thesis/text"):
        code, _, err = orch("pull", STORED, "-o", place)
        assert code == 2
        assert "choose another one with -o" in err
    assert [path.name for path in Path("thesis").iterdir()] == ["text"]


@pytest.mark.parametrize("place", ["/proc/x", "a-file/x"])
def test_pull_into_a_place_that_cannot_be_a_folder(world: World, orch: Call, place: str):
    Path("a-file").write_text("x")
    code, _, err = orch("pull", STORED, "-o", place)
    assert code == 2
    assert f"{place} cannot be written" in err
    assert "choose another folder with -o" in err


def test_pull_passes_over_what_cannot_be_used_and_offers_older_ones(world: World, orch: Call):
    make_client().put_object(Bucket="digits", Key=world.key(1, "manifest.json"), Body=b"{}")
    code, found, err = orch("pull", STORED, "-o", "m", "--output", "json")
    assert (code, found["epoch"]) == (0, 1)
    assert "passed over: s3://digits/checkpoints/" in err
    assert len(found["passed_over"]) == 1
    upload(CheckpointStore(f"s3://{PREFIX}/{STORED}"), world.folder / "2", world.checkpoints[1])
    make_client().delete_object(Bucket="digits", Key=world.key(1, "state/state.json"))
    _, found, _ = orch("pull", STORED, "-o", "m", "--output", "json")
    assert "lacks its file state/state.json" in found["passed_over"][0]
    code, _, err = orch("pull", STORED, "-o", "n", "--epoch", "2")
    assert code == 1
    assert f"use the older checkpoint {world.checkpoints[0].name}" in err
    assert not Path("n").exists()


@pytest.mark.parametrize("run_id", [STORED, LOCAL])
def test_evaluation_of_a_run_equals_what_its_peers_report(world: World, orch: Call, run_id: str):
    before = (Path.cwd(), list(sys.path))
    code, found, err = orch("evaluate", run_id, "-o", "json")
    assert code == 0, err
    assert found["figures"] == world.figures == found["reported"]
    assert (found["samples"], found["epoch"]) == (world.samples, 2)
    assert found["generated"] is (run_id == LOCAL)
    assert (Path.cwd(), list(sys.path)) == before
    code, found, err = orch("evaluate", run_id, "-o", "json", "--epoch", "1")
    assert code == 0
    assert (found["epoch"], found["reported"]) == (1, None)
    assert found["figures"]["loss"] > world.figures["loss"]


def test_a_pulled_folder_is_evaluated_with_its_run_or_a_given_experiment(world: World, orch: Call):
    assert orch("pull", STORED, "-o", "m")[0] == 0
    code, found, err = orch("evaluate", "m", "-o", "json")
    assert code == 0, err
    assert found["figures"] == world.figures == found["reported"]
    code, text, err = orch("evaluate", "m")
    assert f"loss  {world.figures['loss']:.6g}  (reported by the run: {world.figures['loss']:.6g})" in text
    shutil.rmtree(run_folder(world.home, STORED))
    code, _, err = orch("evaluate", "m")
    assert code == 2
    assert "is not known on this machine; give its experiment with --experiment FILE" in err
    code, found, err = orch("evaluate", "m", "--experiment", "mine.yaml", "-o", "json")
    assert code == 0, err
    assert found["figures"] == world.figures
    assert found["reported"] is None
    Path("task.py").write_text(Path("task.py").read_text() + "\n")
    code, _, err = orch("evaluate", "m", "--experiment", "mine.yaml")
    assert code == 1
    assert "give the experiment as it was launched" in err


def test_a_changed_or_foreign_folder_is_not_evaluated(world: World, orch: Call):
    assert orch("pull", STORED, "-o", "m")[0] == 0
    tensors = load_file("m/model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, "m/model.safetensors")
    code, _, err = orch("evaluate", "m")
    assert code == 1
    assert "m/model.safetensors is missing or was changed since it was pulled" in err
    Path("empty").mkdir()
    code, _, err = orch("evaluate", "empty")
    assert code == 2
    assert "give a run, or a folder that `orch pull` wrote" in err


@pytest.mark.parametrize("named", [{"call": "orchestrator_call:touch"}, {"with": {"n": 1}}])
def test_code_that_a_checkpoint_names_is_not_called(
    world: World, orch: Call, monkeypatch: pytest.MonkeyPatch, named: dict[str, Any]
):
    called = list[Any]()
    monkeypatch.setitem(sys.modules, "orchestrator_call", cast(Any, SimpleNamespace(touch=called.append)))
    kept = run_folder(world.home, LOCAL) / "checkpoints" / world.checkpoints[1].name
    task = kept / "model" / "task.json"
    task.write_text(json.dumps({**json.loads(task.read_text()), **named}))
    manifest = replace(world.checkpoints[1], run_id=LOCAL, files=describe(kept))
    (kept / "manifest.json").write_text(manifest.to_json())
    code, _, err = orch("evaluate", LOCAL)
    assert (code, called) == (1, [])
    assert f"task.json is of another task: its '{next(iter(named))}' is" in err


def test_plain_transformers_loads_a_pulled_folder_with_tied_weights(tmp_path: Path):
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    small: Any = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **small, tie_word_embeddings=True))
    optimizer = torch.optim.Adam(model.parameters())
    tokens = torch.arange(12).reshape(1, 12)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    manifest = Manifest("r", 3, "r-a-1", "a", 1e9, 10, "causal-lm", "")
    place = tmp_path / "kept" / manifest.name
    save_state(place, cast(Any, SimpleNamespace(model=model)), copy_state(model, optimizer))
    (place / "manifest.json").write_text(replace(manifest, files=describe(place)).to_json())
    assert "lm_head.weight" not in load_file(place / "model/model.safetensors")
    sizes: list[int] = []
    source = CheckpointFolder(tmp_path / "kept", "r")
    pulled = pull(source, manifest.name, tmp_path / "m", model_only=False, on_bytes=sizes.append)
    assert sum(sizes) == pulled.size_bytes
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits)


@pytest.mark.parametrize("stores", ["checkpoint.every_epochs=2", "checkpoint=null"])
def test_a_run_begins_with_the_newest_checkpoint_of_a_local_run(
    world: World, orch: Call, monkeypatch: pytest.MonkeyPatch, stores: str
):
    folder = run_folder(world.home, "next")
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, folder))
    code, _, err = orch(
        "launch", "mine.yaml", "--from", LOCAL, "--yes", "--detach", "--run-id", "next", "--set", "measure.epochs=6",
        "--set", stores,
    )  # fmt: skip
    assert code == 0, err
    newest, prefix = world.checkpoints[1].name, f"s3://digits/checkpoints-from/{LOCAL}"
    assert f"starts from {prefix}/{newest}: epoch 3 is its first one, with 1 warm-up + 4 measured" in err
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    assert (meta.start_epoch, meta.warmup_epochs, meta.epochs) == (2, 3, 4)
    assert meta.plan is not None
    assert meta.plan["start_from"] == meta.start_from
    spec = load("mine.yaml", [stores], ())
    told = checkpoint_config(meta, spec)
    assert told is not None
    settings = Checkpointing.of(told)
    assert settings.start == Start(prefix, newest)
    own = "checkpoints-from" if spec.checkpoint is None else "checkpoints"
    assert settings.prefix == f"s3://digits/{own}/next"
    if spec.checkpoint is None:
        assert not any(settings.due(epoch, 1e9, 0.0) for epoch in range(9))
        assert writing_slot(settings.writers, {"a-0"}) is None
    options = _local_options(spec, meta, folder).store
    kept = run_folder(world.home, LOCAL) / "checkpoints" / newest
    assert options.restore_arguments == {"prefix": prefix, "folder": str(kept)}


_AT = {"vm": "x", "since": 0, "at": [[2, {"pass": 1, "done": [0, 0], "shard": 1, "samples": 9}]]}
_POSITIONS = {"us-0": _AT, "eu-0": _AT}
_LATE = {**_POSITIONS, "eu-0": {**_AT, "at": [[3, _AT["at"][0][1]]]}}


@pytest.mark.parametrize(
    ("known", "change", "why"),
    [
        (_POSITIONS, "measure.epochs=7", ""),
        (None, "measure.epochs=7", f"{LOCAL} reported no position of us-0, eu-0 up to epoch 2"),
        ({"us-0": _AT}, "measure.epochs=7", f"{LOCAL} reported no position of eu-0 up to epoch 2"),
        (_LATE, "measure.epochs=7", f"{LOCAL} reported no position of eu-0 up to epoch 2"),
        (_POSITIONS, "seed=5", f"its seed is not that of {LOCAL}"),
        (_POSITIONS, "data.shards=s3://digits/train-000000.tar", f"its shards are not those of {LOCAL}"),
        (_POSITIONS, "data.dataset=glyphs", f"its store or data set is not that of {LOCAL}"),
        (_POSITIONS, "peers[0].count=3", f"its peers are not those of {LOCAL}"),
    ],
)
def test_the_data_goes_on_where_the_slots_were_if_it_is_the_same(
    world: World, orch: Call, monkeypatch: pytest.MonkeyPatch, known: Any, change: str, why: str
):
    folder = run_folder(world.home, "next")
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, folder))
    if known is not None:
        with RunStore.open_writer(run_folder(world.home, LOCAL) / "run.db") as store, store.transaction():
            store.set_meta("epoch_positions", known)
    code, _, err = orch(
        "launch", "mine.yaml", "--from", LOCAL, "--yes", "--detach", "--run-id", "next", "--set", "measure.epochs=6",
        "--set", change,
    )  # fmt: skip
    assert code == 0, err
    told = "each peer's data goes on where it was at the end of epoch 2"
    assert (f"the data starts from the beginning: {why}" if why else told) in err
    with RunStore.open_reader(folder / "run.db") as store:
        assert store.meta("epoch_positions") == (None if why else known)


def test_the_plan_is_that_of_the_epochs_left(world: World, orch: Call, monkeypatch: pytest.MonkeyPatch):
    at = ("mine.yaml", "--set", "measure.epochs=6")
    _, whole, _ = orch("plan", *at, "-o", "json")
    code, left, err = orch("plan", *at, "--from", LOCAL, "-o", "json")
    assert code == 0, err
    newest = world.checkpoints[1].name
    assert (whole["epochs"], left["epochs"]) == (
        {"warmup": 1, "measured": 6},
        {"warmup": 1, "measured": 4},
    )
    assert (left["start_from"]["name"], left["start_from"]["epoch"]) == (newest, 2)
    assert "start_from" not in whole
    assert "duration and cost above are those of the epochs left" in left["notes"][-1]
    assert (whole["checkpoints"]["count"], left["checkpoints"]["count"]) == (
        math.ceil(7 / every(world)),
        math.ceil(5 / every(world)),
    )
    for figure in ("duration_s", "raw_duration_s"):
        assert whole[figure] is None or left[figure] == pytest.approx(whole[figure] * 5 / 7)
    code, _, err = orch("plan", *at, "--from", LOCAL, "-o", "plan.json")
    assert code == 0, err
    code, _, err = orch("launch", "--plan", "plan.json", "--dry-run")
    assert (code, "--dry-run must not look" in err) == (2, True), err
    folder = run_folder(world.home, "next")
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, folder))
    code, _, err = orch("launch", "--plan", "plan.json", "--yes", "--detach", "--run-id", "next")
    assert code == 0, err
    with RunStore.open_reader(folder / "run.db") as store:
        assert store.run_meta().start_from == left["start_from"]
    shutil.rmtree(run_folder(world.home, LOCAL) / "checkpoints" / newest)
    code, _, err = orch("launch", "--plan", "plan.json", "--yes", "--detach")
    assert code == 7
    assert f"the plan begins with the checkpoint {newest}" in err


def every(world: World) -> int:
    """`checkpoint.every_epochs` of mine.yaml."""
    found = load("mine.yaml", (), ()).checkpoint
    assert found is not None
    assert found.every_epochs is not None
    return found.every_epochs


def test_what_is_trained_differently_is_named(world: World, rented: ExperimentSpec):
    newest = world.checkpoints[1]
    before = {
        "optimizer": {"name": "adam", "lr": 0.5, "betas": [0.9, 0.99]},
        "schedule": {"kind": "cosine", "epochs": 9, "warmup_epochs": 0},
        "target_batch_size": 77,
    }
    stored = replace(newest, run_id=LOCAL, trained_with=before)
    manifest = run_folder(world.home, LOCAL) / "checkpoints" / newest.name / "manifest.json"
    manifest.write_text(stored.to_json())
    assert Manifest.from_json(stored.to_json(), "here") == stored
    found = find_start(LOCAL, rented, "local", world.home, {})
    swarm = rented.swarm
    assert set(found.differences) >= {
        f"optimizer.lr {swarm.optimizer.lr} instead of 0.5",
        "optimizer.betas the default instead of [0.9, 0.99]",
        f"target_batch_size {swarm.target_batch_size} instead of 77",
        "schedule: no schedule instead of cosine",
    }
    assert "differs from the run that stored" in found.notes(rented)[-1]
    manifest.write_text(replace(stored, trained_with={**before, "optimizer": {"name": "lamb"}}).to_json())
    with pytest.raises(UsageError, match=r"set swarm\.optimizer\.name=lamb"):
        find_start(LOCAL, rented, "local", world.home, {})
    same = replace(stored, trained_with=training_settings(rented))
    manifest.write_text(same.to_json())
    assert find_start(LOCAL, rented, "local", world.home, {}).differences == ()


@pytest.fixture
def rented(world: World) -> ExperimentSpec:
    """The experiment on rented VMs whose store is that of STORED."""
    spec, obstacles = resolve_task(load("mine.yaml", ["measure.epochs=6"], ()), world.home, build=True)
    assert not obstacles
    return spec


def test_a_checkpoint_in_the_store_is_named_by_run_or_url(world: World, rented: ExperimentSpec):
    older, newer = world.checkpoints
    prefix = f"s3://{PREFIX}/{STORED}"
    for text, chosen in (
        (STORED, newer),
        (prefix, newer),
        (f"{prefix}/", newer),
        (f"{prefix}/{older.name}", older),
    ):
        start = find_start(text, rented, "sky", world.home, {})
        assert (start.prefix, start.name, start.epoch) == (prefix, chosen.name, chosen.epoch)
        assert start.folder is None


def test_a_checkpoint_that_does_not_fit_is_refused(world: World, rented: ExperimentSpec):
    short = {"measure": rented.measure.model_copy(update={"warmup_epochs": 1, "epochs": 1})}
    sgd = {"swarm": rented.swarm.model_copy(update={"optimizer": Optimizer(name="sgd")})}
    padded, other = {"task": None, "model": "digits"}, {"task": None, "model": "ResNet18", "emulation": None}
    for text, on, changes, says in (
        (f"s3://{PREFIX}/{STORED}", "local", {}, "uses the embedded store of a local run"),
        (STORED, "local", {}, "set data.endpoint to the store of the checkpoint"),
        (LOCAL, "sky", {}, f"use --from s3://BUCKET/PREFIX/{LOCAL}"),
        (f"s3://{PREFIX}/none", "sky", {}, "no checkpoint is stored in"),
        (f"s3://{PREFIX}/{STORED}/epoch-00000009-a", "sky", {}, "epoch-00000009-a is not in"),
        ("s3://digits", "sky", {}, "give s3://bucket/prefix/<run id>"),
        (LOCAL, "local", short, "raise measure.epochs, for example --set measure.epochs=3"),
        (LOCAL, "local", sgd, "has the statistics of the optimizer adam, but swarm.optimizer of mine is sgd"),
        (STORED, "sky", sgd, "set swarm.optimizer.name=adam"),
        (LOCAL, "local", padded, "emulates padded accelerators"),
        (LOCAL, "local", other, "but mine trains ResNet18 with none"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            find_start(text, rented.model_copy(update=changes), on, world.home, {})
        assert str(caught.value).startswith(f"--from {text}: ")
        assert says in str(caught.value)


def test_no_damaged_checkpoint_and_none_of_a_run_that_goes_on(
    world: World, orch: Call, rented: ExperimentSpec
):
    kept = run_folder(world.home, LOCAL) / "checkpoints" / world.checkpoints[1].name / "state" / "state.json"
    kept.write_bytes(b"x" * kept.stat().st_size)
    code, _, err = orch("launch", "mine.yaml", "--from", LOCAL, "--yes")
    assert code == 1
    assert "differs from its manifest" in err
    with RunStore.open_writer(run_folder(world.home, LOCAL) / "run.db") as store:
        store.set_meta("status", "running")
    code, _, err = orch("launch", "mine.yaml", "--from", LOCAL, "--yes")
    assert code == 2
    assert f"{LOCAL} still runs" in err
    code, _, err = orch("launch", "mine.yaml", "--from", LOCAL, "--dry-run")
    assert code == 2
    assert "contacts nothing" in err
