"""A notice of the cloud's, then the loss of all that watched over the VMs, and what another machine can do about it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from fate import instances, preempt
from machine import in_ec2, processes
from running import Running, orch, wait_for

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1500)]

TWIN = str(Path(__file__).with_name("twin.yaml"))


@pytest.fixture
def stranger() -> Iterator[str]:
    """Somebody else's VM in the same account."""
    ec2: Any = boto3.client("ec2", region_name="us-west-2")
    tags = [{"Key": "orch-owner", "Value": "somebody-00000000"}, {"Key": "orch-run", "Value": "theirs"}]
    made = ec2.run_instances(
        ImageId="ami-0fa4eec2000000001", InstanceType="m6i.large", MinCount=1, MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )  # fmt: skip
    yield made["Instances"][0]["InstanceId"]
    ec2.terminate_instances(InstanceIds=[made["Instances"][0]["InstanceId"]])
    ec2.close()


@pytest.fixture
def another_machine(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without runs and a HOME where SkyPilot knows of no cluster: only the cloud's credentials are there.

    Afterwards SkyPilot's HOME of the first machine is as new, and its temporary files and memory are gone with it.
    """
    memory = set(Path("/dev/shm").iterdir())
    first, seed = Path.home(), Path(os.environ["ORCH_FAKE_EC2_DIR"], "home")
    second = clean_home.parent / "second"
    shutil.copytree(seed, second, symlinks=True)
    (second / "t").mkdir()
    yield second
    shutil.rmtree(clean_home.parent / "t")
    (clean_home.parent / "t").mkdir()
    for killed in set(Path("/dev/shm").iterdir()) - memory:
        killed.unlink()
    for name in (".sky", "sky_logs"):
        shutil.rmtree(first / name, ignore_errors=True)
    shutil.copytree(seed / ".sky", first / ".sky", symlinks=True)
    for wheel in (first / ".sky/wheels").rglob("*"):
        wheel.touch()  # newer than SkyPilot's own folders: not made anew


def kill_all_but(before: dict[int, str]) -> None:
    """Every process of this machine that was started since, and none of the VMs' (their power is `unshare`)."""
    ours = os.readlink("/proc/self/ns/pid")
    for pid, command in processes().items():
        if pid in before or "vm_init.sh" in command:
            continue
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == ours:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it has gone with the others
            continue


def test_notice_then_loss_of_everything_then_reaped_from_elsewhere(
    clean_home: Path, stranger: str, another_machine: Path
):
    before = processes()
    run = Running(clean_home, TWIN, "--on", "sky", "--set", "measure.epochs=200")
    try:
        run.wait_for_epoch(2, 600)
        [noticed] = [i for i in instances(up=True) if i["tags"].get("orch-slot") == "eu-0"]
        preempt(noticed["id"], 60)
        wait_for(
            "the controller to know of the notice",
            lambda: "as announced for" in orch("why", run.run_id, "eu-0").stdout,
            60,
        )
        owner = noticed["tags"]["orch-owner"]
        wait_for("the replacement", lambda: len(of_slot(run, "eu-0")) == 2, 180)
        kill_all_but(before)
        run.process.wait(30)
        left = [i["id"] for i in instances(up=True)]
        assert stranger in left
        assert len(left) > 1
        reaped = orch(
            "reap", "--all", "--yes", "--on", "sky", "--owner", owner, timeout_s=300,
            ORCH_HOME=str(clean_home.parent / "elsewhere"), HOME=str(another_machine),
            TMPDIR=str(another_machine / "t"),
        )  # fmt: skip
        assert reaped.returncode == 0, reaped.stderr
        assert [i for i in in_ec2() if i.startswith("i-")] == [stranger]
        assert list((another_machine / "t").iterdir()) == []
    finally:
        run.close(600)
        shutil.rmtree(run.folder)


def of_slot(run: Running, slot: str) -> list[dict[str, Any]]:
    """EC2's VMs of a slot, ended ones included."""
    return [
        i
        for i in instances()
        if i["tags"].get("orch-run") == run.run_id and i["tags"].get("orch-slot") == slot
    ]
