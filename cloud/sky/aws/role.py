"""The AWS role of rented VMs: it may only end the VM that has it, read the buckets and write the checkpoints it was created
for.

SkyPilot's default role would give its VMs full access to EC2 and S3. The name of orch's role contains a digest of its
policy, so a changed policy means another role, and a role that an administrator created is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any

from cloud.provider import CredentialsError, TransientError

# IAM changes reach EC2 some seconds later; SkyPilot waits as long for its own role (sky/provision/aws/config.py).
_SPREADS_WITHIN_S = 15.0
_POLICY_NAME = "orch-vm"
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
# The aws:userid of a VM's role ends with the VM's instance id.
_ITSELF = {"StringLike": {"aws:userid": "*:${ec2:InstanceID}"}}
_INSTANCES = "arn:aws:ec2:*:*:instance/*"
# Attributes other than security groups that ModifyInstanceAttribute changes (boto3's names; compared case-insensitively).
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


def policy(buckets: Collection[str], *, written: Collection[str] = ()) -> dict[str, Any]:
    """Return the policy: what SkyPilot's autodown calls on the VM, reading the buckets, and writing below `written`.

    `written` are places "bucket/prefix" of objects, which may also be listed, read and deleted.

    Autodown (sky/provision/aws/instance.py, `terminate_instances`) looks up its instance, network and security groups,
    moves the instance to the default group and terminates it.
    """
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
            # Like AWS's user guide denies attributes of images ("Identity-based policies for Amazon EC2"). An explicit
            # denial, so that a VM could still end itself if the condition key had another name for instances.
            "Sid": "ChangeNothingElse",
            "Effect": "Deny",
            "Action": "ec2:ModifyInstanceAttribute",
            "Resource": _INSTANCES,
            "Condition": {"StringEqualsIgnoreCase": {"ec2:Attribute": _OTHER_ATTRIBUTES}},
        },
        {
            "Sid": "LeaveItsSecurityGroup",  # the same call names the group; it has no effect without an instance
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
    places = sorted(set(written))
    if places:
        statements += [
            {
                "Sid": "WriteItsCheckpoints",
                "Effect": "Allow",
                "Action": [
                    "s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                "Resource": [f"arn:aws:s3:::{place}/*" for place in places],
            },
            {
                "Sid": "ListItsCheckpoints",
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"],
                "Resource": sorted({f"arn:aws:s3:::{place.partition('/')[0]}" for place in places}),
            },
        ]  # fmt: skip
    return {"Version": "2012-10-17", "Statement": statements}


def role_name(buckets: Collection[str], *, written: Collection[str] = ()) -> str:
    """Name of the role and of its instance profile, derived from the policy."""
    text = json.dumps([TRUST, policy(buckets, written=written)], sort_keys=True)
    return f"orch-vm-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def grant() -> dict[str, Any]:
    """Return what a user needs in addition to SkyPilot's documented minimal policy, which only allows SkyPilot's role."""
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


def commands(buckets: Collection[str], *, written: Collection[str] = ()) -> str:
    """Return shell commands (AWS CLI) with which an administrator creates the role and lets a user pass it to VMs.

    Each runs only if the previous ones succeeded.
    """
    name = role_name(buckets, written=written)
    steps = (
        ["create-role", "--role-name", name, "--assume-role-policy-document", json.dumps(TRUST)],
        [
            "put-role-policy", "--role-name", name, "--policy-name", _POLICY_NAME,
            "--policy-document", json.dumps(policy(buckets, written=written), indent=1),
        ],
        ["create-instance-profile", "--instance-profile-name", name],
        ["add-role-to-instance-profile", "--instance-profile-name", name, "--role-name", name],
        [
            "put-user-policy", "--user-name", "YOUR-USER", "--policy-name", _POLICY_NAME,
            "--policy-document", json.dumps(grant(), indent=1),
        ],
    )  # fmt: skip
    return " &&\n".join(f"aws iam {shlex.join(step)}" for step in steps) + "\n"


def is_there(buckets: Collection[str], *, written: Collection[str] = ()) -> bool:
    """Whether VMs can be launched with the role as it is. Creates nothing.

    Raises CredentialsError if the credentials do not allow looking it up, TransientError.
    """
    name = role_name(buckets, written=written)
    with _errors(name):
        return _age_s(_client(), name) is not None


def ensure(
    buckets: Collection[str],
    sleep: Callable[[float], None] = time.sleep,
    *,
    written: Collection[str] = (),
) -> str:
    """Return the name of an instance profile for VMs; create what is missing, and wait until it is at least 15 s old.

    Raises CredentialsError if the credentials do not allow looking it up or creating it, TransientError.
    """
    name = role_name(buckets, written=written)
    with _errors(name):
        client = _client()
        age_s = _age_s(client, name)
        if age_s is None:
            _make(client, name, policy(buckets, written=written))
            age_s = 0.0
    if age_s < _SPREADS_WITHIN_S:
        sleep(_SPREADS_WITHIN_S - max(0.0, age_s))
    return name


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Translate IAM's errors."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _DENIED:
            raise CredentialsError(
                f"AWS: the credentials do not allow looking up or creating the role of the VMs, {name} ({error.operation_name} "
                "is denied); `orch check --aws-role FILE` prints the commands with which an administrator of the account "
                "creates it and lets your user pass it to VMs (iam:PassRole, iam:GetInstanceProfile, iam:GetRolePolicy)"
            ) from error
        if code in ("InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch", "AuthFailure"):
            raise CredentialsError(
                f"AWS rejects the credentials ({code}); `orch check` shows what is missing"
            ) from error
        raise TransientError(f"AWS: the role of the VMs, {name}, cannot be created now: {error}") from error
    except BotoCoreError as error:
        raise TransientError(f"AWS does not answer: {error}") from error


def _client() -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})
    return boto3.Session().client("iam", region_name="us-east-1", config=config)


def _age_s(client: Any, name: str) -> float | None:
    """Seconds since the instance profile was created, by AWS's clock; None if any part of it is missing."""
    try:
        answer = client.get_instance_profile(InstanceProfileName=name)
    except client.exceptions.NoSuchEntityException:
        return None
    if not answer["InstanceProfile"]["Roles"] or not _has_policy(client, name):
        return None
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not date:
        return 0.0  # it may be new
    return (parsedate_to_datetime(date) - answer["InstanceProfile"]["CreateDate"]).total_seconds()


def _has_policy(client: Any, name: str) -> bool:
    """Whether the role has its policy; assumed if the credentials do not allow reading an administrator's role."""
    try:
        client.get_role_policy(RoleName=name, PolicyName=_POLICY_NAME)
    except client.exceptions.NoSuchEntityException:
        return False
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in _DENIED:
            raise
    return True


def _make(client: Any, name: str, allowed: Mapping[str, Any]) -> None:
    """Create what is missing; another launch may be doing the same."""
    there = suppress(client.exceptions.EntityAlreadyExistsException)
    description = "VMs rented by orch: may end themselves, read the run's buckets and write its checkpoints"
    with there:
        client.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST), Description=description)
    client.put_role_policy(RoleName=name, PolicyName=_POLICY_NAME, PolicyDocument=json.dumps(allowed))
    with there:
        client.create_instance_profile(InstanceProfileName=name)
    with suppress(client.exceptions.LimitExceededException):  # it has its one role already
        client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
