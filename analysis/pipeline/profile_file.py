"""A profile as JSON: the fields of `analysis.pipeline.profile_records.Profile`, and `schema_version`."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import TypeAdapter, ValidationError

from analysis.pipeline.profile_records import Profile

SCHEMA_VERSION = 1
_PROFILE = TypeAdapter(Profile)


class ProfileFileError(Exception):
    """The text is not a profile; the message says what is wrong first."""


def to_json(profile: Profile) -> str:
    """Serialise a profile."""
    fields: dict[str, Any] = _PROFILE.dump_python(profile, mode="json")
    return json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Profile:
    """Parse what `to_json` wrote; unknown keys are ignored. Raises ProfileFileError."""
    try:
        fields = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except ValueError as error:
        raise ProfileFileError(f"no JSON: {error}") from error
    version = fields.pop("schema_version", None) if isinstance(fields, dict) else None
    if version != SCHEMA_VERSION:
        raise ProfileFileError(f"schema_version is {version!r}, not {SCHEMA_VERSION}")
    try:
        return _PROFILE.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ProfileFileError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refused(text)
