"""The files that an experiment ships with its task: found relative to the experiment's file, and checked.

On the peers they lie in one folder, the first in which Python looks for modules. A file or folder of `code` has its own
last name there; so has the task's file, unless it lies in a folder of `code`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.parse import document as _document
from experiments.parse.document import Document, absolute
from experiments.schema.fields import FILE_AND_NAME
from experiments.schema.requirements import FIND_LINKS, RequirementError, parse_requirement
from experiments.tasks.settings import FILE_SETTINGS

MAX_CODE_BYTES = 50_000_000
_MAX_FILES = 10_000
_SKIPPED = ("__pycache__",)
# Modules of the peer that a file of the same name would replace.
_RESERVED = frozenset(
    {"experiments", "cloud", "metrics", "orch", "orchestrator", "hivemind", "torch", "numpy", "transformers", "webdataset"}
    | {"boto3", "botocore", "cryptography", "PIL", "pydantic", "tokenizers", "safetensors", "soundfile", "zstandard", "pip"}
    | {
        "annotated_types", "base58", "baseconv", "blake3", "braceexpand", "certifi", "cffi", "charset_normalizer", "cid",
        "configargparse", "dateutil", "filelock", "fsspec", "functorch", "google", "grpc", "grpc_tools", "hf_xet",
        "huggingface_hub", "idna", "isympy", "jinja2", "jmespath", "licensing", "markupsafe", "mmh3", "morphys", "mpmath",
        "msgpack", "multibase", "multicodec", "multihash", "netaddr", "networkx", "packaging", "prefetch_generator",
        "pycparser", "pydantic_core", "pynvml", "regex", "requests", "s3transfer", "scipy", "setuptools", "six", "sortedcontainers",
        "sympy", "torchgen", "tqdm", "typing_extensions", "typing_inspection", "urllib3", "uvloop", "varint", "yaml",
    }
    | sys.stdlib_module_names
)  # fmt: skip


class TaskFilesError(ValueError):
    """The files cannot be shipped; the message is a sentence without a location."""


def find_task_files(document: Document) -> None:
    """Make the paths of a task's files absolute, and add to the problems of the document what is wrong with the files.

    A path is relative to the experiment's file, or to the working directory if it is from `--set`.
    """
    data = document.data
    if not isinstance(data, dict):
        return
    known = len(document.problems)
    code = [
        path
        for at, path in _code(document, data)
        if _check(document, at, path, Path.exists, "file or folder")
    ]
    modules = [
        path for at, path in _modules(document, data) if _check(document, at, path, Path.is_file, "file")
    ]
    files = [
        path for at, path in _settings(document, data) if _check(document, at, path, Path.is_file, "file")
    ]
    _requirements(document, data)
    if len(document.problems) == known and (code or modules or files):
        at: _document.Path = (
            ("code",) if data.get("code") else ("task",) if data.get("task") else ("data", "pipeline")
        )
        try:
            check_size(shipped_files(placed(code, (*modules, *files))))
        except TaskFilesError as error:
            document.problems.append(document.problem(at, str(error)))


def placed(code: Sequence[Path], single: Sequence[Path]) -> dict[str, Path]:
    """Return what lies in the code folder of a peer, by name. `code`: files and folders; `single`: files.

    Raises TaskFilesError if two have the same name, or one has the name of a module that the peer needs.
    """
    found: dict[str, Path] = {}
    for path in (*code, *(file for file in single if not _folder_of(file, code))):
        other = found.setdefault(path.name, path)
        if other != path:
            raise TaskFilesError(
                f"{other} and {path} would have the same name on the peers; rename one, or ship the folder of one"
            )
        if _is_module(path) and path.stem in _RESERVED:
            raise TaskFilesError(
                f"{path} would replace the module '{path.stem}' that the peer needs; rename it"
            )
    return found


def name_on_peer(file: Path, code: Sequence[Path]) -> str:
    """Return the path of a shipped file below the code folder, with '/'."""
    folder = _folder_of(file, code)
    return file.name if folder is None else file.relative_to(folder.parent).as_posix()


def module_on_peer(file: Path, code: Sequence[Path]) -> str:
    """Return the name by which a peer imports a shipped Python file, "my_task" or "package.my_task"."""
    return name_on_peer(file, code).removesuffix(".py").replace("/", ".")


def shipped_files(top: Mapping[str, Path]) -> dict[str, Path]:
    """Return all files below the code folder, by relative path and sorted. `top`: from `placed`.

    Hidden files and folders and compiled modules are left out. Raises TaskFilesError if there are too many.
    """
    found: dict[str, Path] = {}
    for name, path in sorted(top.items()):
        for file in _files(path):
            found[name if file == path else f"{name}/{file.relative_to(path).as_posix()}"] = file
            if len(found) > _MAX_FILES:
                raise TaskFilesError(
                    f"{path} has too many files: at most {_MAX_FILES:,} can be shipped; name the files that the task needs"
                )
    return found


def check_size(files: Mapping[str, Path]) -> None:
    """Raise TaskFilesError if the files are too large in all, or one cannot be read."""
    sizes: dict[Path, int] = {}
    for file in files.values():
        try:
            sizes[file] = file.stat().st_size
        except OSError as error:
            raise TaskFilesError(
                f"{file} cannot be read ({error.strerror}); correct that, or leave it out"
            ) from error
    total = sum(sizes.values())
    if total > MAX_CODE_BYTES:
        largest = sorted(sizes, key=lambda file: (-sizes[file], file))[:3]
        named = ", ".join(f"{file} {sizes[file] / 1e6:.1f} MB" for file in largest)
        raise TaskFilesError(
            f"the files to ship have {total / 1e6:.1f} MB in all (the largest: {named}), and at most "
            f"{MAX_CODE_BYTES // 10**6} MB can be shipped; put large files into the object store, or copy them to the VMs "
            "with file_mounts"
        )


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in _SKIPPED)
        yield from (
            Path(folder, n) for n in sorted(names) if not n.startswith(".") and not n.endswith(".pyc")
        )


def _folder_of(file: Path, code: Sequence[Path]) -> Path | None:
    """The folder of `code` that contains the file."""
    return next((path for path in code if path != file and file.is_relative_to(path)), None)


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").is_file()


def _code(document: Document, data: dict[str, Any]) -> Iterator[tuple[_document.Path, Path]]:
    entries: Any = data.get("code")
    for i, written in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(written, str) and written:
            path = absolute(document, ("code", i), written)
            entries[i] = str(path)
            yield ("code", i), path


def _modules(document: Document, data: dict[str, Any]) -> Iterator[tuple[_document.Path, Path]]:
    for section, key in (("task", "python"), ("data", "pipeline")):
        node: Any = data.get(section)
        at: _document.Path = (section, key)
        found = FILE_AND_NAME.fullmatch(str(node.get(key))) if isinstance(node, dict) else None
        if found is None:
            continue
        path = absolute(document, at, found["file"])
        node[key] = f"{path}:{found['name']}"
        if path.stem.isidentifier():
            yield at, path
        else:
            document.problems.append(
                document.problem(
                    at, f"'{path.name}' is not a module's name: use letters, digits and '_' before .py"
                )
            )


def _settings(document: Document, data: dict[str, Any]) -> Iterator[tuple[_document.Path, Path]]:
    """The files among the settings of a built-in task."""
    task: Any = data.get("task")
    settings: Any = task.get("with") if isinstance(task, dict) and "name" in task else None
    for key in FILE_SETTINGS if isinstance(settings, dict) else ():
        written: Any = settings.get(key)
        at: _document.Path = ("task", "with", key)
        if isinstance(written, str) and written and "://" not in written:
            path = absolute(document, at, written)
            settings[key] = str(path)
            yield at, path


def _requirements(document: Document, data: dict[str, Any]) -> None:
    lines: Any = data.get("requirements")
    for i, line in enumerate(lines if isinstance(lines, list) else ()):
        try:
            parsed = parse_requirement(line) if isinstance(line, str) else None
        except RequirementError:
            continue  # reported by the field's own check
        if parsed is None or not parsed.path:
            continue
        at: _document.Path = ("requirements", i)
        path = absolute(document, at, parsed.path)
        lines[i] = f"{FIND_LINKS} {path}" if parsed.wanted is None else str(path)
        if parsed.wanted is not None:
            _check(document, at, path, Path.is_file, "file")
        elif _check(document, at, path, Path.is_dir, "folder") and not any(path.glob("*.whl")):
            document.problems.append(
                document.problem(
                    at, f"{path} has no wheels (*.whl); build them with `pip wheel -w {path} PACKAGE`"
                )
            )


def _check(
    document: Document, at: _document.Path, path: Path, is_kind: Callable[[Path], bool], kind: str
) -> bool:
    try:
        there = is_kind(path)
    except OSError as error:
        problem = document.problem(at, f"{path} cannot be read ({error.strerror}); correct the path")
        document.problems.append(problem)
        return False
    if not there:
        why = f"is not a {kind}" if path.exists() else "does not exist"
        document.problems.append(document.problem(at, f"{path} {why}; correct the path, or create it"))
    return there
