"""JSON Schema of a file that may have a `matrix:`, for editors. Pure."""

from __future__ import annotations

from typing import Any

from experiments.parse.matrix import MAX_COMBINATIONS

_SCALAR = {"type": ["string", "number", "boolean"]}
_ENTRIES = {"type": "array", "items": {"type": "object", "additionalProperties": _SCALAR, "minProperties": 1}}
_MATRIX = {
    "description": f"One experiment per combination, at most {MAX_COMBINATIONS}, as in GitHub Actions: axes with "
    "their values, include and exclude. ${matrix.x} is replaced by a value.",
    "type": "object",
    "properties": {"include": _ENTRIES, "exclude": _ENTRIES},
    "additionalProperties": {"type": "array", "items": _SCALAR, "minItems": 1},
}
_PLACEHOLDER = {"type": "string", "pattern": r"^\$\{\s*matrix\.[A-Za-z_][A-Za-z0-9_-]*\s*\}$"}


def with_matrix(schema: dict[str, Any]) -> dict[str, Any]:
    """Extend the schema of an experiment: allow `matrix:`, and `${matrix.x}` for numbers and words."""
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
        outer = {key: part[key] for key in ("description", "default", "title") if key in part}
        return {**outer, "anyOf": [{k: v for k, v in part.items() if k not in outer}, there]}
    return part


def _takes_text(part: dict[str, Any]) -> bool:
    return any(o.get("type") == "string" and not {"enum", "pattern"} & o.keys() for o in part["anyOf"])
