"""The role of VMs on AWS, by moto's IAM in this process: made once, narrow, and refused with the next command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core.authorization import enable_iam_authentication
from moto.iam.models import iam_backends

from cloud.provider import CredentialsError
from cloud.sky.aws.role import TRUST, commands, ensure, grant, is_there, policy, role_name
from cloud.sky.skypilot.errors import translate

pytestmark = pytest.mark.slow


@pytest.fixture
def iam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield boto3.client("iam", region_name="us-east-1")


def its_policy(iam: Any, name: str) -> Any:
    return iam.get_role_policy(RoleName=name, PolicyName="orch-vm")["PolicyDocument"]


def age(name: str) -> None:
    """The instance profile was made an hour ago."""
    [backend] = [b["aws"] for b in iam_backends.values()]
    [profile] = [p for p in backend.instance_profiles.values() if p.name == name]
    profile.create_date -= timedelta(hours=1)


def test_role_is_created_once_and_launches_wait_while_it_is_new(iam: Any):
    waits: list[float] = []
    assert not is_there(["a", "b"])
    assert iam.list_roles()["Roles"] == [], "to look makes nothing"
    assert ensure(["b", "a"], waits.append) == ensure(["a", "b"], waits.append) == role_name(["a", "b"])
    assert is_there(["a", "b"])
    assert waits[0] == 15.0, "what was just made is waited for by no clock"
    assert len(waits) == 2
    assert 0 < waits[1] <= 15.0
    age(role_name(["a", "b"]))
    ensure(["a", "b"], waits.append)
    assert len(waits) == 2, "an old one is not waited for"
    [role] = iam.list_roles()["Roles"]
    [profile] = iam.list_instance_profiles()["InstanceProfiles"]
    assert [r["RoleName"] for r in profile["Roles"]] == [role["RoleName"]] == [role_name(["a", "b"])]
    assert its_policy(iam, role["RoleName"]) == policy(["a", "b"])
    assert iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"] == []
    assert ensure([], waits.append) != role["RoleName"], "other buckets are another role"


# What a launch, or an administrator's commands, may have left.
PARTS = {
    "nothing": (),
    "role": ("role",),
    "role and policy": ("role", "policy"),
    "role and profile": ("role", "profile"),
    "profile alone": ("profile",),
    "all but the role in the profile": ("role", "policy", "profile"),
    "all but the policy": ("role", "profile", "added"),
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_missing_parts_of_the_role_are_created_and_waited_for(iam: Any, parts: tuple[str, ...]):
    name = role_name(["b"])
    if "role" in parts:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))
    if "policy" in parts:
        iam.put_role_policy(RoleName=name, PolicyName="orch-vm", PolicyDocument=json.dumps(policy(["b"])))
    if "profile" in parts:
        iam.create_instance_profile(InstanceProfileName=name)
        age(name)
    if "added" in parts:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    waits: list[float] = []
    assert not is_there(["b"])
    assert ensure(["b"], waits.append) == name
    assert waits == [15.0]
    assert is_there(["b"])
    [profile] = iam.list_instance_profiles()["InstanceProfiles"]
    assert [r["RoleName"] for r in profile["Roles"]] == [name]
    assert its_policy(iam, name) == policy(["b"])


def user(iam: Any, monkeypatch: pytest.MonkeyPatch, allowed: dict[str, Any] | None) -> None:
    """Make requests as a user with these permissions; moto's IAM checks actions, but not the role they apply to."""
    iam.create_user(UserName="narrow")
    if allowed is not None:
        for statement in allowed["Statement"]:
            statement["Resource"] = "*"
        iam.put_user_policy(UserName="narrow", PolicyName="its", PolicyDocument=json.dumps(allowed))
    key = iam.create_access_key(UserName="narrow")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def test_a_vm_may_change_only_itself_and_read_only_its_buckets(monkeypatch: pytest.MonkeyPatch):
    """By the words of the policy, and as the fake EC2 judges it."""
    told = policy(["b"])["Statement"]
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
    assert not [s for s in policy([])["Statement"] if "s3" in json.dumps(s)]

    def may(action: str, resource: str, attribute: str = "") -> bool:
        return judge(monkeypatch).allowed(told, action, resource, "i-1", attribute)

    me, other = "arn:aws:ec2:r:1:instance/i-1", "arn:aws:ec2:r:1:instance/i-2"
    change = "ec2:ModifyInstanceAttribute"
    assert may("ec2:TerminateInstances", me)
    assert not may("ec2:TerminateInstances", other)
    assert may(change, me, "GroupId"), "SkyPilot's autodown does so before it ends the VM"
    assert may(change, "arn:aws:ec2:r:1:security-group/sg-1", "GroupId")
    assert not may(change, other, "GroupId")
    for attribute in ("DisableApiTermination", "disableApiTermination", "DisableApiStop", "UserData"):
        assert not may(change, me, attribute)
    assert may("s3:GetObject", "arn:aws:s3:::b/x")
    assert not may("s3:GetObject", "arn:aws:s3:::c/x")
    assert not may("s3:PutObject", "arn:aws:s3:::b/x")
    assert not may("iam:ListRoles", "*")


