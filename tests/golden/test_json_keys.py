"""The keys and types of the JSON that commands print; of runs the other tests here freeze the values too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.goldens import check, orch, orch_json, shape

pytestmark = pytest.mark.slow

_COMMANDS = (
    "experiments",
    "show geo-c8",
    "show a10-4-conv",
    "show digits-alone",
    "show local-2 --set budget_usd=5",
    "plan geo-c8",
    "plan geo-c8 --on sky",
    "launch geo-b2 --dry-run",
    "launch geo-b2 --dry-run --on sky",
    "study run paper-abc --dry-run",
    "study ls",
    "prices",
    "prices --books",
    "prices --at 2023-05-01",
    "prices --diff list-2026-11",
    "ls",
    "simulate --days 0.1",
)


def test_keys(any_machine: Path):
    refused = {"plan geo-c8 --on sky": [3]}  # it names no store
    printed = {one: orch_json(*one.split(), codes=refused.get(one, [0])) for one in _COMMANDS}
    check("json_keys.json", {command: shape(document) for command, document in printed.items()})


def test_keys_of_files_that_are_checked(any_machine: Path):
    wrong = any_machine / "wrong.yaml"
    wrong.write_text(orch("show", "geo-b2")[1] + "modle: 1\n")
    code, out, _ = orch("validate", str(wrong), "no-such-file.yaml", "geo-b2", "-o", "json")
    assert code == 2
    check("json_keys_validate.json", shape(json.loads(out)))


@pytest.mark.parametrize("on", ["local", "sky"])
def test_keys_of_the_check_of_this_machine(on: str):
    code, out, _ = orch("check", "--on", on, "-o", "json")
    assert code in (0, 2)  # whether the machine could run an experiment
    check(f"json_keys_check_{on}.json", shape(json.loads(out)))
