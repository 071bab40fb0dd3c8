"""Known secret values in a run that succeeds and in one that fails: in the places docs/promises.md names while it
lives, and nowhere once it has ended."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from canaries import exposed_files, forms, in_bytes, in_command_lines, in_files, private_keys
from running import Running, orch

from cloud.storage.client import make_client
from cloud.storage.digits import make_digits
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_SHORT = {
    "swarm.target_batch_size": "640",
    "swarm.matchmaking_time_s": "1",
    "swarm.averaging_timeout_s": "10",
    "measure.epochs": "3",
    "secrets.ORCH_CANARY": "null",
}
# docs/promises.md, "Secrets": relative to the run's folder, while it lives.
_WHILE_IT_LIVES = (
    r"keys/.*",
    r"vms/[^/]+/(config\.json|identity\.key|record\.key)",
    r"monitor/identity\.key",
    r"cloud/store/store\.json",
    r"cloud/swift/.*",
)


@pytest.fixture
def canary(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A secret that the experiment names, in the environment of `orch`."""
    value = f"canary-{secrets.token_hex(16)}"
    monkeypatch.setenv("ORCH_CANARY", value)
    return value.encode()


@pytest.fixture
def users_store(clean_home: Path) -> Iterator[SwiftServer]:
    """A store of the user's, with the digits in it, below the home's parent."""
    base = clean_home.parent
    with SwiftServer(base / "users-store", environment=swift_environment()) as server:
        keys = server.credentials
        client = make_client(server.endpoint, access_key=keys.access_key, secret_key=keys.secret_key)
        (base / "shards").mkdir()
        make_digits(4, "s3://digits", client, folder=base / "shards", samples_per_shard=100)
        client.close()
        yield server


def settings(**more: str) -> list[str]:
    changes = _SHORT | more
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def look(run: Running, values: dict[str, bytes], allowed: tuple[str, ...]) -> None:
    """Search the home, the temporary folder, Ray's logs (in there) and shared memory, and all command lines."""
    base = run.home.parent
    found = in_files(values, [run.home, base / "t", Path("/dev/shm")])
    inside = {p.relative_to(run.folder) if p.is_relative_to(run.folder) else p: n for p, n in found.items()}
    told = {str(p): n for p, n in inside.items() if not any(re.fullmatch(a, str(p)) for a in allowed)}
    assert told == {}
    assert exposed_files(found) == []
    assert in_command_lines(values) == []


def test_a_run_that_succeeds_on_the_users_store(
    clean_home: Path, canary: bytes, users_store: SwiftServer, monkeypatch: pytest.MonkeyPatch
):
    for name, value in users_store.credentials.environment().items():
        monkeypatch.setenv(name, value)
    data = {"data.endpoint": users_store.endpoint, "data.shards": "s3://digits/train-{000000..000003}.tar"}
    run = Running(clean_home, "local-2", *settings(**data))
    try:
        run.wait_for_epoch(2)
        values = {"canary": canary, "store": users_store.credentials.secret_key.encode()}
        values |= private_keys(run.folder / "keys")
        assert len(values) >= 6
        live = in_files(values, [run.folder])
        assert set(values) <= {name for names in live.values() for name in names}  # the search can see them
        look(run, values, _WHILE_IT_LIVES)
        status = orch("status", run.run_id, "-o", "json").stdout
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        look(run, values, ())
        told = json.dumps(summary) + status + run.stderr.read_text() + orch("why", run.run_id).stdout
        assert in_bytes(told.encode(), values) == []
    finally:
        run.close()


def test_a_run_that_fails_on_the_embedded_store(
    clean_home: Path, canary: bytes, monkeypatch: pytest.MonkeyPatch
):
    """The user's own keys have no business in it at all."""
    mine = f"mine-{secrets.token_hex(16)}"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", mine)
    shards = {"data.shards": "s3://digits/train-{000000..000003}.tar", "measure.epochs": "9"}
    run = Running(clean_home, "local-2", *settings(**shards))
    try:
        run.wait_for_epoch(1)
        store = json.loads((run.folder / "cloud" / "store" / "store.json").read_text())
        values = {"canary": canary, "store": store["secret_key"].encode()}
        values |= private_keys(run.folder / "keys")
        look(run, values, _WHILE_IT_LIVES)
        look(run, {"mine": mine.encode()}, ())
        os.kill(run.host()["switch_pid"], signal.SIGKILL)
        code, _ = run.finish(60)
        assert code == 1
        look(run, values | {"mine": mine.encode()}, ())
        assert in_bytes(run.stderr.read_bytes(), values) == []
    finally:
        run.close()


def test_the_search_sees_every_form(tmp_path: Path):
    """A search that finds nothing must be able to find something."""
    value = b"canary-0123456789abcdef"
    written = {
        "plain": b"x" + value + b"y",
        "hex": value.hex().encode(),
        **{f"base64-{n}": base64.b64encode(b"p" * n + value + b"tail") for n in range(3)},
        "json": json.dumps({"environment": {"S": value.decode()}}).encode(),
    }
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "clean").write_bytes(base64.b64encode(b"canary-fedcba9876543210") + value[:-4])
    assert {p.name for p in in_files({"c": value}, [tmp_path])} == set(written)
    assert all(len(form) >= 20 for form in forms(value))
