"""Tests that run inside a world with a fake EC2 in it (tests/fake_ec2/world.sh); elsewhere they say why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import clusters, in_ec2, processes, wait_until_gone

_MEMORY = Path("/dev/shm")
_STORE = ("198.18.0.1", 9000)  # on the VMs' network


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: without a world there is nothing to set up."""
    if "FAKE_EC2_STATE" not in os.environ:
        pytest.skip(
            os.environ.get("ORCH_FAKE_EC2_MISSING") or "not in a fake EC2's world: run `make test-cloud`"
        )


@pytest.fixture(scope="session")
def store() -> Iterator[dict[str, str]]:
    """An S3 store that the VMs reach, with the digits in it; its credentials as environment variables."""
    from cloud.storage.swift import SwiftServer

    with (
        tempfile.TemporaryDirectory(prefix="store-") as folder,
        SwiftServer(Path(folder) / "s", *_STORE) as server,
    ):
        keys = server.credentials.environment()
        orch = Path(sys.executable).with_name("orch")
        make = ["data", "make", "digits", "--to", "s3://digits", "--shards", "8"]
        subprocess.run(
            [orch, *make, "--endpoint", server.endpoint], env={**os.environ, **keys}, check=True, timeout=120
        )
        yield keys


@pytest.fixture
def clean_home(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for one test; at its end nothing may be left in EC2, in SkyPilot, of processes, of temporary files."""
    base = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    (base / "t").mkdir()
    monkeypatch.setenv("ORCH_HOME", str(base / "home"))
    monkeypatch.setenv("TMPDIR", str(base / "t"))
    # Ray's workers have what other work leaves (nice 15), and SkyPilot's server, which they start, with them.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    for name, value in store.items():
        monkeypatch.setenv(f"ORCH_SECRET_{name}", value)  # AWS_* themselves are the cloud's
    assert (in_ec2(), clusters()) == ([], [])
    before, memory = processes(), set(_MEMORY.iterdir())
    yield base / "home"
    left = [*wait_until_gone(before), *in_ec2(), *clusters()]
    left += [str(path) for path in [*(base / "t").iterdir(), *(set(_MEMORY.iterdir()) - memory)]]
    if (logs := os.environ.get("FAKE_EC2_LOGS")) and (base / "home").is_dir():
        shutil.copytree(base / "home", Path(logs) / base.name, dirs_exist_ok=True, symlinks=True)
    shutil.rmtree(base)
    assert left == []
