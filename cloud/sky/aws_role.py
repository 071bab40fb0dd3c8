"""The role that rented VMs have on AWS: it may end the VM that has it, read the buckets it was made for, and no more.

SkyPilot would give its VMs full access to EC2 and S3. A role of ours has its policy in its name (a digest), so a
changed policy is another role, and one that an administrator made is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cloud.provider import CredentialsError, TransientError

# IAM's answers reach EC2 some seconds later; SkyPilot waits as long for its own role (sky/provision/aws/config.py).
_SPREADS_WITHIN_S = 15.0
_POLICY_NAME = "orch-vm"
# aws:userid of a VM's role ends with the VM's instance id.
_ITSELF = {"StringLike": {"aws:userid": "*:${ec2:InstanceID}"}}
_INSTANCES = "arn:aws:ec2:*:*:instance/*"
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


def commands(buckets: Collection[str]) -> str:
    """Shell commands by which an administrator makes the role, by AWS's own command line."""
    name = role_name(buckets)
    steps = (
        ["create-role", "--role-name", name, "--assume-role-policy-document", json.dumps(TRUST)],
        [
            "put-role-policy", "--role-name", name, "--policy-name", _POLICY_NAME,
            "--policy-document", json.dumps(policy(buckets), indent=1),
        ],
        ["create-instance-profile", "--instance-profile-name", name],
        ["add-role-to-instance-profile", "--instance-profile-name", name, "--role-name", name],
    )  # fmt: skip
    return "".join(f"aws iam {shlex.join(step)}\n" for step in steps)


def ensure(buckets: Collection[str], sleep: Callable[[float], None] = time.sleep) -> str:
    """The name of an instance profile that VMs can be launched with; made where there is none.

    Raises CredentialsError where these credentials may not look it up or make it, TransientError.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    name = role_name(buckets)
    config = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})
    try:
        client: Any = boto3.Session().client("iam", region_name="us-east-1", config=config)
        made = _profile(client, name)
        if made is None or not made["Roles"]:
            made = _make(client, name, buckets)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation"):
            raise CredentialsError(
                f"AWS: these credentials may not make the role of the VMs, {name} ({error.operation_name} is denied); "
                "`orch check --aws-role FILE` prints the commands for an administrator of the account"
            ) from error
        if code in ("InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch", "AuthFailure"):
            raise CredentialsError(
                f"AWS does not accept our credentials ({code}); `orch check` says what is missing"
            ) from error
        raise TransientError(f"AWS: the role of the VMs, {name}, cannot be made now: {error}") from error
    except BotoCoreError as error:
        raise TransientError(f"AWS does not answer: {error}") from error
    age_s = (datetime.now(UTC) - made["CreateDate"]).total_seconds()
    if age_s < _SPREADS_WITHIN_S:
        sleep(min(_SPREADS_WITHIN_S, _SPREADS_WITHIN_S - age_s))
    return name


def _profile(client: Any, name: str) -> Any:
    """The instance profile; None where there is none."""
    try:
        return client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    except client.exceptions.NoSuchEntityException:
        return None


def _make(client: Any, name: str, buckets: Collection[str]) -> Any:
    """Make what is missing of it; another launch may be at it too. Returns the instance profile."""
    there = suppress(client.exceptions.EntityAlreadyExistsException)
    description = "VMs rented by orch: may end themselves and read the run's buckets"
    with there:
        client.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST), Description=description)
    client.put_role_policy(RoleName=name, PolicyName=_POLICY_NAME, PolicyDocument=json.dumps(policy(buckets)))
    with there:
        client.create_instance_profile(InstanceProfileName=name)
    with suppress(client.exceptions.LimitExceededException):  # it has its one role
        client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
