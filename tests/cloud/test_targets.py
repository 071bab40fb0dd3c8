"""The target records: the marks next to figures stay the same, and no code compares a target's name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from cloud.targets import IMPORTED, LOCAL, LOOPBACK, SKY, TARGETS, UNKNOWN, Target, target_of
from orchestrator.cli.choosing import Where

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("target", "marks"),
    [
        (LOCAL, ("emulated", "not emulated", "unknown")),
        (LOOPBACK, ("loopback", "loopback", "loopback")),
        (SKY, ("rented, padded", "rented", "unknown")),
        (IMPORTED, ("logs", "logs", "logs")),
        (UNKNOWN, ("emulated", "not emulated", "unknown")),
    ],
    ids=lambda each: each.name if isinstance(each, Target) else "",
)
def test_marks_beside_figures(target: Target, marks: tuple[str, ...]):
    assert tuple(target.mark(emulated) for emulated in (True, False, None)) == marks


def test_runs_are_started_where_a_provider_is():
    started = {target.name: target for target in TARGETS.values() if target.provider}
    assert set(started) == {where.value for where in Where}
    for target in started.values():
        module, _, name = target.provider.partition(":")
        assert hasattr(import_module(module), name)
        assert target.packages


def test_unknown_target_is_no_known_target():
    assert [target_of(name) for name in (None, "", "moon")] == [UNKNOWN] * 3
    assert target_of("sky") is SKY


@pytest.mark.parametrize("room", ["analysis", "metrics", "orchestrator/cli", "orchestrator/checks"])
def test_targets_are_asked_for_properties(room: str):
    asked = re.compile(r"""(?:[=!]=|\bis|\bin)\s+\(?["'](?:sky|local|loopback|imported)["']""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in path.read_text().splitlines()
        if asked.search(line) and "package ==" not in line  # SkyPilot's is called sky too
    ]
    assert found == []
