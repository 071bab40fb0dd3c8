"""Find what `orch pipeline trace` and `map` saved of a pipeline or an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.pipeline.find_profile import LATEST
from orchestrator.pipeline.saved_documents import MapDocument, TraceDocument, problem


@dataclass(frozen=True, slots=True)
class Saved:
    """A kind of saved documents: one folder each in `folder` of ORCH_HOME. `form`: the type of such a document."""

    command: str
    folder: str
    file: str
    form: Any


TRACES = Saved("trace", "traces", "trace.json", TraceDocument)
MAPS = Saved("map", "maps", "map.json", MapDocument)


def find_saved(
    saved: Saved, name: str, home: Path, wanted: str, say: Callable[[str], None]
) -> tuple[Mapping[str, Any], Path] | None:
    """Return a document and its file: FILE, the file in a folder, or with `latest` the newest one of `wanted`, if any.

    `wanted`: target or pipeline. Raises UsageError if a file that was named is no such document; `say` gets a sentence
    on others that are not.
    """
    if name != LATEST:
        path = Path(name)
        path = path / saved.file if path.is_dir() else path
        return _read(saved, path), path
    found: list[tuple[str, str, Mapping[str, Any], Path]] = []
    for path in sorted((home / saved.folder).glob(f"*/{saved.file}")):
        try:
            document = _read(saved, path)
        except UsageError as error:
            say(f"left out: {error}")
            continue
        if wanted in (document["target"], document["pipeline"]):
            found.append((document["measured_at"], path.parent.name, document, path))
    if not found:
        return None
    _, _, document, path = max(found, key=lambda one: one[:2])
    return document, path


def _read(saved: Saved, path: Path) -> Mapping[str, Any]:
    hint = f"give a {saved.file} that `orch pipeline {saved.command}` wrote, or its folder"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {hint}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error}); {hint}") from error
    if wrong := problem(document, saved.form):
        raise UsageError(f"{path}: not a {saved.command} of a pipeline or an experiment ({wrong}); {hint}")
    return document
