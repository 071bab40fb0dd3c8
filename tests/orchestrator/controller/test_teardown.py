"""Ending runs in difficult situations: launches in progress, removed folders, unreadable databases, full disks."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud.provider import Owned
from cloud.sky import records
from cloud.sky.records import VmRecord
from metrics.store.database import DiskFullError, RunStore
from orchestrator.cli.app import run
from orchestrator.controller import client, reaping
from orchestrator.controller.loop import Shells
from orchestrator.controller.stop_mark import ask_to_stop, asked_to_stop
from orchestrator.disk_reserve import free_reserve, is_disk_full, keep_reserve
from orchestrator.errors import HeldError, RefusedError, exit_code
from orchestrator.home import owner
from orchestrator.launch.start_lock import is_starting, start_lock

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class Cloud:
    """A provider that notes what is asked of it."""

    def __init__(self, *owned: Owned) -> None:
        self.calls: list[str] = []
        self.owned = list(owned)

    def close(self) -> None:
        self.calls.append("close")

    def observe(self) -> list[Any]:
        return []

    def list_ours(self, owner: str) -> list[Owned]:
        self.calls.append(f"list {owner}")
        return [o for o in self.owned if o.owner == owner]

    def release(self, owned: Owned) -> None:
        self.calls.append(f"release {owned.id}")
        self.owned.remove(owned)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    monkeypatch.setattr(client, "make_provider", lambda *_: made)
    monkeypatch.setattr(reaping, "make_provider", lambda *_: made)
    monkeypatch.setattr(reaping.time, "sleep", lambda _s: None)
    monkeypatch.setattr(client, "stop_ray", lambda _home: [])
    monkeypatch.setattr(client, "start_cloud", lambda _folder: made.calls.append("start"))
    monkeypatch.setattr(client, "_take_over", lambda run_id, home: made.calls.append("controller"))
    monkeypatch.delenv("ORCH_OWNER", raising=False)
    return made


def make_run(home: Path, run_id: str = "r", **meta: Any) -> Path:
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").touch()
    with RunStore.open_writer(folder / "run.db") as store:
        known = {"status": "running", "provider": "x:Y", "target": "local", **meta}
        for key, value in known.items():
            store.set_meta(key, value)
    return folder


def status_of(folder: Path) -> str:
    with RunStore.open_reader(folder / "run.db") as store:
        return store.meta("status")


@pytest.fixture
def home(own_home: Path) -> Path:
    own_home.mkdir(parents=True, exist_ok=True)
    return own_home


class TestLaunchUnderWay:
    def test_a_run_taken_down_while_its_cloud_starts_gets_no_controller(
        self, home: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ):
        folder = make_run(home)
        monkeypatch.setattr(client, "start_cloud", lambda folder: ask_to_stop(folder, "taken down"))
        with pytest.raises(RefusedError, match="r was ended while it was starting: taken down") as raised:
            client.launch("r", home)
        assert exit_code(raised.value) == 3
        assert cloud.calls == ["close"]
        assert status_of(folder) == "stopped"

    def test_a_run_taken_down_before_its_start_is_not_started(self, home: Path, cloud: Cloud):
        make_run(home)
        assert client.down("r", home) == []
        assert cloud.calls == ["close"]
        with pytest.raises(RefusedError):
            client.launch("r", home)
        assert "start" not in cloud.calls
        assert "controller" not in cloud.calls

    def test_down_waits_for_a_launch_to_stop_and_reports_if_it_does_not(
        self, home: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ):
        folder = make_run(home)
        monkeypatch.setattr(client, "_BRING_UP_S", 0.2)
        with start_lock(folder):
            [left] = client.down("r", home)
            assert "another `orch` that is starting it does not stop" in left
            assert run(["down", "r"]) == 5
        assert cloud.calls == []
        assert asked_to_stop(folder) == "taken down", "the bring-up sees it at its next step"
        assert client.down("r", home) == []

    def test_reap_skips_a_run_that_is_being_started(self, home: Path, cloud: Cloud):
        folder = make_run(home)
        with start_lock(folder):
            assert is_starting(folder)
            assert client.reap(home).left == {}
            assert cloud.calls == []
            assert asked_to_stop(folder) == ""
        assert not is_starting(folder)
        assert client.reap(home).left == {}
        assert cloud.calls == ["close"]
        assert status_of(folder) == "stopped"

    def test_reap_skips_a_run_whose_controller_ray_restarts(
        self, home: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ):
        folder = make_run(home)
        (folder / "controller.json").write_text("{}")
        looks = iter([False, False, False, True])
        monkeypatch.setattr(client, "_ray_lives", lambda home: True)
        monkeypatch.setattr(client, "_ray_has", lambda run_id, home: True)
        monkeypatch.setattr(client, "_POLL_S", 0.01)
        monkeypatch.setattr(client, "controller_alive", lambda folder: next(looks))
        assert client.reap(home).left == {}
        assert cloud.calls == []
        monkeypatch.setattr(client, "controller_alive", lambda folder: False)
        monkeypatch.setattr(client, "_ray_has", lambda run_id, home: False)
        assert client.reap(home).left == {}
        assert cloud.calls == ["close"], "one that Ray has given up is ended"

    def test_start_lock_waits(self, tmp_path: Path):
        with start_lock(tmp_path), pytest.raises(HeldError), start_lock(tmp_path, 0.15):
            pass
        with start_lock(tmp_path, 0.15):
            pass

    def test_looking_at_the_start_lock_refuses_no_launch(self, tmp_path: Path):
        with start_lock(tmp_path):
            pass
        with (tmp_path / "start.lock").open() as looking:
            fcntl.flock(looking, fcntl.LOCK_SH)  # as `orch ls` does, but for longer
            assert not is_starting(tmp_path)
            threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
            with start_lock(tmp_path):
                assert is_starting(tmp_path)

    def test_a_later_controller_ends_the_run_at_its_first_tick(self, home: Path):
        folder = make_run(home)
        ask_to_stop(folder, "taken down")
        reported: list[tuple[str, str]] = []
        shells = shells_of(folder, reported)
        shells.next(None)
        shells.next(None)
        assert reported == [("stopped", "taken down")]


def shells_of(folder: Path, reported: list[tuple[str, str]]) -> Shells:
    """A controller's shells that only hear that the run is to end."""

    def shell() -> Any:
        return SimpleNamespace(stop=lambda *given: reported.append(given))

    return Shells(shell, folder, asked_to_stop=asked_to_stop, free_reserve=free_reserve)


