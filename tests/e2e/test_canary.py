"""Known secret values in a run that loses a peer and succeeds, and in one that loses its network and fails: in the
places docs/promises.md names while it lives, and nowhere once it has ended. A run takes most of a minute to come and
go: so these two show as well that a killed peer is replaced, and that a killed switch ends a run cleanly."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canaries import exposed_files, forms, in_bytes, in_command_lines, in_files, private_keys
from running import Running, orch, wait_for

from cloud.storage.client import make_client
from cloud.storage.digits import make_digits
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment
from metrics.store.database import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_SHORT = {
    "swarm.target_batch_size": "640",
    "swarm.matchmaking_time_s": "1",
    "swarm.averaging_timeout_s": "10",
    "data.shards": "s3://digits/train-{000000..000003}.tar",
    "measure.epochs": "12",
    "peers.eu.replace.backoff_s": "1",
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


def test_a_run_that_loses_a_peer_succeeds_on_the_users_store(
    clean_home: Path, canary: bytes, users_store: SwiftServer, monkeypatch: pytest.MonkeyPatch
):
    for name, value in users_store.credentials.environment().items():
        monkeypatch.setenv(name, value)
    run = Running(clean_home, "local-2", *settings(**{"data.endpoint": users_store.endpoint}))
    try:
        run.wait_for_epoch(1)
        values = {"canary": canary, "store": users_store.credentials.secret_key.encode()}
        values |= private_keys(run.folder / "keys")
        assert len(values) >= 6
        live = in_files(values, [run.folder])
        assert set(values) <= {name for names in live.values() for name in names}  # the search can see them
        look(run, values, _WHILE_IT_LIVES)
        victim = next(vm for vm in run.host()["vms"] if "-eu-0-" in vm["vm"])
        os.kill(victim["pid"], signal.SIGKILL)
        wait_for("the next peer", lambda: any("-eu-0-1" in vm["vm"] for vm in run.host()["vms"]), 60)
        before, values = len(values), values | private_keys(run.folder / "keys")
        assert len(values) > before  # it has keys of its own
        status = orch("status", run.run_id, "-o", "json").stdout
        code, summary = run.finish()
        assert code == 0, run.stderr.read_text()
        look(run, values, ())
        why = orch("why", run.run_id).stdout + orch("why", run.run_id, "eu-0").stdout
        told = json.dumps(summary) + status + run.stderr.read_text() + why
        assert in_bytes(told.encode(), values) == []
        assert "killed by signal 9" in why
        check_replaced(run, summary)
    finally:
        run.close()


def check_replaced(run: Running, summary: dict[str, Any]) -> None:
    """That the next peer joined the other one (rounds of both, and the other's loss), and goes on in the data."""
    assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 2}
    with RunStore.open_reader(run.folder / "run.db") as store:
        epochs = store.records("epochs")
    joined = [row for row in epochs if row.vm.endswith("-eu-0-1")]
    assert any(row.group_size == 2 for row in joined), "the replacement took part in no round"
    victim, replacement = (run.folder / "vms" / f"{run.run_id}-eu-0-{n}" for n in (0, 1))
    last = json.loads((victim / "status.json").read_text())["data_position"]
    start = json.loads((replacement / "config.json").read_text())["data_position"]
    assert start is not None
    assert 0 <= shards_before(last) - shards_before(start) <= 1  # one may have ended since the last report
    check_coverage(summary["coverage"], victim.name, replacement.name)
    losses = {row.epoch: row.loss for row in epochs if row.vm.endswith("-us-0-0")}
    assert all(row.loss < 1.5 * losses[row.epoch] + 0.5 for row in joined), "it learns as the others do"


def check_coverage(found: dict[str, Any], victim: str, replacement: str) -> None:
    """That the replacement went on within one shard of where its slot was, and which samples were seen."""
    (handover,) = found["handovers"]
    assert (handover["vm"], handover["replaced_by"]) == (victim, replacement)
    assert handover["repeated_shards"] <= 1
    assert handover["skipped_samples"] in (0, None)
    assert (found["open_vms"], found["incomplete_vms"], found["silent_vms"]) == ([victim], [], [])
    first = found["passes"][0]
    assert (first["pass"], first["samples"], first["counted"]) == (1, 400, 400)
    assert first["once"] + first["more"] > 200
    assert first["once"] + first["more"] + first["never"] + first["unknown"] == 400


def shards_before(position: dict[str, Any]) -> int:
    """How many of the four shards a slot that reads them all has finished. Its share is smaller: this only grows."""
    runs = zip(position["done"][::2], position["done"][1::2], strict=True)
    return 4 * position["pass"] + sum(last - first + 1 for first, last in runs)


def test_a_run_that_loses_its_switch_fails_on_the_embedded_store(
    clean_home: Path, canary: bytes, monkeypatch: pytest.MonkeyPatch
):
    """The user's own keys have no business in it at all."""
    mine = f"mine-{secrets.token_hex(16)}"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", mine)
    run = Running(clean_home, "local-2", *settings())
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
        said = run.stderr.read_text()
        assert in_bytes(said.encode(), values) == []
        assert "switch" in said
        assert "Traceback" not in said
        assert orch("down", run.run_id).returncode == 0
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
