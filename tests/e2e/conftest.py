"""End-to-end tests: a home with a short path (UNIX sockets), nothing left behind."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from leftovers import look, wait_until_clean


@pytest.fixture
def clean_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for one test; at its end no process, mount or temporary file may be left."""
    base = Path(tempfile.mkdtemp(prefix="e2e-"))
    home = base / "home"
    monkeypatch.setenv("ORCH_HOME", str(home))
    before = look(home)
    yield home
    left = wait_until_clean(home, before)
    shutil.rmtree(base)
    assert left == []
