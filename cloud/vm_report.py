"""What a VM reports about itself (job.json, status.json), read as data from a machine that may be broken or hostile.

Providers pass everything a VM wrote through these readers before any other code sees it. Sizes are bounded, text has no
control characters, numbers are finite and fit into 63 bits, and fields of the wrong type are dropped. No reader raises
an exception, whatever the bytes are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LARGEST_BYTES = 262_144  # of a status.json; a peer writes about 4,000
NOTICE_HORIZON_S = 900.0  # clouds announce a preemption 30 to 120 s ahead

_LONGEST_TEXT = 2000
_MOST_VALUES = 10_000
_DEEPEST = 8
_OLDEST_NOTICE_S = 86_400.0
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])|\x9b[0-?]*[ -/]*[@-~]"
)
_MADDR = re.compile(
    r"/(?:ip4|ip6|dns|dns4|dns6)/[0-9A-Za-z.:-]{1,255}/tcp/[0-9]{1,5}/p2p/[0-9A-Za-z_-]{1,100}"
)


def printable(text: str, longest: int | None = _LONGEST_TEXT) -> str:
    """Return `text` on one line without terminal escapes, control characters, direction marks and lone surrogates.

    White space becomes a space; any other unprintable character becomes U+FFFD. `longest` None: do not truncate.
    """
    cut = text if longest is None else text[:longest]
    if cut.isprintable():
        return cut
    clean = _ESCAPES.sub("", cut)
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in clean)


def printable_values(value: Any) -> Any:
    """Make every string in plain data printable, without truncating it."""
    if isinstance(value, str):
        return printable(value, None)
    if isinstance(value, dict):
        return {key: printable_values(of) for key, of in value.items()}
    return [printable_values(of) for of in value] if isinstance(value, list) else value


def read_object(content: str | bytes) -> dict[str, Any]:
    """Parse and clean a JSON object; {} if it is not an object, too large or nested too deeply."""
    if len(content) > LARGEST_BYTES:
        return {}
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    try:
        return _Cleaner().clean(found, 0)
    except OverflowError:
        return {}


class _Cleaner:
    """Bounds a tree of JSON values. Numbers out of range become None."""

    def __init__(self) -> None:
        self._values = 0

    def clean(self, value: Any, depth: int) -> Any:
        """Raises OverflowError if there are too many values or they are nested too deeply."""
        self._values += 1
        if self._values > _MOST_VALUES or depth > _DEEPEST:
            raise OverflowError
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, dict):
            return {printable(k): self.clean(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list):
            return [self.clean(v, depth + 1) for v in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value if -(2**63) <= value < 2**63 else None
        return value


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def is_maddr(value: Any) -> bool:
    """Whether the value is a full libp2p multiaddress: /ip4/10.0.0.1/tcp/31337/p2p/<peer id>."""
    return isinstance(value, str) and _MADDR.fullmatch(value) is not None


_STATUS: Mapping[str, Callable[[Any], bool]] = {
    "phase": _text, "maddr": is_maddr, "peer_id": _text, "error": _text, "hopeless": _flag, "notice_at_s": _number,
    "epoch": _count, "at_s": _number, "parameters_sha": _text, "join": _object,
    "bad_samples": _object, "data_position": _object, "epoch_positions": _object, "utilisation": _list, "coverage": _list,
    "input_sums": _list,
    "warnings": lambda value: isinstance(value, list) and all(map(_text, value)),
}  # fmt: skip
_JOB: Mapping[str, Callable[[Any], bool]] = {
    "phase": _text, "error": _text, "hopeless": _flag, "at_s": _number,
    "exit_code": lambda value: _number(value) and isinstance(value, int),
}  # fmt: skip


def status_of(content: str | bytes) -> dict[str, Any]:
    """Parse a program's status.json: known fields of the right type, unknown ones unchanged (but bounded)."""
    return _checked(read_object(content), _STATUS)


def job_of(content: str | bytes) -> dict[str, Any]:
    """Parse the job.json of the script that runs the program."""
    return _checked(read_object(content), _JOB)


def _checked(found: dict[str, Any], kinds: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if v is None or k not in kinds or kinds[k](v)}


def read_status(path: Path) -> dict[str, Any]:
    """Read the status.json at `path`; {} if there is none or it cannot be read."""
    try:
        with path.open("rb") as file:
            return status_of(file.read(LARGEST_BYTES + 1))
    except OSError:
        return {}


def parse_notice(value: Any, now_s: float) -> float | None:
    """Return the unix time of an announced preemption; None if it is not a time, or implausibly far from now."""
    if not _number(value) or not math.isfinite(value):
        return None
    return float(value) if now_s - _OLDEST_NOTICE_S <= value <= now_s + NOTICE_HORIZON_S else None
