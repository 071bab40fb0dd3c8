"""Options of the emulated cloud from an experiment file."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.parse.load import load
from metrics.store.meta import RunMeta, RunScales
from orchestrator.launch.prepare import _local_options


def _options(overrides: list[str]):
    scales = RunScales(bytes=100.0, time=1.0, samples=32.0)
    meta = RunMeta(run_id="geo-b2-20261121-0000", scales=scales)
    return _local_options(load("geo-b2", overrides), meta, Path("run"))


@pytest.mark.parametrize(("overrides", "name"), [([], "study"), (["emulation.path_model=none"], "none")])
def test_path_model_and_its_seed_come_from_the_experiment(overrides, name):
    options = _options([*overrides, "seed=7"])
    assert options.path_model == name
    assert options.seed == "geo-b2/7"
    assert options.run_id == "geo-b2-20261121-0000"


def test_a_tuned_run_has_kernel_windows():
    tuned, untuned = _options(["network_tuning=wan"]), _options([])
    assert (tuned.windows, tuned.network_tuning) == ("kernel", "wan")
    assert (untuned.windows, untuned.network_tuning) == ("paced", "default")
