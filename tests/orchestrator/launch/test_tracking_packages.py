"""A launch is refused while the package of one of its trackers is missing."""

from __future__ import annotations

import sys

import pytest

from experiments.parse.load import load
from orchestrator.launch.machine_checks import machine_obstacles
from orchestrator.launch.obstacles import ObstacleCode, ObstacleGroup


@pytest.mark.parametrize("on", ["local", "sky"])
def test_a_missing_package_is_an_obstacle(on: str, monkeypatch: pytest.MonkeyPatch):
    spec = load("local-2", ["tracking.wandb={project: mine, folder: x}"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = [o for o in machine_obstacles(spec, on, {}) if o.text.startswith("tracking: ")]
    assert [(o.code, o.group) for o in said] == [(ObstacleCode.PACKAGES, ObstacleGroup.MACHINE)]
    assert "wandb needs the package wandb, which is not installed here" in said[0].text
    assert "pip install -e '.[wandb]'" in said[0].text


def test_trackers_that_are_not_given_need_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert machine_obstacles(load("local-2"), "local", {}) == ()
