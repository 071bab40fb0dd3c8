"""The role of VMs on AWS, by moto's IAM in this process: made once, narrow, and refused with the next command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core.authorization import enable_iam_authentication

from cloud.provider import CredentialsError
from cloud.sky.aws_role import commands, ensure, policy, role_name

pytestmark = pytest.mark.slow


@pytest.fixture
def iam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield boto3.client("iam", region_name="us-east-1")


def test_it_is_made_once_and_waited_for_by_each_launch_while_it_is_new(iam: Any):
    waits: list[float] = []
    assert ensure(["b", "a"], waits.append) == ensure(["a", "b"], waits.append) == role_name(["a", "b"])
    assert len(waits) == 2
    assert all(0 < wait_s <= 15 for wait_s in waits)
    [role] = iam.list_roles()["Roles"]
    [profile] = iam.list_instance_profiles()["InstanceProfiles"]
    assert [r["RoleName"] for r in profile["Roles"]] == [role["RoleName"]] == [role_name(["a", "b"])]
    kept = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="orch-vm")["PolicyDocument"]
    assert kept == policy(["a", "b"])
    assert iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"] == []
    assert ensure([], waits.append) != role["RoleName"], "other buckets are another role"


@pytest.mark.parametrize("done", [1, 2, 3])
def test_what_an_interrupted_launch_has_begun_is_finished(iam: Any, done: int):
    name = role_name([])
    if done >= 1:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    if done >= 2:
        iam.create_instance_profile(InstanceProfileName=name)
    if done >= 3:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    assert ensure([], lambda _s: None) == name
    [profile] = iam.list_instance_profiles()["InstanceProfiles"]
    assert [r["RoleName"] for r in profile["Roles"]] == [name]


def test_a_vm_may_change_only_itself_and_read_only_its_buckets():
    told = policy(["b"])["Statement"]
    changing = [s for s in told if not all("Describe" in a or a.startswith("s3:") for a in s["Action"])]
    for statement in told:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        for action in actions:
            assert "*" not in action
            assert action.startswith(("ec2:Describe", "s3:Get", "s3:List")) or (
                action in ("ec2:TerminateInstances", "ec2:ModifyInstanceAttribute")
                and ("Condition" in statement or "security-group" in statement["Resource"])
            )
            assert not action.startswith("s3:") or statement["Resource"] == [
                "arn:aws:s3:::b",
                "arn:aws:s3:::b/*",
            ]
    assert changing
    assert not [s for s in policy([])["Statement"] if "s3" in json.dumps(s)]


def test_without_the_right_to_make_it_an_administrators_commands_are_named(
    iam: Any, monkeypatch: pytest.MonkeyPatch
):
    iam.create_user(UserName="narrow")
    key = iam.create_access_key(UserName="narrow")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    with enable_iam_authentication(), pytest.raises(CredentialsError, match="orch check --aws-role FILE"):
        ensure([], lambda _s: None)


def test_the_administrators_commands_are_shell_words_that_name_the_role():
    script = "aws() { printf '%s\\0' \"$@\"; printf '\\n'; }\n" + commands(["it's"])
    said = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True).stdout
    calls = [line.strip("\0").split("\0") for line in said.split("\0\n") if line]
    assert [call[1] for call in calls] == [
        "create-role", "put-role-policy", "create-instance-profile", "add-role-to-instance-profile",
    ]  # fmt: skip
    assert json.loads(calls[1][-1]) == policy(["it's"])
    assert all(role_name(["it's"]) in call for call in calls)
