"""The notebook API: `import orch`, then `orch.runs()`, `orch.open("latest")` or `orch.replay(folder)`.

Read-only; needs no network, credentials, Ray or PyTorch. docs/notebook.md describes the columns of each frame.
"""

from __future__ import annotations

from orch.columns import FRAMES, Column
from orch.errors import OrchError
from orch.profile import Profile, profile
from orch.runs import Run, open, runs
from orch.study import Study, replay

__all__ = ["FRAMES", "Column", "OrchError", "Profile", "Run", "Study", "open", "profile", "replay", "runs"]
