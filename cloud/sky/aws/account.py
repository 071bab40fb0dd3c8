"""VMs, volumes and addresses with orch's labels as AWS itself lists them, independently of SkyPilot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloud.provider import CredentialsError, InvalidRequestError, Owned, ProviderError, TransientError
from cloud.vendors import AWS

_ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")


def has_credentials() -> bool:
    """Whether this machine has AWS credentials; without them AWS is not queried."""
    import boto3

    return boto3.Session().get_credentials() is not None


def list_tagged(owner: str, regions: Iterable[str] | None = None) -> list[Owned]:
    """Return everything tagged orch-owner = `owner`, in the given regions or in all regions of the account.

    Without AWS credentials on this machine, returns nothing for all regions, but raises CredentialsError for explicitly
    given regions, since something was rented there. Raises CredentialsError, TransientError.
    """
    if not has_credentials():
        if regions is None:
            return []
        raise CredentialsError(
            "AWS has to be queried, but this machine has no credentials for it; see `orch check`"
        )
    try:
        names = list(regions) if regions is not None else _regions()
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda region: _in_region(region, owner), names)
            return [owned for each in found for owned in each]
    except Exception as error:
        raise _translate(error) from error


def _regions() -> list[str]:
    rows = _client("us-east-1").describe_regions()["Regions"]
    return sorted(row["RegionName"] for row in rows)


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})
    # A separate session, since boto3's default session is not thread-safe.
    return boto3.Session().client("ec2", region_name=region, config=config)


def _in_region(region: str, owner: str) -> list[Owned]:
    client = _client(region)
    ours = {"Name": "tag:orch-owner", "Values": [owner]}
    found: list[Owned] = []
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[ours, {"Name": "instance-state-name", "Values": [s for s in _ALIVE if s != "shutting-down"]}]
    )
    for page in pages:
        for reservation in page["Reservations"]:
            for row in reservation["Instances"]:
                zone = row.get("Placement", {}).get("AvailabilityZone", "")
                found.append(_owned("vm", row["InstanceId"], row, region, zone))
    for page in client.get_paginator("describe_volumes").paginate(Filters=[ours]):
        for row in page["Volumes"]:
            attached = any(a.get("State") == "attached" for a in row.get("Attachments", []))
            if not attached:  # attached disks are deleted with their VM
                found.append(_owned("volume", row["VolumeId"], row, region, row.get("AvailabilityZone", "")))
    for row in client.describe_addresses(Filters=[ours])["Addresses"]:
        found.append(_owned("address", row["AllocationId"], row, region, ""))
    return found


def _owned(kind: Any, number: str, row: Mapping[str, Any], region: str, zone: str) -> Owned:
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags", [])}
    lease = tags.get("orch-lease-until", "")
    page = {"vm": "InstanceDetails:instanceId=", "volume": "VolumeDetails:volumeId="}.get(
        kind, "ElasticIpDetails:AllocationId="
    )
    return Owned(
        kind=kind,
        id=number,
        vm=tags.get("orch-vm", ""),
        run=tags.get("orch-run", ""),
        owner=tags.get("orch-owner", ""),
        location="/".join(p for p in (AWS.name, region, zone) if p),
        lease_until_s=float(lease) if lease.isdigit() else None,
        link=f"https://{region}.console.aws.amazon.com/ec2/home?region={region}#{page}{number}",
    )


def release(owned: Owned) -> None:
    """End one resource of AWS after checking its label again; do nothing if it is gone.

    Raises InvalidRequestError if it does not carry the label, CredentialsError, TransientError.
    """
    region = owned.location.split("/")[1]
    client = _client(region)
    try:
        if not any(o.id == owned.id for o in _in_region(region, owned.owner)):
            if _exists(client, owned):
                raise InvalidRequestError(f"{owned.id} does not carry the label orch-owner={owned.owner}")
            return
        if owned.kind == "vm":
            client.terminate_instances(InstanceIds=[owned.id])
        elif owned.kind == "volume":
            client.delete_volume(VolumeId=owned.id)
        else:
            client.release_address(AllocationId=owned.id)
    except InvalidRequestError:
        raise
    except Exception as error:
        raise _translate(error) from error


def _exists(client: Any, owned: Owned) -> bool:
    from botocore.exceptions import ClientError

    try:
        if owned.kind == "vm":
            rows = client.describe_instances(InstanceIds=[owned.id])["Reservations"]
            return any(i["State"]["Name"] in _ALIVE for r in rows for i in r["Instances"])
        if owned.kind == "volume":
            return bool(client.describe_volumes(VolumeIds=[owned.id])["Volumes"])
        return bool(client.describe_addresses(AllocationIds=[owned.id])["Addresses"])
    except ClientError as error:
        if error.response.get("Error", {}).get("Code", "").endswith(".NotFound"):
            return False
        raise


def instance_status(region: str, on_cloud: str) -> tuple[bool | None, str]:
    """Return whether a cluster's VM runs according to EC2 (None: EC2 does not list it), and why it ended if it did.

    Raises CredentialsError, TransientError.
    """
    try:
        rows = _client(region).describe_instances(
            Filters=[{"Name": "tag:skypilot-cluster-name", "Values": [on_cloud]}]
        )["Reservations"]
    except Exception as error:
        raise _translate(error) from error
    instances = [i for r in rows for i in r["Instances"]]
    if not instances:
        return None, ""
    if any(i["State"]["Name"] in ("pending", "running") for i in instances):
        return True, ""
    reasons = [i.get("StateReason", {}).get("Message") or i.get("StateTransitionReason") for i in instances]
    return False, next((str(r) for r in reasons if r), "")


def _translate(error: Exception) -> Exception:
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in (
            "AuthFailure",
            "UnauthorizedOperation",
            "InvalidClientTokenId",
            "ExpiredToken",
            "RequestExpired",
        ):
            return CredentialsError(
                f"AWS rejects the credentials ({code}); `orch check` shows what is missing"
            )
        return TransientError(f"AWS: {error}")
    if isinstance(error, BotoCoreError):
        return TransientError(f"AWS does not answer: {error}")
    return error if isinstance(error, ProviderError) else TransientError(f"AWS cannot be queried: {error!r}")
