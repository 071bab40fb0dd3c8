"""What all tests share: a home of their own, and nothing of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's matter: a busy one must not fail a test.
settings.register_profile("orch", deadline=None)
settings.load_profile("orch")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own ORCH_HOME; the Swift environment is shared, being slow to make."""
    import os

    home = tmp_path / "home"
    if "ORCH_SWIFT_VENV" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
        monkeypatch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
    monkeypatch.setenv("ORCH_HOME", str(home))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return home
