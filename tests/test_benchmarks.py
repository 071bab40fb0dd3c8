"""Every benchmark can be imported: they run rarely, and must not be found broken then."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / "benchmarks"
_NAMES = sorted(
    ".".join(path.relative_to(_FOLDER.parent).with_suffix("").parts) for path in _FOLDER.rglob("*.py")
)


@pytest.mark.parametrize("name", _NAMES)
def test_a_benchmark_can_be_imported(name: str):
    importlib.import_module(name)
