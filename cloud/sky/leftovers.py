"""What SkyPilot and the cloud still have of a run that is over: list it and end it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cloud.provider import Owned, ProviderError
from cloud.sky.clusters import Clusters
from cloud.sky.names import label_value
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk, server
from cloud.vendors import AWS

_log = logging.getLogger("cloud.sky")


def left(run: Clusters, known: Sequence[VmRecord]) -> list[str]:
    """Return what SkyPilot and the cloud still list of this run, with links.

    If two lists have already shown that SkyPilot's part is gone, a stopped server is not restarted to list it again.
    """
    clusters = {r.cluster for r in known}
    name = label_value(run.run_folder.name)
    if run.proven and not server.healthy():
        return [f"{o.id} {o.link}" for o in _in_aws(run, known)]
    server.ensure(run.home)
    listed = run.call("list", lambda: sdk.list_clusters())
    found = [c.name for c in listed if c.name in clusters or c.labels.get("orch-run") == name]
    return found + [f"{o.id} {o.link}" for o in _in_aws(run, known)]


def _in_aws(run: Clusters, known: Sequence[VmRecord]) -> list[Owned]:
    """What AWS itself lists of this run, in the regions that the run used."""
    from cloud.sky.aws import account as aws

    name = label_value(run.run_folder.name)
    owners = {label_value(r.labels["orch-owner"]) for r in known if r.labels.get("orch-owner")}
    regions = sorted({r.location.split("/")[1] for r in known if AWS.has(r.location)})
    if not regions:
        return []
    return [o for owner in sorted(owners) for o in aws.list_tagged(owner, regions) if o.run == name]


def end_in_aws(record: VmRecord) -> None:
    """End a VM, its disk and its address by AWS's own list: SkyPilot may have lost a cluster whose VM still runs.

    Raises ProviderError.
    """
    from cloud.sky.aws import account as aws

    owner = record.labels.get("orch-owner")
    if not owner or not AWS.has(record.location):
        return
    for owned in aws.list_tagged(label_value(owner), [record.location.split("/")[1]]):
        if owned.vm == label_value(record.vm):
            aws.release(owned)


def sweep(run: Clusters, known: Sequence[VmRecord]) -> None:
    """End what is left: clusters whose VM was preempted, disks that outlived their VM, VMs that SkyPilot has lost.

    Errors are logged; `left` reports what remains.
    """
    from cloud.sky.aws import account as aws

    if not run.proven:
        ours = {r.cluster for r in known}
        server.ensure(run.home)
        for cluster in run.call("list", lambda: sdk.list_clusters(sorted(ours))):
            try:
                run.down(cluster.name)
            except ProviderError as error:
                _log.warning("%s cannot be ended yet: %s", cluster.name, error)
    for owned in _in_aws(run, known):
        try:
            aws.release(owned)
        except ProviderError as error:
            _log.warning("%s cannot be ended yet: %s", owned.id, error)
