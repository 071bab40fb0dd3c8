"""SkyPilot's VMs are ended whatever goes wrong around it: full disks, damaged records, faults of one VM's end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloud.durable_file import write_durably
from cloud.provider import LaunchRequest, Offer, TransientError
from cloud.sky import SkyCloud, clusters, launching, monitor, provider, records
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk, server


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "runs" / "r" / "sky"


@pytest.fixture
def ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three VMs that run; which clusters are ended by SkyPilot, whose part is replaced."""
    found: list[str] = []
    monkeypatch.setattr(server, "ensure", lambda home: None)
    monkeypatch.setattr(server, "healthy", lambda: True)
    monkeypatch.setattr(server, "claim", lambda home, run: None)
    monkeypatch.setattr(server, "leave", lambda home, run: None)
    monkeypatch.setattr(sdk, "down", found.append)
    monkeypatch.setattr(sdk, "list_clusters", lambda *_, **__: [])
    monkeypatch.setattr(sdk, "pending_launch", lambda cluster: None)
    monkeypatch.setattr(provider.time, "sleep", lambda _s: None)
    for n in range(3):
        made = VmRecord(f"r-a-{n}", f"r-a-{n}", "gcp/us-central1", "T4:1", True, 1.0, launched=True)
        records.write(folder, made)
    return found


ALL = ["r-a-0", "r-a-1", "r-a-2"]


def test_full_disk_does_not_prevent_ending_vms(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(records, "write", no_room)
    SkyCloud(folder.parent).close()
    assert sorted(ended) == ALL


def test_error_in_one_termination_does_not_prevent_others(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    def down(cluster: str) -> None:
        if cluster == "r-a-1":
            raise KeyError("region")
        ended.append(cluster)

    monkeypatch.setattr(sdk, "down", down)
    monkeypatch.setattr(monitor, "end", no_room)
    with pytest.raises(TransientError, match="r-a-1") as raised:
        SkyCloud(folder.parent).close()
    assert "the monitor" in str(raised.value)
    assert sorted(ended) == ["r-a-0", "r-a-2"]
    assert not (folder / "proven").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"vm": "r-a-1", "odd": 1}'])
def test_a_vm_whose_record_is_damaged_is_ended_by_its_name(folder: Path, ended: list[str], content: bytes):
    (folder / "r-a-1.json").write_bytes(content)
    damaged = records.read(folder, "r-a-1")
    assert damaged is not None
    assert "cannot be read" in damaged.cause
    assert {o.vm for o in SkyCloud(folder.parent).observe()} == set(ALL), "it hides no other"
    SkyCloud(folder.parent).close()
    assert sorted(set(ended)) == ALL


def test_run_is_marked_closed_before_vms_are_listed(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    reads: list[bool] = []
    real: Callable[[Path], list[VmRecord]] = records.read_all

    def read_all(path: Path) -> list[VmRecord]:
        reads.append((folder / "closed").exists())
        return real(path)

    monkeypatch.setattr(records, "read_all", read_all)
    SkyCloud(folder.parent).close()
    assert reads
    assert all(reads), "whatever is recorded later finds the run closed"


def test_a_vm_that_cannot_be_recorded_is_ended_again(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    offer = Offer("gcp/us-central1", "n1", "T4:1", True, None, "")
    up = sdk.Cluster("r-b-0", "UP", {}, address="10.0.0.1")
    monkeypatch.setattr(launching, "_launch_until_up", lambda *_: None)
    monkeypatch.setattr(sdk, "find", lambda cluster: up)
    monkeypatch.setattr(records, "update", no_room)
    with pytest.raises(TransientError, match="and was ended again"):
        SkyCloud(folder.parent).request(LaunchRequest("r-b-0", offer, "p", {}))
    assert ended == ["r-b-0"]
    monkeypatch.setattr(records, "write", no_room)
    with pytest.raises(TransientError, match="nothing was rented"):
        SkyCloud(folder.parent).request(LaunchRequest("r-b-1", offer, "p", {}))
    assert ended == ["r-b-0"]


def test_join_message_is_recorded_before_it_is_sent(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    commands: list[str] = []
    monkeypatch.setattr(records, "update", no_room)
    monkeypatch.setattr(provider.ssh, "run_on", lambda a, b, command, d: commands.append(command))
    listed = provider.Listed("r-b-0", "UP")
    waits = VmRecord(
        "r-b-0", "r-b-0", "gcp/x", "T4:1", True, 1.0, launched=True, address="10.0.0.1",
        job={"phase": "waiting"}, ssh={"key": "k"},
    )  # fmt: skip
    (folder.parent / "monitor").mkdir()
    (folder.parent / "monitor" / "roster.json").write_text('{"seed": "r-b-0", "join": [], "peers": []}')
    SkyCloud(folder.parent)._look(waits, listed, 2.0)
    assert len(commands) == 1
    assert "alone" not in commands[0]


def test_a_record_and_its_name_are_on_the_disk_when_write_returns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    records.write(folder, VmRecord("r-a-0", "r-a-0", "gcp/x", "T4:1", True, 1.0))
    assert synced == ["file", "folder"]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_durably(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space"):
        write_durably(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


class Gone(Exception):
    """As SkyPilot's."""


Gone.__name__ = "ClusterDoesNotExist"


@pytest.mark.parametrize(("arrives_at", "cancelled"), [(4, ["request-1"]), (99, [])])
def test_a_launch_whose_sender_died_is_cancelled_when_it_arrives(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch, arrives_at: int, cancelled: list[str]
):
    """The sender is killed after it sent the request and before SkyPilot's server has written it down."""
    looks: list[str] = []
    stopped: list[str] = []

    def pending(cluster: str) -> str | None:
        looks.append(cluster)
        return "request-1" if len(looks) >= arrives_at and not stopped else None

    def down(cluster: str) -> None:
        raise Gone(cluster)

    clock = [0.0]
    monkeypatch.setattr(clusters.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(clusters.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sdk, "pending_launch", pending)
    monkeypatch.setattr(sdk, "find", lambda *_, **__: None)
    monkeypatch.setattr(sdk, "down", down)
    monkeypatch.setattr(sdk, "cancel", stopped.append)
    records.write(folder, VmRecord("r-b-0", "r-b-0", "gcp/x", "T4:1", True, 1.0, asking=True))
    SkyCloud(folder.parent).terminate("r-b-0")
    assert stopped == cancelled
    assert clock[0] <= clusters._ARRIVES_S + 2.0
    record = records.read(folder, "r-b-0")
    assert record is not None
    assert record.end_state == "terminated"


def test_a_launch_is_recorded_as_on_its_way_before_it_is_sent(
    folder: Path, ended: list[str], monkeypatch: pytest.MonkeyPatch
):
    seen: list[bool] = []

    def asking() -> bool:
        record = records.read(folder, "r-b-0")
        assert record is not None
        return record.asking

    def send(*_: Any) -> str:
        seen.append(asking())
        return "request-1"

    monkeypatch.setattr(launching, "ship_folder", lambda *_: (folder, "key"))
    monkeypatch.setattr(launching, "_has_job", lambda cluster: False)
    monkeypatch.setattr(sdk, "launch", send)
    monkeypatch.setattr(sdk, "wait_launch", lambda _: seen.append(asking()))
    monkeypatch.setattr(sdk, "find", lambda cluster: sdk.Cluster("r-b-0", "UP", {}, address="10.0.0.1"))
    offer = Offer("gcp/us-central1", "n1", "T4:1", True, None, "")
    SkyCloud(folder.parent).request(LaunchRequest("r-b-0", offer, "p", {}))
    assert seen == [True, False]
