"""The role that rented VMs have on AWS: it may end the VM that has it, read the buckets it was made for, and no more.

SkyPilot would give its VMs full access to EC2 and S3. A role of ours has its policy in its name (a digest), so a
changed policy is another role, and one that an administrator made is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any

from cloud.provider import CredentialsError, TransientError

# IAM's answers reach EC2 some seconds later; SkyPilot waits as long for its own role (sky/provision/aws/config.py).
_SPREADS_WITHIN_S = 15.0
_POLICY_NAME = "orch-vm"
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
# aws:userid of a VM's role ends with the VM's instance id.
_ITSELF = {"StringLike": {"aws:userid": "*:${ec2:InstanceID}"}}
_INSTANCES = "arn:aws:ec2:*:*:instance/*"
# What ModifyInstanceAttribute changes beside the security groups (boto3's names; values are compared without case).
_OTHER_ATTRIBUTES = [
    "blockDeviceMapping", "disableApiStop", "disableApiTermination", "ebsOptimized", "enaSupport", "enclaveOptions",
    "instanceInitiatedShutdownBehavior", "instanceType", "kernel", "ramdisk", "sourceDestCheck", "sriovNetSupport", "userData",
]  # fmt: skip
TRUST: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}


def policy(buckets: Collection[str]) -> dict[str, Any]:
    """What SkyPilot's autodown calls on the VM (sky/provision/aws/instance.py, `terminate_instances`: it looks up its
    instance, network and security groups, moves the instance to the default group and terminates it), and reading."""
    statements: list[dict[str, Any]] = [
        {
            "Sid": "Look",
            "Effect": "Allow",
            "Action": ["ec2:DescribeInstances", "ec2:DescribeVpcs", "ec2:DescribeSecurityGroups"],
            "Resource": "*",
        },
        {
            "Sid": "EndItself",
            "Effect": "Allow",
            "Action": ["ec2:TerminateInstances", "ec2:ModifyInstanceAttribute"],
            "Resource": _INSTANCES,
            "Condition": _ITSELF,
        },
        {
            # As AWS's user guide denies attributes of images ("Identity-based policies for Amazon EC2"). Denied rather
            # than not allowed: were the key another for instances, a VM could still end itself.
            "Sid": "ChangeNothingElse",
            "Effect": "Deny",
            "Action": "ec2:ModifyInstanceAttribute",
            "Resource": _INSTANCES,
            "Condition": {"StringEqualsIgnoreCase": {"ec2:Attribute": _OTHER_ATTRIBUTES}},
        },
        {
            "Sid": "LeaveItsSecurityGroup",  # the same call names the group; without an instance it changes nothing
            "Effect": "Allow",
            "Action": "ec2:ModifyInstanceAttribute",
            "Resource": "arn:aws:ec2:*:*:security-group/*",
        },
    ]
    names = sorted(set(buckets))
    if names:
        statements.append(
            {
                "Sid": "ReadItsBuckets",
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"],
                "Resource": [
                    arn for name in names for arn in (f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*")
                ],
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def role_name(buckets: Collection[str]) -> str:
    """Name of the role and of its instance profile."""
    text = json.dumps([TRUST, policy(buckets)], sort_keys=True)
    return f"orch-vm-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def grant() -> dict[str, Any]:
    """What a user needs beside SkyPilot's documented minimal policy, which allows SkyPilot's own role only."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "GiveTheRoleToVms",
                "Effect": "Allow",
                "Action": ["iam:PassRole", "iam:GetRolePolicy"],
                "Resource": "arn:aws:iam::*:role/orch-vm-*",
            },
            {
                "Sid": "LookUpTheProfile",
                "Effect": "Allow",
                "Action": "iam:GetInstanceProfile",
                "Resource": "arn:aws:iam::*:instance-profile/orch-vm-*",
            },
        ],
    }


