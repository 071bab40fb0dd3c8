"""docs/tasks.md: its example is run, its tables have every task, model and setting."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from task_rig import batches_of, digest, losses_of, sample

from experiments.tasks.build import build
from experiments.tasks.errors import TaskError
from experiments.tasks.saving import load, save
from experiments.tasks.settings import SETTINGS, Settings, TextSettings, read_settings

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")
BEFORE_SETTINGS, _, FROM_SETTINGS = PAGE.partition("### Settings")
FROM_SETTINGS = FROM_SETTINGS.partition("\n###")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of all tables' rows with four columns."""
    lines = (line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|")
    return [[cell.strip() for cell in line] for line in lines if len(line) == 4]


@pytest.fixture
def my_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example as a module on the path; the import path of its build."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_task.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_task:build"
    sys.modules.pop("my_task", None)


def samples(count: int) -> list[dict]:
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        features = rng.normal(size=8)
        document = {"features": features.tolist(), "target": float(features[:3].sum())}
        made.append(sample(index, json=json.dumps(document).encode()))
    return made


def test_the_example_learns_is_saved_and_loaded(my_task: str, tmp_path: Path) -> None:
    config = {"width": 32}
    task, same = build(my_task, config, 1), build(my_task, config, 1)
    assert digest(task) == digest(same)
    found = samples(60)
    heldout = batches_of(task, found, 16, heldout=True)
    before = task.evaluate(heldout)
    losses = losses_of(task, batches_of(task, found, 20), 60, lr=1e-2)
    assert np.mean(losses[-4:]) < 0.3 * np.mean(losses[:4])
    after = task.evaluate(heldout)
    assert after["mean_error"] < before["mean_error"] / 2
    item = [task.pipeline.run(found[0], seed=1, pass_number=p)["sample"] for p in (0, 0, 1)]
    assert np.array_equal(item[0], item[1])
    assert not np.array_equal(item[0], item[2])
    save(task, tmp_path / "saved", source={"call": my_task, "with": config})
    assert load(tmp_path / "saved").evaluate(heldout) == pytest.approx(after, abs=1e-6)


def test_the_example_refuses_an_unknown_setting(my_task: str) -> None:
    with pytest.raises(TaskError, match="task my_task:build: 'widht' is not a setting; use width, noise"):
        build(my_task, {"widht": 3}, 0)


def test_the_yaml_names_tasks_and_settings_that_exist() -> None:
    blocks = [yaml.safe_load(block)["task"] for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    named = [block for block in blocks if "name" in block]
    assert len(named) == 3
    for block in named:
        read_settings(block["name"], block["with"])


def test_the_tables_have_every_task_model_and_setting() -> None:
    tasks = {row[0].strip("`"): row[3] for row in rows(BEFORE_SETTINGS)}
    for name, kind in SETTINGS.items():
        assert re.findall(r"`([^`]+)`", tasks[name]) == list(kind.models), name
    shown = {(row[0].strip("`"), row[1].strip("`")): row[2].strip("`") for row in rows(FROM_SETTINGS)[2:]}
    expected = {("all", name) for name in Settings.model_fields}
    for name, kind in SETTINGS.items():
        own = {field for field in kind.model_fields if field not in Settings.model_fields}
        expected |= {("the others" if field in TextSettings.model_fields else name, field) for field in own}
    assert set(shown) == expected
    for kind in SETTINGS.values():
        for name, field in kind.model_fields.items():
            if isinstance(field.default, bool | int | float):
                assert json.dumps(field.default) in [shown[key] for key in shown if key[1] == name], name
