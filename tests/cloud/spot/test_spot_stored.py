"""Files of imports: round trip, versions, damage; and what makes an import doubtful."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.bands import LABELS, Band, InterruptionBands
from cloud.spot.formats import read_bamboo, read_parcae
from cloud.spot.history import History
from cloud.spot.prices import PriceHistory, SpotPrice
from cloud.spot.sources import FORMATS
from cloud.spot.stored import Stored, read_any, read_stored, stored_bytes, write_stored
from cloud.spot.text import HistoryError
from cloud.spot.warnings import warnings

_TEXT = st.text(max_size=8)
_PLACED = {
    "source": _TEXT,
    "sha256": _TEXT,
    "place": st.none() | _TEXT,
    "accelerator": st.none() | _TEXT,
}
_SECONDS = st.floats(0, 1e9, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> History:
    edges = draw(st.lists(_SECONDS, min_size=2, max_size=12, unique=True).map(sorted))
    size = len(edges) - 1
    lifetimes = draw(st.none() | st.lists(_SECONDS, max_size=4).map(tuple))
    pairs = list(itertools.pairwise(edges))
    return History(
        times_s=tuple(edges[:-1]),
        capacity=tuple(draw(st.lists(st.integers(0, 10**6), min_size=size, max_size=size))),
        end_s=edges[-1],
        began_at_s=draw(st.none() | _SECONDS),
        node_lifetimes_s=lifetimes,
        nodes_censored=None if lifetimes is None else draw(st.integers(0, 99)),
        gaps_s=tuple(draw(st.lists(st.sampled_from(pairs), max_size=3))),
        contradicted_lines=tuple(draw(st.lists(st.integers(1, 99), max_size=3))),
        **{key: draw(value) for key, value in _PLACED.items()},
    )


_NAME = st.none() | _TEXT
_PRICES = st.builds(
    PriceHistory,
    prices=st.lists(
        st.builds(
            SpotPrice,
            st.none() | _SECONDS,
            _TEXT,
            _NAME,
            _NAME,
            _NAME,
            _NAME,
            st.decimals("0.000001", 999, places=6),
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    **_PLACED,
)
_BANDS = st.builds(
    InterruptionBands,
    bands=st.lists(
        st.builds(
            Band, _TEXT, _NAME, _TEXT, st.sampled_from(sorted(LABELS)), st.none() | st.integers(0, 100)
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    **_PLACED,
)


@given(record=histories() | _PRICES | _BANDS)
def test_an_import_is_read_as_it_was_written(record, tmp_path_factory: pytest.TempPathFactory):
    kind = {History: "history", PriceHistory: "prices", InterruptionBands: "bands"}[type(record)]
    form = next(name for name, each in FORMATS.items() if each.kind == kind)
    path = tmp_path_factory.mktemp("s") / "a.json"
    write_stored(path, Stored(form, record))
    assert read_any(path) == Stored(form, record)
    assert path.read_bytes() == stored_bytes(read_any(path))  # importing again writes the same bytes


HISTORY = read_bamboo("a.csv", b"0,add,a\n1000,add,b\n2000,remove,a\n3000,remove,b\n4000,add,c\n")
PRICES = PriceHistory("v.csv", "0" * 64, (SpotPrice(None, "r", None, "i", None, None, Decimal("0.1")),))


def _write(path: Path, **changes: object) -> Path:
    document = json.loads(stored_bytes(Stored("bamboo", HISTORY)))
    path.write_text(
        json.dumps({key: value for key, value in (document | changes).items() if value is not ...})
    )
    return path


def test_a_file_of_a_newer_version_is_refused_by_name(tmp_path: Path):
    path = _write(tmp_path / "a.json", schema_version=2, times_s={"unknown": "here"})
    with pytest.raises(
        HistoryError, match=rf"^{path}:1: written by a newer orch \(format 2, .*; update orch"
    ):
        read_stored(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 0}, "not a file of `orch spot import`"),
        ({"schema_version": True}, "not a file of `orch spot import`"),
        ({"spot_format": ...}, "not a file of `orch spot import`"),
        ({"spot_format": "cuneiform"}, "was changed .*unknown format 'cuneiform'"),
        ({"spot_format": ["bamboo"]}, "was changed"),
        ({"spot_format": "spotinfo"}, "was changed"),
        ({"sha256": ...}, "was changed"),
        ({"end_s": 0}, "was changed .*increase strictly"),
        ({"end_s": "4"}, "was changed"),
        ({"times_s": [0.0, True, 2.0, 3.0]}, "was changed"),
        ({"capacity": [1, 2, -1, 0]}, "was changed"),
        ({"capacity": [1, 2]}, "was changed"),
        ({"nodes_censored": None}, "was changed"),
        ({"node_lifetimes_s": [-1]}, "was changed"),
        ({"gaps_s": [[0, 99]]}, "was changed"),
        ({"gaps_s": [[0, 1, 2]]}, "was changed"),
        ({"place": 5}, "was changed"),
        ({"began_at_s": 1e300}, "was changed .*1970 to 9999"),
    ],
)
def test_a_damaged_file_is_one_sentence(changes, message, tmp_path: Path):
    path = _write(tmp_path / "a.json", **changes)
    with pytest.raises(HistoryError, match=f"^{path}:1: {message}"):
        read_stored(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no valid JSON"),
        (stored_bytes(Stored("bamboo", HISTORY))[:-20], "no valid JSON"),
        (stored_bytes(Stored("bamboo", HISTORY)).replace(b"4.0", b"NaN"), "NaN is no JSON number"),
        (b"[]", "not a file of `orch spot import`"),
        (b"\0", "the file is binary"),
    ],
)
def test_a_cut_or_foreign_file_is_one_sentence(content, message, tmp_path: Path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(HistoryError, match=f"a.json:1: {message}"):
        read_any(tmp_path / "a.json")


def test_prices_are_no_history_of_capacity(tmp_path: Path):
    write_stored(tmp_path / "a.json", Stored("skypilot-catalog", PRICES))
    with pytest.raises(HistoryError, match=r"has prices, not a history of capacity; `orch spot ls`"):
        read_stored(tmp_path / "a.json")


def _codes(record, others=(), now_s=1e12):
    return [one.code for one in warnings(record, dict(others), now_s)]


def test_warnings_about_other_imports():
    other_form = read_parcae("p.csv", b"0,1\n1000,2\n2000,1\n3000,0\n4000,1\n")
    assert _codes(HISTORY) == []
    assert _codes(HISTORY, {"twin": replace(HISTORY, source="b.csv"), "form": other_form}.items()) == [
        "identical_bytes",
        "identical_history",
    ]
    assert _codes(HISTORY, {"longer": replace(other_form, end_s=5.0), "prices": PRICES}.items()) == []


def test_warnings_about_a_record_itself():
    dated = replace(HISTORY, began_at_s=100.0)
    assert _codes(dated, now_s=104.0) == []
    assert _codes(dated, now_s=103.9) == ["future"]
    assert _codes(replace(HISTORY, contradicted_lines=(3,), gaps_s=((0.0, 1.0),))) == [
        "contradictions",
        "gaps",
    ]
    assert _codes(replace(HISTORY, node_lifetimes_s=())) == ["no_complete_lifetime"]
    price = PRICES.prices[0]
    twice = replace(PRICES, prices=(price, replace(price, usd_per_h=Decimal("0.2"))))
    assert _codes(twice) == ["contradictions"]
    assert _codes(replace(PRICES, prices=(replace(price, at_s=5.0),)), now_s=4.0) == ["future"]
    band = Band("r", "Linux", "i", "<5%", None)
    assert _codes(InterruptionBands("b", "1", (band, replace(band, label=">20%")))) == ["contradictions"]
