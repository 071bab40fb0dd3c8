"""Keys and secrets of a run: created once, readable by the user only, removed at the run's end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from cloud.provider import LaunchRequest, Offer
from orchestrator.launch.keys import forget_keys, vm_keys

SECRET = "3f0c-the-store-s-secret"


def files_with(folder: Path, text: bytes) -> list[str]:
    return [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and text in p.read_bytes()]


def test_a_vm_s_keys_are_made_once_and_are_in_no_repr(tmp_path):
    first, again = vm_keys(tmp_path, "r-us-0-0"), vm_keys(tmp_path, "r-us-0-0")
    assert vars(first) == vars(again)
    assert first.record not in repr(first).encode()
    assert vm_keys(tmp_path, "r-us-0-1").record != first.record
    for path in (tmp_path / "keys" / "r-us-0-0").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_request_shows_no_secret():
    offer = Offer("gcp/us-central1", "n1", "T4:1", True, None, "")
    config = {"environment": {"AWS_SECRET_ACCESS_KEY": SECRET}}
    request = LaunchRequest("r-us-0-0", offer, "m:f", config, {"record.key": SECRET.encode()})
    assert "r-us-0-0" in repr(request)
    assert SECRET not in repr(request)


def test_no_secret_remains_after_the_run(tmp_path):
    keys = vm_keys(tmp_path, "r-us-0-0")
    (tmp_path / "keys" / "environment.key").write_text(json.dumps({"AWS_SECRET_ACCESS_KEY": SECRET}))
    for vm in ("r-us-0-0", "r-eu-0-0"):
        folder = tmp_path / "vms" / vm
        folder.mkdir(parents=True)
        (folder / "identity.key").write_bytes(keys.identity)
        (folder / "record.key").write_bytes(keys.record)
        config = {
            "vm": vm,
            "environment": {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": "orch:admin"},
        }
        (folder / "config.json").write_text(json.dumps(config))
    broken = tmp_path / "vms" / "r-eu-0-1"
    broken.mkdir()
    (broken / "config.json").write_text('{"environment": {"AWS_SECRET_ACCESS_KEY": "' + SECRET)  # cut off
    forget_keys(tmp_path)
    forget_keys(tmp_path)  # a second time changes nothing
    assert files_with(tmp_path, SECRET.encode()) == []
    assert files_with(tmp_path, keys.record) == []
    assert files_with(tmp_path, b"PRIVATE KEY") == []
    assert (tmp_path / "keys" / "r-us-0-0" / "record.pub").is_file()
    kept = tmp_path / "vms" / "r-us-0-0" / "config.json"
    assert json.loads(kept.read_text())["vm"] == "r-us-0-0"
    assert set(json.loads(kept.read_text())["environment"]) == {"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
