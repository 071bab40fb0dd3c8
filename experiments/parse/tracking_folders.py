"""The folders of the section `tracking`, found relative to the experiment's file."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from experiments.parse.document import Document, absolute

_FILE = "file://"


def find_tracking_folders(document: Document) -> None:
    """Make the folders absolute. What is not a folder is left to the fields' own checks.

    A path is relative to the experiment's file, or to the working directory if it is from `--set`.
    """
    data = document.data
    section: Any = data.get("tracking") if isinstance(data, dict) else None
    if not isinstance(section, dict):
        return
    for path in (("tensorboard",), ("mlflow",), ("wandb", "folder")):
        node: Any = section if len(path) == 1 else section.get(path[0])
        written: Any = node.get(path[-1]) if isinstance(node, dict) else None
        if not isinstance(written, str) or not written:
            continue
        if written.startswith(f"{_FILE}/"):
            written = unquote(written.removeprefix(_FILE))
        if "://" not in written:
            node[path[-1]] = str(absolute(document, ("tracking", *path), written))
