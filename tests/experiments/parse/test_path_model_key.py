"""`emulation.path_model`: what the plan expects with it and without."""

from __future__ import annotations

import pytest

from cloud.networks import vm_limit
from experiments.emulation.scales import resolve_emulation
from experiments.parse import SpecError, load

PAIR_BITS = 2 * 560_142_482 * 2 / 8 * 8  # NLP, eight peers


def test_streams_of_one_vm_share_bandwidth_by_default():
    study = resolve_emulation(load("geo-c8-nlp"), 2)
    none = resolve_emulation(load("geo-c8-nlp", ["emulation.path_model=none"]), 2)
    assert study.comm_s == pytest.approx(5 + PAIR_BITS * (0.2721 + 6 * 0.0169) / (2.89e6 * 8), rel=1e-3)
    assert none.comm_s == pytest.approx(5 + PAIR_BITS / 69.3e6)
    calm = resolve_emulation(load("geo-c8-nlp", ["emulation.path_model=study-calm"]), 2)
    assert calm.comm_s == study.comm_s
    assert "windows paced: the switch limits each stream to the rate of path model study" in study.reasons
    assert "windows paced: the switch limits each stream to the network file's rate" in none.reasons


@pytest.mark.parametrize("overrides", [[], ["emulation.path_model=none"]])
def test_one_zone_is_expected_to_be_limited_by_its_vms(overrides):
    assert resolve_emulation(load("geo-a8-nlp", overrides), 2).comm_s == pytest.approx(
        5 + 7 * PAIR_BITS / vm_limit()
    )


def test_unknown_path_model_error_lists_the_known_ones():
    with pytest.raises(SpecError, match="path_model") as told:
        load("geo-b2", ["emulation.path_model=paper"])
    assert "none" in str(told.value)
    assert "study" in str(told.value)