def test_a_vm_may_write_only_below_the_place_of_its_checkpoints(monkeypatch: pytest.MonkeyPatch):
    told = policy(["data"], written=["models/mine"])["Statement"]

    def may(action: str, resource: str) -> bool:
        return judge(monkeypatch).allowed(told, action, resource, "i-1", "")

    for action in ("s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
        assert may(action, "arn:aws:s3:::models/mine/run/x")
        assert not may(action, "arn:aws:s3:::models/mine-too/x")
    assert may("s3:ListBucket", "arn:aws:s3:::models")
    assert not may("s3:PutObject", "arn:aws:s3:::data/x")
    assert not may("s3:DeleteObject", "arn:aws:s3:::data/x")
    assert role_name(["data"], written=["models/mine"]) != role_name(["data"])


def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """tests/fake_ec2/roles.py without its machines."""
    machines: Any = ModuleType("machines")
    machines.Machine = machines.Machines = object
    monkeypatch.setitem(sys.modules, "machines", machines)
    path = Path(__file__).parents[2] / "fake_ec2" / "roles.py"
    found = importlib.util.spec_from_file_location("fake_ec2_roles", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("look", [is_there, lambda buckets: ensure(buckets, lambda _s: None)])
def test_missing_iam_permission_names_the_administrator_commands(
    iam: Any, monkeypatch: pytest.MonkeyPatch, look: Any
):
    user(iam, monkeypatch, None)
    with (
        enable_iam_authentication(),
        pytest.raises(CredentialsError, match=r"orch check --aws-role FILE.* lets your user pass it to VMs"),
    ):
        look([])


def test_a_user_with_the_grant_uses_what_an_administrator_has_made(iam: Any, monkeypatch: pytest.MonkeyPatch):
    ensure(["b"], lambda _s: None)
    user(iam, monkeypatch, grant())
    with enable_iam_authentication():
        assert is_there(["b"])
        assert ensure(["b"], lambda _s: None) == role_name(["b"])
        assert not is_there(["c"])
        with pytest.raises(CredentialsError, match="CreateRole is denied"):
            ensure(["c"], lambda _s: None)


def test_unreadable_policy_is_assumed_to_be_correct(iam: Any, monkeypatch: pytest.MonkeyPatch):
    ensure(["b"], lambda _s: None)
    narrow = grant()
    narrow["Statement"][0]["Action"].remove("iam:GetRolePolicy")
    user(iam, monkeypatch, narrow)
    with enable_iam_authentication():
        assert is_there(["b"])
        assert ensure(["b"], lambda _s: None) == role_name(["b"])


def test_the_grant_is_for_our_roles_alone():
    for statement in grant()["Statement"]:
        assert statement["Resource"].endswith("/orch-vm-*")
    assert role_name(["b"]).startswith("orch-vm-")
    allowed = [
        a
        for s in grant()["Statement"]
        for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])
    ]
    assert sorted(allowed) == ["iam:GetInstanceProfile", "iam:GetRolePolicy", "iam:PassRole"]


def test_a_launch_that_may_not_pass_the_role_names_the_grant():
    class ResourcesUnavailableError(Exception):
        """SkyPilot's."""

    said = "UnauthorizedOperation: User x is not authorized to perform: iam:PassRole on resource: y"
    assert "`orch check --aws-role FILE`" in str(translate(ResourcesUnavailableError(said), "r-a-0"))
    assert "--aws-role" not in str(translate(ResourcesUnavailableError("UnauthorizedOperation"), "r-a-0"))


def said_by(shell: str, buckets: list[str]) -> tuple[int, list[list[str]]]:
    """Exit code and what `aws` was called with; `shell` is the body of a function `aws`."""
    script = f"aws() {{ printf '%s\\0' \"$@\"; printf '\\n'; {shell}; }}\n" + commands(buckets)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False, text=True)
    return done.returncode, [line.strip("\0").split("\0") for line in done.stdout.split("\0\n") if line]


def test_the_administrators_commands_are_shell_words_that_name_the_role():
    code, calls = said_by("true", ["it's"])
    assert code == 0
    assert [call[1] for call in calls] == [
        "create-role", "put-role-policy", "create-instance-profile", "add-role-to-instance-profile", "put-user-policy",
    ]  # fmt: skip
    assert json.loads(calls[1][-1]) == policy(["it's"])
    assert all(role_name(["it's"]) in call for call in calls[:4])
    assert calls[4][2:4] == ["--user-name", "YOUR-USER"]
    assert json.loads(calls[4][-1]) == grant()


def test_failed_role_command_stops_the_following_ones():
    code, calls = said_by('[ "$2" != put-role-policy ]', ["b"])
    assert code == 1
    assert [call[1] for call in calls] == ["create-role", "put-role-policy"]
