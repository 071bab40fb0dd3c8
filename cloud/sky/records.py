"""What the provider itself has to remember of each VM: one small file, `<run>/sky/<vm>.json`."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class VmRecord:
    """One VM. Times are unix seconds; "" and None: not known (yet)."""

    vm: str
    cluster: str
    location: str  # as requested; after the launch as read back
    accelerator: str
    use_spot: bool
    requested_at_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    launched: bool = False  # sky.launch has succeeded once
    refused: bool = False  # it never became a VM
    ready_at_s: float | None = None
    ended_at_s: float | None = None
    end_state: str = ""  # "preempted", "terminated", "failed" once it is gone
    ending: bool = False  # terminate was asked for
    collected: bool = False
    cause: str = ""
    address: str = ""
    instance: str = ""
    instance_id: str = ""
    cluster_on_cloud: str = ""
    usd_per_h: str = ""
    price_source: str = ""
    link: str = ""
    ssh: Mapping[str, Any] = field(default_factory=dict)  # user, key, port, proxy
    asked: str = ""  # the location as requested
    too_dear: bool = False  # it was rented, cost more than its ceiling and was ended
    notice_at_s: float | None = None
    status: Mapping[str, Any] = field(default_factory=dict)  # the program's own last word
    job: Mapping[str, Any] = field(default_factory=dict)  # of the script around it: phase, exit_code, error
    told: bool = False  # whom to join, or that it begins the swarm
    unreached_since_s: float | None = None
    absent_reads: int = 0  # lists in a row that lacked it


def read(folder: Path, vm: str) -> VmRecord | None:
    """A VM's record; None when it was never asked for."""
    try:
        raw = json.loads((folder / f"{vm}.json").read_text())
    except FileNotFoundError:
        return None
    known = {f for f in VmRecord.__dataclass_fields__}
    return VmRecord(**{k: v for k, v in raw.items() if k in known})


def read_all(folder: Path) -> list[VmRecord]:
    """All of a run, by name."""
    found = (read(folder, path.stem) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def write(folder: Path, record: VmRecord) -> None:
    """Atomically, on the disk before it returns: a VM that may exist must not be forgotten."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{record.vm}.json"
    fresh = folder / f".{record.vm}.{os.getpid()}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def update(folder: Path, vm: str, **changes: Any) -> VmRecord:
    """Change some fields of a record that is there; others may be changed by another process meanwhile."""
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
    """Hold a VM's lock of that name; the kernel lets go of it when the holder dies."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f".{vm}.{what}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
