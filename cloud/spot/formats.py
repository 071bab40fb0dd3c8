"""Readers of published spot histories: the bytes of one file to a `History`. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from cloud.spot.history import History

LARGEST_BYTES = 64 * 2**20


class HistoryError(ValueError):
    """A source that cannot be read; the message is one sentence that begins with file:line."""


def read_bamboo(name: str, content: bytes) -> History:
    """Read uclasystem/bamboo's events, `ms,add|remove,node` a line; the history ends with the last event.

    The history begins with the first event: what was alive before it is not recorded. Raises HistoryError.
    """
    alive: set[str] = set()
    levels: dict[float, int] = {}
    last = 0
    for number, line in enumerate(_text(name, content).splitlines(), 1):
        if not line.strip():
            continue
        where, fields = f"{name}:{number}", [field.strip() for field in line.split(",")]
        if len(fields) != 3 or fields[1] not in ("add", "remove") or not fields[2]:
            raise HistoryError(f"{where}: expected 'ms,add,node' or 'ms,remove,node'")
        if not (fields[0].isascii() and fields[0].isdigit() and len(fields[0]) <= 15):
            raise HistoryError(f"{where}: the time must be milliseconds, 0 or more, of at most 15 digits")
        ms, event, node = int(fields[0]), fields[1], fields[2]
        if ms < last:
            raise HistoryError(f"{where}: the time is before that of the line above; sort the file")
        if event == "add" and node in alive:
            raise HistoryError(f"{where}: this node is added although it is alive")
        if event == "remove" and node not in alive:
            raise HistoryError(f"{where}: this node is removed although it was not added")
        (alive.add if event == "add" else alive.remove)(node)
        last = ms
        levels[ms / 1000] = len(alive)
    return _until_the_last(name, content, levels)


def read_parcae(name: str, content: bytes) -> History:
    """Read JF-D/Parcae's `p3.csv`, `ms,number of nodes` a line; of lines with one time the last counts.

    The history ends with the last line. Raises HistoryError.
    """
    levels: dict[float, int] = {}
    last = 0
    for number, line in enumerate(_text(name, content).splitlines(), 1):
        if not line.strip():
            continue
        where, fields = f"{name}:{number}", [field.strip() for field in line.split(",")]
        if len(fields) != 2 or not all(f.isascii() and f.isdigit() and len(f) <= 15 for f in fields):
            raise HistoryError(f"{where}: expected 'ms,nodes', each 0 or more and of at most 15 digits")
        if int(fields[0]) < last:
            raise HistoryError(f"{where}: the time is before that of the line above; sort the file")
        last = int(fields[0])
        levels[last / 1000] = int(fields[1])
    return _until_the_last(name, content, levels)


def read_skypilot(name: str, content: bytes) -> History:
    """Read skypilot-org/spot-traces: `{"metadata": {"gap_seconds"}, "data": [0 or 1]}`, one file a zone.

    Each value holds for one gap. Raises HistoryError.
    """
    try:
        found = json.loads(_text(name, content))
    except json.JSONDecodeError as error:
        raise HistoryError(f"{name}:{error.lineno}: no valid JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise HistoryError(f"{name}:1: JSON with too deep nesting or too long a number") from None
    metadata = found.get("metadata") if isinstance(found, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 1e-3 <= gap <= 1e9:
        raise HistoryError(f"{name}:1: metadata.gap_seconds must be a number from 0.001 to 1e9")
    data = found.get("data")
    if not isinstance(data, list) or not data:
        raise HistoryError(f"{name}:1: data must be a list of 0 and 1 that is not empty")
    for index, value in enumerate(data):
        if isinstance(value, bool) or not isinstance(value, int) or value not in (0, 1):
            raise HistoryError(f"{name}:1: data[{index}] must be 0 or 1")
    return History(
        source=name,
        sha256=hashlib.sha256(content).hexdigest(),
        times_s=tuple(index * gap for index in range(len(data))),
        capacity=tuple(data),
        end_s=len(data) * gap,
    )


READERS: dict[str, Callable[[str, bytes], History]] = {
    "bamboo": read_bamboo,
    "parcae": read_parcae,
    "skypilot": read_skypilot,
}


def read_any(name: str, content: bytes) -> History:
    """Read a file of any of these formats, told apart by its first line. Raises HistoryError."""
    lines = (line for line in _text(name, content).splitlines() if line.strip())
    first = next(lines, "").strip()
    if not first:
        raise HistoryError(f"{name}:1: the file is empty")
    if first.startswith("{"):
        return read_skypilot(name, content)
    fields = [field.strip() for field in first.split(",")]
    if len(fields) == 3 and fields[1] in ("add", "remove"):
        return read_bamboo(name, content)
    if len(fields) == 2:
        return read_parcae(name, content)
    raise HistoryError(
        f"{name}:1: no known format; expected a JSON object of SkyPilot, lines 'ms,add|remove,node' or lines 'ms,nodes'"
    )


def _until_the_last(name: str, content: bytes, levels: dict[float, int]) -> History:
    """The history of capacities by the seconds at which they begin, in order; it ends with the last of these."""
    if len(levels) < 2:
        raise HistoryError(f"{name}:1: fewer than two different times, so there is no duration")
    times = tuple(levels)
    return History(
        source=name,
        sha256=hashlib.sha256(content).hexdigest(),
        times_s=times[:-1],
        capacity=tuple(levels.values())[:-1],
        end_s=times[-1],
    )


def _text(name: str, content: bytes) -> str:
    if len(content) > LARGEST_BYTES:
        raise HistoryError(f"{name}:1: the file is larger than {LARGEST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise HistoryError(f"{name}:{line}: the file is no UTF-8 text") from None
