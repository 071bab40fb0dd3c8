"""The provider's records of VMs: one small file each, `<run>/sky/<vm>.json`."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cloud.durable_file import write_durably
from cloud.sky.names import cluster_name


@dataclass(frozen=True)
class VmRecord:
    """The record of one VM. Times are unix seconds; "" and None mean not known (yet)."""

    vm: str
    cluster: str
    location: str  # as requested; after the launch, as read back
    accelerator: str
    use_spot: bool
    requested_at_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    launched: bool = False  # sky.launch has succeeded
    asking: bool = False  # a launch is being sent to SkyPilot; the sender may have died before the answer
    refused: bool = False  # it never became a VM
    ready_at_s: float | None = None
    ended_at_s: float | None = None
    end_state: str = ""  # "preempted", "terminated", "failed" once it is gone
    ending: bool = False  # termination was requested
    collected: bool = False
    cause: str = ""
    address: str = ""
    internal: str = ""  # address inside the cloud's network
    instance: str = ""
    instance_id: str = ""
    cluster_on_cloud: str = ""
    usd_per_h: str = ""
    price_source: str = ""
    link: str = ""
    ssh: Mapping[str, Any] = field(default_factory=dict)  # user, key, port, proxy
    asked: str = ""  # the location as requested
    too_dear: bool = False  # it was rented, cost more than its ceiling, and was ended
    notice_at_s: float | None = None
    status: Mapping[str, Any] = field(default_factory=dict)  # the program's latest status.json
    job: Mapping[str, Any] = field(default_factory=dict)  # job.json: phase, exit_code, error, hopeless
    told: bool = False  # it was told which peers to join, or that it starts the swarm
    unreached_since_s: float | None = None
    clock_skew_s: float | None = None  # how far its clock is ahead of this machine's, as last measured
    clock_error_s: float | None = None  # maximum error of that measurement
    absent_reads: int = 0  # consecutive lists without it


def read(folder: Path, vm: str) -> VmRecord | None:
    """Read a VM's record; None if the VM was never requested.

    An unreadable record is treated as that of a VM that may exist; the name of its cluster is derived from its own.
    """
    path = folder / f"{vm}.json"
    try:
        raw = json.loads(path.read_text())
        return VmRecord(**{k: v for k, v in raw.items() if k in VmRecord.__dataclass_fields__})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = f"{path} cannot be read ({type(error).__name__}): the VM may exist, but nothing else is known about it"
        return VmRecord(vm, cluster_name(vm), "", "", False, path.stat().st_mtime, launched=True, cause=why)


def read_all(folder: Path) -> list[VmRecord]:
    """Read all records of a run, sorted by name."""
    found = (read(folder, path.stem) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def write(folder: Path, record: VmRecord) -> None:
    """Write a record atomically and durably: a VM that may exist must not be forgotten."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(folder / f"{record.vm}.json", json.dumps(asdict(record)).encode())


def update(folder: Path, vm: str, **changes: Any) -> VmRecord:
    """Change some fields of an existing record; other processes may change others at the same time."""
    with lock(folder, vm, "record"):
        record = read(folder, vm)
        if record is None:
            raise KeyError(vm)
        changed = replace(record, **changes)
        if changed != record:
            write(folder, changed)
        return changed


@contextmanager
def lock(folder: Path, vm: str, what: str) -> Generator[None, None, None]:
    """Hold a VM's lock of this name; the kernel releases it if the holder dies."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f".{vm}.{what}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
