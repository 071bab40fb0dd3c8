"""Real VMs as a provider: one SkyPilot cluster per VM. Stateless; its records are in `<run>/sky/`."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloud.provider import (
    EndedError,
    InvalidRequestError,
    LaunchRequest,
    NoCapacityError,
    Observed,
    Offer,
    Owned,
    ProviderError,
    TransientError,
    is_monitor,
)
from cloud.sky import monitor, records
from cloud.sky.clusters import Clusters
from cloud.sky.launching import launch
from cloud.sky.leftovers import end_in_aws, left, sweep
from cloud.sky.names import cluster_name, label_value
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk, server
from cloud.sky.state import (
    Listed,
    Skew,
    absent,
    after_peek,
    after_skew,
    gone,
    neighbours,
    observed,
    parse_peek,
    peers_to_join,
    skew_of,
)
from cloud.sky.vm import ssh
from cloud.sky.vm.bootstrap import FOLDER, peek_command, stop_command
from cloud.vendors import AWS

_log = logging.getLogger("cloud.sky")

_LIST_PERIOD_S = 4.0  # how often SkyPilot's own list is read
_ASK_CLOUD_S = 20.0  # how often, at most, the cloud itself is queried while a VM does not answer
_PEEK_S = 8.0
_COLLECT_S = 20.0
_STOP_S = 20.0
_FILES = (
    *("status.json", "steps.csv", "egress.csv", "utilisation.csv", "coverage.csv", "input_sums.jsonl"),
    *("peer.log", "console.log", "setup.log", "job.json"),
)
_PARALLEL = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class SkyCloud:
    """A run's VMs on real clouds. Any process may create a client from the run's folder (`<home>/runs/<run>`)."""

    name = "sky"

    def __init__(self, run_folder: Path) -> None:
        self._run = Clusters(run_folder)
        self._run_folder, self._folder, self._home = self._run.run_folder, self._run.folder, self._run.home

    # the provider's contract

    def offers(self, location: str, accelerator: str, use_spot: bool) -> Sequence[Offer]:
        """Return offers from SkyPilot's catalogs on this machine or from price books; contacts nothing."""
        from cloud.prices.book import book_names, load
        from cloud.sky.skypilot.catalog import here

        return here(load(book_names()[-1]), os.environ).offers(location, accelerator, use_spot)

    def request(self, request: LaunchRequest) -> None:
        """Check the price, rent a VM, wait until it runs (minutes) and check its actual price.

        Its program installs and starts by itself after that. Raises NoCapacityError, QuotaError, CredentialsError,
        InvalidRequestError, TransientError, AmbiguousError; EndedError after `close`. NoCapacityError is also raised
        without a request if SkyPilot's catalog has a price above `max_usd_per_h`, and for a VM that turns out to cost
        more, which is ended.
        """
        now_s = self._run.now_s()
        if not _NAME.fullmatch(request.vm):
            raise InvalidRequestError(
                f"'{request.vm}' is not a valid VM name: use letters, digits, '.', '_' and '-'"
            )
        if self._run.closed:
            raise EndedError(f"{self._run_folder.name}: the run is closed")
        if is_monitor(request.vm):
            monitor.start(self._run_folder, request)
            return
        with records.lock(self._folder, request.vm, "launch"):
            record = records.read(self._folder, request.vm)
            if record is not None and record.end_state == "terminated" and not record.ending:
                raise NoCapacityError(record.cause)  # it was rented, refused and ended: repeat the refusal
            if record is not None and (record.launched or record.ending or record.end_state):
                return  # names are never reused
            if record is None or record.refused:
                offer = request.offer
                record = VmRecord(
                    request.vm, cluster_name(request.vm), offer.location, offer.accelerator, offer.use_spot, now_s,
                    labels=dict(request.labels), usd_per_h="", cause="SkyPilot launches it", asked=offer.location,
                )  # fmt: skip
                try:
                    records.write(self._folder, record)
                except OSError as error:
                    raise TransientError(
                        f"{request.vm}: its record cannot be written ({error}); nothing was rented"
                    ) from error
            launch(self._run, request, record)

    def observe(self) -> Sequence[Observed]:
        """Return all VMs of the run, including monitors. Raises TransientError if SkyPilot does not answer."""
        now_s = self._run.now_s()
        found = list(monitor.observe(self._run_folder, now_s))
        # VMs whose launch is in progress are not shown: the launch itself reports whether they are accepted.
        known = [
            r
            for r in records.read_all(self._folder)
            if not r.refused and (r.launched or r.ending or r.end_state)
        ]
        living = [r for r in known if r.launched and not r.end_state]
        listing = self._listing(living, now_s) if living else {}
        with ThreadPoolExecutor(max(1, min(_PARALLEL, len(living)))) as pool:
            updated = {
                r.vm: r
                for r in pool.map(lambda r: self._look(r, listing.get(r.cluster), now_s, living), living)
            }
        for record in known:
            record = updated.get(record.vm, record)
            found.append(observed(record, listing.get(record.cluster), now_s))
        return found

    def terminate(self, vm: str) -> None:
        """Ask the VM's program to exit, collect its small files and end its cluster. Returns once that is gone.

        A full disk does not prevent this: the VM is ended even if that cannot be recorded.
        """
        if is_monitor(vm):
            monitor.end(self._run_folder, vm)
            return
        record = records.read(self._folder, vm)
        if record is None or record.end_state or record.refused:
            return
        record = self._remember(record, ending=True)
        if record.launched and record.ssh:
            ssh.run_on(record.address, record.ssh, stop_command(), _STOP_S)
            self._collect(record)
        if record.asking and not record.launched:
            self._run.await_launch(record.cluster)
        self._run.down(record.cluster)
        if record.launched:
            end_in_aws(record)
        try:
            self._run.mark_ended(vm)
        except OSError as error:
            _log.warning("%s has ended, but this cannot be recorded: %s", vm, error)

    def collect(self, vm: str) -> str:
        """Return `<run>/vms/<vm>`, with what could be fetched from the VM before its end."""
        if is_monitor(vm):
            return str(self._run_folder / "monitor")
        record = records.read(self._folder, vm)
        if record is not None and record.launched and not record.end_state:
            self._collect(record)
        return str(self._run_folder / "vms" / vm)

    def list_ours(self, owner: str) -> Sequence[Owned]:
        """Return SkyPilot's clusters and, on AWS, the account's own VMs, volumes and addresses with the owner's label.

        On other clouds only what this machine's SkyPilot knows is found. Raises CredentialsError, TransientError.
        """
        from cloud.sky.aws import account as aws

        wanted = label_value(owner)
        found: list[Owned] = []
        server.ensure(self._home)
        for cluster in self._run.call("list", lambda: sdk.list_clusters()):
            if cluster.labels.get("orch-owner") != wanted:
                continue
            lease = cluster.labels.get("orch-lease-until", "")
            found.append(
                Owned(
                    kind="cluster",
                    id=cluster.name,
                    vm=cluster.labels.get("orch-vm", ""),
                    run=cluster.labels.get("orch-run", ""),
                    owner=wanted,
                    location=cluster.location,
                    lease_until_s=float(lease) if lease.isdigit() else None,
                    link=cluster.link,
                )
            )
        return [*found, *aws.list_tagged(wanted)]

    def release(self, owned: Owned) -> None:
        """End one of these resources. Raises InvalidRequestError if it does not carry the label, TransientError."""
        from cloud.sky.aws import account as aws

        if owned.kind != "cluster":
            aws.release(owned)
            return
        server.ensure(self._home)
        cluster = self._run.call("list", lambda: sdk.find(owned.id))
        if cluster is None:
            return
        if cluster.labels.get("orch-owner") != label_value(owned.owner) or not owned.owner:
            raise InvalidRequestError(f"{owned.id} does not carry the label orch-owner={owned.owner}")
        self._run.down(owned.id)

    def close(self) -> None:
        """End everything of the run, and check twice that nothing is left. Raises TransientError naming what is left.

        An error in one step does not prevent the others.
        """
        if self._run_folder.is_dir():
            _touch(self._folder / "closed")  # nothing is launched from here on
        known = records.read_all(self._folder)
        with ThreadPoolExecutor(max(1, min(_PARALLEL, len(known)))) as pool:
            remaining = [e for e in pool.map(self._try_terminate, (r.vm for r in known)) if e]
        remaining += _tried("the monitor", lambda: monitor.end(self._run_folder))
        if known:
            remaining += _tried("what SkyPilot still lists", lambda: sweep(self._run, known) or [])
            for pause_s in (0.0, 3.0):
                time.sleep(pause_s)
                remaining += _tried("the clouds' lists", lambda: left(self._run, known))
        if remaining:
            raise TransientError(
                f"{self._run_folder.name}: not proven to be gone: {', '.join(sorted({*remaining}))}"
            )
        if known:
            _touch(self._folder / "proven")
        for record in known:
            ssh.close_connection(record.address, record.ssh)
        for path in self._folder.glob("*.ship"):
            shutil.rmtree(path, ignore_errors=True)
        if (self._home / "sky-server.json").exists():
            server.leave(self._home, self._run_folder.name)

    # observing

    def _listing(self, living: Sequence[VmRecord], now_s: float) -> dict[str, Listed]:
        """Return SkyPilot's list of the run's clusters, at most `_LIST_PERIOD_S` old.

        If a VM does not answer or is absent, SkyPilot is told to query the cloud, which takes it up to half a minute. Not
        for AWS: EC2 is queried directly (`_look`).
        """
        path = self._folder / ".listing"
        kept = _read(path)
        wanted = [r.cluster for r in living]
        others = [r for r in living if not AWS.has(r.location)]
        silent = any(r.unreached_since_s and now_s - r.unreached_since_s > 5.0 for r in others)
        ask = silent and not 0.0 <= now_s - kept.get("asked_s", 0.0) <= _ASK_CLOUD_S
        fresh = 0.0 <= now_s - kept.get("at_s", 0.0) < _LIST_PERIOD_S and set(wanted) <= set(
            kept.get("wanted", ())
        )
        if fresh and not ask:
            return {name: Listed(**row) for name, row in kept["rows"].items()}
        server.ensure(self._home)
        found = self._run.call("list", lambda: sdk.list_clusters(wanted, ask_cloud=ask))
        rows = {c.name: Listed(c.name, c.status, c.address) for c in found}
        # Absence is only believed when confirmed by the cloud.
        if any(r.cluster not in rows for r in others) and not ask:
            found = self._run.call("list", lambda: sdk.list_clusters(wanted, ask_cloud=True))
            rows, ask = {c.name: Listed(c.name, c.status, c.address) for c in found}, True
        state = {
            "at_s": now_s, "asked_s": now_s if ask else kept.get("asked_s", 0.0), "wanted": wanted,
            "rows": {name: asdict(row) for name, row in rows.items()},
        }  # fmt: skip
        try:
            _write(path, state)
        except OSError as error:
            _log.warning("SkyPilot's list cannot be cached: %s", error)
        return rows

    def _look(
        self, record: VmRecord, listed: Listed | None, now_s: float, living: Sequence[VmRecord] = ()
    ) -> VmRecord:
        """Query one VM and record its report, or that it is gone. `living`: the VMs that may be its neighbours."""
        peek = skew = None
        if listed is not None:
            if record.ending:
                return record
            roster = _read(self._run_folder / "monitor" / "roster.json")
            peers = peers_to_join(record, roster)
            if peers and not record.told:
                try:  # record it first: the VM may receive the message even if it does not answer
                    record = records.update(self._folder, record.vm, told=True)
                except OSError as error:
                    _log.warning("%s cannot be told which peers to join: %s", record.vm, error)
                    peers = ""
            peek, skew = (
                self._peek(record, peers, neighbours(record, living, roster)) if record.ssh else (None, None)
            )
        alive, why = (None, "") if peek is not None else self._ask_cloud(record)
        with records.lock(self._folder, record.vm, "record"):
            current = records.read(self._folder, record.vm) or record
            if listed is None and alive is None:
                changed = absent(current, now_s)
            elif alive is False:
                changed = gone(current, now_s, why)
            else:
                changed = after_peek(after_skew(current, skew), peek, now_s)
            if changed != current:
                try:
                    records.write(self._folder, changed)
                except OSError as error:  # the next call finds the same
                    _log.warning("%s: its state cannot be recorded: %s", record.vm, error)
        return changed

    def _peek(
        self, record: VmRecord, peers: str, near: str
    ) -> tuple[tuple[dict[str, Any], dict[str, Any]] | None, Skew | None]:
        """Return a VM's report and its clock. A report that makes a reader raise counts as silence of that VM only."""
        command = peek_command(record.address, peers, self._run.now_s(), near)
        try:
            asked_s, began = time.time(), time.monotonic()
            text = ssh.run_on(record.address, record.ssh, command, _PEEK_S)
            return parse_peek(text), skew_of(text, asked_s, time.monotonic() - began)
        except Exception:  # noqa: BLE001 - must not hide the other VMs
            _log.exception("%s: its report cannot be read", record.vm)
            return None, None

    def _remember(self, record: VmRecord, **changes: Any) -> VmRecord:
        """Return the changed record, and write it unless the disk is full."""
        try:
            return records.update(self._folder, record.vm, **changes)
        except OSError as error:
            _log.warning("%s: %s cannot be recorded: %s", record.vm, ", ".join(changes), error)
            return replace(record, **changes)

    def _ask_cloud(self, record: VmRecord) -> tuple[bool | None, str]:
        """Return whether the VM runs according to the cloud (None: unknown), and why it ended if it did."""
        from cloud.sky.aws import account as aws

        if not AWS.has(record.location) or not record.cluster_on_cloud:
            return None, ""
        try:
            return aws.instance_status(record.location.split("/")[1], record.cluster_on_cloud)
        except ProviderError as error:
            _log.warning("%s: %s", record.vm, error)
            return None, ""

    # ending

    def _try_terminate(self, vm: str) -> str:
        try:
            self.terminate(vm)
        except ProviderError as error:
            return f"{vm} ({error})"
        except Exception as error:  # noqa: BLE001 - logged; the other VMs are still ended
            _log.exception("%s cannot be ended", vm)
            return f"{vm} ({error!r})"
        return ""

    def _collect(self, record: VmRecord) -> None:
        to = self._run_folder / "vms" / record.vm
        try:
            came = ssh.fetch(record.address, record.ssh, FOLDER, _FILES, to, _COLLECT_S)
            if came:
                records.update(self._folder, record.vm, collected=True)
        except OSError as error:  # a full disk, for example: the VM is ended anyway
            _log.warning("%s: its files cannot be stored: %s", record.vm, error)


def _tried(what: str, step: Callable[[], list[str]]) -> list[str]:
    """Run a step of `close`; returns what it found left, or why it failed."""
    try:
        return step()
    except ProviderError as error:
        return [f"{what} ({error})"]
    except Exception as error:  # noqa: BLE001 - logged; the other steps are still run
        _log.exception("%s", what)
        return [f"{what} ({error!r})"]


def _touch(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch()
    except OSError as error:
        _log.warning("%s cannot be created: %s", path, error)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _write(path: Path, content: dict[str, Any]) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, path)
