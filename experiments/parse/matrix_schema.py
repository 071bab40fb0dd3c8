"""The JSON Schema of a file that may have a `matrix:`: what editors show and complain about. Pure."""

from __future__ import annotations

from typing import Any

from experiments.parse.matrix import MAX_COMBINATIONS

_SCALAR = {"type": ["string", "number", "boolean"]}
_ENTRIES = {"type": "array", "items": {"type": "object", "additionalProperties": _SCALAR, "minProperties": 1}}
_MATRIX = {
    "description": f"One experiment for each combination, at most {MAX_COMBINATIONS}, as in GitHub Actions: axes with "
    "their values, include, exclude; ${matrix.x} stands for a value.",
    "type": "object",
    "properties": {"include": _ENTRIES, "exclude": _ENTRIES},
    "additionalProperties": {"type": "array", "items": _SCALAR, "minItems": 1},
}
_PLACEHOLDER = {"type": "string", "pattern": r"^\$\{\s*matrix\.[A-Za-z_][A-Za-z0-9_-]*\s*\}$"}


def with_matrix(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an experiment with `matrix:`, and `${matrix.x}` wherever a number or a word may stand."""
    made = {**schema, "properties": {**_open(schema["properties"]), "matrix": _MATRIX}}
    made["$defs"] = {
        name: {**part, "properties": _open(part["properties"])} if "properties" in part else part
        for name, part in {**schema["$defs"]}.items()
    }
    made["$defs"]["MatrixPlaceholder"] = _PLACEHOLDER
    return made


def _open(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: _or_placeholder(part) for name, part in properties.items()}


def _or_placeholder(part: dict[str, Any]) -> dict[str, Any]:
    there = {"$ref": "#/$defs/MatrixPlaceholder"}
    if "anyOf" in part:
        return {**part, "anyOf": [*part["anyOf"], there]} if not _takes_text(part) else part
    if part.get("type") in ("integer", "number", "boolean") or "enum" in part:
        told = {key: part[key] for key in ("description", "default", "title") if key in part}
        return {**told, "anyOf": [{k: v for k, v in part.items() if k not in told}, there]}
    return part


def _takes_text(part: dict[str, Any]) -> bool:
    return any(o.get("type") == "string" and not {"enum", "pattern"} & o.keys() for o in part["anyOf"])
