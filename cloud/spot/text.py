"""The bytes of a source as text, lines or JSON, and the error of one that cannot be read. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

LARGEST_BYTES = 64 * 2**20
"""Size of the largest source that is read."""

LATEST_AT_S = 253_402_300_799
"""Unix time of the last second that a date can have, in the year 9999; the first is 0, in 1970."""

_DIGITS = 15  # of a whole number: a float holds it exactly


class HistoryError(ValueError):
    """A source that cannot be read; the message is one sentence that begins with file:line."""


def sha256_of(content: bytes) -> str:
    """SHA-256 of a source's bytes, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_text(name: str, content: bytes, largest_bytes: int = LARGEST_BYTES) -> str:
    """Decode a source as UTF-8, with or without a byte order mark. Raises HistoryError."""
    if len(content) > largest_bytes:
        raise HistoryError(f"{name}:1: the file is larger than {largest_bytes} bytes")
    content = content.removeprefix(b"\xef\xbb\xbf")
    zero = content.find(b"\0")
    if zero >= 0:
        raise HistoryError(f"{name}:{_line(content, zero)}: the file is binary, not text")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise HistoryError(f"{name}:{_line(content, error.start)}: the file is no UTF-8 text") from None


def read_rows(name: str, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and comma-separated, stripped fields of each line that is not blank. Raises HistoryError."""
    for number, line in enumerate(read_text(name, content).splitlines(), 1):
        if line.strip():
            yield number, [field.strip() for field in line.split(",")]


def read_json(name: str, text: str, first_line: int = 1) -> Any:
    """Parse JSON without NaN and Infinity; `first_line` is where `text` begins in the file. Raises HistoryError."""
    try:
        return json.loads(text, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        raise HistoryError(
            f"{name}:{first_line + error.lineno - 1}: no valid JSON ({error.msg}); is the file complete?"
        ) from None
    except _NotFiniteError as error:
        raise HistoryError(f"{name}:{first_line}: {error} is no JSON number") from None
    except (RecursionError, ValueError):
        raise HistoryError(f"{name}:{first_line}: JSON with too deep nesting or too long a number") from None


def item_line(text: str, key: str, index: int) -> int:
    """The line on which item `index` of a JSON list begins: the list under `key`, or the whole text if `key` is "".

    1 if there is no such list. `text` must be valid JSON.
    """
    at = text.find(f'"{key}"') if key else 0
    at = text.find("[", at) + 1 if at >= 0 else 0
    decoder = json.JSONDecoder()
    try:
        for _ in range(index if at else 0):
            at = decoder.raw_decode(text, _skip(text, at))[1]
    except ValueError:
        return 1
    return text.count("\n", 0, _skip(text, at)) + 1 if at else 1


def whole_number(value: Any, largest: int = 10**_DIGITS - 1) -> int | None:
    """`value` as a whole number from 0 to `largest`, given as digits or as a JSON integer; else None."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= _DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= largest else None


class _NotFiniteError(Exception):
    """JSON with NaN, Infinity or -Infinity."""


def _not_finite(word: str) -> None:
    raise _NotFiniteError(word)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _line(content: bytes, at: int) -> int:
    return content.count(b"\n", 0, at) + 1
