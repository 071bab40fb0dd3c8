"""Readers of published spot histories: the bytes of one file to a `History`. Pure."""

from __future__ import annotations

import bisect
import itertools
import json
import math
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime

from cloud.spot.history import History
from cloud.spot.text import HistoryError, read_json, read_rows, read_text, sha256_of, whole_number

GAP_INTERVALS = 10
"""A stretch without a line is a gap if it is longer than this many median intervals between lines."""

_LARGEST_STEP_BACK_S = 300  # of a time that supersedes lines above it; more is an unsorted file
_ZONES_S = 14 * 3600  # the local time of a source without a time zone is at most this far ahead of UTC
_LARGEST_COUNT = 10**9


def read_bamboo(name: str, content: bytes) -> History:
    """Read uclasystem/bamboo's events, `ms,add|remove,node` a line; the history ends with the last event.

    The history begins with the first event: what was alive before it is not recorded. Raises HistoryError.
    """
    events: list[tuple[str, int, list[str], list[str]]] = []
    for number, fields in read_rows(name, content):
        where = f"{name}:{number}"
        if len(fields) != 3 or fields[1] not in ("add", "remove") or not fields[2]:
            raise HistoryError(f"{where}: expected 'ms,add,node' or 'ms,remove,node'")
        ms = whole_number(fields[0])
        if ms is None:
            raise HistoryError(f"{where}: the time must be milliseconds, 0 or more, of at most 15 digits")
        added = fields[1] == "add"
        events.append((where, ms, [fields[2]] if added else [], [] if added else [fields[2]]))
    return _of_nodes(name, content, events, None, ())


def read_bamboo_counts(name: str, content: bytes, now_s: float = math.inf) -> History:
    """Read uclasystem/bamboo's counts, `YYYY-MM-DD, HH:MM:SS, VMs` a line, which need not be quite sorted.

    A line supersedes what lines above it say of its own time and of later times, because it was written
    later; one that is more than 300 s before the latest time above it is refused. The source names no time
    zone: times are taken as UTC, and refused as future only where they are so in every time zone. Raises
    HistoryError.
    """
    kept: list[tuple[int, float, int]] = []  # line, seconds, VMs
    dropped: list[tuple[int, float, int]] = []
    latest_s = -math.inf
    for number, fields in read_rows(name, content):
        where = f"{name}:{number}"
        count = whole_number(fields[2], _LARGEST_COUNT) if len(fields) == 3 else None
        if count is None:
            raise HistoryError(f"{where}: expected 'YYYY-MM-DD, HH:MM:SS, number of VMs'")
        try:
            at = datetime.strptime(f"{fields[0]} {fields[1]}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            raise HistoryError(f"{where}: the first two fields must be a date and a time of day") from None
        at_s = at.timestamp()
        if at_s < 0:
            raise HistoryError(f"{where}: {fields[0]} is before 1970")
        if at_s > now_s + _ZONES_S:
            raise HistoryError(f"{where}: {fields[0]} {fields[1]} is in the future")
        if at_s < latest_s - _LARGEST_STEP_BACK_S:
            raise HistoryError(
                f"{where}: the time is more than {_LARGEST_STEP_BACK_S} s before one above; sort the file by time"
            )
        latest_s = max(latest_s, at_s)
        while kept and kept[-1][1] >= at_s:
            dropped.append(kept.pop())
        kept.append((number, at_s, count))
    zero_s = kept[0][1] if kept else 0.0
    times = [at_s - zero_s for _, at_s, _ in kept]
    return _until_the_last(
        name,
        content,
        dict(zip(times, (count for _, _, count in kept), strict=True)),
        began_at_s=zero_s,
        gaps_s=_gaps(times),
        contradicted_lines=_contradicted(kept, dropped),
    )


def read_parcae(name: str, content: bytes) -> History:
    """Read JF-D/Parcae's `p3.csv`, `ms,number of nodes` a line; of lines with one time the last counts.

    The history ends with the last line. Raises HistoryError.
    """
    levels: dict[float, int] = {}
    last = 0
    for number, fields in read_rows(name, content):
        where = f"{name}:{number}"
        numbers = [whole_number(field) for field in fields]
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            raise HistoryError(f"{where}: expected 'ms,nodes', each 0 or more and of at most 15 digits")
        if numbers[0] < last:
            raise HistoryError(f"{where}: the time is before that of the line above; sort the file")
        last = numbers[0]
        levels[last / 1000] = numbers[1]
    return _until_the_last(name, content, levels)


def read_parcae_trace(name: str, content: bytes) -> History:
    """Read JF-D/Parcae's `trace_*.txt`, `[ms, event, {"nodes": [], "duration": ms}]` a line.

    `add` and `remove` change the nodes; `no-op` and `migration` are what the trainer did. The history ends
    when the last line's duration is over. Raises HistoryError.
    """
    events: list[tuple[str, int, list[str], list[str]]] = []
    gaps: list[tuple[float, float]] = []
    end_ms: int | None = None
    for number, line in enumerate(read_text(name, content).splitlines(), 1):
        if not line.strip():
            continue
        where, found = f"{name}:{number}", read_json(name, line, number)
        if not (isinstance(found, list) and len(found) == 3 and isinstance(found[2], dict)):
            raise HistoryError(f"{where}: expected [ms, event, {{nodes, duration}}]")
        ms, event, nodes = whole_number(found[0]), found[1], found[2].get("nodes")
        lasts = whole_number(found[2].get("duration"))
        if ms is None or lasts is None:
            raise HistoryError(
                f"{where}: time and duration must be milliseconds, 0 or more, of at most 15 digits"
            )
        if not isinstance(nodes, list) or not all(isinstance(node, str) and node for node in nodes):
            raise HistoryError(f"{where}: nodes must be a list of names")
        if event not in ("add", "remove", "no-op", "migration") or (nodes and event not in ("add", "remove")):
            raise HistoryError(f"{where}: the event must be add, remove, or no-op or migration without nodes")
        events.append((where, ms, nodes if event == "add" else [], nodes if event == "remove" else []))
        if end_ms is not None and end_ms < ms:
            gaps.append((end_ms / 1000, ms / 1000))
        end_ms = max(end_ms or 0, ms + lasts)
    return _of_nodes(name, content, events, end_ms, gaps)


def read_skypilot(name: str, content: bytes) -> History:
    """Read skypilot-org/spot-traces: `{"metadata": {"gap_seconds"}, "data": [0 or 1]}`, one file a zone.

    Each value holds for one gap. Raises HistoryError.
    """
    found = read_json(name, read_text(name, content))
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
        sha256=sha256_of(content),
        times_s=tuple(index * gap for index in range(len(data))),
        capacity=tuple(data),
        end_s=len(data) * gap,
    )


