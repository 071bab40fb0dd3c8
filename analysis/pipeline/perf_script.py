"""Reads the output of `perf script -F pid,tid,time,ip,sym,dso --ns`, also with the fields event and period."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analysis.pipeline.native_function import KERNEL, UNKNOWN, NativeFunction, native_function

CLOCK_EVENT = "cpu-clock"
"""The event of samples in whose lines there is none."""

# 30808/30808 51394.100845483:        270 page-faults:      7fba1b58bb75 __memmove_avx512 (/usr/lib/libc.so.6)
_SAMPLE = re.compile(
    r"\s*(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<s>\d+)\.(?P<ns>\d{9}):\s+"
    r"(?:(?P<period>\d+)\s+(?P<event>\S+):\s+)?"
    r"(?P<ip>[0-9a-f]+)\s+(?P<symbol>.*?)\s+\((?P<file>/.*|\[.*|[^()]*)\)\s*"
)
_KERNEL_ADDRESS = 1 << 63
_MODIFIERS = re.compile(r":[ukhIGHpPSDWeb]+$")


class PerfScriptError(Exception):
    """A line is not a sample; the message is a sentence with the line."""


@dataclass(frozen=True, slots=True)
class PerfSample:
    """One sample. `weight` is the number of events that it stands for: 1 unless the period was printed."""

    pid: int
    tid: int
    time_ns: int  # on the clock that `perf record -k` names
    event: str
    weight: int
    function: NativeFunction


def event_name(event: str) -> str:
    """The event without modifiers: cpu-clock for "cpu-clock:u", as perf calls it for ordinary users."""
    return _MODIFIERS.sub("", event)


def read_perf_script(lines: Iterable[str]) -> Iterator[PerfSample]:
    """Yield the samples; empty lines and comments are skipped. Raises PerfScriptError."""
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line.rstrip("\n"))
        if found is None:
            raise PerfScriptError(
                f"perf script printed a line that is not a sample ({line.strip()[:120]!r}); the output of perf 6.1 is known"
            )
        function = native_function(found["symbol"], found["file"])
        if function.library == UNKNOWN and int(found["ip"], 16) >= _KERNEL_ADDRESS:
            function = native_function(found["symbol"], f"[{KERNEL}]")
        yield PerfSample(
            int(found["pid"]),
            int(found["tid"]),
            int(found["s"]) * 1_000_000_000 + int(found["ns"]),
            event_name(found["event"] or CLOCK_EVENT),
            int(found["period"] or 1),
            function,
        )
