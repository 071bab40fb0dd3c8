"""Tests that run inside a world with a fake EC2 in it (tests/fake_ec2/world.sh); elsewhere they say why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "e2e")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: without a world there is nothing to set up."""
    if "FAKE_EC2_STATE" not in os.environ:
        pytest.skip(
            os.environ.get("ORCH_FAKE_EC2_MISSING") or "not in a fake EC2's world: run `make test-cloud`"
        )
