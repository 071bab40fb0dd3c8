"""Amazon Web Services."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from cloud.vendors.notices import Ask, Look, Notice, NoticeError, json_object
from cloud.vendors.record import CredentialFile, FocusNames, Vendor

_TOKEN = "/latest/api/token"
_TOKEN_LIFE_S = 21600


def instance_action(text: str) -> Notice:
    """Parse {"action": "terminate", "time": "2026-11-21T15:00:00Z"}. Raises NoticeError."""
    document = json_object(text)
    action, at = document.get("action"), document.get("time")
    if not isinstance(action, str) or not isinstance(at, str):
        raise NoticeError(f"not an instance action: {text[:80]!r}")
    try:
        time_ = datetime.fromisoformat(at)
    except ValueError as error:
        raise NoticeError(f"not a time: {at[:80]!r}") from error
    return Notice((time_ if time_.tzinfo else time_.replace(tzinfo=UTC)).timestamp(), action)


def _notices(ask: Ask, unix_time: Callable[[], float]) -> Look:
    """Read spot/instance-action with an IMDSv2 token (obtained by PUT); 404 means that there is no notice."""
    token = ""

    def look() -> Notice | None:
        nonlocal token
        for _ in range(2):  # renew a token that has become invalid, once
            if not token:
                _, token = ask(_TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}, "PUT")
            header = {"X-aws-ec2-metadata-token": token}
            status, text = ask("/latest/meta-data/spot/instance-action", header, allowed=(401, 404))
            if status != 401:
                return None if status == 404 else instance_action(text)
            token = ""
        raise NoticeError("the metadata service rejects the token that it issued")

    return look


AWS = Vendor(
    name="aws",
    title="AWS",
    focus=FocusNames(
        "AWS", "Amazon Elastic Compute Cloud", "AWS Data Transfer", "Amazon Simple Storage Service"
    ),
    bill_words=("aws", "amazon"),
    rents_vms=True,
    shares_network=True,
    credential_variables=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    credential_files=(
        CredentialFile(
            ".aws/credentials", ("aws_access_key_id", "credential_process"), "AWS_SHARED_CREDENTIALS_FILE"
        ),
        CredentialFile(
            ".aws/config", ("aws_access_key_id", "sso_", "role_arn", "credential_process"), "AWS_CONFIG_FILE"
        ),
    ),
    sign_in="run `aws configure`, or export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    packages=("boto3",),
    api_url="https://sts.amazonaws.com/",
    api_url_variable="AWS_ENDPOINT_URL",
    skypilot_switch=True,
    identity="role",
    catalog_zone_ids=True,
    cpu_instances=r"m[67]i\.",
    address_command="""\
curl -sf -m 2 -H "X-aws-ec2-metadata-token: $(curl -sf -m 2 -X PUT \\
        -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)" \\
        http://169.254.169.254/latest/meta-data/public-ipv4""",
    notices=_notices,
)