class TestWhatReapSays:
    def test_vms_of_a_removed_run_folder_are_found(self, home: Path, cloud: Cloud):
        name = owner(home, {})
        folder = make_run(home, target="sky", owner=name)
        shutil.rmtree(folder)
        cloud.owned = [Owned("vm", "i-1", "", "r", name, "aws/us-west-2", None, "https://console/i-1")]
        assert run(["reap"]) == 5
        assert "release i-1" not in cloud.calls, "it may be another home's copy: named, not ended"
        reaped = client.reap(home)
        assert reaped.left == {"r": ["vm i-1 in aws/us-west-2 https://console/i-1"]}
        assert client.reap(home, everything=True).left == {}
        assert cloud.owned == []

    def test_vms_under_a_shared_owner_are_reported_and_left_alone(
        self, home: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]
    ):
        owner(home, {"ORCH_OWNER": "team"})
        cloud.owned = [Owned("vm", "i-1", "", "theirs", "team", "aws/us-west-2", None)]
        assert run(["reap", "-o", "json"]) == 0
        out, said = capsys.readouterr()
        assert json.loads(out)["others"] == [{"run": "theirs", "what": "vm i-1 in aws/us-west-2"}]
        assert "left alone because run theirs is unknown here" in said
        assert len(cloud.owned) == 1

    @pytest.mark.parametrize("content", [b"", b"garbage" * 1000], ids=["empty", "overwritten"])
    def test_an_unreadable_database_is_torn_down_and_the_clouds_queried(
        self, home: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str], content: bytes
    ):
        folder = make_run(home, target="sky", owner="me")
        for path in folder.glob("run.db*"):
            path.unlink()
        (folder / "run.db").write_bytes(content)
        record = VmRecord("r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "T4:1", True, 1.0)
        records.write(folder / "sky", VmRecord(**{**vars(record), "labels": {"orch-owner": "me"}}))
        cloud.owned = [Owned("vm", "i-1", "", "r", "me", "aws/us-west-2", None)]
        assert run(["reap"]) == 0
        assert {"list me", "release i-1"} <= set(cloud.calls)
        assert cloud.calls.count("close") == 2, "the run's own provider, and the one that asks the clouds"
        said = capsys.readouterr().err
        assert "r: " in said
        assert "its cost is unknown" in said
        assert "nothing of owner me" in said

    def test_an_unreadable_database_with_unreachable_clouds_exits_with_5(
        self, home: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ):
        folder = make_run(home)
        (folder / "run.db").write_bytes(b"garbage" * 1000)
        record = VmRecord("r-a-0", "r-a-0", "aws/us-west-2", "T4:1", True, 1.0, {"orch-owner": "me"})
        records.write(folder / "sky", record)

        def silent(_owner: str) -> list[Owned]:
            raise ImportError("no sky here")

        monkeypatch.setattr(cloud, "list_ours", silent)
        assert run(["reap"]) == 5

    def test_down_works_with_an_overwritten_database(self, home: Path, cloud: Cloud):
        folder = make_run(home, target="sky", owner="me")
        (folder / "run.db").write_bytes(b"garbage" * 1000)
        (folder / "sky").mkdir()
        assert run(["down", "r"]) == 0
        assert cloud.calls == ["close"]

    def test_a_folder_without_its_experiment_is_searched(self, home: Path, cloud: Cloud):
        folder = make_run(home)
        (folder / "experiment.yaml").unlink()
        client.reap(home)
        assert cloud.calls == ["close"]


class TestFullDisk:
    def test_a_stop_request_survives_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "stop.json").touch()  # there was room for a name, and for no byte
        assert asked_to_stop(tmp_path) == "taken down"
        ask_to_stop(tmp_path, "again")
        assert asked_to_stop(tmp_path) == "taken down"
        ask_to_stop(tmp_path / "nowhere", "x")  # logged, not raised

    def test_the_disk_reserve_is_allocated_and_released(self, tmp_path: Path):
        keep_reserve(tmp_path)
        assert (tmp_path / "reserve").stat().st_blocks * 512 >= 16_000_000
        assert free_reserve(tmp_path)
        assert not free_reserve(tmp_path)
        assert is_disk_full(NO_SPACE)
        assert is_disk_full(DiskFullError("x"))
        assert not is_disk_full(OSError(errno.EIO, "x"))
        assert not is_disk_full(None)

    def test_a_full_disk_ends_the_run_using_the_reserve(self, home: Path):
        folder = make_run(home)
        keep_reserve(folder)
        reported: list[tuple[str, str]] = []
        shells_of(folder, reported).next(NO_SPACE)
        assert {status for status, _ in reported} == {"failed"}
        assert "no space left on the disk" in reported[-1][1]
        assert not (folder / "reserve").exists()


