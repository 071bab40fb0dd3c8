"""Names of checkpoints and of their files."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
MODEL, STATE = "model", "state"
_MAX_PART_BYTES = 255  # of a file's or folder's name, on common file systems
_MAX_NAME_CHARACTERS = 240  # the folder of an unfinished download has a longer name
_NAME = re.compile(r"epoch-(\d{8,})-([A-Za-z0-9][A-Za-z0-9._-]*)", re.ASCII)
_FILE = re.compile(rf"(?:{MODEL}|{STATE})(?:/(?!\.{{1,2}}(?:/|$))[^/\\\0]+)+")


def run_prefix(to: str, run_id: str) -> str:
    """The URL below which a run stores its checkpoints. `to`: s3://bucket or s3://bucket/prefix."""
    return f"{to.rstrip('/')}/{run_id}"


def checkpoint_name(epoch: int, vm: str) -> str:
    """The name of the checkpoint that a VM makes of an epoch. Raises ValueError for names that cannot be parsed."""
    name = f"epoch-{epoch:08d}-{vm}"
    if parse_name(name) != (epoch, vm):
        raise ValueError(f"epoch {epoch}, VM {vm!r}: not a checkpoint's name")
    return name


def parse_name(name: str) -> tuple[int, str] | None:
    """Epoch and VM of a checkpoint's name; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None or len(name) > _MAX_NAME_CHARACTERS or (len(match[1]) > 8 and match[1].startswith("0")):
        return None
    return int(match[1]), match[2]


def is_file_name(name: str) -> bool:
    """Whether a checkpoint may have a file of this name, relative to the checkpoint: it lies in one of its two folders, and
    file systems have such names.
    """
    if _FILE.fullmatch(name) is None:
        return False
    try:
        return all(len(part.encode()) <= _MAX_PART_BYTES for part in name.split("/"))
    except UnicodeEncodeError:  # a lone surrogate
        return False


def parse_key(key: str) -> tuple[str, str] | None:
    """Checkpoint and file of an object's key relative to the run's prefix; None for objects that are not of our layout."""
    name, _, file = key.partition("/")
    if parse_name(name) is None or not (file == MANIFEST or is_file_name(file)):
        return None
    return name, file
