"""A checker of Chrome's trace format, as far as viewers depend on it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

_US = 0.0011  # rounding of times to doubles of microseconds


def problems(document: dict[str, Any]) -> list[str]:
    """What a viewer would refuse or not draw."""
    found = []
    document = json.loads(json.dumps(document, allow_nan=False))
    tracks = defaultdict(list)
    named = {"process_name": set(), "thread_name": set()}
    arrows = defaultdict(dict)
    for number, event in enumerate(document["traceEvents"]):
        where = f"event {number}"
        if event["ph"] not in ("X", "M", "s", "f"):
            found.append(f"{where}: phase {event['ph']}")
        if type(event["pid"]) is not int or type(event["tid"]) is not int or not event["name"]:
            found.append(f"{where}: pid, tid or name")
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event["tid"]))
            continue
        if event["ts"] < 0:
            found.append(f"{where}: ts {event['ts']}")
        if event["ph"] == "X":
            if event["dur"] < 0:
                found.append(f"{where}: dur {event['dur']}")
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            if event["ph"] in arrows[event["id"]]:
                found.append(f"{where}: a second {event['ph']} of arrow {event['id']}")
            arrows[event["id"]][event["ph"]] = event
    for track, slices in tracks.items():
        if track not in named["thread_name"] or (track[0], 0) not in named["process_name"]:
            found.append(f"track {track} has no name")
        open_ends = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= start + _US:
                open_ends.pop()
            if open_ends and end > open_ends[-1] + _US:
                found.append(f"track {track}: the slice from {start} to {end} overlaps another")
            open_ends.append(end)
    for name, ends in arrows.items():
        if set(ends) != {"s", "f"}:
            found.append(f"arrow {name} has only {set(ends)}")
            continue
        if ends["s"]["ts"] > ends["f"]["ts"] + _US:
            found.append(f"arrow {name} goes back in time")
        if ends["f"].get("bp") != "e":
            found.append(f"arrow {name} binds to the next slice")
        for end in ends.values():
            around = tracks[end["pid"], end["tid"]]
            if not any(a - _US <= end["ts"] <= b + _US for a, b in around):
                found.append(f"arrow {name}: no slice at its {end['ph']}")
    return found
