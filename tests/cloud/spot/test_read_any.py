"""A history of any known format is told apart by its first line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.formats import HistoryError, read_any, read_bamboo, read_parcae, read_skypilot
from cloud.spot.history import History


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (read_bamboo, b"\n1000,add,n1\n3000,remove,n1\n"),
        (read_parcae, b"0,1\n2000,0\n"),
        (read_skypilot, b' {"metadata": {"gap_seconds": 60}, "data": [1, 0]}'),
    ],
)
def test_each_format_is_read_by_its_reader(reader, content):
    assert read_any("f", content) == reader("f", content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "f:1: the file is empty"),
        (b" \n\n", "f:1: the file is empty"),
        (b"at_s,location,event,value\n", "f:1: no known format"),
        (b"\xff", "f:1: the file is no UTF-8"),
        (b"0,1\n5", "f:2: expected 'ms,nodes'"),
    ],
)
def test_anything_else_is_one_sentence(content, says):
    with pytest.raises(HistoryError, match=says):
        read_any("f", content)


@given(st.binary(max_size=60) | st.text('019,ade\nrmov{}[]"', max_size=60))
def test_it_ends_with_a_history_or_a_sentence(content):
    sentence = ""
    try:
        found = read_any("f", content.encode() if isinstance(content, str) else content)
    except HistoryError as error:
        found, sentence = None, str(error)
    assert isinstance(found, History) or sentence.startswith("f:")
