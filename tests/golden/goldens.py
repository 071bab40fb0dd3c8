"""Golden files: what orch says outwardly, frozen. `ORCH_UPDATE_GOLDENS=1` writes them anew; CI never sets it.

A change that moves files, renames modules or rewrites internals must leave every golden file as it is. One that
changes what users see commits the new golden file, whose difference shows the reviewer what changed.

Everything here goes through the command line, so that no test needs an edit when modules move.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.app import run

HERE = Path(__file__).parent
_SHOWN = 40  # differences in one message
_ABSENT = object()
_SUMMING = ("numpy", "pandas")
_MADE_WITH = "made_with.json"


def orch(*arguments: str) -> tuple[int, str, str]:
    """Run one command in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


def orch_json(*arguments: str, codes: Sequence[int] = (0,)) -> Any:
    """What a command prints with `-o json`; it must end with one of these codes."""
    code, out, err = orch(*arguments, "-o", "json")
    assert code in codes, f"orch {' '.join(arguments)} ended with {code}: {err}"
    return json.loads(out)


def check(name: str, found: Any) -> None:
    """Compare with the golden file `name` (`.json`, or `.json.gz` for large ones), or write it.

    Floats are compared to the last digit where Python and its packages are those that wrote the golden files;
    else to 1e-9 of their value (Python 3.12 sums floats in another way than 3.11).
    """
    path = HERE / name
    found = json.loads(json.dumps(found))
    here = {"python": platform.python_version().rpartition(".")[0], **{n: version(n) for n in _SUMMING}}
    if os.environ.get("ORCH_UPDATE_GOLDENS") == "1":
        assert os.environ.get("CI") != "true", "ORCH_UPDATE_GOLDENS is set and CI=true: CI compares only"
        _write(path, found)
        _write(HERE / _MADE_WITH, here)
        return
    how = "ORCH_UPDATE_GOLDENS=1 python -m pytest tests/golden writes what is found now"
    assert path.is_file(), f"no {path}: {how}"
    tolerance = 0.0 if here == _read(HERE / _MADE_WITH) else 1e-9
    differing = list(differences(_read(path), found, tolerance))
    shown = "\n  ".join(differing[:_SHOWN])
    more = f"\n  ... and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    if differing:
        pytest.fail(f"{name} differs in {len(differing)} places:\n  {shown}{more}\nIf that is meant: {how}.")


def differences(golden: Any, found: Any, tolerance: float = 0.0, where: str = "") -> Iterator[str]:
    """Each place in which two JSON values differ, as one line."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in [*golden, *(key for key in found if key not in golden)]:
            there = f"{where}.{key}" if where else str(key)
            yield from differences(golden.get(key, _ABSENT), found.get(key, _ABSENT), tolerance, there)
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for number, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from differences(one, other, tolerance, f"{where}[{number}]")
    elif not _same(golden, found, tolerance):
        yield f"{where or '(all)'}: was {_word(golden)}, is {_word(found)}"


def _same(golden: Any, found: Any, tolerance: float) -> bool:
    if type(golden) is not type(found):
        return False
    if isinstance(golden, float) and tolerance:
        return abs(golden - found) <= tolerance * abs(golden)
    return golden == found or repr(golden) == repr(found)  # nan is nan


def _word(value: Any) -> str:
    text = "absent" if value is _ABSENT else json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _write(path: Path, found: Any) -> None:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))
    else:
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def shape(value: Any) -> Any:
    """A JSON value's keys and types without its values; the items of a list are merged into one shape."""
    match value:
        case Mapping():
            return {str(key): shape(item) for key, item in sorted(value.items())}
        case str():
            return "string"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if isinstance(value, int) else "number"
        case None:
            return "null"
        case Sequence():
            merged: Any = None
            for item in value:
                merged = shape(item) if merged is None else _merged(merged, shape(item))
            return [] if merged is None else [merged]
    raise TypeError(f"{value!r} is no JSON")


def _merged(one: Any, other: Any) -> Any:
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        absent = "absent"
        return {key: _merged(one.get(key, absent), other.get(key, absent)) for key in sorted({*one, *other})}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])] if one and other else one or other
    kinds = [*_kinds(one), *_kinds(other)]
    structures = [kind for kind in kinds if not isinstance(kind, str)]
    joined: list[Any] = sorted({kind for kind in kinds if isinstance(kind, str)})
    for kind in (dict, list):
        same = [item for item in structures if isinstance(item, kind)]
        while len(same) > 1:
            same[:2] = [_merged(same[0], same[1])]
        joined += same
    return joined[0] if len(joined) == 1 else {"any of": joined}


def _kinds(found: Any) -> list[Any]:
    return found["any of"] if isinstance(found, dict) and found.keys() == {"any of"} else [found]
