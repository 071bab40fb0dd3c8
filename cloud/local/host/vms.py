"""The VMs of one emulated cloud: what is known of each, and how it is written down."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud.local.host.guardian import write_json
from cloud.provider import Observed, Owned, VmState, is_monitor
from cloud.vm_report import read_status

NOTICE_FILE = "notice.json"  # in the VM's folder, once the provider has announced its end


@dataclass
class Vm:
    """One VM; changed by the host only. Times are unix seconds."""

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
    pid: int | None = None  # as the machine sees it
    host_pid: int | None = None  # as the host process sees it
    labels: dict[str, str] = field(default_factory=dict)
    terminating: bool = False  # its program was told to end, since somebody asked for it

    @property
    def alive(self) -> bool:
        """Rented: it counts against capacity and is paid for."""
        return self.state in ("pending", "running")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, as mirrored in host.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Vm:
        """What `to_json` gave."""
        return cls(**row)


def vm_folder(run_folder: Path, vm: str) -> Path:
    """Where a VM's program finds its config and writes: vms/<vm>; every monitor goes on in `monitor`."""
    return run_folder / "monitor" if is_monitor(vm) else run_folder / "vms" / vm


def observed(vm: Vm, run_folder: Path) -> Observed:
    """A VM as the provider's contract shows it."""
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
    """What a metadata endpoint says on the VM, as a file in its folder: AWS's JSON of an instance action.

    Needs `notice_at_s`; whole seconds, rounded up, as there.
    """
    at = datetime.fromtimestamp(math.ceil(vm.notice_at_s or 0.0), UTC)
    action = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    write_json(vm_folder(run_folder, vm.vm) / NOTICE_FILE, action)


def owned(vm: Vm, run_folder: str) -> Owned:
    """A VM as `list_ours` shows it; its id is `<run's folder>/<vm>`."""
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


def furnish(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a VM's folder with files that only the user may read (they may be keys).

    What an earlier program said of itself there goes: a monitor has the folder of the one that died.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "status.json").unlink(missing_ok=True)
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
