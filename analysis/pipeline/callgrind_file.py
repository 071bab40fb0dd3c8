"""Reads a profile that callgrind dumped: instructions by function, without those of the functions that it calls.

The format is that of https://valgrind.org/docs/manual/cl-format.html, with the event Ir.
"""

from __future__ import annotations

import re
from collections import Counter

from analysis.pipeline.native_function import native_function
from analysis.pipeline.op_functions import Functions

_NAMED = re.compile(r"(?P<key>ob|cob|fl|fi|fe|cfl|cfi|fn|cfn)=\s*(?:\((?P<id>\d+)\))?\s*(?P<name>.*)")
_KIND = {"ob": "ob", "cob": "ob", "fn": "fn", "cfn": "fn"}  # names of files have ids of their own


class CallgrindFileError(Exception):
    """A file is not such a profile; the message is a sentence that names it."""


def read_callgrind(text: str, file: str) -> Functions:
    """Sum up the instructions of each function. `file` is its name for messages. Raises CallgrindFileError."""
    names: dict[tuple[str, str], str] = {}
    current = {"ob": "", "fn": ""}
    counts: Functions = Counter()
    positions, events, summary = 1, list[str](), None
    after_call = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if found := _NAMED.fullmatch(line):
            kind = _KIND.get(found["key"])
            if kind is None:
                continue
            name = found["name"]
            if found["id"] is not None:
                if name:
                    names[kind, found["id"]] = name
                elif (kind, found["id"]) not in names:
                    raise CallgrindFileError(
                        f"{file}:{number}: name ({found['id']}) is not defined; it is damaged"
                    )
                name = names[kind, found["id"]]
            if found["key"] == kind:
                current[kind] = name
        elif line.startswith("calls="):
            after_call = True  # the next line has the instructions of the called function
        elif line[0] in "0123456789+-*":
            if after_call:
                after_call = False
                continue
            fields = line.split()
            if not events:
                raise CallgrindFileError(f"{file}:{number}: instructions without 'events:'; it is damaged")
            if len(fields) > positions:
                try:
                    count = int(fields[positions])
                except ValueError:
                    raise CallgrindFileError(
                        f"{file}:{number}: {line[:80]!r} is not a line of callgrind's; it is damaged"
                    ) from None
                counts[native_function(current["fn"], current["ob"])] += count
        else:
            key, _, value = line.partition(":")
            if key == "positions":
                positions = len(value.split())
            elif key == "events":
                events = value.split()
                if events[:1] != ["Ir"]:
                    raise CallgrindFileError(
                        f"{file}: its first event is {value.strip()!r}, not Ir; count instructions"
                    )
            elif key in ("summary", "totals"):
                summary = int(value.split()[0])
    if summary is None or counts.total() != summary:
        raise CallgrindFileError(
            f"{file}: its functions have {counts.total()} instructions, its summary says {summary}; it is cut off or damaged"
        )
    return Counter({function: count for function, count in counts.items() if count})
