"""Another user of the machine cannot read, use or block anything of the owner."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc._channel  # imported by grpc's first channel: too late for a user who cannot read our environment
import pytest

from cloud.private_folder import NotPrivateError, private_folder
from cloud.sky.skypilot import server
from cloud.sky.vm import ssh
from orchestrator.controller.own_environment import adopt_environment, keep_environment
from orchestrator.home import make_home
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare
from orchestrator.ray.processes import marked
from orchestrator.ray.session import connect, disconnect, ensure_ray, read_session, stop_ray
from tests.orchestrator.ray.test_controller_ray import listeners

_NOBODY = 65534


def as_somebody_else(work: Callable[[], Any]) -> Any:
    """Run `work` in a child process with another uid and return its result. All imports must be done before."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            result = work()
        except BaseException as error:  # noqa: BLE001 - returned to the test
            result = repr(error)
        os.write(theirs, pickle.dumps(result))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        printed = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(printed)


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that everyone can read, like /home."""
    path = Path(tempfile.mkdtemp(prefix="orch-users-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def attempt(address: str, token: str = "") -> str:
    """Ask Ray's control store for its nodes, as a driver does first."""
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        try:
            call(b"", timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]
    return "answered"


def refused(*paths: Path) -> list[str]:
    """What another user gets from each path: its content, or the name of the exception."""

    def look() -> list[str]:
        found = []
        for path in paths:
            try:
                found.append(path.read_text() if path.is_file() else str(list(path.iterdir())))
            except OSError as error:
                found.append(type(error).__name__)
        return found

    return as_somebody_else(look)


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.timeout(180)
def test_other_users_cannot_access_our_ray_and_files(base: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    home = base / "home"
    try:
        address = ensure_ray(home)
        session = read_session(home)
        assert session is not None
        token = (home / "ray-token").read_text()
        assert as_somebody_else(lambda: attempt(address)) == "UNAUTHENTICATED"
        assert as_somebody_else(lambda: attempt(address, "0" * 64)) == "UNAUTHENTICATED"
        assert as_somebody_else(lambda: attempt(address, token)) == "answered", (
            "so it was the token that lacked"
        )
        files = (home, home / "ray-token", home / "ray.json", Path(session.temp))
        assert refused(*files) == ["PermissionError"] * len(files)
        pids = marked(session.temp, session.pid)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        assert not any(b"ray.util.client.server" in command for command in commands)
        assert listeners(pids)
        connect(address, home)  # and we are let in
        disconnect()
    finally:
        stop_ray(home)


def test_home_and_run_folder_are_private(base: Path):
    from experiments.parse.load import find, load

    spec = load("local-2")
    folder = prepare(
        approved_plan(spec, "local", {}, cores=2), find("local-2"), "r", base / "home", now_s=1e9
    )
    keep_environment(folder, {"AWS_SECRET_ACCESS_KEY": "x"})
    assert (base / "home").stat().st_mode & 0o777 == 0o700
    for path in (folder, folder / "keys", folder / "keys" / "controller-environment.key"):
        assert path.stat().st_mode & 0o077 == 0, path
    if os.geteuid() == 0:
        assert refused(base / "home", folder / "run.db") == ["PermissionError"] * 2


def test_ssh_control_sockets_are_in_a_private_folder(base: Path, monkeypatch: pytest.MonkeyPatch):
    home, runtime = base / "me", base / "run"
    home.mkdir(mode=0o700)
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert ssh._control() == runtime / "orch-ssh"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert ssh._control() == home / "orch-ssh"
    (home / "orch-ssh").chmod(0o755)
    assert ssh._control() is None, "then each look makes its own connection"
    command = ssh.ssh_command("10.0.0.1", {"user": "u", "key": "k"}, None)
    assert not any(word.startswith("Control") for word in command)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / ("x" * 60)))
    (base / ("x" * 60)).mkdir()
    assert ssh._control() is None, "a socket's path has a longest length"


def test_folder_accessible_to_others_is_refused(base: Path):
    path = base / "f"
    assert private_folder(path) == path
    path.chmod(0o750)
    with pytest.raises(NotPrivateError, match=f"other users may access it; run `chmod 700 {path}`"):
        private_folder(path)
    path.rmdir()
    path.symlink_to(base)
    with pytest.raises(NotPrivateError, match="is not a folder"):
        private_folder(path)
    if os.geteuid() == 0:
        path.unlink()
        path.mkdir(mode=0o700)
        os.chown(path, _NOBODY, _NOBODY)
        with pytest.raises(NotPrivateError, match="belongs to user 65534"):
            private_folder(path)


def test_existing_home_is_unchanged(base: Path):
    (base / "home").mkdir(mode=0o755)
    make_home(base / "home")
    assert (base / "home").stat().st_mode & 0o777 == 0o755


def test_a_run_has_its_own_environment(tmp_path: Path):
    keep_environment(
        tmp_path, {"AWS_PROFILE": "mine", "PATH": "/bin", "ORCH_SECRET_X": "s", "RAY_AUTH_MODE": "none"}
    )
    rays = {
        "AWS_PROFILE": "another's",
        "AWS_SESSION_TOKEN": "stale",
        "RAY_AUTH_MODE": "token",
        "PYTHONPATH": "/x",
    }
    adopt_environment(tmp_path, rays)
    assert rays == {"AWS_PROFILE": "mine", "PATH": "/bin", "RAY_AUTH_MODE": "token", "PYTHONPATH": "/x"}
    assert "ORCH_SECRET_X" not in json.loads((tmp_path / "keys" / "controller-environment.key").read_bytes())
    adopt_environment(tmp_path / "older", rays)
    assert rays["AWS_PROFILE"] == "mine", "a run of an older orch has none"


def test_skypilots_server_does_not_carry_the_mark_of_rays_processes(monkeypatch: pytest.MonkeyPatch):
    """Processes with the mark are ended with Ray, which happened to the server during a request."""
    seen: dict[str, str] = {}

    def run(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.update(env)
        return type("Done", (), {"returncode": 0, "stderr": b""})()

    monkeypatch.setattr(server.subprocess, "run", run)
    for name in ("ORCH_RAY_TEMP", "RAY_AUTH_TOKEN_PATH", "ORCH_SECRET_X"):
        monkeypatch.setenv(name, "x")
    server._start("/tmp")
    assert seen
    assert not {"ORCH_RAY_TEMP", "RAY_AUTH_TOKEN_PATH", "ORCH_SECRET_X"} & set(seen)
