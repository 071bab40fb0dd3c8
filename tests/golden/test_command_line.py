"""Every command, option and argument of `orch`; their help apart, so that rewriting it changes that only."""

from __future__ import annotations

from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal, get_args, get_origin

import pytest
import typer

from tests.golden.goldens import check, orch

_WORDS = {str: "text", int: "integer", float: "float", bool: "boolean", Path: "path"}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every command by its full name, as `orch` itself builds them. It registers only the one that was typed."""
    built: list[Any] = []
    get_command = typer.main.get_command

    def kept(app: typer.Typer) -> Any:
        built.append(get_command(app))
        return built[-1]

    monkeypatch.setattr("typer.main.get_command", kept)

    def typed(*words: str) -> Any:
        assert orch(*words, "--help")[0] == 0
        return built[-1]

    root = typed()
    found: dict[str, Any] = {"orch": root}
    for name in root.commands:
        _walk(f"orch {name}", typed(name).commands[name], found)
    return found


def _walk(name: str, command: Any, found: dict[str, Any]) -> None:
    found[name] = command
    for word, inner in getattr(command, "commands", {}).items():
        _walk(f"{name} {word}", inner, found)


def _parameter(parameter: Any) -> dict[str, Any]:
    kind, choices, bounds = _type(parameter)
    described = {
        "kind": parameter.param_type_name,
        "names": [*parameter.opts, *parameter.secondary_opts],
        "type": kind,
        "choices": choices,
        "range": bounds if bounds != [None, None] else None,
        "default": _plain(parameter.default),
        "required": parameter.required,
        "repeatable": parameter.multiple if parameter.param_type_name == "option" else parameter.nargs == -1,
        "flag": getattr(parameter, "is_flag", False),
        "hidden": getattr(parameter, "hidden", False),
        "metavar": parameter.metavar,
        "environment": parameter.envvar,
    }
    return {key: value for key, value in described.items() if value is not None and value is not False}


def _type(parameter: Any) -> tuple[str, list[str] | None, list[float | None]]:
    """Its type, choices and range, in the words of click; newer releases of typer keep the annotation instead."""
    kind = getattr(parameter, "type", None)
    if kind is not None:
        bounds = [getattr(kind, "min", None), getattr(kind, "max", None)]
        choices = [_plain(choice) for choice in getattr(kind, "choices", ())] or None
        word = "path" if "path" in type(kind).__name__.lower() else kind.name.removesuffix(" range")
        return word, choices, bounds
    annotation = parameter.type_descriptor.annotation
    annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    bounds = [parameter.min, parameter.max]
    if get_origin(annotation) is Literal:
        return "choice", list(get_args(annotation)), bounds
    if issubclass(annotation, Enum):
        return "choice", [member.value for member in annotation], bounds
    return _WORDS[annotation], None, bounds


def _plain(value: Any) -> Any:
    match value:
        case Enum() if "Sentinel" not in type(value).__name__:
            return _plain(value.value)
        case PurePath():
            return str(value)
        case bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item) for item in value] or None
        case _:
            return None  # not given


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def test_commands_options_and_arguments(commands: dict[str, Any]):
    found = {
        name: {
            **({"commands": list(command.commands)} if hasattr(command, "commands") else {}),
            "arguments": [p.opts[0] for p in command.params if p.param_type_name == "argument"],
            "parameters": {parameter.opts[0]: _parameter(parameter) for parameter in command.params},
            "hidden": command.hidden,
        }
        for name, command in commands.items()
    }
    assert len(found) > 30
    check("command_line.json", found)


def test_help(commands: dict[str, Any]):
    found = {
        name: {"": _first_line(command.help)}
        | {
            parameter.opts[0]: _first_line(parameter.help)
            for parameter in command.params
            if getattr(parameter, "help", None)
        }
        for name, command in commands.items()
    }
    check("help.json", found)
