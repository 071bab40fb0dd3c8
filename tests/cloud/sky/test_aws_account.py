"""AWS's own list of VMs, with moto's EC2 in this process: only labelled resources, and why a VM is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from cloud.provider import InvalidRequestError, Owned
from cloud.sky.aws import account as aws

pytestmark = pytest.mark.slow

TAGS = {"orch-owner": "me", "orch-run": "r", "orch-vm": "r-a-0", "orch-lease-until": "1234"}


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("ec2", region_name="us-west-2")


def run_one(ec2: Any, tags: dict[str, str]) -> str:
    [image] = ec2.describe_images(Owners=["amazon"])["Images"][:1]
    made = ec2.run_instances(
        ImageId=image["ImageId"],
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        ],
    )
    return made["Instances"][0]["InstanceId"]


def test_only_what_carries_the_label_is_listed_with_its_page(ec2: Any):
    ours = run_one(ec2, TAGS)
    run_one(ec2, {**TAGS, "orch-owner": "you"})
    run_one(ec2, {"Name": "not ours"})
    [found] = aws.list_tagged("me", ["us-west-2", "eu-central-1"])
    assert (found.kind, found.id, found.vm, found.run, found.lease_until_s) == (
        "vm",
        ours,
        "r-a-0",
        "r",
        1234.0,
    )
    assert found.location.startswith("aws/us-west-2/us-west-2")
    assert ours in found.link
    assert aws.list_tagged("you", ["eu-central-1"]) == []


def test_a_vm_is_ended_once_and_a_disk_and_an_address_too(ec2: Any):
    run_one(ec2, TAGS)
    tags = [{"Key": k, "Value": v} for k, v in TAGS.items()]
    ec2.create_volume(
        AvailabilityZone="us-west-2a", Size=8, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    ec2.allocate_address(Domain="vpc", TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}])
    found = aws.list_tagged("me", ["us-west-2"])
    assert sorted(o.kind for o in found) == ["address", "vm", "volume"]
    for owned in found:
        aws.release(owned)
    assert aws.list_tagged("me", ["us-west-2"]) == []
    for owned in found:
        aws.release(owned)  # gone already: nothing


def test_unlabelled_resources_are_not_touched(ec2: Any):
    theirs = run_one(ec2, {**TAGS, "orch-owner": "you"})
    with pytest.raises(InvalidRequestError, match="does not carry the label"):
        aws.release(Owned("vm", theirs, "", "r", "me", "aws/us-west-2/us-west-2a", None))
    states = [i["State"]["Name"] for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    assert states == ["running"]


def test_ec2_says_whether_a_clusters_vm_runs_and_why_it_ended(ec2: Any):
    assert aws.instance_status("us-west-2", "c-1") == (None, "")
    number = run_one(ec2, {**TAGS, "skypilot-cluster-name": "c-1"})
    assert aws.instance_status("us-west-2", "c-1") == (True, "")
    ec2.terminate_instances(InstanceIds=[number])
    alive, why = aws.instance_status("us-west-2", "c-1")
    assert alive is False
    assert why
