"""The facts of a task: built once in a process of its own, and kept in the home folder by the SHA-256 of its code."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cloud.storage.errors import StorageError, StoreUnreachableError
from cloud.targets import LOCAL
from experiments.parse.load import from_document, to_document
from experiments.parse.task_files import TaskFilesError
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec, Task
from experiments.tasks.gradient_checkpointing import no_gradient_checkpointing
from experiments.tasks.settings import stored_files
from orchestrator.launch.obstacles import Obstacle, ObstacleCode
from orchestrator.launch.store_reads import fetch
from orchestrator.launch.task_code import CODE, TaskCode, local_wheels, stale, task_code

_BUILD_S = 600.0
_LIBRARIES = ("torch", "transformers")  # whose version may change a model
_ROOT = Path(__file__).resolve().parents[2]


def resolve_task(
    spec: ExperimentSpec, home: Path, *, build: bool = True
) -> tuple[ExperimentSpec, tuple[Obstacle, ...]]:
    """Return the experiment with the facts of its task, or why they cannot be found out.

    `build`: whether the task may be built; otherwise, only facts that are known from earlier are filled in. Raises
    StalePlanError if the experiment has facts already (it is that of an earlier plan), and the task has changed since.
    """
    task = spec.task
    if task is None:
        return spec, ()
    try:
        code = task_code(spec, task)
        sha256 = code.sha256()
    except (TaskFilesError, OSError) as error:
        return spec, (Obstacle(ObstacleCode.TASK, f"task: {_sentence(error)}"),)
    if task.facts is not None:
        if task.facts.sha256 != sha256:
            raise stale(spec)
        return spec, ()
    cache = home / "tasks" / f"{_key(sha256)}.json"
    keeps = not _reads_store(task)  # an object may have changed
    found = _cached(cache) if keeps else None
    if found is None and build:
        found = _build(spec, code)
        if "error" in found:
            return spec, (Obstacle(ObstacleCode.TASK, str(found["error"])),)
        if keeps:
            _keep(cache, found)
    if found is None:
        return spec, ()
    without = found["without_checkpointing"]
    if spec.swarm.gradient_checkpointing and without:
        text = f"task {spec.trains}: {no_gradient_checkpointing(without)}, or choose another model"
        return spec, (Obstacle(ObstacleCode.TASK, text),)
    document = to_document(spec)
    document["task"]["facts"] = {
        "parameters": found["parameters"],
        "shapes": found["shapes"],
        "sha256": sha256,
    }
    try:
        return from_document(document), ()
    except SpecError as error:  # rules that need the model's size
        return spec, (
            Obstacle(ObstacleCode.TASK, "; ".join(f"{p.path}: {p.message}" for p in error.problems)),
        )


def _reads_store(task: Task) -> bool:
    """Whether files that decide the model's size lie in the store."""
    return task.name is not None and bool(stored_files(task.settings).keys() - {"weights"})


def _key(sha256: str) -> str:
    """Name of the facts: they depend on the code, on orch's own tasks and on the versions of the libraries."""
    digest = hashlib.sha256(sha256.encode())
    for path in sorted((_ROOT / "experiments" / "tasks").glob("*.py")):
        digest.update(path.read_bytes())
    digest.update(" ".join(map(_version, _LIBRARIES)).encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _cached(cache: Path) -> dict[str, Any] | None:
    """The facts in the file; None if there is none, or it is damaged."""
    try:
        found = json.loads(cache.read_bytes())
        return {
            "parameters": int(found["parameters"]),
            "shapes": found["shapes"],
            "without_checkpointing": str(found["without_checkpointing"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(cache: Path, found: Mapping[str, Any]) -> None:
    """Write the facts. A home folder that cannot be written costs time only."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd, fresh = tempfile.mkstemp(dir=cache.parent, suffix=".new")
        with os.fdopen(fd, "w") as file:
            json.dump(found, file)
        os.replace(fresh, cache)
    except OSError:
        return


def _build(spec: ExperimentSpec, code: TaskCode) -> dict[str, Any]:
    """Build the task as a peer does; returns its facts, or {"error": sentence}."""
    try:
        with tempfile.TemporaryDirectory(prefix="orch-task-") as made:
            folder = Path(made).resolve()
            code.copied(folder)
            found = _described(spec, code, _settings(spec, code, folder), folder)
    except StorageError as error:
        return {"error": f"task: {error}"}
    except OSError as error:
        return {"error": f"task: {_sentence(error)}"}
    if "error" not in found:
        return found
    return {"error": code.with_own_paths(str(found["error"]), folder) + _advice(spec, found)}


def _settings(spec: ExperimentSpec, code: TaskCode, folder: Path) -> dict[str, Any]:
    """The settings to build the task with here: files in the store are copied, except weights, which decide no size.

    Raises StorageError, OSError.
    """
    settings = dict(code.call.settings)
    if spec.task is None or spec.task.name is None:
        return settings
    for key, url in stored_files(settings).items():
        if key == "weights":
            del settings[key]
            continue
        if not spec.data.endpoint:
            raise StoreUnreachableError(
                f"task.with.{key}: {url} cannot be read before the launch, which makes the embedded store; give a path, or "
                "set data.endpoint"
            )
        copy = folder / f"{key}-{url.rpartition('/')[2]}"
        fetch(spec, url, copy)
        settings[key] = str(copy)
    return settings


def _described(
    spec: ExperimentSpec, code: TaskCode, settings: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    request = {
        "call": code.call.call,
        "with": dict(settings),
        "pipeline": code.call.pipeline,
        "seed": spec.seed,
        "code_folder": str(folder / CODE),
        "paths": [str(path) for line in spec.requirements for path in local_wheels(line)],
    }
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.tasks.describe"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            env={
                **environment,
                "CUDA_VISIBLE_DEVICES": "",
                "TMPDIR": str(folder),
            },  # torch leaves a folder there
            timeout=_BUILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {
            "error": f"the task {spec.trains} was not built within {_BUILD_S:.0f} s; make its function faster"
        }
    try:
        return json.loads(done.stdout)
    except ValueError:
        if done.returncode == -9:
            why = "was killed, as when memory runs out"
        else:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            why = f"ended with exit code {done.returncode}: {last[:300]}"
        return {"error": f"building the task {spec.trains} {why}; build it in a Python prompt to see why"}


def _advice(spec: ExperimentSpec, found: Mapping[str, Any]) -> str:
    if found.get("missing"):
        return f"; install it with `{LOCAL.install}` in a clone of orch"
    if found.get("absent") and spec.requirements:
        return (
            f"; orch builds the task on this machine to learn its size: install {found['absent']} here too, or give its wheel "
            "under requirements"
        )
    return ""


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be read or copied ({error.strerror or error})"
    return str(error)
