"""`network_tuning` and `emulation.windows`: what limits a stream, and what goes together."""

from __future__ import annotations

import pytest

from cloud.networks import path_model, vm_limit
from cloud.networks.windows import default_window_bytes, kernel_bytes_scale
from experiments.emulation.scales import full_size, resolve_emulation
from experiments.parse import SpecError, library, load
from experiments.schema.trained_model import is_resolved

SCALE, WINDOW_BYTES = kernel_bytes_scale(), default_window_bytes()


def test_off_by_default_in_every_experiment_of_the_library():
    specs = [load(entry.name) for entry in library()]
    assert {spec.network_tuning for spec in specs} == {"default"}
    resolved = [
        resolve_emulation(spec, 2) for spec in specs if is_resolved(spec)
    ]  # a task must be built first
    assert {emulation.windows for emulation in resolved} == {"paced"}


@pytest.mark.parametrize(
    ("overrides", "windows"),
    [
        (["network_tuning=wan"], "kernel"),
        (["network_tuning=wan", "emulation.windows=kernel"], "kernel"),
        (["emulation.windows=kernel"], "kernel"),
        (["emulation.windows=paced"], "paced"),
    ],
)
def test_auto_is_kernel_when_the_network_is_tuned(overrides, windows):
    plan = resolve_emulation(load("geo-c8-nlp", overrides), 2)
    assert plan.windows == windows
    assert (plan.bytes_scale == pytest.approx(SCALE)) == (windows == "kernel")
    assert any(reason.startswith(f"windows {windows}") for reason in plan.reasons)


def test_a_tuned_swarm_is_expected_to_be_limited_by_its_vms_only():
    untuned = resolve_emulation(load("geo-c8-nlp", ["emulation.windows=kernel"]), 2)
    tuned = resolve_emulation(load("geo-c8-nlp", ["network_tuning=wan"]), 2)
    assert untuned.window_bytes == pytest.approx(WINDOW_BYTES)
    assert tuned.window_bytes == pytest.approx(WINDOW_BYTES * 64 / 6)
    pair_bits = 2 * 560_142_482 * 2 / 8 * 8
    rtt_s = 0.2721 + 6 * path_model("study").hold_s  # a VM's seven streams hold each other's windows
    assert untuned.comm_s == pytest.approx(5 + pair_bits / (WINDOW_BYTES * 8 / rtt_s), rel=1e-3)
    assert tuned.comm_s == pytest.approx(5 + 7 * pair_bits / vm_limit(), rel=1e-3)
    assert tuned.bytes_scale == untuned.bytes_scale, "the same path, and the same bytes"
    assert tuned.host_busy is not None
    assert tuned.host_busy < 0.5
    assert "network_tuning wan: 31 MB" in " ".join(tuned.reasons)


def test_nothing_is_emulated_on_rented_vms_that_train_the_model():
    plan = full_size(load("geo-c8", ["network_tuning=wan", "emulation=null"]))
    assert (plan.windows, plan.window_bytes) == ("", None)


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        (
            "geo-b2",
            ["emulation.windows=paced"],
            r"emulation.windows: 'paced' cannot show the effect of .*use kernel",
        ),
        (
            "geo-b2",
            ["emulation.bytes_scale=100"],
            r"emulation.bytes_scale: found 100; .* at 45\.\d: remove the key",
        ),
        (
            "local-2",
            ["emulation.bytes_scale=auto"],
            r"emulation.windows: .*for which digits is too small; use paced",
        ),
    ],
)
def test_meaningless_window_settings_are_rejected(name, overrides, says):
    with pytest.raises(SpecError, match=says):
        load(name, ["network_tuning=wan", *overrides])
    load(name, [override for override in overrides if "windows" in override])
