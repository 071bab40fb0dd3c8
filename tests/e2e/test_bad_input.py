"""Bad input from the command line: one sentence, the right exit code, no traceback, nothing left."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import orch

from experiments.parse.load import find, load
from orchestrator.cli.starting import plan_for
from orchestrator.launch.prepare import prepare
from tests.ordinary_user import as_ordinary_user

pytestmark = pytest.mark.e2e

RUN = "local-2-20261121-7f3a"
linux = pytest.mark.skipif(sys.platform != "linux", reason="private mounts are Linux's")


def refused(done: subprocess.CompletedProcess[str], code: int, *said: str) -> str:
    """That a command ended as bad input should; its last line."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    last = done.stderr.splitlines()[-1]
    for words in said:
        assert words in last
    return last


def runs(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "runs").glob("*"))


def test_five_mistakes_in_a_file_are_told_at_once(clean_home: Path, tmp_path: Path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "name: bad\nmodel: digits\nsed: 1\nseed: one\ndata:\n  shards: s3://digits/train-{000003..000000}.tar\n"
        "swarm:\n  target_batch_size: 1920\npeers:\n  - name: us\n    count: 1000000000\n"
        "    resources: {infra: gcp/us-central1/us-central1-z}\n  - name: eu\n    count: 0\n"
        "    resources: {infra: gcp/europe-west1}\nbudget_usd: -1\n"
    )
    done = orch("launch", str(file), "--yes")
    refused(done, 2)
    places = [line.removeprefix(f"{file}:").partition(": ")[0] for line in done.stderr.splitlines()]
    assert places == ["3:1", "4:7", "6:11", "11:12", "12:24", "14:12", "16:13"]
    assert runs(clean_home) == []


@linux
@pytest.mark.parametrize(
    ("prepared", "code", "said"),
    [
        ("mount -t tmpfs -o size=64k none $ORCH_HOME", 1, ("0 MB free", "set ORCH_HOME")),
        (
            "echo 'MemAvailable: 1000000 kB' >$TMPDIR/m && mount --bind $TMPDIR/m /proc/meminfo",
            2,
            ("2 peers need about", "request fewer peers"),
        ),
    ],
    ids=["no space on the disk", "no memory for the peers"],
)
def test_what_the_machine_lacks_is_told_before_anything_is_made(
    clean_home: Path, prepared: str, code: int, said: tuple[str, ...]
):
    """In a mount namespace of the test's own."""
    clean_home.mkdir()
    program = Path(sys.executable).with_name("orch")
    flags = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = f'{prepared} && "$0" launch local-2 --yes; c=$?; ls "$ORCH_HOME"; rm -f "$TMPDIR/m"; exit $c'
    done = subprocess.run(
        ["unshare", *flags, "sh", "-c", script, str(program)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine gives the test no mounts of its own: {done.stderr}")
    refused(done, code, *said)


@pytest.mark.parametrize("place", ["/dev/null/x", "a file"])
def test_a_home_that_cannot_be(clean_home: Path, tmp_path: Path, place: str):
    if place == "a file":
        (tmp_path / "file").touch()
        place = str(tmp_path / "file")
    for command in (["ls"], ["launch", "local-2", "--yes"]):
        refused(orch(*command, ORCH_HOME=place), 2, place, "Not a directory", "ORCH_HOME")


def test_a_ray_that_is_not_there_is_told_before_anything_is_made(clean_home: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    done = orch("launch", "local-2", "--yes", RAY_ADDRESS=address)
    refused(done, 1, f"RAY_ADDRESS {address}: no connection", "unset RAY_ADDRESS")
    assert runs(clean_home) == []


@pytest.fixture
def folder(clean_home: Path) -> Path:
    """A run that was prepared and has not begun."""
    spec = load("local-2")
    return prepare(plan_for(spec), find("local-2"), RUN, clean_home, now_s=time.time())


def test_two_launches_of_one_run_id(clean_home: Path, folder: Path):
    with (folder / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["launch", "local-2", "--yes", "--run-id", RUN], ["attach", RUN]):
            refused(orch(*command), 6, RUN, "another `orch` is starting this run", f"`orch attach {RUN}`")
    assert orch("down", RUN).returncode == 0
    refused(orch("launch", "local-2", "--yes", "--run-id", RUN), 2, "has ended (stopped)", "orch report")


def test_a_run_folder_of_a_newer_schema(clean_home: Path, folder: Path):
    with sqlite3.connect(folder / "run.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    for command in ("status", "why", "report", "attach", "stop", "down"):
        refused(orch(command, RUN), 2, "run.db: written by a newer orch (schema 99", "upgrade")
    refused(orch("launch", "local-2", "--yes", "--run-id", RUN), 2, "written by a newer orch")
    assert "unreadable" in orch("ls").stdout
    assert orch("reap").returncode == 0, "nothing of it runs"


def test_names_that_are_none(clean_home: Path):
    for name in ("nonsense", "../../etc", "", "a\nb", "x" * 5000):
        last = refused(orch("status", name), 2, "no such run", "`orch ls`")
        assert len(last) < 300
    refused(orch("launch", "a\nb.yaml", "--yes"), 2, "a\\nb.yaml: no such file")
    refused(
        orch("launch", "local-2", "--yes", "--run-id", "../x"),
        2,
        "--run-id '../x'",
        "use at most 63 of the characters",
    )
    assert runs(clean_home) == []


def test_closed_streams_and_a_bare_environment(clean_home: Path):
    program = Path(sys.executable).with_name("orch")

    def sh(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script, str(program)], capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip

    refused(sh('"$0" launch local-2 <&-'), 3, "there is no terminal to ask for confirmation; add --yes")
    piped = sh('"$0" schema | head -1')
    assert (piped.stdout, piped.stderr) == ("{\n", "")
    assert "Traceback" not in sh('"$0" experiments >&-').stderr
    full = sh('"$0" schema >/dev/full')
    assert full.returncode == 1
    assert "no space left" in full.stderr
    ascii_only = sh('"$0" show geo-b2', LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", NO_COLOR="1")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    homeless = sh('env -u HOME -u XDG_STATE_HOME "$0" experiments')
    assert (homeless.returncode, homeless.stderr) == (0, "")


@linux
@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="becomes another user")
def test_a_home_that_another_user_owns(clean_home: Path, tmp_path: Path):
    clean_home.mkdir(mode=0o755)
    clean_home.parent.chmod(0o755)
    program = Path(sys.executable).with_name("orch")
    for command, code in ((["launch", "local-2", "--yes"], 2), (["reap"], 2), (["ls"], 0)):
        scratch = tmp_path / command[0]
        scratch.mkdir()
        done = subprocess.run(
            as_ordinary_user([program, *command], scratch),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        if code:
            assert str(clean_home) in done.stderr.splitlines()[-1]
            assert "ORCH_HOME" in done.stderr.splitlines()[-1]