def looks_like_parcae_trace(line: str) -> bool:
    """Whether a file whose first line is this one is a Parcae trace rather than another JSON document."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and len(found) == 3 and isinstance(found[1], str)


def _of_nodes(
    name: str,
    content: bytes,
    events: Iterable[tuple[str, int, list[str], list[str]]],
    end_ms: int | None,
    gaps_s: Iterable[tuple[float, float]],
) -> History:
    """The history of named nodes: (file:line, ms, added, removed). It ends at `end_ms`, or with the last event.

    A lifetime is complete if the node was added after the first event's time and removed.
    """
    since: dict[str, int] = {}
    levels: dict[float, int] = {}
    lifetimes: list[float] = []
    censored = 0
    first: int | None = None
    last = 0
    for where, ms, added, removed in events:
        first = ms if first is None else first
        if ms < last:
            raise HistoryError(f"{where}: the time is before that of the line above; sort the file")
        for node in added:
            if node in since:
                raise HistoryError(f"{where}: this node is added although it is alive")
            since[node] = ms
        for node in removed:
            if node not in since:
                raise HistoryError(f"{where}: this node is removed although it was not added")
            began = since.pop(node)
            if began > first:
                lifetimes.append((ms - began) / 1000)
            else:
                censored += 1
        last = ms
        levels[ms / 1000] = len(since)
    if end_ms is not None and end_ms > last:
        levels[end_ms / 1000] = len(since)
    return _until_the_last(
        name,
        content,
        levels,
        node_lifetimes_s=tuple(lifetimes),
        nodes_censored=censored + len(since),
        gaps_s=tuple(gaps_s),
    )


def _until_the_last(
    name: str,
    content: bytes,
    levels: dict[float, int],
    *,
    began_at_s: float | None = None,
    node_lifetimes_s: tuple[float, ...] | None = None,
    nodes_censored: int | None = None,
    gaps_s: tuple[tuple[float, float], ...] = (),
    contradicted_lines: tuple[int, ...] = (),
) -> History:
    """The history of capacities by the seconds at which they begin, in order; it ends with the last of these."""
    if len(levels) < 2:
        raise HistoryError(f"{name}:1: fewer than two different times, so there is no duration")
    times = tuple(levels)
    return History(
        source=name,
        sha256=sha256_of(content),
        times_s=times[:-1],
        capacity=tuple(levels.values())[:-1],
        end_s=times[-1],
        began_at_s=began_at_s,
        node_lifetimes_s=node_lifetimes_s,
        nodes_censored=nodes_censored,
        gaps_s=gaps_s,
        contradicted_lines=contradicted_lines,
    )


def _gaps(times_s: list[float]) -> tuple[tuple[float, float], ...]:
    """Stretches between lines longer than `GAP_INTERVALS` median intervals."""
    pairs = list(itertools.pairwise(times_s))
    if not pairs:
        return ()
    longest_s = GAP_INTERVALS * statistics.median(b - a for a, b in pairs)
    return tuple((a, b) for a, b in pairs if b - a > longest_s)


def _contradicted(
    kept: list[tuple[int, float, int]], dropped: list[tuple[int, float, int]]
) -> tuple[int, ...]:
    """Line numbers of superseded lines whose count is not the one that the kept lines give for their time."""
    times = [at_s for _, at_s, _ in kept]
    found: list[int] = []
    for number, at_s, count in dropped:
        index = bisect.bisect_right(times, at_s) - 1
        if index < 0 or kept[index][2] != count:
            found.append(number)
    return tuple(sorted(found))
