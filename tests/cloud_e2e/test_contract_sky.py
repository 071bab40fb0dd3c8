"""The provider's contract (tests/cloud/contract.py) kept by SkyPilot against the fake EC2."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from contract import CLOSING, OWNER, checks_for
from fate import access_key, instances, no_capacity
from machine import clusters, in_ec2

from cloud.provider import LaunchRequest, Offer, Provider, ProviderError
from cloud.sky import SkyCloud, records
from cloud.sky.clusters import Clusters
from cloud.sky.names import cluster_name, label_value
from cloud.sky.skypilot import sdk
from cloud.sky.vm import ssh

pytestmark = [
    pytest.mark.cloud,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore"),
]  # SkyPilot's

HERE, FULL = "aws/us-west-2/us-west-2a", "aws/us-west-2/us-west-2c"
# The program of the checks' VMs: it stays, says so, and leaves when it is asked to.
_PROGRAM = """\
cat > /opt/orch/env/lib/python3.11/site-packages/stays.py <<'P'
import pathlib, signal, sys, time
def stay(config):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pathlib.Path(config).with_name("status.json").write_text('{"phase": "training"}')
    time.sleep(3600)
P
"""
_AT_ONCE = 3  # VMs of 1.3 GB


class SkyRig:
    """One run on the fake EC2; its clock is the world's."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._offer = Offer(HERE, "m6i.large", "CPU:2", True, Decimal("0.0288"), "")

    def provider(self) -> Provider:
        return self._of("contract")

    def neighbour(self) -> Provider:
        return self._of("other")

    @property
    def folder(self) -> Path:
        return self._home / "runs" / "contract"

    def _of(self, run: str) -> Provider:
        folder = self.folder.with_name(run)
        folder.mkdir(parents=True, exist_ok=True)
        return SkyCloud(folder)

    def request(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        return LaunchRequest(vm, self._offer, "stays:stay", {}, labels=labels, setup=_PROGRAM)

    def refused(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        request = self.request(vm, labels)
        return replace(request, offer=replace(request.offer, location=FULL))

    def dear(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        return replace(self.request(vm, labels), max_usd_per_h=Decimal("0.0001"))

    def vm(self, slot: str, generation: int = 0) -> str:
        return f"contract-{slot}-{generation}"

    def eventually(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not what():
            assert time.monotonic() < end, "not within 120 s"
            time.sleep(0.5)


def an_end_that_overtakes_the_launch_leaves_nothing(rig: SkyRig) -> None:
    """SkyPilot says "no such cluster" of a launch that it has not come to yet."""
    vm = rig.vm("overtaken")
    cluster = cluster_name(vm)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.provider().request, rig.request(vm, {"orch-owner": OWNER}))
        rig.eventually(lambda: asked.done() or sdk.pending_launch(cluster))
        Clusters(rig.folder).down(cluster)
        assert isinstance(asked.exception(120), ProviderError)
    assert cluster not in clusters()
    assert [i for i in instances(up=True) if i["tags"].get("orch-vm") == label_value(vm)] == []


# What SkyPilot's autodown calls on a VM once it has been idle for its minutes (sky/skylet/events.py).
_AUTODOWN = """cd; ~/skypilot-runtime/bin/python -c '
from sky.skylet import autostop_lib, events
config = autostop_lib.get_autostop_config()
assert config.down and config.autostop_idle_minutes > 0, config
events.StopEvent()._stop_cluster(config)
' < /dev/null 2>&1 | tail -3"""


def a_vm_ends_itself_by_its_role_and_may_do_nothing_else(rig: SkyRig) -> None:
    """EC2 and S3 judge what is asked with the VM's own credentials by its role (tests/fake_ec2/roles.py)."""
    s3: Any = boto3.client("s3", region_name="us-west-2")
    for bucket in ("its-own", "of-others"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
        s3.put_object(Bucket=bucket, Key="x", Body=b"1")
    vm, other = rig.vm("role"), rig.vm("role-other")
    labels = {"orch-owner": OWNER}
    rig.provider().request(rig.request(other, labels))
    rig.provider().request(replace(rig.request(vm, labels), buckets=("its-own",)))
    try:
        mine, theirs = (
            next(i["id"] for i in instances(up=True) if i["tags"].get("orch-vm") == label_value(each))
            for each in (vm, other)
        )
        as_it = {
            "aws_access_key_id": access_key(mine),
            "aws_secret_access_key": "fake",
            "region_name": "us-west-2",
        }
        ec2: Any = boto3.client("ec2", **as_it)
        s3 = boto3.client("s3", **as_it)
        assert s3.get_object(Bucket="its-own", Key="x")["Body"].read() == b"1"
        for refused in (
            lambda: ec2.terminate_instances(InstanceIds=[theirs]),
            lambda: ec2.terminate_instances(InstanceIds=[mine, theirs]),
            lambda: ec2.modify_instance_attribute(InstanceId=theirs, DisableApiTermination={"Value": True}),
            lambda: ec2.modify_instance_attribute(InstanceId=mine, DisableApiTermination={"Value": True}),
            lambda: ec2.modify_instance_attribute(
                InstanceId=mine, Attribute="disableApiTermination", Value="true"
            ),
            lambda: ec2.run_instances(ImageId="ami-0fa4eec2000000001", MinCount=1, MaxCount=1),
            lambda: s3.put_object(Bucket="its-own", Key="y", Body=b"2"),
            lambda: s3.get_object(Bucket="of-others", Key="x"),
            lambda: boto3.client("iam", **as_it).list_roles(),
        ):
            with pytest.raises(ClientError, match=r"AccessDenied|Access Denied"):
                refused()
        record = next(r for r in records.read_all(rig.folder / "sky") if r.vm == vm)
        said = ssh.run_on(record.address, record.ssh, _AUTODOWN, 120)
        up = {i["id"] for i in instances(up=True)}
        assert mine not in up, said
        assert theirs in up
    finally:
        rig.provider().terminate(vm)
        rig.provider().terminate(other)


def test_skypilot_keeps_the_contract(clean_home: Path):
    """All checks in one run, several at a time: each has VMs of its own."""
    rig = SkyRig(clean_home)
    no_capacity(FULL.rpartition("/")[2], -1)
    checks = [check for check in checks_for(rig) if check is not CLOSING]
    checks.append(an_end_that_overtakes_the_launch_leaves_nothing)
    checks.append(a_vm_ends_itself_by_its_role_and_may_do_nothing_else)
    failed: dict[str, BaseException] = {}

    def run(check: Callable[[SkyRig], None]) -> None:
        began = time.monotonic()
        try:
            check(rig)
        except BaseException as error:
            failed[check.__name__] = error
            raise
        finally:
            end = "failed" if check.__name__ in failed else "ok"
            print(f"{time.monotonic() - began:5.0f} s  {end}  {check.__name__}", flush=True)

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = [pool.submit(run, check) for check in checks]
        if not failed:
            run(CLOSING)
    finally:
        no_capacity(FULL.rpartition("/")[2], 0)
        rig.provider().close()
    for future in done:
        future.result()
    assert (in_ec2(), clusters()) == ([], [])
