"""Unix time that only goes forward: a machine's clock that is set while a run goes on must not tear its timeline."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

MAX_SKEW_S = 3600.0  # between the clocks of two machines of a run: that much changes nothing, more is refused
SET_THE_CLOCK = "`sudo chronyc makestep` or `sudo timedatectl set-ntp true` sets it"


def ticks_s() -> float:
    """Seconds since some moment of this machine's, by a clock that nobody can set."""
    # With the time the machine slept, where the system can tell: a VM is billed for it.
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def steady_clock(
    wall_s: Callable[[], float] = time.time,
    ticks_s: Callable[[], float] = ticks_s,
    not_before_s: float = 0.0,
) -> Callable[[], float]:
    """Unix seconds as the machine tells them now, or `not_before_s` when that is later, and from then on by
    `ticks_s`, which nobody can set."""
    offset_s = max(wall_s(), not_before_s) - ticks_s()
    return lambda: offset_s + ticks_s()


def boot_id() -> str:
    """Names the time from the machine's start to its next one; "" where the system does not say."""
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
    """One unix clock for all processes of this machine that look after a run, one after the other too.

    The first that asks begins it, as `steady_clock`; `<run>/clock-<boot>.json` tells the others, so that no setting of the
    machine's clock is seen until the machine itself starts again. Without `begin`: a run that has none is read by the machine's.
    Where the file cannot be written (a full disk) the clock is this process's own.
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
    """The offset in the file, which is made with this one if nobody else has made it meanwhile."""
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
        _log.warning("%s: this process has a clock of its own: %s", path, error)
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
