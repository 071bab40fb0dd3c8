"""What a run ships with its task: the files in the peers' code folder, wheels, and the settings that refer to them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.parse.task_files import (
    TaskFilesError,
    check_size,
    module_on_peer,
    name_on_peer,
    placed,
    shipped_files,
)
from experiments.schema.fields import FILE_AND_NAME
from experiments.schema.models import ExperimentSpec, Task
from experiments.schema.requirements import FIND_LINKS, parse_requirement
from experiments.tasks.settings import FILE_SETTINGS
from orchestrator.errors import StalePlanError
from orchestrator.launch.own_paths import OwnPaths

CODE, WHEELS = "code", "wheels"  # folders in a run's folder, and beside a peer's config
MAX_WHEEL_BYTES = 500_000_000  # of all wheels together


@dataclass(frozen=True, slots=True)
class TaskCall:
    """How a peer builds a task. Paths of files, in settings and requirements, start at the config's folder."""

    call: str  # "module:function"
    settings: Mapping[str, Any]
    pipeline: str  # "module:NAME" that replaces the task's; "": none
    requirements: tuple[str, ...]  # lines for pip
    single: tuple[Path, ...]  # files on this machine that the call and the settings name

    @classmethod
    def of(cls, spec: ExperimentSpec, task: Task) -> TaskCall:
        """Derive it from paths alone; no file is opened."""
        code = [Path(path) for path in spec.code]
        single: list[Path] = []
        call = f"experiments.tasks.{str(task.name).replace('-', '_')}:build"
        if task.python is not None:
            call = _imported(task.python, code, single)
        pipeline = "" if spec.data.pipeline is None else _imported(spec.data.pipeline, code, single)
        settings = dict(task.settings)
        for key in FILE_SETTINGS if task.name is not None else ():
            value = settings.get(key)
            if isinstance(value, str) and value and "://" not in value:
                single.append(Path(value))
                settings[key] = f"{CODE}/{name_on_peer(Path(value), code)}"
        return cls(call, settings, pipeline, tuple(map(_line, spec.requirements)), tuple(single))


@dataclass(frozen=True, slots=True)
class TaskCode:
    """A task and what is shipped with it."""

    call: TaskCall
    contents: Mapping[str, Path]  # files by their path in the config's folder, with '/'

    def sha256(self) -> str:
        """SHA-256 (hex) of files, requirements and settings. Raises OSError."""
        declared = {
            "call": self.call.call,
            "with": dict(self.call.settings),
            "pipeline": self.call.pipeline,
            "requirements": list(self.call.requirements),
            "files": {name: _sha256(path) for name, path in sorted(self.contents.items())},
        }
        return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()

    def copied(self, folder: Path) -> TaskCode:
        """Copy the files to `folder`. Raises OSError."""
        copies = {name: folder / name for name in self.contents}
        for name, path in self.contents.items():
            copies[name].parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copyfile(path, copies[name])
        (folder / CODE).mkdir(exist_ok=True, mode=0o700)
        return TaskCode(self.call, copies)

    def with_own_paths(self, text: str, folder: Path) -> str:
        """Replace the paths of copies in `folder` by those of the user's files, for messages."""
        return OwnPaths(self.contents, re.escape(str(folder))).in_text(text)


def copied_paths(spec: ExperimentSpec) -> dict[str, Path]:
    """The user's files and folders by the path of their copies, derived from paths alone. Empty without a task."""
    if spec.task is None:
        return {}
    code = [Path(path) for path in spec.code]
    named = {name_on_peer(file, code): file for file in TaskCall.of(spec, spec.task).single}
    return {f"{CODE}/{name}": path for name, path in {**named, **{path.name: path for path in code}}.items()}


def task_code(spec: ExperimentSpec, task: Task) -> TaskCode:
    """Find what the experiment's task ships. Raises TaskFilesError."""
    call = TaskCall.of(spec, task)
    code = [Path(path) for path in spec.code]
    _check_links(code)
    files = shipped_files(placed(code, call.single))
    check_size(files)
    wheels = _wheels(spec.requirements)
    contents = {
        **{f"{CODE}/{name}": path for name, path in files.items()},
        **{f"{WHEELS}/{name}": path for name, path in sorted(wheels.items())},
    }
    return TaskCode(call, contents)


