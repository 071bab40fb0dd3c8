"""The launch of one VM by SkyPilot: exactly once per name, whatever fails in between, and within its price ceiling."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from cloud.provider import AmbiguousError, LaunchRequest, NoCapacityError, ProviderError, TransientError
from cloud.sky import records
from cloud.sky.aws import role as aws_role
from cloud.sky.clusters import SERVER_TRIES, Clusters
from cloud.sky.price_check import PriceCeilingError, refusal_after, refusal_before, refusal_remembered
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk, server
from cloud.sky.skypilot.errors import cloud_message, is_conflict, is_server_lost, is_unexplained, translate
from cloud.sky.state import parse_peek
from cloud.sky.vm import ssh
from cloud.sky.vm.bootstrap import peek_command
from cloud.sky.vm.wheel import ship_folder
from cloud.vendors import AWS

_log = logging.getLogger("cloud.sky")

_PEEK_S = 8.0


def launch(run: Clusters, request: LaunchRequest, record: VmRecord) -> None:
    """Check the price, rent a record's VM, wait until it is up, check its actual price and record the result.

    Raises ProviderError; after any error other than AmbiguousError nothing of the VM is left.
    """
    doing = f"{request.vm} at {request.offer.location}"
    try:
        _launch_until_up(run, request, record.cluster, doing)
        cluster = run.call(doing, lambda: sdk.find(record.cluster))
        if cluster is None or not cluster.address:
            raise TransientError(f"{doing}: the VM was gone right after its launch")
        dear = refusal_after(request, cluster.instance, cluster.zone or cluster.region, cluster.usd_per_h)
        if dear is not None:
            raise dear
        _check_wanted(run, request.vm, doing)
        records.update(
            run.folder, request.vm, launched=True, cause="", location=cluster.location or record.location,
            address=cluster.address, internal=cluster.internal, instance=cluster.instance, instance_id=cluster.instance_id,
            cluster_on_cloud=cluster.on_cloud, link=cluster.link, ssh=dict(cluster.ssh or {}),
            usd_per_h="" if cluster.usd_per_h is None else str(cluster.usd_per_h), price_source=cluster.price_source,
        )  # fmt: skip
    except AmbiguousError:
        raise
    except (ProviderError, OSError) as error:
        _clean_up(run, record, str(error), too_dear=isinstance(error, PriceCeilingError))
        _remove_ship_folder(run, request.vm)
        if isinstance(error, OSError):  # a VM that cannot be recorded is not kept
            raise TransientError(f"{doing}: it cannot be recorded ({error}) and was ended again") from error
        raise
    _remove_ship_folder(run, request.vm)


def _remove_ship_folder(run: Clusters, vm: str) -> None:
    """Remove the folder that was copied to the VM.

    Only called when the launch is over: while it may be in progress, SkyPilot needs the folder, which therefore stays if
    this process is ended.
    """
    shutil.rmtree(run.folder / f"{vm}.ship", ignore_errors=True)


def _launch_until_up(run: Clusters, request: LaunchRequest, cluster: str, doing: str) -> None:
    """Launch with SkyPilot; retry with the same name and key if its server dies during the launch.

    Retry also if another launch was setting up the same region: SkyPilot then fails and has already ended the VM.
    """
    shipped: tuple[Path, str] | None = None
    for attempt in range(SERVER_TRIES):
        server.ensure(run.home)
        server.claim(run.home, run.run_folder.name)
        _check_wanted(run, request.vm, doing)
        try:
            waiting = sdk.pending_launch(cluster)
            if waiting is None and _has_job(cluster):
                return
            if waiting is None:
                _check_price(run, request, doing)
                # IAM may take longer than a termination waits for a launch to arrive (`Clusters.await_launch`).
                on_aws = AWS.has(request.offer.location)
                role = aws_role.ensure(request.buckets, written=request.written) if on_aws else ""
                shipped = shipped or ship_folder(run.folder, run.home, request)
                _check_wanted(run, request.vm, doing)
                records.update(run.folder, request.vm, asking=True)
                waiting = sdk.launch(request, *shipped, role)
                records.update(run.folder, request.vm, asking=False)
            sdk.wait_launch(waiting)
            return
        except Exception as error:
            if is_server_lost(error) and attempt + 1 < SERVER_TRIES:
                _log.warning("%s: SkyPilot's API server was lost, trying again: %r", doing, error)
                time.sleep(1.0 + attempt)
                continue
            reason = cloud_message(sdk.provision_log(cluster)) if is_unexplained(error) else ""
            if is_conflict(error, reason) and attempt + 1 < SERVER_TRIES:
                _log.warning(
                    "%s: another launch was setting up the same region, trying again: %s", doing, reason
                )
                time.sleep(1.0 + attempt)
                continue
            raise translate(error, doing, reason) from error


def _check_wanted(run: Clusters, vm: str, doing: str) -> None:
    """Raise TransientError if the VM was ended while it was being launched, before SkyPilot knew of it."""
    record = records.read(run.folder, vm)
    if run.closed or (record is not None and record.ending):
        raise TransientError(f"{doing}: it was ended while it was being launched")


def _has_job(cluster: str) -> bool:
    """Whether an earlier request, whose reply was lost, has created this VM and started its program."""
    found = sdk.find(cluster, ask_cloud=True)
    if found is None or found.status != "UP" or not found.address or not found.ssh:
        return False
    report = parse_peek(ssh.run_on(found.address, found.ssh, peek_command(found.address), _PEEK_S))
    return bool(report and report[0])


def _check_price(run: Clusters, request: LaunchRequest, doing: str) -> None:
    """Raise NoCapacityError before anything is rented if the VM is known to cost more than its ceiling."""
    if request.max_usd_per_h is None:
        return
    why = refusal_remembered(request, records.read_all(run.folder), run.now_s())
    why = why or refusal_before(request, *sdk.quote(request))
    if why:
        raise NoCapacityError(f"{doing}: {why}")


def _clean_up(run: Clusters, record: VmRecord, why: str, *, too_dear: bool) -> None:
    """Make sure that nothing is left after a failed launch. Raises AmbiguousError if that cannot be confirmed.

    If SkyPilot had a cluster, there may have been a billed VM: it is recorded as one that has ended.
    """
    try:
        cluster = run.call(f"listing {record.cluster}", lambda: sdk.find(record.cluster))
        run.down(record.cluster)
    except ProviderError as error:
        raise AmbiguousError(f"{why}; whether anything is left of it is unknown: {error}") from error
    try:
        _remember_refused(run, record, cluster, why, too_dear=too_dear)
    except OSError as error:
        _log.warning("%s has ended, but this cannot be recorded: %s", record.vm, error)


def _remember_refused(
    run: Clusters, record: VmRecord, cluster: sdk.Cluster | None, why: str, *, too_dear: bool
) -> None:
    """Record how the launch ended. Raises OSError."""
    current = records.read(run.folder, record.vm)
    if current is not None and current.ending:
        run.mark_ended(record.vm)
    elif cluster is not None:
        records.update(
            run.folder, record.vm, launched=True, end_state="terminated", ended_at_s=run.now_s(), cause=why,
            location=cluster.location or record.location, instance=cluster.instance, address=cluster.address, too_dear=too_dear,
            usd_per_h="" if cluster.usd_per_h is None else str(cluster.usd_per_h), price_source=cluster.price_source,
        )  # fmt: skip
    else:
        records.update(run.folder, record.vm, refused=True, cause=why, ended_at_s=run.now_s())