def commands(buckets: Collection[str]) -> str:
    """Shell commands by which an administrator makes the role and lets a user give it to VMs, by AWS's own command line.

    Each runs only after the ones before it have succeeded.
    """
    name = role_name(buckets)
    steps = (
        ["create-role", "--role-name", name, "--assume-role-policy-document", json.dumps(TRUST)],
        [
            "put-role-policy", "--role-name", name, "--policy-name", _POLICY_NAME,
            "--policy-document", json.dumps(policy(buckets), indent=1),
        ],
        ["create-instance-profile", "--instance-profile-name", name],
        ["add-role-to-instance-profile", "--instance-profile-name", name, "--role-name", name],
        [
            "put-user-policy", "--user-name", "YOUR-USER", "--policy-name", _POLICY_NAME,
            "--policy-document", json.dumps(grant(), indent=1),
        ],
    )  # fmt: skip
    return " &&\n".join(f"aws iam {shlex.join(step)}" for step in steps) + "\n"


def is_there(buckets: Collection[str]) -> bool:
    """Whether VMs can be launched with the role as it is. Makes nothing.

    Raises CredentialsError where these credentials may not look it up, TransientError.
    """
    name = role_name(buckets)
    with _errors(name):
        return _age_s(_client(), name) is not None


def ensure(buckets: Collection[str], sleep: Callable[[float], None] = time.sleep) -> str:
    """The name of an instance profile that VMs can be launched with; what is missing of it is made, and 15 s waited for.

    Raises CredentialsError where these credentials may not look it up or make it, TransientError.
    """
    name = role_name(buckets)
    with _errors(name):
        client = _client()
        age_s = _age_s(client, name)
        if age_s is None:
            _make(client, name, buckets)
            age_s = 0.0
    if age_s < _SPREADS_WITHIN_S:
        sleep(_SPREADS_WITHIN_S - max(0.0, age_s))
    return name


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """What IAM refuses, as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _DENIED:
            raise CredentialsError(
                f"AWS: these credentials may not look up or make the role of the VMs, {name} ({error.operation_name} is "
                "denied); `orch check --aws-role FILE` prints the commands by which an administrator of the account makes "
                "it and lets your user give it to VMs (iam:PassRole, iam:GetInstanceProfile, iam:GetRolePolicy)"
            ) from error
        if code in ("InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch", "AuthFailure"):
            raise CredentialsError(
                f"AWS does not accept our credentials ({code}); `orch check` says what is missing"
            ) from error
        raise TransientError(f"AWS: the role of the VMs, {name}, cannot be made now: {error}") from error
    except BotoCoreError as error:
        raise TransientError(f"AWS does not answer: {error}") from error


def _client() -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})
    return boto3.Session().client("iam", region_name="us-east-1", config=config)


def _age_s(client: Any, name: str) -> float | None:
    """Seconds since the instance profile was made, by AWS's own clock; None where something of it is missing."""
    try:
        answer = client.get_instance_profile(InstanceProfileName=name)
    except client.exceptions.NoSuchEntityException:
        return None
    if not answer["InstanceProfile"]["Roles"] or not _has_policy(client, name):
        return None
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not said:
        return 0.0  # it may be new
    return (parsedate_to_datetime(said) - answer["InstanceProfile"]["CreateDate"]).total_seconds()


def _has_policy(client: Any, name: str) -> bool:
    """Whether the role has its policy; an administrator's that these credentials may not read is taken as it is."""
    try:
        client.get_role_policy(RoleName=name, PolicyName=_POLICY_NAME)
    except client.exceptions.NoSuchEntityException:
        return False
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in _DENIED:
            raise
    return True


def _make(client: Any, name: str, buckets: Collection[str]) -> None:
    """Make what is missing of it; another launch may be at it too."""
    there = suppress(client.exceptions.EntityAlreadyExistsException)
    description = "VMs rented by orch: may end themselves and read the run's buckets"
    with there:
        client.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST), Description=description)
    client.put_role_policy(RoleName=name, PolicyName=_POLICY_NAME, PolicyDocument=json.dumps(policy(buckets)))
    with there:
        client.create_instance_profile(InstanceProfileName=name)
    with suppress(client.exceptions.LimitExceededException):  # it has its one role
        client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
