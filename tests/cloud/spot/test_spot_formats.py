"""Spot histories: facts against brute force, readers on good and bad input. Samples are our own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.formats import READERS, HistoryError, read_bamboo, read_parcae, read_skypilot
from cloud.spot.history import History, facts, identical_sources


def test_bamboo_counts_nodes_alive():
    history = read_bamboo("a.csv", b"1000,add,n1\n1000,add,n2\n3000,remove,n1\n4000,remove,n2\n9000,add,n3\n")
    assert (history.times_s, history.capacity, history.end_s) == ((1.0, 3.0, 4.0), (2, 1, 0), 9.0)
    found = facts(history)
    assert (found.availability, found.interruptions, found.longest_outage_s) == (3 / 8, 1, 5.0)
    assert found.median_lifetime_s is None  # its begin was not seen


def test_last_line_of_one_time_counts_in_parcae():
    history = read_parcae("p.csv", b"0,1\n0,2\n2000,1\n5000,4\n")
    assert (history.times_s, history.capacity, history.end_s) == ((0.0, 2.0), (2, 1), 5.0)


def test_identical_sources_are_named():
    same, other = b"0,1\n5,1\n", b"0,1\n5,2\n"
    histories = [read_parcae(name, content) for name, content in (("a", same), ("b", other), ("c", same))]
    assert identical_sources(histories) == [("a", "c")]
    assert identical_sources(histories[:2]) == []


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (read_bamboo, b"", "f:1: fewer than two"),
        (read_bamboo, b"0,add,a\n5,ad", "f:2: expected"),
        (read_bamboo, b"-5,add,a\n", "f:1: the time must be"),
        (read_bamboo, b"5,add,a\n4,add,b\n", "f:2: the time is before"),
        (read_bamboo, b"5,add,a\n6,add,a\n", "f:2: this node is added"),
        (read_bamboo, b"5,add,a\n6,remove,b\n", "f:2: this node is removed"),
        (read_bamboo, b"5,add,a\n\xff", "f:2: the file is no UTF-8"),
        (read_parcae, b"0,1\n5", "f:2: expected"),
        (read_parcae, b"0,1\n5,-1\n", "f:2: expected"),
        (read_parcae, b"5,1\n4,1\n", "f:2: the time is before"),
        (read_skypilot, b'{"metadata": {"gap_seconds": 60}, "data": [1,', "f:1: no valid JSON"),
        (read_skypilot, b'{"metadata": {"gap_seconds": -1}, "data": [1]}', "gap_seconds"),
        (read_skypilot, b'{"metadata": {"gap_seconds": 60}, "data": []}', "not empty"),
        (read_skypilot, b'{"metadata": {"gap_seconds": 60}, "data": [1, 2]}', r"data\[1\]"),
    ],
)
def test_bad_input_is_one_sentence_with_its_line(reader, content, message):
    with pytest.raises(HistoryError, match=message):
        reader("f", content)


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=80) | st.text("0159,ade\nrmov{}[]", max_size=80))
def test_readers_end_with_a_history_or_a_sentence(kind, content):
    sentence = ""
    try:
        found = READERS[kind]("f", content.encode() if isinstance(content, str) else content)
    except HistoryError as error:
        found, sentence = None, str(error)
    assert isinstance(found, History) or sentence.startswith("f:")


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.sampled_from([1, 60, 600]))
def test_facts_equal_brute_force(data, gap):
    content = json.dumps({"metadata": {"gap_seconds": gap}, "data": data}).encode()
    found = facts(read_skypilot("f", content))
    word = "".join(map(str, data))
    assert found.availability == pytest.approx(data.count(1) / len(data))
    assert found.interruptions == word.count("10")
    assert found.longest_outage_s == gap * max(map(len, word.split("1")))
    spells = [len(spell) * gap for spell in word.strip("1").split("0") if spell] if "0" in word else []
    assert found.mean_lifetime_s == (pytest.approx(sum(spells) / len(spells)) if spells else None)