def _check_links(code: Iterable[Path]) -> None:
    """Refuse what a copy of the folders would lack, or take from elsewhere. Raises TaskFilesError, OSError.

    A link to a file of the same folder is copied as that file.
    """
    for top in (path for path in code if path.is_dir()):
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for path in (
                Path(folder, name) for name in sorted([*folders, *names]) if not name.startswith(".")
            ):
                if path.is_symlink() and path.is_dir():
                    raise TaskFilesError(
                        f"{path} is a link to a folder, which is not copied; put the folder in its place"
                    )
                if path.is_symlink() and not path.resolve().is_relative_to(top.resolve()):
                    raise TaskFilesError(
                        f"{path} is a link to {path.resolve()}, outside {top}; put the file in its place, or remove the link"
                    )
                if not path.is_dir() and not path.is_file():
                    raise TaskFilesError(f"{path} is neither a file nor a folder; move it out of {top}")


def _wheels(requirements: Iterable[str]) -> dict[str, Path]:
    """The wheels on this machine that are shipped, by name. Raises TaskFilesError, OSError."""
    found: dict[str, Path] = {}
    for wheel in (wheel for line in requirements for wheel in local_wheels(line)):
        other = found.setdefault(wheel.name, wheel)
        if other != wheel and _sha256(other) != _sha256(wheel):
            raise TaskFilesError(
                f"{other} and {wheel} have the same name, but not the same content; remove one"
            )
    sizes = {wheel: wheel.stat().st_size for wheel in found.values()}
    if sum(sizes.values()) > MAX_WHEEL_BYTES:
        largest = sorted(sizes, key=lambda wheel: (-sizes[wheel], wheel))[:3]
        raise TaskFilesError(
            f"the wheels to ship have {sum(sizes.values()) / 1e6:.0f} MB in all, and at most {MAX_WHEEL_BYTES / 1e6:.0f} MB can "
            f"be shipped; the largest are {', '.join(f'{w} ({sizes[w] / 1e6:.0f} MB)' for w in largest)}; remove those that "
            "the task does not need, or let the VMs download them"
        )
    return found


def local_wheels(line: str) -> list[Path]:
    """The wheels on this machine that a line of `requirements` names."""
    parsed = parse_requirement(line)
    if not parsed.path:
        return []
    return [Path(parsed.path)] if parsed.wanted else sorted(Path(parsed.path).glob("*.whl"))


def ship_task(spec: ExperimentSpec, folder: Path) -> None:
    """Copy what the task ships into the run's folder, where all peers of the run get it from.

    Raises StalePlanError if it is not what was planned, OSError, TaskFilesError.
    """
    if spec.task is None or spec.task.facts is None:
        return
    if task_code(spec, spec.task).copied(folder).sha256() != spec.task.facts.sha256:
        raise stale(spec)


def stale(spec: ExperimentSpec) -> StalePlanError:
    """Return the error for code, requirements or settings that have changed since the plan."""
    return StalePlanError(
        f"{spec.name}: the files of the task {spec.trains} have changed since the plan was made; plan again with `orch plan`"
    )


def _imported(written: str, code: list[Path], single: list[Path]) -> str:
    """Return the import path of "file.py:name" on the peers, and add the file to `single`."""
    found = FILE_AND_NAME.fullmatch(written)
    assert found is not None  # the schema checks it
    file = Path(found["file"])
    single.append(file)
    return f"{module_on_peer(file, code)}:{found['name']}"


def _line(line: str) -> str:
    """Return a line of `requirements` as pip gets it in the config's folder."""
    parsed = parse_requirement(line)
    if not parsed.path:
        return line
    return f"{WHEELS}/{Path(parsed.path).name}" if parsed.wanted else f"{FIND_LINKS} {WHEELS}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
