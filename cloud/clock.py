"""Unix time that only moves forward, even if the machine's clock is changed during a run."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

MAX_SKEW_S = 3600.0  # allowed between the clocks of two machines of a run; a smaller skew has no effect
SET_CLOCK_HINT = "`sudo chronyc makestep` or `sudo timedatectl set-ntp true` sets it"


def ticks_s() -> float:
    """Seconds since an arbitrary moment, by a clock that cannot be set."""
    # CLOCK_BOOTTIME also counts the time that the machine was suspended: a VM is billed for it.
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def steady_clock(
    wall_s: Callable[[], float] = time.time,
    ticks_s: Callable[[], float] = ticks_s,
    not_before_s: float = 0.0,
) -> Callable[[], float]:
    """Return a clock of unix seconds that starts at the wall clock, or at `not_before_s` if that is later.

    It then advances with `ticks_s` and ignores changes of the machine's clock.
    """
    offset_s = max(wall_s(), not_before_s) - ticks_s()
    return lambda: offset_s + ticks_s()


def boot_id() -> str:
    """Identify the time between two boots of this machine; "" if the system does not provide it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def run_clock(
    run_folder: Path,
    *,
    begin: bool = True,
    wall_s: Callable[[], float] = time.time,
    ticks_s: Callable[[], float] = ticks_s,
    boot: Callable[[], str] = boot_id,
    not_before_s: float = 0.0,
) -> Callable[[], float]:
    """Return one unix clock that all processes of this machine share for a run, including later ones.

    The first process that asks starts it (see `steady_clock`) and stores its offset in `<run>/clock-<boot>.json`. Changes
    of the machine's clock therefore have no effect until the machine reboots. With `begin=False`, a run without such a
    file is read with the wall clock. If the file cannot be written (full disk), the clock is local to this process.
    """
    name = boot()
    path = run_folder / f"clock-{name}.json"
    offset_s = _offset_s(path) if name else None
    if offset_s is None and not begin:
        return wall_s
    if offset_s is None:
        clock = steady_clock(wall_s, ticks_s, not_before_s)
        offset_s = clock() - ticks_s()
        if name:
            offset_s = _agreed(path, offset_s)
    return steady_clock(lambda: offset_s + ticks_s(), ticks_s, not_before_s)


def _agreed(path: Path, offset_s: float) -> float:
    """Return the offset stored in the file; store this one unless another process has stored its own meanwhile."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(json.dumps({"offset_s": offset_s}))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    except OSError as error:
        _log.warning("%s cannot be written, so this process uses a clock of its own: %s", path, error)
        return offset_s
    known = _offset_s(path)
    return offset_s if known is None else known


def _offset_s(path: Path) -> float | None:
    try:
        return float(json.loads(path.read_text())["offset_s"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be read: %r", path, error)
        return None
