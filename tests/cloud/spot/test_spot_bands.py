"""Interruption bands: AWS's Spot Advisor and spotinfo, and what is wrong with a file. Samples are our own."""

from __future__ import annotations

import json

import pytest

from cloud.spot.bands import LABELS, Band, band_facts, read_spot_advisor, read_spotinfo
from cloud.spot.text import HistoryError

RANGES = [{"index": n, "label": label, "dots": n, "max": 5} for n, label in enumerate(LABELS)]


def _advisor(types: object, ranges: object = RANGES) -> bytes:
    return json.dumps({"ranges": ranges, "spot_advisor": {"us-east-1": {"Linux": types}}}).encode()


def _row(label: object = "5-10%", savings: object = 65, region: object = "us-west-2") -> dict[str, object]:
    return {
        "region": region,
        "instance": "m5.xlarge",
        "range": {"label": label, "max": 11},
        "savings": savings,
    }


def test_bands_of_the_advisor():
    found = read_spot_advisor("f", _advisor({"g4dn.xlarge": {"s": 57, "r": 4}, "p3.2xlarge": {"r": 0}}))
    assert found.bands == (
        Band("us-east-1", "Linux", "g4dn.xlarge", ">20%", 57),
        Band("us-east-1", "Linux", "p3.2xlarge", "<5%", None),
    )
    assert [band.percent for band in found.bands] == [(20, None), (0, 5)]
    facts = band_facts(found)
    assert (facts.bands, facts.regions, facts.instances) == (2, 1, 2)
    assert facts.by_label == {"<5%": 1, "5-10%": 0, "10-15%": 0, "15-20%": 0, ">20%": 1}


def test_bands_printed_by_spotinfo():
    found = read_spotinfo("f", json.dumps([_row(), _row("<5%", None)]).encode())
    assert [(band.system, band.percent, band.savings_percent) for band in found.bands] == [
        (None, (5, 10), 65),
        (None, (0, 5), None),
    ]
    assert band_facts(found).contradictions == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f:1: no valid JSON"),
        (_advisor({})[:-3], "f:1: no valid JSON"),
        (b"[]", "f:1: spot_advisor must be an object"),
        (b'{"spot_advisor": {}}', "f:1: ranges must be a list"),
        (_advisor({}), "f:1: there is no interruption band"),
        (_advisor({}, [{"index": 0, "label": "<7%"}]), r"f:1: ranges\[0\] must have an index"),
        (_advisor({}, [{"index": 0, "label": ["<5%"]}]), r"f:1: ranges\[0\] must have an index"),
        (_advisor({}, [{"index": 0.5, "label": "<5%"}]), r"f:1: ranges\[0\] must have an index"),
        (_advisor({"a": {"r": 5}}), "f:1: spot_advisor.us-east-1.Linux.a.r must be an index"),
        (_advisor({"a": {"r": float("nan")}}), "f:1: NaN is no JSON number"),
        (_advisor({"a": 5}), "f:1: spot_advisor.us-east-1.Linux.a must be an object"),
        (_advisor({"a": {"r": 1, "s": -1}}), "f:1: spot_advisor.us-east-1.Linux.a.s: the savings"),
        (_advisor([]), "f:1: spot_advisor.us-east-1.Linux must be an object"),
    ],
)
def test_a_wrong_advisor_is_one_sentence(content, message):
    with pytest.raises(HistoryError, match=message):
        read_spot_advisor("f", content)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "f:1: expected a list"),
        ([], "f:1: there is no interruption band"),
        ([_row(), _row("<7%")], "f:11: expected region, instance, and a range"),
        ([_row(), _row({})], "f:11: expected region, instance, and a range"),
        ([_row(region=None)], "f:2: expected region, instance, and a range"),
        ([_row(savings=101)], "f:2: the savings must be"),
        ([5], "f:2: expected region"),
    ],
)
def test_a_wrong_list_of_spotinfo_is_one_sentence_with_its_line(document, message):
    with pytest.raises(HistoryError, match=message):
        read_spotinfo("f", json.dumps(document, indent=1).encode())
