"""A profile as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from analysis.pipeline.profile_records import Extrapolation, Measurement, Profile, Strategy
from metrics.stats import Estimate


class ProfileFileError(Exception):
    """The text is not a profile."""


def to_json(profile: Profile) -> str:
    """Serialise a profile."""
    return json.dumps(asdict(profile), indent=2)


def from_json(text: str) -> Profile:
    """Parse what `to_json` wrote. Raises ProfileFileError."""
    try:
        found = json.loads(text)
        measured = tuple(_measurement(one) for one in found["measurements"])
        extrapolations = tuple((str(label), _extrapolation(one)) for label, one in found["extrapolations"])
        rest = {f.name: found[f.name] for f in fields(Profile)}
        rest |= {"measurements": measured, "extrapolations": extrapolations, "ops": tuple(found["ops"])}
        return Profile(**rest)
    except (ValueError, KeyError, TypeError) as error:
        raise ProfileFileError(f"{type(error).__name__}: {error}") from error


def _estimate(found: Mapping[str, Any] | None) -> Estimate | None:
    return None if found is None else Estimate(**found)


def _measurement(found: Mapping[str, Any]) -> Measurement:
    values = dict(found)
    values["strategy"] = Strategy(**values["strategy"])
    for name in ("read_sps", "write_sps", "stored_read_sps", "delivered_sps", "cpu_s"):
        values[name] = _estimate(values[name])
    return Measurement(**values)


def _extrapolation(found: Mapping[str, Any]) -> Extrapolation:
    values = dict(found)
    values |= {name: _estimate(values[name]) for name in ("stored_bytes", "offline_s")}
    return Extrapolation(**values)
