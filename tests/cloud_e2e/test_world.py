"""The fake EC2 itself, without SkyPilot: its machines are machines, its faults are EC2's."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from fate import call, instances, no_capacity, preempt, user_data
from machine import in_ec2, pids, processes, wait_until_gone

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(120)]
IMAGE = "ami-0fa4eec2000000001"


@pytest.fixture
def ec2() -> Iterator[Any]:
    client = boto3.client("ec2", region_name="us-west-2")
    yield client
    for instance in instances(up=True):
        preempt(instance["id"])
    client.close()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def launch(ec2: Any, key: Path, zone: str = "us-west-2a") -> dict[str, Any]:
    cloud_config = (
        "#cloud-config\nusers:\n  - name: ubuntu\n    sudo: ALL=(ALL) NOPASSWD:ALL\n"
        f"    ssh_authorized_keys: [{key.with_suffix('.pub').read_text().strip()}]\n"
    )
    made = ec2.run_instances(
        ImageId=IMAGE,
        InstanceType="g4dn.2xlarge",
        MinCount=1,
        MaxCount=1,
        UserData=cloud_config,
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}],
        Placement={"AvailabilityZone": zone},
        InstanceMarketOptions={"MarketType": "spot"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "orch-run", "Value": "r"}]}],
    )
    return made["Instances"][0]


def ssh(key: Path, address: str, command: str) -> str:
    """What the command says on the VM, once its sshd answers."""
    options = (
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=2"
    )
    for _ in range(60):
        done = subprocess.run(
            ["ssh", *options.split(), "-i", key, f"ubuntu@{address}", command],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout
        time.sleep(0.25)
    raise AssertionError(done.stderr)


def test_a_vm_is_a_machine_and_spot_takes_it_back(ec2: Any, key: Path):
    vm = launch(ec2, key)
    said = next(i for i in instances() if i["id"] == vm["InstanceId"])
    assert (said["state"], said["zone"], said["spot"]) == ("running", "us-west-2a", True)
    assert said["tags"] == {"orch-run": "r"}
    address = said["ip"]
    page = "http://169.254.169.254/latest"
    token = f"curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {page}/api/token"
    metadata = f'curl -sf -H "X-aws-ec2-metadata-token: $({token})" {page}/meta-data'
    assert ssh(key, address, "id -un; hostname").split() == ["ubuntu", f"ip-{address.replace('.', '-')}"]
    assert ssh(key, address, f"{metadata}/placement/availability-zone") == "us-west-2a"
    assert ssh(key, address, f"{metadata}/spot/instance-action || echo none").strip() == "none"
    assert ssh(key, address, f"curl -so /dev/null -w '%{{http_code}}' {page}/meta-data/") == "401"
    # A program of ours runs there with the packages of this environment, and none reaches the world outside.
    imports = "import torch, hivemind, boto3, webdataset; print(hivemind.__version__)"
    assert ssh(key, address, f"/opt/orch/env/bin/python -c '{imports}'").strip() == "1.1.12"
    assert ssh(key, address, "touch /opt/orch/site-packages/x 2>/dev/null || echo read-only").strip()
    assert ssh(key, address, "curl -sm 2 http://1.1.1.1 || echo no way out").strip() == "no way out"
    # The notice is in its metadata; then its power goes and EC2 says why.
    call("/preempt", id=vm["InstanceId"], notice_s=3)
    assert '"action": "terminate"' in ssh(key, address, f"{metadata}/spot/instance-action")
    end = time.monotonic() + 20
    while instances(up=True):
        assert time.monotonic() < end
        time.sleep(0.1)
    [reservation] = ec2.describe_instances(InstanceIds=[vm["InstanceId"]])["Reservations"]
    [gone] = reservation["Instances"]
    assert gone["State"]["Name"] == "terminated"
    assert gone["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    [row] = [i for i in instances() if i["id"] == vm["InstanceId"]]
    assert row["ended_s"] > row["launched_s"]
    assert in_ec2() == [], "its root volume goes with it"
    assert not row["alive"]


def test_capacity_is_refused_by_zone_as_often_as_wished(ec2: Any, key: Path):
    no_capacity("us-west-2b", 1)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        launch(ec2, key, "us-west-2b")
    assert instances(up=True) == []
    vm = launch(ec2, key, "us-west-2b")
    assert [i["id"] for i in instances(up=True)] == [vm["InstanceId"]]
    assert b"ssh-ed25519" in base64.b64decode(user_data()[vm["InstanceId"]])


def test_unplugged_nothing_reaches_it_and_ec2_sees_no_change(ec2: Any, key: Path):
    vm = launch(ec2, key)
    address = next(i for i in instances(up=True))["ip"]
    ssh(key, address, "true")
    call("/unplug", id=vm["InstanceId"])
    with pytest.raises(OSError, match=r"timed out|No route"):
        socket.create_connection((address, 22), timeout=2)
    assert [i["state"] for i in instances(up=True)] == ["running"]
    call("/unplug", id=vm["InstanceId"], plugged=True)
    assert ssh(key, address, "echo back") == "back\n"


def test_nobody_else_gets_metadata():
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen("http://169.254.169.254/latest/meta-data/instance-id", timeout=5)


def test_a_world_that_is_killed_leaves_nothing():
    """Not its processes, and so not its namespaces and mounts; a world in a world is seen whole from outside."""
    before = processes()
    script = Path(__file__).parents[1] / "fake_ec2" / "world.sh"
    world = subprocess.Popen([script, "sleep", "4711"], start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not pids("sleep 4711") or len(pids("fake_ec2/server.py")) < 2:
            assert time.monotonic() < end
            assert world.poll() is None
            time.sleep(0.1)
    finally:
        world.kill()
        world.wait()
    assert wait_until_gone(before, 10) == []
