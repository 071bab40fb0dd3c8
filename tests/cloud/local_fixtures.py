"""What the tests of the emulated cloud share: starting one, waiting, and counting what is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.local import LocalCloud, LocalOptions
from cloud.provider import LaunchRequest, Observed, Offer

US, EU = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"


def options(**changes: Any) -> LocalOptions:
    return LocalOptions(**{"preload": (), "lease_s": 60.0, **changes})


def rent(cloud: LocalCloud, vm: str, program: str, location: str = US, **config: Any) -> None:
    module = program if "." in program else f"local_programs:{program}"
    cloud.request(LaunchRequest(vm, Offer(location, "e", "T4:1", True, None, ""), module, config))


def look(cloud: LocalCloud, vm: str) -> Observed:
    return next(seen for seen in cloud.observe() if seen.vm == vm)


def wait_for(what: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.03)
    return found


def limited_to(limit: float, rate: float) -> bool:
    """Is this the limit that holds a measured rate? A busy host sends late: that takes from a rate and adds nothing.

    How near to its limit a rate comes on a quiet host is told by `orch net check`.
    """
    return 0.8 * limit < rate < 1.05 * limit


def in_phase(cloud: LocalCloud, vm: str, phase: str) -> Any:
    return wait_for(lambda: look(cloud, vm).status.get("phase") == phase and look(cloud, vm))


def left_of(run_folder: Path) -> list[str]:
    """Processes of the run (by command line, folder or descent), its mounts, its temporary folder."""
    marks = {str(run_folder)}
    temp = run_folder / "cloud" / "temp"
    if temp.exists():
        marks.add(temp.read_text())
    found = [f"folder {mark}" for mark in marks if mark != str(run_folder) and Path(mark).exists()]
    found += [
        f"mount {line}"
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if str(run_folder) in line
    ]
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{entry}/cmdline").read_text() + " " + os.readlink(f"/proc/{entry}/cwd")
        except OSError:
            continue
        if str(run_folder) in text:
            found.append(f"process {entry}: {text}")
    return found


def namespaces() -> set[str]:
    """All network, PID and mount namespaces with a process in them."""
    found: set[str] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        for kind in ("net", "pid", "mnt"):
            try:
                found.add(os.readlink(f"/proc/{entry}/ns/{kind}"))
            except OSError:
                continue
    return found
