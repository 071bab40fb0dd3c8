"""The blind comparison of the predictor: what is committed is what the seed draws, and nobody has published it."""

from __future__ import annotations

import json

from benchmarks.blind import CORES, COUNT, FOLDER, _published, entries, spec_of, study
from experiments.emulation.scales import resolve_emulation


def test_the_committed_study_is_what_the_seed_draws() -> None:
    found = entries()
    assert len(found) == COUNT
    assert (FOLDER / f"blind-{COUNT}.yaml").read_text() == study(found)
    kept = json.loads((FOLDER / "predictions.json").read_text())
    assert [row["label"] for row in kept] == [entry["label"] for entry in found]
    assert all(row["sps"]["low"] <= row["sps"]["value"] <= row["sps"]["high"] for row in kept)


def test_each_one_can_be_emulated_and_is_none_of_the_papers() -> None:
    known = _published()
    assert len(known) == 28  # all of A, B and C
    for entry in entries():
        assert resolve_emulation(spec_of(entry), CORES).bytes_scale >= 1
