"""A VM's script, actually run in a separate home: software, secrets, one program, and its end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pure_wheel import wheel

from cloud.provider import LaunchRequest, Offer
from cloud.sky.records import VmRecord
from cloud.sky.state import after_peek, observed, parse_peek
from cloud.sky.vm import bootstrap
from cloud.sky.vm.bootstrap import peek_command, stop_command
from cloud.sky.vm.secrets import KEY_VARIABLE
from cloud.sky.vm.wheel import ship_folder
from orchestrator.controller import tick

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

_PROGRAMS = """
import json, os, pathlib, signal, sys, time

def tell(config):
    names = ("ORCH_PUBLIC_ADDRESS", "ORCH_VM", "OMP_NUM_THREADS", "ORCH_SEAL_KEY", "ORCH_INITIAL_PEERS")
    said = {k: os.environ.get(k) for k in names}
    said["config"] = json.loads(pathlib.Path(config).read_text())
    said["key"] = pathlib.Path("record.key").read_text()
    pathlib.Path("told.json").write_text(json.dumps(said))
    return 7

def use(config):
    import orchtestonly, orchtestneeded
    return orchtestonly.VALUE + orchtestneeded.VALUE

def stay(config):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open("runs", "a") as file:
        file.write("x")
    time.sleep(60)
