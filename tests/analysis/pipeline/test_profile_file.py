"""Profiles as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from made_up_profile import estimate, profile

from analysis.pipeline.profile_file import ProfileFileError, from_json, to_json
from analysis.pipeline.profile_records import Extrapolation


def test_what_is_written_is_read():
    found = profile()
    assert from_json(to_json(found)) == found


def test_extrapolations_and_unknown_keys():
    label = profile().measurements[0].strategy.label
    found = replace(
        profile(), extrapolations=((label, Extrapolation(10**6, estimate(3e11), None, 250, None)),)
    )
    document = json.loads(to_json(found)) | {"later": 1}
    assert from_json(json.dumps(document)) == found


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schema_version": 2}, "schema_version is 2, not 1"),
        ({"cores": "many"}, "cores: "),
        ({"measurements": [{}]}, r"measurements\.0"),
        ({"ops": None}, "ops: "),
    ],
)
def test_other_documents_are_refused(change, what):
    with pytest.raises(ProfileFileError, match=what):
        from_json(json.dumps(json.loads(to_json(profile())) | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null"])
def test_other_text_is_refused(text):
    with pytest.raises(ProfileFileError):
        from_json(text)
