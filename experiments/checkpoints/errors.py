"""The error of checkpoints; a code decides, the sentence is for people."""

from __future__ import annotations

from typing import Literal

Code = Literal["incomplete", "corrupt", "foreign", "newer_format", "none", "unwritable"]
"""incomplete: files are missing, or the upload or download was stopped; corrupt: files differ from the manifest, or
cannot be read; foreign: of another run, task, model or optimizer; newer_format: of a newer version of orch; none: there
is no such checkpoint; unwritable: nothing can be stored at the prefix."""


class CheckpointError(Exception):
    """A checkpoint cannot be used or stored. `older`: name of the next older one that is complete, if there is one."""

    def __init__(self, code: Code, message: str, older: str | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.older = older
