"""What a name on the command line of `orch pipeline` means."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pipeline.load import BUILT_IN, load_pipeline
from experiments.schema.errors import SpecError
from orchestrator.errors import UsageError
from orchestrator.pipeline.target import STANDALONE, find_target


@pytest.mark.parametrize("name", STANDALONE)
def test_each_standalone_pipeline_is_a_built_in_one_that_can_be_built(name: str) -> None:
    found = find_target(name)
    assert found.spec is None
    assert found.standalone is STANDALONE[name]
    assert load_pipeline(name, STANDALONE[name].settings).name == name


def test_an_experiment_is_found_by_name_with_its_overrides() -> None:
    found = find_target("geo-b2", ["seed=7"])
    assert found.standalone is None
    assert found.spec is not None
    assert (found.spec.name, found.spec.seed) == ("geo-b2", 7)


@pytest.mark.parametrize("name", sorted({*BUILT_IN} - {*STANDALONE}))
def test_a_pipeline_that_needs_settings_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="needs the settings of an experiment"):
        find_target(name)


def test_a_pipeline_takes_no_overrides() -> None:
    with pytest.raises(UsageError, match="--set: imagenet is a pipeline"):
        find_target("imagenet", ["seed=7"])


def test_an_unknown_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SpecError, UsageError), match="geo-zz"):
        find_target("geo-zz")
