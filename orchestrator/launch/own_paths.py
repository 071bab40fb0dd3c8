"""Name the user's own files in messages of peers, which run copies of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloud.sky.vm.bootstrap import FOLDER


class OwnPaths:
    """Replaces the paths of copies by those of the user's files."""

    def __init__(self, copies: Mapping[str, Path], folder: str) -> None:
        """`copies`: the user's files and folders by the path of their copies below the config's folder, with '/'.

        `folder`: pattern (regular expression) of the config's folder.
        """
        self._copies = copies
        names = "|".join(re.escape(name) for name in sorted(copies, key=len, reverse=True))
        self._copy = re.compile(rf"(?:{folder})/({names})(?![\w.-])") if copies else None

    def __bool__(self) -> bool:
        """Whether there are copies at all."""
        return self._copy is not None

    @classmethod
    def of_run(cls, copies: Mapping[str, Path], run_folder: Path) -> OwnPaths:
        """For the messages of a run's peers: emulated VMs lie in the run's folder, rented ones have a folder of their own."""
        emulated = rf"{re.escape(str(run_folder.resolve() / 'vms'))}/[^/\s]+"
        return cls(copies, rf"{emulated}|/[^\s:'\"]*/{re.escape(FOLDER)}")

    def in_text(self, text: str) -> str:
        """The text with the user's own paths."""
        return text if self._copy is None else self._copy.sub(lambda found: str(self._copies[found[1]]), text)

    def in_values(self, value: Any) -> Any:
        """Plain data with the user's own paths in all texts; keys stay."""
        if isinstance(value, str):
            return self.in_text(value)
        if isinstance(value, Mapping):
            return {key: self.in_values(of) for key, of in value.items()}
        return [self.in_values(of) for of in value] if isinstance(value, list | tuple) else value
