"""A task from its file to the peers' config: facts, plan, shipped code, requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from peer_rig import serve_folder
from pure_wheel import wheel
from task_rig import SENTENCES, SMALL_RESNET, SMALL_VIT, write_tokenizer

from cloud.provider import LaunchRequest
from cloud.storage.errors import StoreUnreachableError
from experiments.parse.load import from_document, load, to_document
from experiments.parse.task_files import TaskFilesError
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from experiments.tasks.build import BUILT_IN
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay
from orchestrator.errors import StalePlanError
from orchestrator.launch import task_facts
from orchestrator.launch.machine_checks import machine_obstacles
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import RunPlan, approved_plan, plan_run
from orchestrator.launch.prepare import prepare
from orchestrator.launch.requirement_checks import requirements_of
from orchestrator.launch.store_reads import with_measured_samples
from orchestrator.launch.task_code import TaskCall, task_code
from orchestrator.launch.task_facts import resolve_task

OWN = Path(__file__).parents[2] / "experiments" / "tasks" / "own"
PARAMETERS = 64 * 16 + 16 + 16 * 10 + 10
RENTED = (
    "data.endpoint=http://store.example:80",
    "secrets={AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}",
    "peers.us.resources.max_usd_per_h=1",
    "peers.eu.resources.max_usd_per_h=1",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The user's folder."""
    shutil.copytree(OWN, tmp_path / "user", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "user" / "mine.yaml"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The requests to `experiments.tasks.describe`, which answers without a process."""
    asked: list[Mapping[str, Any]] = []

    def answer(*_: Any, input: str, **__: Any) -> subprocess.CompletedProcess[str]:
        asked.append(json.loads(input))
        return subprocess.CompletedProcess(
            [],
            0,
            json.dumps(
                {
                    "parameters": PARAMETERS,
                    "shapes": [[[PARAMETERS], 1]],
                    "without_checkpointing": "Sequential",
                }
            ),
            "",
        )

    monkeypatch.setattr(task_facts.subprocess, "run", answer)
    return asked


def read(file: Path, *changes: str) -> ExperimentSpec:
    return load(str(file), changes)


def planned(file: Path, home: Path, *changes: str, on: str = "local") -> RunPlan:
    spec, obstacles = resolve_task(read(file, *changes), home)
    return plan_run(spec, on, cores=2, task_obstacles=obstacles)


def requests(folder: Path) -> list[LaunchRequest]:
    """What the run's peers are launched with."""
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")  # as the shell writes them
    with RunStore.open_reader(folder / "run.db") as store:
        slots = replay(store.records("events")).spec.slots
        made = RunRequests(folder, store)
        copy = f"{folder}/vms/r-1-us-0/code/my_task.py:7"
    assert made.own_paths.in_text(copy).endswith("/user/my_task.py:7" if (folder / "code").is_dir() else copy)
    return [made.peer(RequestVm(f"r-1-{s.name}-0", s.name, 0, 0, ()), s.places[0]) for s in slots]


@pytest.fixture(autouse=True)
def keys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "orchestrator.launch.keys."
    monkeypatch.setattr(f"{keys}generate_identity", lambda: (b"key", "id"))
    monkeypatch.setattr(f"{keys}generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))


def test_a_task_is_built_once_and_its_facts_are_kept(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    spec, obstacles = resolve_task(read(file), home, build=False)
    assert (spec.task.facts, obstacles) == (None, ())
    spec, obstacles = resolve_task(read(file), home)  # a process with torch
    assert obstacles == ()
    assert spec.task.facts.parameters == PARAMETERS
    assert sorted(spec.task.facts.shapes) == [((10,), 1), ((10, 16), 1), ((16,), 1), ((16, 64), 1)]
    monkeypatch.setattr(task_facts, "_described", lambda *_: pytest.fail("built again"))
    assert resolve_task(read(file), home, build=False) == (spec, ())
    assert resolve_task(spec, home) == (spec, ())
    (kept,) = (home / "tasks").iterdir()
    kept.write_text("damaged")
    assert resolve_task(read(file), home, build=False)[0].task.facts is None


def test_other_code_settings_and_requirements_have_another_hash(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    wheel(file.parent / "wheels")

    def sha256(*changes: str) -> str:
        return resolve_task(read(file, *changes), tmp_path)[0].task.facts.sha256

    found = [sha256(), sha256("task.with={width: 17}"), sha256("requirements=[six]"), sha256("seed=3")]
    pipeline = f"data.pipeline={file.parent}/my_task.py:PLAIN"
    found += [sha256(pipeline), sha256(f"requirements=[--find-links {file.parent}/wheels]")]
    (file.parent / "my_helper.py").write_text((file.parent / "my_helper.py").read_text() + "# more\n")
    found.append(sha256())
    assert found[3] == found[0], "the seed is not part of the task"
    assert len(set(found)) == len(found) - 1


def test_an_error_in_the_users_code_names_her_file_and_line(file: Path, tmp_path: Path):
    plan = planned(file, tmp_path / "home", f"task.python={file.parent}/my_task.py:fails")
    assert [o.as_dict() for o in plan.obstacles] == [
        {
            "code": "task",
            "text": f"task my_task:fails cannot be built: {file.parent}/my_task.py:"
            f"{_line(file.parent / 'my_task.py', 'no such corpus')}: ValueError: no such corpus",
        }
    ]
    assert plan.document["task"]["parameters"] is None
    assert not plan.document["launchable"]
    assert not (tmp_path / "home").exists(), "failures are not kept"


def test_a_model_without_gradient_checkpointing_is_refused_before_vms_are_rented(file: Path, tmp_path: Path):
    home, changes = tmp_path / "home", ("swarm.gradient_checkpointing=true",)
    assert resolve_task(read(file), home)[1] == ()
    for _ in range(2):  # with the kept facts, and the second time without any
        plan = planned(file, home, *changes, *RENTED, on="sky")
        (text,) = [o.text for o in plan.obstacles if o.code == "task"]
        assert text.startswith("task my_task:build: its model, a Sequential, has no gradient checkpointing ")
        assert "remove swarm.gradient_checkpointing" in text
        for kept in (home / "tasks").glob("*"):
            kept.unlink()


@pytest.mark.parametrize(("config", "refused"), [(SMALL_RESNET, True), (SMALL_VIT, False)])
def test_gradient_checkpointing_of_image_classification(
    file: Path, tmp_path: Path, config: dict[str, Any], refused: bool
):
    (file.parent / "config.json").write_text(json.dumps(config))
    task = f"task={{name: image-classification, with: {{classes: 10, config: {file.parent}/config.json}}}}"
    _, obstacles = resolve_task(read(file, task, "swarm.gradient_checkpointing=true"), tmp_path / "home")
    texts = [o.text for o in obstacles]
    assert [t.startswith("task image-classification: its model, a ResNetForImage") for t in texts] == [
        True
    ] * refused


def _line(file: Path, text: str) -> int:
    return next(n for n, line in enumerate(file.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (subprocess.CompletedProcess([], -9, "", ""), "was killed, as when memory runs out"),
        (subprocess.CompletedProcess([], 3, "", "a\nboom\n"), "ended with exit code 3: boom"),
        (
            subprocess.CompletedProcess([], 0, '{"error": "torch is not installed", "missing": "torch"}', ""),
            "torch is not installed; install it with",
        ),
    ],
)
def test_a_build_that_ends_without_facts_is_an_obstacle(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Any, text: str
):
    monkeypatch.setattr(task_facts.subprocess, "run", lambda *_, **__: done)
    _, (obstacle,) = resolve_task(read(file), tmp_path)
    assert obstacle.code == "task"
    assert text in obstacle.text


def test_a_module_of_a_wheel_can_be_imported_and_an_absent_one_is_named(file: Path, tmp_path: Path):
    made = wheel(file.parent / "wheels", "orchtestonly")
    (file.parent / "my_helper.py").write_text(
        "import orchtestonly\n\ndef centred(x):\n    return x - x.mean()\n"
    )
    _, (obstacle,) = resolve_task(read(file, "requirements=[orchtestonly]"), tmp_path)
    assert "No module named 'orchtestonly'" in obstacle.text
    assert "install orchtestonly here too, or give its wheel under requirements" in obstacle.text
    spec, obstacles = resolve_task(read(file, f"requirements=[{made}]"), tmp_path)
    assert obstacles == ()
    assert spec.task.facts.parameters == PARAMETERS


def test_the_plan_of_a_task(file: Path, tmp_path: Path, described: list[Mapping[str, Any]]):
    plan = planned(file, tmp_path)
    (asked,) = described
    assert (asked["call"], asked["with"], asked["pipeline"]) == ("my_task:build", {"width": 16}, "")
    document = plan.document
    assert (document["launchable"], document["model"], document["duration_s"]) == (
        True,
        "my_task:build",
        None,
    )
    assert document["task"] == {
        "name": "my_task:build",
        "sha256": plan.spec.task.facts.sha256,
        "parameters": PARAMETERS,
        "bytes_per_sample": 2060,
        "accelerators": "host",
    }
    assert document["emulated"]
    rented = planned(file, tmp_path, *RENTED, on="sky")
    assert rented.obstacles == ()
    assert not rented.document["emulated"]
    assert rented.document["task"]["accelerators"] == "real"


def test_a_budget_needs_the_size_of_samples(file: Path, tmp_path: Path, described: list[Mapping[str, Any]]):
    plan = planned(file, tmp_path, *RENTED, "budget_usd=5", on="sky")
    (obstacle,) = plan.obstacles
    assert "samples of my_task:build, whose size is unknown" in obstacle.text
    assert "set data.bytes_per_sample" in obstacle.text
    assert (
        planned(file, tmp_path, *RENTED, "budget_usd=5", "data.bytes_per_sample=1000", on="sky").obstacles
        == ()
    )


def test_peers_get_the_task_as_it_was_planned(file: Path, tmp_path: Path, described: list[Mapping[str, Any]]):
    changes = (
        f"data.pipeline={file.parent}/my_task.py:PLAIN",
        "data.workers={kind: process, count: 2}",
        "data.bad_samples=skip",
        "data.streams=4",
        "data.stored=true",
        "data.endpoint=http://store:1",
    )
    plan = planned(file, tmp_path, *changes)
    folder = prepare(plan, file, "r-1", tmp_path, now_s=1.0)
    shutil.rmtree(file.parent)  # a replacement hours later needs none of the user's files
    first, second = requests(folder)
    config = first.config
    assert config["task"] == {
        "call": "my_task:build",
        "with": {"width": 16},
        "sha256": plan.spec.task.facts.sha256,
    }
    assert (config["code_folder"], config["pipeline"], config["bad_samples"]) == (
        "code",
        "my_task:PLAIN",
        "skip",
    )
    assert config["workers"] == {"kind": "process", "count": 2, "in_order": True}
    assert (config["streams"], config["stored"]) == (4, True)
    assert (config["emulated"], config["threads"], config["coalesce"]) == (False, 1, 1)
    assert config["own_machine"] is False
    assert (config["forward_s"], config["backward_s"], config["sync_work_s"]) == (0, 0, 0)
    assert (config["parameters"], config["target_batch_size"]) == (PARAMETERS, 512)
    assert config["averaging_timeout_s"] == plan.spec.swarm.averaging_timeout_s
    assert first.folders == second.folders == {"code": str(folder / "code")}
    assert sorted(p.name for p in (folder / "code").iterdir()) == ["my_helper.py", "my_task.py"]
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    assert (meta.model.name, meta.model.ran) == ("my_task:build", "my_task:build")
    assert meta.model.sha256 == plan.spec.task.facts.sha256
    assert (meta.emulated, meta.emulation.accelerators, meta.sync_work_s) == (True, "host", {})


def test_rented_peers_train_on_their_accelerator(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    made = wheel(file.parent / "wheels", "orchtestonly")
    plan = planned(
        file,
        tmp_path,
        *RENTED,
        f"requirements=[--find-links {made.parent}, orchtestonly, {made}, six]",
        on="sky",
    )
    monkey = pytest.MonkeyPatch()
    with monkey.context() as context:
        context.setenv("ORCH_SECRET_AWS_ACCESS_KEY_ID", "a")
        context.setenv("ORCH_SECRET_AWS_SECRET_ACCESS_KEY", "b")
        folder = prepare(plan, file, "r-1", tmp_path, now_s=1.0)
    first, _ = requests(folder)
    assert (first.config["emulated"], first.config["threads"]) == (False, 0)
    assert (first.config["own_machine"], first.config["own_network"]) == (True, True)
    assert first.folders == {"code": str(folder / "code"), "wheels": str(folder / "wheels")}
    assert first.requirements == ("--find-links wheels", "orchtestonly", f"wheels/{made.name}", "six")
    assert [p.name for p in (folder / "wheels").iterdir()] == [made.name]
    with RunStore.open_reader(folder / "run.db") as store:
        assert store.run_meta().emulated is False


def test_a_peer_without_a_task_is_told_of_none(tmp_path: Path):
    from experiments.parse.load import find

    folder = prepare(plan_run(load("geo-b2"), cores=2), find("geo-b2"), "r-1", tmp_path, now_s=1.0)
    request = requests(folder)[0]
    assert (request.folders, request.requirements) == ({}, ())
    assert (request.config["task"], request.config["code_folder"], request.config["threads"]) == (None, "", 0)


def test_code_that_changed_after_the_plan_is_refused(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    plan = planned(file, tmp_path)
    (file.parent / "my_helper.py").write_text("changed = True\n")
    with pytest.raises(
        StalePlanError, match="the files of the task my_task:build have changed since the plan"
    ):
        prepare(plan, file, "r-1", tmp_path, now_s=1.0)
    assert not (tmp_path / "runs" / "r-1").exists()
    with pytest.raises(StalePlanError, match="plan again with `orch plan`"):
        resolve_task(plan.spec, tmp_path)


def test_a_study_launches_a_task_from_its_stored_document(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    plan = planned(file, tmp_path)
    stored = from_document(json.loads(json.dumps(to_document(plan.spec))))
    again = approved_plan(stored, "local", plan.document, cores=2)
    assert again.launchable("r-2") == plan.launchable("r-2")
    assert (prepare(again, file, "r-2", tmp_path, now_s=1.0) / "code" / "my_task.py").is_file()
    unbuilt = plan_run(read(file), cores=2)
    with pytest.raises(SpecError, match="`orch plan` builds it"):
        unbuilt.launchable("r-3")


def test_a_task_can_be_simulated_where_its_step_time_is_known(
    file: Path, own_home: Path, described: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
):
    gpus = [f"peers.{group}.resources.accelerators=T4:1" for group in ("us", "eu")]
    wanted = [str(file), *(f"--set={change}" for change in (*RENTED, *gpus)), "--days", "0.1"]
    assert run(["simulate", *wanted]) == 2
    assert "no step time is known for my_task:build on T4:1" in capsys.readouterr().err
    task = "{name: image-classification, with: {model: ConvNextLarge}}"
    assert run(["simulate", *wanted, f"--set=task={task}", "--set=code=[]"]) == 0


def test_a_saved_plan_is_launched_only_with_its_code(
    file: Path,
    own_home: Path,
    tmp_path: Path,
    described: list[Mapping[str, Any]],
    capsys: pytest.CaptureFixture[str],
):
    saved = tmp_path / "plan.json"
    assert run(["plan", str(file), "-o", str(saved)]) == 0
    whole = json.loads(saved.read_text())
    assert whole["experiment_document"]["task"]["facts"]["sha256"] == whole["task"]["sha256"]
    assert run(["launch", "--plan", str(saved), "--dry-run"]) == 0
    (file.parent / "my_task.py").write_text("other = True\n")
    assert run(["launch", "--plan", str(saved), "--dry-run"]) == 7
    assert "have changed since the plan was made" in capsys.readouterr().err


def test_validate_builds_nothing(file: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(task_facts, "_described", lambda *_: pytest.fail("built"))
    assert run(["validate", str(file), "--on", "local"]) == 0
    assert "mine, 2 peers); can be launched on this machine" in capsys.readouterr().out
    assert run(["show", str(file)]) == 0
    assert "width: 16" in capsys.readouterr().out


def test_files_of_built_in_settings_are_shipped(file: Path):
    tokenizer = file.parent / "tok.json"
    tokenizer.write_text("{}")
    settings = f"{{tokenizer: {tokenizer}, weights: 's3://b/w'}}"
    spec = read(file, f"task={{name: causal-lm, with: {settings}}}", "code=[]")
    call = TaskCall.of(spec, spec.task)
    assert (call.call, call.settings) == (
        BUILT_IN["causal-lm"],
        {"tokenizer": "code/tok.json", "weights": "s3://b/w"},
    )
    assert call.single == (tokenizer,)
    for name, path in BUILT_IN.items():
        document = {**to_document(spec)["task"], "name": name}
        assert TaskCall.of(spec, type(spec.task).model_validate(document)).call == path


def test_requirements_that_replace_what_the_peer_needs_are_refused(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    made = wheel(
        file.parent / "wheels", "orchtestonly", requires=("numpy<1", "six", 'torch<1; extra == "old"')
    )
    assert [str(r) for r in requirements_of(made)] == ["numpy<1", "six"]
    changes = (
        f"requirements=['numpy<1', torch, 'hivemind==0.1', {made}, --find-links {made.parent}, orchtestonly]"
    )
    plan = planned(file, tmp_path, *RENTED, changes, on="sky")
    assert {o.code for o in plan.obstacles} == {"requirements"}
    texts = [o.text for o in plan.obstacles]
    assert [text.partition(", but the peer itself needs ")[0] for text in texts] == [
        "requirements: numpy<1",
        "requirements: hivemind==0.1",
        f"requirements: {made} needs numpy<1",
        "requirements: orchtestonly needs numpy<1",
    ]
    assert all("which is not replaced; allow this version" in text for text in texts)


def test_local_peers_need_the_requirements_here(file: Path, tmp_path: Path):
    made = wheel(file.parent / "wheels", "orchtestonly")
    spec = read(file, f"requirements=['pytest>=1', 'pytest<1', --find-links {made.parent}, orchtestonly]")
    (obstacle,) = machine_obstacles(spec, "local", {})
    assert obstacle.code == "task_packages"
    assert "which lacks pytest (" in obstacle.text
    assert "orchtestonly (not installed); run `" in obstacle.text
    assert f"-m pip install '--find-links {made.parent}' 'pytest<1' 'orchtestonly'`" not in obstacle.text
    assert f"-m pip install --find-links {made.parent} 'pytest<1' 'orchtestonly'`" in obstacle.text
    assert machine_obstacles(read(file, "requirements=['pytest>=1']"), "local", {}) == ()
    assert [
        o.code
        for o in machine_obstacles(spec, "sky", {"AWS_ACCESS_KEY_ID": "x"})
        if o.code == "task_packages"
    ] == []


def test_a_launch_takes_the_size_of_samples_from_the_store(file: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Any, ...]] = []

    def measured(shard: str, client: Any, *, endpoint: str) -> float:
        asked.append((shard, endpoint))
        return 1234.56

    monkeypatch.setattr("cloud.storage.sample_size.bytes_per_sample", measured)
    spec = read(file, *RENTED)
    assert with_measured_samples(spec, "sky", {}).data.bytes_per_sample == 1234.6
    assert asked == [("s3://digits/train-000000.tar", "http://store.example:80")]
    for changes, on in (
        ([], "local"),
        ([], "sky"),
        ([*RENTED, "data.private=true"], "sky"),
        ([*RENTED, "data.bytes_per_sample=7"], "sky"),
    ):
        other = read(file, *changes)
        assert with_measured_samples(other, on, {}) == other
    assert len(asked) == 1

    def unreachable(*_: Any, **__: Any) -> float:
        raise StoreUnreachableError("no route")

    monkeypatch.setattr("cloud.storage.sample_size.bytes_per_sample", unreachable)
    assert with_measured_samples(spec, "sky", {}) == spec


def test_files_of_settings_may_lie_in_the_store(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    (tmp_path / "store").mkdir()
    write_tokenizer(tmp_path / "store" / "tokenizer.json", SENTENCES)
    named = (
        "task={name: causal-lm, with: {tokenizer: 's3://bucket/%s', weights: 's3://bucket/w.safetensors'}}"
    )
    with serve_folder(tmp_path / "store") as endpoint:
        spec = read(file, named % "tokenizer.json", "code=[]", f"data.endpoint={endpoint}")
        spec, obstacles = resolve_task(spec, tmp_path / "home")
        assert obstacles == ()
        assert spec.task.facts.parameters > 100_000
    assert task_code(spec, spec.task).contents == {}
    spec, (obstacle,) = resolve_task(read(file, named % "t.json", "code=[]"), tmp_path / "home")
    assert obstacle.code == "task"
    assert "task.with.tokenizer: s3://bucket/t.json cannot be read before the launch" in obstacle.text
    spec = read(file, named % "t.json", "code=[]", f"data.endpoint={endpoint}")
    (obstacle,) = resolve_task(spec, tmp_path / "home")[1]
    assert f"no answer from the object store at {endpoint}" in obstacle.text


def test_links_are_copied_only_within_a_folder(file: Path, tmp_path: Path):
    package = file.parent / "package"
    package.mkdir()
    (package / "here.py").write_text("x = 1\n")
    (package / "link.py").symlink_to("here.py")
    (package / ".hidden").symlink_to("/etc")
    spec = read(file, f"code=[{package}, {file.parent}/my_helper.py]")
    copied = task_code(spec, spec.task).copied(tmp_path / "run")
    assert copied.contents["code/package/link.py"].read_text() == "x = 1\n"
    assert not copied.contents["code/package/link.py"].is_symlink()
    secret = tmp_path / "secret"
    secret.write_text("of somebody")
    for target, text in (
        (secret, f"is a link to {secret}, outside {package}; put the file in its place"),
        (tmp_path, "is a link to a folder, which is not copied"),
        (tmp_path / "nowhere", f"is a link to {tmp_path}/nowhere, outside {package}"),
        (package / "nowhere", "is neither a file nor a folder"),
    ):
        (package / "other").symlink_to(target)
        with pytest.raises(TaskFilesError, match=re.escape(text)):
            task_code(spec, spec.task)
        (package / "other").unlink()
    os.mkfifo(package / "pipe")
    with pytest.raises(TaskFilesError, match="pipe is neither a file nor a folder"):
        task_code(spec, spec.task)


def test_wheels_are_limited_and_have_one_content_each(
    file: Path, monkeypatch: pytest.MonkeyPatch, described: list[Mapping[str, Any]]
):
    first, second = wheel(file.parent / "a"), wheel(file.parent / "b")
    second.write_bytes(first.read_bytes())
    spec = read(file, f"requirements=[--find-links {first.parent}, --find-links {second.parent}]")
    assert task_code(spec, spec.task).contents[f"wheels/{first.name}"] == first
    second.write_bytes(first.read_bytes() + b"more")
    with pytest.raises(TaskFilesError, match="have the same name, but not the same content"):
        task_code(spec, spec.task)
    second.unlink()
    monkeypatch.setattr("orchestrator.launch.task_code.MAX_WHEEL_BYTES", 10)
    _, (obstacle,) = resolve_task(spec, file.parent / "home")
    assert f"the largest are {first} (0 MB)" in obstacle.text


def test_a_package_from_a_url_cannot_replace_one_of_the_peer(
    file: Path, tmp_path: Path, described: list[Mapping[str, Any]]
):
    line = "torch @ https://example.org/torch-1-py3-none-any.whl"
    plan = planned(file, tmp_path, *RENTED, f"requirements=['{line}']", on="sky")
    (obstacle,) = plan.obstacles
    assert "but the peer itself needs torch==" in obstacle.text


def test_local_peers_that_compile_need_a_compiler_here(file: Path):
    spec = read(file, "swarm.compile=true")
    (obstacle,) = machine_obstacles(spec, "local", {"CXX": "no-such-compiler"})
    assert obstacle.code == "compiler"
    assert obstacle.text.startswith(
        "swarm.compile needs a C++ compiler, but there is no no-such-compiler here; "
    )
    assert machine_obstacles(read(file), "local", {"CXX": "no-such-compiler"}) == ()