# A filling disk under the real controller's store, provider records and teardown: a small tmpfs of its own.
_FULL = """
import os, sys
from pathlib import Path
from cloud.sky import provider, records
from cloud.sky.skypilot import sdk, server
from cloud.sky.provider import SkyCloud

home = Path(sys.argv[1])
run = home / "runs" / "r"
ended = []
server.ensure = lambda home: None
server.healthy = lambda: True
server.leave = lambda home, run: None
sdk.down = ended.append
sdk.list_clusters = lambda *a, **k: []
sdk.pending_launch = lambda cluster: None
for n in range(3):
    records.write(run / "sky", records.VmRecord(f"r-a-{n}", f"r-a-{n}", "gcp/us-central1", "T4:1", True, 1.0, launched=True))
with open(home / "filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print("full:", error.errno)
try:
    records.update(run / "sky", "r-a-0", cause="x" * 9000)
except OSError as error:
    print("cannot record:", error.errno)
provider.time.sleep = lambda s: None
SkyCloud(run).close()
print("ended:", sorted(ended))
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs in a namespace of its own")
@pytest.mark.timeout(120)
def test_every_vm_is_terminated_on_a_full_disk(tmp_path: Path):
    """In a user namespace with a tmpfs of 1 MB; the SDK is replaced, records and provider are the real ones."""
    script = tmp_path / "full.py"
    script.write_text(_FULL)
    place = tmp_path / "small"
    place.mkdir()
    inside = f"mount -t tmpfs -o size=1m none {place} && exec {sys.executable} {script} {place}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside],
        capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"full: {errno.ENOSPC}"
    assert f"cannot record: {errno.ENOSPC}" in lines
    assert lines[-1] == "ended: ['r-a-0', 'r-a-1', 'r-a-2']"


def test_a_launch_in_another_process_holds_the_lock_until_it_dies(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from orchestrator.launch.start_lock import start_lock\n"
        "with start_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert is_starting(tmp_path)
    finally:
        child.kill()
        child.communicate()
    deadline = time.monotonic() + 10
    while is_starting(tmp_path):
        assert time.monotonic() < deadline
