"""The few SkyPilot calls that orch makes, with results as plain types. Imports `sky` on the first call."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cloud.prices.classes import is_internal
from cloud.provider import LaunchRequest
from cloud.sky.names import cluster_name, labels_of
from cloud.sky.skypilot.identity import removal, settings
from cloud.sky.vm.bootstrap import FOLDER
from cloud.sky.vm.secrets import KEY_VARIABLE

_log = logging.getLogger("cloud.sky")

IDLE_MINUTES = 5
_configuring = threading.Lock()  # SkyPilot's configuration is global to the process
_LOG_LINES = 400
_NO_LAUNCH = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Cluster:
    """One SkyPilot cluster, as listed."""

    name: str
    status: str
    labels: Mapping[str, str]
    address: str = ""
    internal: str = ""  # address inside the cloud's network; "": unknown
    region: str = ""
    zone: str = ""
    cloud: str = ""
    instance: str = ""
    instance_id: str = ""
    on_cloud: str = ""
    usd_per_h: Decimal | None = None
    price_source: str = ""
    link: str = ""
    ssh: Mapping[str, Any] | None = None

    @property
    def location(self) -> str:
        """cloud/region/zone, as far as known."""
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


def skypilot() -> Any:
    """Import SkyPilot; its log goes to stderr, errors only, since stdout belongs to the command line.

    Its usage collection is disabled unless SKYPILOT_DISABLE_USAGE_COLLECTION=0 is set.
    """
    os.environ.setdefault("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    import sky

    logger = logging.getLogger("sky")
    logger.setLevel(logging.ERROR)
    for handler in logger.handlers:
        # Leave other handlers (of a test, for example) unchanged.
        own = type(handler).__module__.startswith("sky.")
        if own and isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    return sky


def launch(request: LaunchRequest, ship: Path, key: str, aws_role: str) -> str:
    """Begin the launch of a VM's cluster; returns SkyPilot's request id. Raises any error of SkyPilot.

    `aws_role`: the instance profile of a VM on AWS; "" elsewhere.
    """
    sky = skypilot()
    from sky import skypilot_config  # pyright: ignore[reportAttributeAccessIssue]  # not everybody has it
    from sky.skylet.autostop_lib import (  # pyright: ignore[reportMissingImports]  # not everybody has it
        AutostopWaitFor,
    )

    own = request.offer.location.partition("/")[0]
    steps = (removal(own, request.file_mounts), f"bash ~/{FOLDER}/run.sh")
    task = sky.Task(
        name="orch",
        run="; ".join(step for step in steps if step),
        secrets={KEY_VARIABLE: key},
        file_mounts={f"~/{FOLDER}": str(ship), **request.file_mounts},
        api_server_access=False,
    )
    task.set_resources(_resources(request))
    with _configuring, skypilot_config.override_skypilot_config(settings(own, aws_role)):
        return str(
            sky.launch(
                task,
                cluster_name=cluster_name(request.vm),
                idle_minutes_to_autostop=IDLE_MINUTES,
                wait_for=AutostopWaitFor.JOBS,  # an open ssh session must not keep a VM alive
                down=True,
            )
        )


def _resources(request: LaunchRequest) -> Any:
    sky = skypilot()

    offer = request.offer
    name, _, count = offer.accelerator.partition(":")
    more: dict[str, Any] = {}
    if offer.instance not in ("", "unknown", "emulated"):
        more["instance_type"] = offer.instance
    if name not in ("", "CPU"):
        more["accelerators"] = {name: int(count or 1)}
    elif "instance_type" not in more:
        more["cpus"] = f"{count or 1}+"
    if request.ports:
        more["ports"] = [str(port) for port in request.ports]
    if request.image_id:
        more["image_id"] = request.image_id
    return sky.Resources(
        infra=offer.location,
        use_spot=offer.use_spot,
        disk_size=request.disk_gb,
        labels=labels_of(request.vm, request.labels),
        **more,
    )


def quote(request: LaunchRequest) -> tuple[Decimal | None, str]:
    """Dollars per hour of what a request would rent, by SkyPilot's catalog (which SkyPilot downloads if it is missing).

    Without a zone, the price is that of the region's cheapest one. (None, reason): the catalog has no price; (None, ""):
    it has no such VM.
    """
    resources = _resources(request)
    if resources.instance_type is not None:
        return _price(resources)
    found = resources.cloud.get_feasible_launchable_resources(resources, 1).resources_list
    priced = [_price(each) for each in found]
    known = [(usd, source) for usd, source in priced if usd is not None]
    return min(known) if known else priced[0] if priced else (None, "")


def wait_launch(request_id: str) -> None:
    """Wait for a launch. Raises any error of SkyPilot."""
    sky = skypilot()

    sky.get(request_id)


def provision_log(cluster: str) -> str:
    """The end of the log of a cluster's latest launch; "" if SkyPilot's server has none or cannot be asked."""
    skypilot()
    from sky.client import sdk  # pyright: ignore[reportMissingImports]  # not everybody has it

    text = io.StringIO()
    try:
        sdk.tail_provision_logs(cluster, follow=False, tail=_LOG_LINES, output_stream=text)
    except Exception as error:  # noqa: BLE001 - the log only explains an error that is being raised
        _log.warning("SkyPilot's log of the launch of %s cannot be read: %r", cluster, error)
    return text.getvalue()


def pending_launch(cluster: str) -> str | None:
    """Return the request id of a launch of the cluster in progress, even one begun by a controller that has died."""
    sky = skypilot()

    for each in sky.api_status(cluster_name=cluster, all_status=False):
        name, status = str(each.name), str(each.status)
        if each.cluster_name != cluster:  # an old server does not filter by name
            continue
        if name.endswith("launch") and not status.endswith(_NO_LAUNCH):
            return str(each.request_id)
    return None


def cancel(request_id: str) -> None:
    """Cancel a SkyPilot request and wait until it has stopped. What it has created stays."""
    sky = skypilot()

    sky.get(sky.api_cancel([request_id]))


def find(cluster: str, *, ask_cloud: bool = False) -> Cluster | None:
    """Return a cluster by name; None if there is none."""
    found = list_clusters([cluster], ask_cloud=ask_cloud, credentials=True)
    return found[0] if found else None


def list_clusters(
    names: Sequence[str] | None = None, *, ask_cloud: bool = False, credentials: bool = False
) -> list[Cluster]:
    """Return all clusters of this SkyPilot user, or the existing ones among `names`."""
    sky = skypilot()

    mode = sky.StatusRefreshMode.FORCE if ask_cloud else sky.StatusRefreshMode.NONE
    request = sky.status(
        None if names is None else list(names), refresh=mode, _include_credentials=credentials
    )
    return [_cluster(record) for record in sky.get(request)]


def down(cluster: str) -> None:
    """End a cluster and cancel its launch if it is in progress. Raises ClusterDoesNotExist among others."""
    sky = skypilot()

    sky.get(sky.down(cluster))


def _cluster(record: Any) -> Cluster:
    handle: Any = record["handle"]
    resources: Any = getattr(handle, "launched_resources", None)
    address = str(getattr(handle, "head_ip", "") or "")
    price, source = _price(resources)
    info: Any = getattr(handle, "cached_cluster_info", None)
    links = dict(record.get("links") or {})
    return Cluster(
        name=str(record["name"]),
        status=record["status"].name,
        labels=dict(record.get("labels") or getattr(resources, "labels", None) or {}),
        address=address,
        internal=_internal(handle),
        cloud=str(getattr(resources, "cloud", "") or "").lower(),
        region=str(getattr(resources, "region", "") or ""),
        zone=str(getattr(resources, "zone", "") or ""),
        instance=str(getattr(resources, "instance_type", "") or ""),
        instance_id=str(getattr(info, "head_instance_id", "") or ""),
        on_cloud=str(
            record.get("cluster_name_on_cloud") or getattr(handle, "cluster_name_on_cloud", "") or ""
        ),
        usd_per_h=price,
        price_source=source,
        link=str(next(iter(links.values()), "")),
        ssh=_ssh(record.get("credentials"), handle),
    )


def _internal(handle: Any) -> str:
    """The head's address inside its network, as SkyPilot has it from the cloud; "" if unknown."""
    pairs = getattr(handle, "stable_internal_external_ips", None) or ()
    found = str(pairs[0][0] or "") if pairs else ""
    return found if is_internal(found) else ""


def _price(resources: Any) -> tuple[Decimal | None, str]:
    """Dollars per hour of the rented resources, by SkyPilot's catalog; None if it has no price."""
    if resources is None or not getattr(resources, "instance_type", None):
        return None, ""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    try:
        return Decimal(str(round(resources.get_cost(3600), 6))), f"SkyPilot's catalog, read back on {day}"
    except Exception as error:  # noqa: BLE001 - whatever the catalog lacks, the price is reported as unknown
        return None, f"SkyPilot's catalog has no price ({type(error).__name__})"


def _ssh(credentials: Any, handle: Any) -> dict[str, Any] | None:
    if not credentials or not credentials.get("ssh_private_key"):
        return None
    ports = getattr(handle, "cached_external_ssh_ports", None) or [22]
    return {
        "user": getattr(handle, "ssh_user", None) or credentials["ssh_user"],
        "key": credentials["ssh_private_key"],
        "port": ports[0],
        "proxy": credentials.get("ssh_proxy_command") or "",
    }