"""


class Vm:
    """A home with an environment in it, and run.sh started in it as SkyPilot does."""

    def __init__(self, home: Path, request: LaunchRequest) -> None:
        self.home, self.folder = home, home / "orch-vm"
        (home / "orch-env" / "bin").mkdir(parents=True)
        (home / "programs").mkdir()
        (home / "programs" / "programs.py").write_text(_PROGRAMS)
        python = home / "orch-env" / "bin" / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{home}/programs exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        # Whatever happens to this test, its VM's last resort must not switch this machine off.
        for name, what in (("sudo", "exit 0"), ("nvidia-smi", "echo no devices; exit 9")):
            (home / "bin").mkdir(exist_ok=True)
            (home / "bin" / name).write_text(f"#!/bin/sh\n{what}\n")
            (home / "bin" / name).chmod(0o755)
        made, self.key = ship_folder(home / "ship", home / "orch-home", request)
        made.rename(self.folder)
        (self.folder / "address").write_text("203.0.113.7\n")
        self.jobs: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        path = f"{self.home}/bin:{os.environ['PATH']}"
        environment = {"HOME": str(self.home), "PATH": path, KEY_VARIABLE: self.key}
        job = subprocess.Popen(
            ["bash", self.folder / "run.sh"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.jobs.append(job)
        return job

    def read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    def wait_for(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not what():
            assert time.monotonic() < end
            time.sleep(0.05)

    def close(self) -> None:
        for name in ("pid", "life.pid"):
            path = self.folder / name
            if path.exists():
                subprocess.run(["kill", "-KILL", "--", f"-{path.read_text().strip()}"], check=False)
        for job in self.jobs:
            job.kill()
            job.wait()
            assert job.stderr is not None
            job.stderr.close()


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Callable[..., Vm]]:
    made: list[Vm] = []

    def make(program: str, config: Mapping[str, Any] | None = None, **changes: Any) -> Vm:
        offer = Offer("aws/us-west-2/us-west-2a", "m6i.large", "CPU:2", True, None, "")
        config = {"environment": {"S": "canary"}} if config is None else config
        request = LaunchRequest("r-a-0", offer, program, config, {"record.key": b"the key"})
        made.append(Vm(tmp_path / "home", replace(request, **changes)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_program_gets_its_secrets_its_address_and_all_cores(vm: Callable[..., Vm]):
    one = vm("programs:tell", setup="echo of the user > setup-ran")
    assert one.start().wait(30) == 7
    told = one.read("told.json")
    assert (told["ORCH_PUBLIC_ADDRESS"], told["ORCH_VM"]) == ("203.0.113.7", "r-a-0")
    assert told["OMP_NUM_THREADS"] == str(os.cpu_count())
    assert told["ORCH_SEAL_KEY"] is told["ORCH_INITIAL_PEERS"] is None
    assert (told["config"], told["key"]) == ({"environment": {"S": "canary"}}, "the key")
    job = one.read("job.json")
    assert (job["phase"], job["exit_code"], job["error"]) == (
        "ended",
        7,
        "its program ended with exit code 7",
    )
    assert (one.folder / "setup-ran").exists()
    assert not (one.folder / "sealed").exists()
    assert one.start().wait(30) == 7, "a second job of the same VM runs nothing, and ends as the first did"


def test_a_program_that_asks_whom_to_join_starts_when_it_is_told(vm: Callable[..., Vm]):
    one = vm("programs:tell", config={"initial_peers": ["env:ORCH_INITIAL_PEERS"]})
    job = one.start()
    one.wait_for(lambda: (one.folder / "job.json").exists() and one.read("job.json")["phase"] == "waiting")
    environment = {"HOME": str(one.home), "PATH": os.environ["PATH"]}
    for peers in ("", "/ip4/203.0.113.8/tcp/1/p2p/A /ip4/203.0.113.9/tcp/1/p2p/B", "alone"):
        assert job.poll() is None or peers == "alone"
        subprocess.run(["bash", "-c", peek_command("x", peers)], env=environment, check=True, timeout=20)
    assert job.wait(30) == 7
    told = one.read("told.json")["ORCH_INITIAL_PEERS"]
    assert told == "/ip4/203.0.113.8/tcp/1/p2p/A /ip4/203.0.113.9/tcp/1/p2p/B"


def test_a_program_that_is_never_told_whom_to_join_does_not_wait_for_ever(
    vm: Callable[..., Vm], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap, "_WAIT_S", 1)
    one = vm("programs:tell", config={"initial_peers": ["env:ORCH_INITIAL_PEERS"]})
    assert one.start().wait(30) == 1
    assert one.read("job.json")["error"] == "this VM was not told which peers to join within 1 s"


def test_two_jobs_of_one_vm_run_its_program_once_and_it_leaves_when_asked(vm: Callable[..., Vm]):
    one = vm("programs:stay")
    first, second = one.start(), one.start()
    one.wait_for(lambda: (one.folder / "runs").exists())
    environment = {"HOME": str(one.home), "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", stop_command()], env=environment, check=True, timeout=20)
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert (one.folder / "runs").read_text() == "x"


def test_program_ends_at_maximum_lifetime(vm: Callable[..., Vm]):
    one = vm("programs:stay", max_life_s=8.0)  # long enough for the program to start on a busy machine
    assert one.start().wait(60) == 0
    assert one.read("job.json")["error"] == "it reached its maximum lifetime"


def test_program_is_not_started_after_the_maximum_lifetime(vm: Callable[..., Vm]):
    one = vm("programs:stay", setup="until [ -e life_over ]; do sleep 0.1; done", max_life_s=1.0)
    assert one.start().wait(30) == 1
    assert one.read("job.json")["error"] == "this VM has reached its maximum lifetime"
    assert not (one.folder / "runs").exists()


def test_a_setup_that_fails_says_so(vm: Callable[..., Vm]):
    one = vm("programs:tell", setup="echo no such package; exit 3")
    assert one.start().wait(30) == 1
    assert one.read("job.json")["error"] == "the experiment's setup failed with exit code 3: no such package"


def test_a_setup_that_hangs_is_killed_at_its_limit(vm: Callable[..., Vm], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstrap, "_SETUP_S", 1)
    monkeypatch.setattr(bootstrap, "_KILL_S", 1)
    one = vm("programs:tell", setup="trap '' TERM; cat job.json > said; sleep 50")
    assert one.start().wait(30) == 1
    assert one.read("said")["phase"] == "setup"
    assert "the experiment's setup failed with exit code 137" in one.read("job.json")["error"]


def test_an_installation_that_hangs_is_ended_at_its_limit(
    vm: Callable[..., Vm], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap, "_ENVIRONMENT_S", 1)
    one = vm("programs:tell")
    (one.home / "orch-env" / "bin" / "python").unlink()
    uv = one.home / "bin" / "uv"
    uv.write_text("#!/bin/sh\ncat job.json > said\nexec sleep 50\n")
    uv.chmod(0o755)
    assert one.start().wait(30) == 1
    assert one.read("said")["phase"] == "installing"
    assert "requirements could not be installed" in one.read("job.json")["error"]


def test_a_gpu_that_is_not_there_says_so(vm: Callable[..., Vm]):
    one = vm("programs:tell", offer=Offer("aws/x/y", "g4dn.xlarge", "T4:1", True, None, ""))
    assert one.start().wait(30) == 1
    said = one.read("job.json")["error"]
    assert said == "no working GPU driver on this image (nvidia-smi: no devices)"


_UV = """#!/bin/sh
echo "$@" > uv-arguments
cp "$(dirname "$0")"/../programs/*.py . && cat more_requirements.txt > more-seen
%s
"""


def test_requirements_of_the_task_are_installed_beside_the_peers(vm: Callable[..., Vm], tmp_path: Path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_task.py").write_text("x = 1\n")
    folders = {"code": str(tmp_path / "code")}
    one = vm("programs:tell", requirements=("--find-links wheels", "mine==1"), folders=folders)
    uv = one.home / "bin" / "uv"
    uv.write_text(_UV % "exit 0")
    uv.chmod(0o755)
    assert one.start().wait(30) == 7
    said = (one.folder / "uv-arguments").read_text()
    assert said == "pip install -q --torch-backend cpu -r more_requirements.txt -c requirements.txt\n", (
        "no wheels"
    )
    assert (one.folder / "more-seen").read_text() == "--find-links wheels\nmine==1\n"
    assert (one.folder / "code" / "my_task.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("uv_says", "unrecoverable"),
    [
        ("echo there is no mine 1; exit 1", True),
        ("echo error sending request for url https://pypi.org/simple/mine/; exit 1", False),
        ("exit 124", False),
    ],
)
def test_requirements_that_cannot_be_installed_end_the_run_unless_the_index_did_not_answer(
    vm: Callable[..., Vm], uv_says: str, unrecoverable: bool
):
    one = vm("programs:tell", requirements=("mine==1",))
    uv = one.home / "bin" / "uv"
    uv.write_text(_UV % uv_says)
    uv.chmod(0o755)
    assert one.start().wait(30) == 1
    peeked = subprocess.run(
        ["bash", "-c", peek_command("x")],
        env={"HOME": str(one.home), "PATH": os.environ["PATH"]},
        check=True, timeout=20, capture_output=True, text=True,
    )  # fmt: skip
    record = VmRecord("r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "CPU:2", True, 100.0, launched=True)
    seen = observed(after_peek(record, parse_peek(peeked.stdout), 200.0), None, 200.0)
    event = tick._observed(seen, 200.0)
    assert isinstance(event, tick.ev.Observed)
    assert (seen.state, event.unrecoverable) == ("failed", unrecoverable)
    if "echo" in uv_says:
        said = uv_says.removeprefix("echo ").partition(";")[0]
        assert event.cause == (
            f"the task's requirements could not be installed together with the peer's: {said}; correct 'requirements' in "
            "the experiment file and launch it again (the VM's setup.log has the whole output)"
        )


def real_environment(one: Vm) -> None:
    """Replace the VM's environment by a real one with pip, which finds the packages of this one and no index."""
    home = one.home / "orch-env"
    shutil.rmtree(home)
    venv.create(home, with_pip=True, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    (site / "host.pth").write_text(f"{sysconfig.get_path('purelib')}\n{one.home / 'programs'}\n")
    wanted = (one.folder / "requirements.txt").read_bytes()
    (home / "requirements.sha256").write_text(hashlib.sha256(wanted).hexdigest())
    (one.home / ".config" / "pip").mkdir(parents=True)
    (one.home / ".config" / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\ntimeout = 2\n"
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("needed", "said"),
    [
        ("orchtestneeded", ""),
        ("numpy==0.1", "orchtestonly 1.0 depends on numpy==0.1, The user requested (constraint) numpy=="),
        ("orchtestabsent", "Could not find a version that satisfies the requirement orchtestabsent"),
    ],
)
def test_pip_installs_what_was_shipped_and_replaces_nothing(
    vm: Callable[..., Vm], tmp_path: Path, needed: str, said: str
):
    wheel(tmp_path / "wheels", "orchtestonly", requires=(needed,))
    wheel(tmp_path / "wheels", "orchtestneeded")
    wheel(tmp_path / "wheels", "numpy", "0.1")
    folders = {"wheels": str(tmp_path / "wheels")}
    one = vm("programs:use", requirements=("--find-links wheels", "orchtestonly"), folders=folders)
    real_environment(one)
    code = one.start().wait(150)
    job = one.read("job.json")
    if not said:
        assert (code, job["error"]) == (14, "its program ended with exit code 14")
        return
    assert code == 1
    assert job["error"].startswith(
        "the task's requirements could not be installed together with the peer's: "
    )
    assert said in job["error"]
    assert not list((one.home / "orch-env").glob("lib/*/site-packages/numpy*")), "numpy was replaced"
