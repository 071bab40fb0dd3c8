"""`orch.profile` reads what `orch pipeline profile` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_profile import profile

import orch
from analysis.pipeline.profile_file import to_json


def test_strategies_are_rows_with_unknown_as_missing(tmp_path: Path):
    made = profile()
    (tmp_path / "profile.json").write_text(to_json(made))
    for place in (tmp_path, tmp_path / "profile.json", str(tmp_path)):
        found = orch.profile(place).strategies()
        assert list(found["label"]) == [one.strategy.label for one in made.measurements]
    assert {c: str(t) for c, t in found.dtypes.items()} == {
        c.name: c.dtype for c in orch.FRAMES["strategies"]
    }
    for row, one in zip(found.to_dict("records"), made.measurements, strict=True):
        assert row["sps"] == one.delivered_sps.value
        assert row["split"] == one.strategy.split
        if one.offline_s is None:
            assert row["offline_s"] != row["offline_s"]
        else:
            assert row["offline_s"] == one.offline_s


def test_no_profile_is_a_sentence(tmp_path: Path):
    with pytest.raises(orch.OrchError, match="cannot read the profile"):
        orch.profile(tmp_path)
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(orch.OrchError, match="not a profile"):
        orch.profile(tmp_path)
