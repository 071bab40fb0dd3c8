"""The VMs of an emulated cloud: the state of each, and its representations."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud.local.host.guardian import write_json
from cloud.provider import Observed, Owned, VmState, is_monitor
from cloud.vm_report import read_status

NOTICE_FILE = "notice.json"  # in the VM's folder, once its preemption has been announced


@dataclass
class Vm:
    """One VM, changed by the host only. Times are unix seconds."""

    vm: str
    location: str
    address: str
    index: int  # of its node in the switch
    program: str
    billed: bool
    requested_at_s: float
    state: VmState = "pending"
    ready_at_s: float | None = None
    ended_at_s: float | None = None
    cause: str = ""
    notice_at_s: float | None = None
    pid: int | None = None  # in the machine's /proc
    host_pid: int | None = None  # in the host process's PID namespace
    labels: dict[str, str] = field(default_factory=dict)
    terminating: bool = False  # termination was requested and its program has received SIGTERM

    @property
    def alive(self) -> bool:
        """Whether it is rented: it counts against capacity and is billed."""
        return self.state in ("pending", "running")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, as stored in host.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Vm:
        """Inverse of `to_json`."""
        return cls(**row)


def vm_folder(run_folder: Path, vm: str) -> Path:
    """Folder of a VM's config and output: vms/<vm>; all monitors of a run share `monitor`."""
    return run_folder / "monitor" if is_monitor(vm) else run_folder / "vms" / vm


def process_title(vm: str, run: str) -> str:
    """How `ps` shows the processes of a VM. Names of VMs contain the run's id, those of monitors do not."""
    return f"orch: {vm}" if vm.startswith(run) else f"orch: {run} {vm}"


def observed(vm: Vm, run_folder: Path) -> Observed:
    """A VM in the form of the provider contract."""
    return Observed(
        vm=vm.vm,
        state=vm.state,
        location=vm.location,
        address=vm.address or None,
        requested_at_s=vm.requested_at_s,
        ready_at_s=vm.ready_at_s,
        ended_at_s=vm.ended_at_s,
        cause=vm.cause,
        notice_at_s=vm.notice_at_s,
        status=read_status(vm_folder(run_folder, vm.vm) / "status.json"),
        pid=vm.pid,
    )


def announce(run_folder: Path, vm: Vm) -> None:
    """Write a preemption notice to the VM's folder, in the JSON of AWS's instance-action metadata.

    `notice_at_s` must be set; it is rounded up to whole seconds, as on AWS.
    """
    at = datetime.fromtimestamp(math.ceil(vm.notice_at_s or 0.0), UTC)
    action = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    write_json(vm_folder(run_folder, vm.vm) / NOTICE_FILE, action)


def owned(vm: Vm, run_folder: str) -> Owned:
    """A VM in the form of `list_ours`; its id is `<run's folder>/<vm>`."""
    lease = vm.labels.get("orch-lease-until")
    return Owned(
        kind="vm",
        id=f"{run_folder}/{vm.vm}",
        vm=vm.vm,
        run=vm.labels.get("orch-run", ""),
        owner=vm.labels.get("orch-owner", ""),
        location=vm.location,
        lease_until_s=float(lease) if lease else None,
    )


def write_vm_folder(
    folder: Path, files: Mapping[str, bytes], folders: Mapping[str, str] | None = None
) -> None:
    """Create a VM's folder with files that only the user may read, since they may be keys, and copies of `folders`.

    Removes an earlier program's status: a new monitor reuses the folder of the previous one.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "status.json").unlink(missing_ok=True)
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
    for name, source in (folders or {}).items():
        shutil.copytree(source, folder / name, dirs_exist_ok=True)


def remove_disks(run_folder: Path) -> None:
    """Remove what the VMs of an ended run had on their disks besides logs: shard caches and copies of the user's code."""
    for name in ("cache", "code"):
        for folder in (run_folder / "vms").glob(f"*/{name}"):
            shutil.rmtree(folder, ignore_errors=True)
