"""What a checkpoint consists of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import checkpoint_name, is_file_name, parse_name

FORMAT = 1
MAX_BYTES = 16_000_000
"""Size of a manifest.json; larger ones are not read."""
_MAX_CHARACTERS = 500  # of a text
_MAX_SETTINGS = 10_000  # of `trained_with`
_MAX_S = 1e11  # Unix time of the year 5138
_MAX_NUMBER = 10**18
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a checkpoint."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json."""

    run_id: str
    epoch: int  # the model is that of this hivemind epoch's beginning: epochs 0 .. epoch - 1 are in it
    vm: str
    slot: str
    made_at_s: float  # Unix time
    samples: int | None  # of the completed epochs; None: unknown
    ran: str  # what was trained, as in the peer's status
    task_sha256: str  # of the experiment's task; "": a built-in model
    parent: str | None = None  # name of the checkpoint that the run was restored from
    # {"optimizer": settings, "schedule": settings, "target_batch_size"}, as in the peer's config; None: not recorded
    trained_with: Mapping[str, Any] | None = None
    files: Mapping[str, StoredFile] = field(default_factory=dict)  # by name relative to the checkpoint

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return checkpoint_name(self.epoch, self.vm)

    @property
    def size_bytes(self) -> int:
        """Size of the files, without the manifest's own."""
        return sum(file.size_bytes for file in self.files.values())

    def to_json(self) -> str:
        """The text of manifest.json."""
        files = {
            name: {"bytes": file.size_bytes, "sha256": file.sha256}
            for name, file in sorted(self.files.items())
        }
        document = {
            "format": FORMAT,
            "run_id": self.run_id,
            "name": self.name,
            "epoch": self.epoch,
            "vm": self.vm,
            "slot": self.slot,
            "made_at_s": self.made_at_s,
            "samples": self.samples,
            "ran": self.ran,
            "task_sha256": self.task_sha256,
            "parent": self.parent,
            "trained_with": None if self.trained_with is None else dict(self.trained_with),
            "files": files,
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Parse manifest.json. `where` names it in errors. Unknown keys are ignored.

        Raises CheckpointError: newer_format for a later format than this version's, corrupt for anything else.
        """
        try:
            document = json.loads(text)
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
            format_ = _value(document, "format", int)
        except (ValueError, RecursionError) as error:
            raise corrupt(where, error) from error
        if format_ > FORMAT:
            raise CheckpointError(
                "newer_format",
                f"{where} has format {format_}, and this version of orch reads format {FORMAT}; use the version that "
                "wrote it, or a newer one",
            )
        try:
            return cls._of(document)
        except (ValueError, OverflowError) as error:
            raise corrupt(where, error) from error

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> Manifest:
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        name, vm = _value(document, "name", str), _value(document, "vm", str)
        epoch = _value(document, "epoch", int)
        if parse_name(name) != (epoch, vm):
            raise ValueError(f"name {name!r} is not that of epoch {epoch} and VM {vm!r}")
        made_at_s = float(_value(document, "made_at_s", (int, float)))
        if not 0 <= made_at_s <= _MAX_S:
            raise ValueError("made_at_s is not a Unix time")
        samples = _value(document, "samples", (int, type(None)))
        if samples is not None and not 0 <= samples <= _MAX_NUMBER:
            raise ValueError(f"samples is not a number from 0 to {_MAX_NUMBER}")
        files: dict[str, StoredFile] = {}
        for path, about in _value(document, "files", dict).items():
            if not is_file_name(path):
                raise ValueError(f"{path!r} is not a file of a checkpoint")
            if not isinstance(about, dict):
                raise ValueError(f"files: {path} is not an object")
            size, digest = _value(about, "bytes", int), _value(about, "sha256", str)
            if not 0 <= size <= _MAX_NUMBER or _SHA256.fullmatch(digest) is None:
                raise ValueError(f"files: {path} has {size:.3g} bytes and the SHA-256 {digest!r}")
            files[path] = StoredFile(size, digest)
        folders = {"/".join(path.split("/")[:n]) for path in files for n in range(1, path.count("/") + 1)}
        if both := sorted(folders & set(files)):
            raise ValueError(f"files: {both[0]} is a file, and the folder of another one")
        return cls(
            run_id=_value(document, "run_id", str),
            epoch=epoch,
            vm=vm,
            slot=_value(document, "slot", str),
            made_at_s=made_at_s,
            samples=samples,
            ran=_value(document, "ran", str),
            task_sha256=_value(document, "task_sha256", str),
            parent=_value(document, "parent", (str, type(None))),
            trained_with=_trained_with(document.get("trained_with")),
            files=files,
        )


def _value(document: Mapping[str, Any], key: str, kinds: type | tuple[type, ...]) -> Any:
    value = document.get(key, ...)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"{key} is {'missing' if value is ... else f'{value!r:.60}'}")
    if isinstance(value, str) and (len(value) > _MAX_CHARACTERS or not value.isprintable()):
        raise ValueError(
            f"{key} is {value!r:.60}, not printable text of at most {_MAX_CHARACTERS} characters"
        )
    return value


def _trained_with(found: Any) -> Mapping[str, Any] | None:
    """What the run trained with; None if it is not recorded."""
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("optimizer"), dict):
        raise ValueError("trained_with is not an object with an optimizer")
    if len(json.dumps(found)) > _MAX_SETTINGS:
        raise ValueError(f"trained_with has more than {_MAX_SETTINGS} characters")
    return found


def corrupt(where: str, error: object) -> CheckpointError:
    """The error of a manifest.json that cannot be used."""
    return CheckpointError("corrupt", f"{where} is not the manifest of a checkpoint ({error})")
