"""Runs in a notebook: `import orch`, then `orch.runs()`, `orch.open("latest")`, `orch.replay(folder)`.

Everything here reads: no network, no credentials, no Ray, no PyTorch. docs/notebook.md has each frame's columns.
"""

from __future__ import annotations

from orch.columns import FRAMES, Column
from orch.errors import OrchError
from orch.runs import Run, open, runs
from orch.study import Study, replay

__all__ = ["FRAMES", "Column", "OrchError", "Run", "Study", "open", "replay", "runs"]
