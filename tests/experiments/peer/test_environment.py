"""Environment variables that limit the peer's threads."""

from __future__ import annotations

import os
from typing import Any

import pytest

from experiments.peer import main as module
from tests.experiments.peer_rig import config_of

NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMAXPROCS")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"emulated": True}, ("1", "1", "1")),
        ({"emulated": True, "threads": 2}, ("2", "2", "1")),
        ({"emulated": False, "threads": 3}, ("3", "3", None)),
        ({"emulated": False}, (None, None, None)),
    ],
)
def test_threads_are_limited_as_the_config_says(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: tuple[str | None, ...]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    monkeypatch.setattr(os, "environ", environment)
    module._set_environment(config_of("a", "", (), **changes))
    assert tuple(environment.get(name) for name in NAMES) == expected
