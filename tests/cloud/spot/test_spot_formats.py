"""Spot histories: facts against brute force, readers on good and bad input. Samples are our own."""

from __future__ import annotations

import itertools
import json
import statistics
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.bands import InterruptionBands
from cloud.spot.formats import (
    read_bamboo,
    read_bamboo_counts,
    read_parcae,
    read_parcae_trace,
    read_skypilot,
)
from cloud.spot.history import History, facts
from cloud.spot.prices import PriceHistory
from cloud.spot.sources import FORMATS, read_source, recognise
from cloud.spot.text import LARGEST_BYTES, HistoryError

NOW_S = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
GAP = {"metadata": {"gap_seconds": 60}}
COUNTS = b"2026-01-02, 03:04:00, 5\n2026-01-02, 03:05:00, 5\n"
TRACE = (
    b'[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n'
    b'[60000, "add", {"nodes": ["c"], "duration": 60000}]\n'
    b'[120000, "no-op", {"nodes": [], "duration": 60000}]\n'
    b'[180000, "remove", {"nodes": ["c", "a"], "duration": 60000}]\n'
)


def test_bamboo_counts_nodes_alive():
    history = read_bamboo("a.csv", b"1000,add,n1\n1000,add,n2\n3000,remove,n1\n4000,remove,n2\n9000,add,n3\n")
    assert (history.times_s, history.capacity, history.end_s) == ((1.0, 3.0, 4.0), (2, 1, 0), 9.0)
    found = facts(history)
    assert (found.availability, found.interruptions, found.longest_outage_s) == (3 / 8, 1, 5.0)
    assert found.median_lifetime_s is None  # its begin was not seen


def test_lifetimes_of_nodes_are_complete_or_censored():
    events = (
        "0,add,a",  # begin not seen: it may have been alive before the first event
        "1000,add,b",
        "3000,remove,b",  # 2 s
        "4000,add,b",  # the same name again is another lifetime
        "5000,remove,a",
        "9000,remove,b",  # 5 s
        "9500,add,c",  # end not seen
        "10000,add,d",
    )
    history = read_bamboo("a.csv", "\n".join(events).encode())
    assert (history.node_lifetimes_s, history.nodes_censored) == ((2.0, 5.0), 3)
    found = facts(history)
    assert (found.node_median_lifetime_s, found.node_mean_lifetime_s) == (3.5, 3.5)
    assert (found.nodes_complete, found.nodes_censored) == (2, 3)


def test_capacity_facts_are_of_the_time_not_of_the_lines():
    found = facts(read_parcae("p.csv", b"0,4\n1000,0\n2000,2\n10000,1\n"))
    assert (found.lowest_capacity, found.highest_capacity, found.capacity_lost) == (0, 4, 4)
    assert found.mean_capacity == pytest.approx((4 * 1 + 0 * 1 + 2 * 8) / 10)
    assert (found.duration_s, found.nodes_complete, found.node_mean_lifetime_s) == (10.0, None, None)


def test_last_line_of_one_time_counts_in_parcae():
    history = read_parcae("p.csv", b"0,1\n0,2\n2000,1\n5000,4\n")
    assert (history.times_s, history.capacity, history.end_s) == ((0.0, 2.0), (2, 1), 5.0)


def test_a_parcae_trace_ends_when_its_last_line_does():
    history = read_parcae_trace("t.txt", TRACE)
    assert (history.times_s, history.capacity) == ((0.0, 60.0, 120.0, 180.0), (2, 3, 3, 1))
    assert history.end_s == 240.0
    assert (history.node_lifetimes_s, history.nodes_censored, history.gaps_s) == ((120.0,), 2, ())


def test_a_parcae_trace_with_a_missing_line_has_a_gap():
    lines = TRACE.splitlines()
    assert read_parcae_trace("t.txt", b"\n".join([*lines[:2], lines[3]])).gaps_s == ((120.0, 180.0),)


def test_a_later_line_of_counts_supersedes_what_was_said_of_its_time_and_after():
    lines = (
        "2026-01-02, 03:04:00, 80",
        "2026-01-02, 03:05:00, 80",  # contradicted: the next line says 70 from then on
        "2026-01-02, 03:06:00, 70",  # repeated below: no contradiction
        "2026-01-02, 03:05:00, 70",
        "2026-01-02, 03:06:00, 70",
        "2026-01-02, 03:07:00, 70",
        "2026-01-02, 03:06:30, 60",
        "2026-01-02, 03:08:00, 60",
    )
    history = read_bamboo_counts("c.txt", "\n".join(lines).encode(), NOW_S)
    assert (history.times_s, history.capacity) == ((0.0, 60.0, 120.0, 150.0), (80, 70, 70, 60))
    assert history.end_s == 240.0
    assert history.began_at_s == datetime(2026, 1, 2, 3, 4, tzinfo=UTC).timestamp()
    assert history.contradicted_lines == (2, 6)


def test_counts_without_lines_for_long_have_a_gap():
    minutes = [0, 1, 2, 3, 4, 15, 16]
    content = "".join(f"2026-01-02, 03:{minute:02}:00, 5\n" for minute in minutes).encode()
    history = read_bamboo_counts("c.txt", content, NOW_S)
    assert history.gaps_s == ((240.0, 900.0),)
    found = facts(history)
    assert (found.gap_s, found.longest_gap_s, found.availability) == (660.0, 660.0, 1.0)


def test_counts_are_in_the_future_only_if_they_are_so_in_every_time_zone():
    at_s = datetime(2026, 1, 2, 3, 5, tzinfo=UTC).timestamp()
    assert read_bamboo_counts("c.txt", COUNTS, at_s - 14 * 3600).end_s == 60.0
    with pytest.raises(HistoryError, match=r"^c.txt:2: 2026-01-02 03:05:00 is in the future"):
        read_bamboo_counts("c.txt", COUNTS, at_s - 14 * 3600 - 1)


def _node(ms: object, event: str, nodes: object = (), duration: object = 60000) -> bytes:
    return json.dumps([ms, event, {"nodes": nodes, "duration": duration}]).encode() + b"\n"


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("bamboo", b"", "f:1: fewer than two"),
        ("bamboo", b"0,add,a\n5,ad", "f:2: expected"),
        ("bamboo", b"-5,add,a\n", "f:1: the time must be"),
        ("bamboo", b"nan,add,a\n", "f:1: the time must be"),
        ("bamboo", b"5,add,a\n4,add,b\n", "f:2: the time is before"),
        ("bamboo", b"5,add,a\n6,add,a\n", "f:2: this node is added"),
        ("bamboo", b"5,add,a\n6,remove,b\n", "f:2: this node is removed"),
        ("bamboo", b"5,add,a\n\xff", "f:2: the file is no UTF-8"),
        ("bamboo", b"5,add,a\n\0\0", "f:2: the file is binary"),
        ("bamboo-counts", b"", "f:1: fewer than two"),
        ("bamboo-counts", b"2026-01-02, 03:04:00, 5\n2026-01-02, 03:0", "f:2: expected"),
        ("bamboo-counts", b"2026-01-02, 03:04:00, -5\n", "f:1: expected"),
        ("bamboo-counts", b"2026-01-02, 03:04:00, inf\n", "f:1: expected"),
        ("bamboo-counts", b"2026-02-30, 03:04:00, 5\n", "f:1: the first two fields"),
        ("bamboo-counts", b"2026-01-02, 25:04:00, 5\n", "f:1: the first two fields"),
        (
            "bamboo-counts",
            b"2026-01-02, 03:10:01, 5\n2026-01-02, 03:05:00, 5\n",
            "f:2: the time is more than 300 s",
        ),
        ("bamboo-counts", b"0001-01-02, 03:04:00, 5\n", "f:1: 0001-01-02 is before 1970"),
        ("bamboo-counts", b"2031-01-02, 03:04:00, 5\n", "f:1: 2031-01-02 03:04:00 is in the future"),
        ("parcae", b"0,1\n5", "f:2: expected"),
        ("parcae", b"0,1\n5,-1\n", "f:2: expected"),
        ("parcae", b"5,1\n4,1\n", "f:2: the time is before"),
        ("parcae-trace", b"", "f:1: fewer than two"),
        ("parcae-trace", _node(0, "add", ["a"]) + b'[60000, "no-op", {"no', "f:2: no valid JSON"),
        ("parcae-trace", b'[0, "add"]\n', "f:1: expected"),
        ("parcae-trace", _node(-1, "add", ["a"]), "f:1: time and duration"),
        ("parcae-trace", _node(0, "add", ["a"], float("nan")), "f:1: NaN is no JSON number"),
        ("parcae-trace", _node(0, "add", "a"), "f:1: nodes must be"),
        ("parcae-trace", _node(0, "no-op", ["a"]), "f:1: the event must be"),
        ("parcae-trace", _node(0, "resize"), "f:1: the event must be"),
        ("parcae-trace", _node(5, "add", ["a"]) + _node(4, "no-op"), "f:2: the time is before"),
        ("parcae-trace", _node(0, "add", ["a", "a"]), "f:1: this node is added"),
        ("skypilot", b'{"metadata": {"gap_seconds": 60}, "data": [1,', "f:1: no valid JSON"),
        ("skypilot", b'{"metadata": {"gap_seconds": -1}, "data": [1]}', "gap_seconds"),
        (
            "skypilot",
            b'{"metadata": {"gap_seconds": Infinity}, "data": [1]}',
            "f:1: Infinity is no JSON number",
        ),
        ("skypilot", b'{"metadata": {"gap_seconds": 60}, "data": []}', "not empty"),
        ("skypilot", b'{"metadata": {"gap_seconds": 60}, "data": [1, 2]}', r"data\[1\]"),
        ("skypilot", b"[" * 100_000, "f:1: JSON with too deep nesting"),
    ],
)
def test_bad_input_is_one_sentence_with_its_line(form, content, message):
    with pytest.raises(HistoryError, match=message):
        read_source("f", content, form, NOW_S)


def test_a_file_that_is_too_large_is_refused():
    with pytest.raises(HistoryError, match=f"f:1: the file is larger than {LARGEST_BYTES} bytes"):
        read_bamboo("f", b" " * (LARGEST_BYTES + 1))


def test_a_byte_order_mark_and_windows_line_ends_are_read():
    assert read_parcae("p", b"\xef\xbb\xbf0,1\r\n5000,2\r\n").end_s == 5.0


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"\n480000,add,node1\n", "bamboo"),
        (b"0 , remove , x\n", "bamboo"),
        (COUNTS, "bamboo-counts"),
        (b"0,1\n0,2\n", "parcae"),
        (TRACE, "parcae-trace"),
        (json.dumps({**GAP, "data": [1]}).encode(), "skypilot"),
        (json.dumps({**GAP, "data": [1]}, indent=2).encode(), "skypilot"),
        (b'{"SpotPriceHistory": []}', "aws-prices"),
        (b'[\n  {"SpotPrice": "1"}\n]', "aws-prices"),
        (b"InstanceType,AcceleratorName,SpotPrice\n", "skypilot-catalog"),
        (b'{"ranges": [], "spot_advisor": {}}', "spot-advisor"),
        (b'[{"region": "r", "range": {}}]', "spotinfo"),
    ],
)
def test_a_format_is_recognised_by_content(content, form):
    assert recognise("f", content) == form


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f:1: the file is empty"),
        (b" \n\n", "f:1: the file is empty"),
        (b"\n# Spot interruption histories\n", "f:2: not one of the known formats .*name one with --format"),
        (b"at_s,location,event,value\n", "f:1: not one of the known formats"),
        (b'{"schema_version": 1}', "f:1: not one of the known formats"),
        (b"[]", "f:1: not one of the known formats"),
        (b'{"metadata": {\n"gap_', "f:2: no valid JSON"),
        (b"\x89PNG\r\n\x1a\n\0", "f:3: the file is binary"),
    ],
)
def test_what_is_no_known_format_is_one_sentence(content, message):
    with pytest.raises(HistoryError, match=message):
        recognise("f", content)


_CHARACTERS = st.text('0159,:- ade\nrmov{}[]"', max_size=80)


@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=80) | _CHARACTERS)
def test_readers_end_with_a_record_or_a_sentence(form, content):
    _ends(lambda content: read_source("f", content, form, NOW_S), content)


@given(st.binary(max_size=80) | _CHARACTERS)
def test_recognition_ends_with_a_record_or_a_sentence(content):
    _ends(lambda content: read_source("f", content, recognise("f", content), NOW_S), content)


_KEYS = (
    *(
        "metadata",
        "gap_seconds",
        "data",
        "ranges",
        "index",
        "label",
        "spot_advisor",
        "r",
        "s",
        "range",
        "nodes",
    ),
    *("region", "instance", "savings", "duration", "SpotPriceHistory", "SpotPrice", "Timestamp"),
    *("AvailabilityZone", "InstanceType"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**18) | st.floats() | st.text("ar<5%Z", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(FORMATS)), _JSON)
def test_readers_of_odd_json_end_with_a_record_or_a_sentence(form, document):
    _ends(lambda content: read_source("f", content, form, NOW_S), json.dumps(document))


def _ends(read, content):
    sentence = ""
    try:
        found = read(content.encode() if isinstance(content, str) else content)
    except HistoryError as error:
        found, sentence = None, str(error)
    assert isinstance(found, History | PriceHistory | InterruptionBands) or sentence.startswith("f:")
    assert "\n" not in sentence


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


# Which nodes are alive at each second: a list of sets says it all, and the facts can be counted second by second.
_ALIVE = st.lists(st.sets(st.sampled_from("abcd")), min_size=2, max_size=25)


def _events(alive: list[set[str]]) -> list[tuple[int, str, str]]:
    changes = [(-1, set()), *enumerate(alive)]
    return [
        (second, event, node)
        for (_, before), (second, now) in itertools.pairwise(changes)
        for event, nodes in (("remove", before - now), ("add", now - before))
        for node in sorted(nodes)
    ]


@given(_ALIVE)
def test_facts_of_nodes_equal_a_count_second_by_second(alive):
    events = _events(alive)
    seconds = sorted({second for second, _, _ in events})
    content = "".join(f"{1000 * s},{event},{node}\n" for s, event, node in events).encode()
    if len(seconds) < 2:
        with pytest.raises(HistoryError):
            read_bamboo("f", content)
        return
    found = facts(read_bamboo("f", content))
    first, last = seconds[0], seconds[-1]
    counts = [len(alive[second]) for second in range(first, last)]
    assert found.duration_s == last - first
    assert found.availability == pytest.approx(sum(n > 0 for n in counts) / len(counts))
    assert found.mean_capacity == pytest.approx(sum(counts) / len(counts))
    assert (found.lowest_capacity, found.highest_capacity) == (min(counts), max(counts))
    assert found.capacity_lost == sum(max(a - b, 0) for a, b in itertools.pairwise(counts))
    runs: list[int] = []
    censored = 0
    for node in "abcd":
        up = [second for second in range(first, last + 1) if node in alive[second]]
        for begin in [second for second in up if second - 1 not in up]:
            end = next(second for second in range(begin, last + 2) if second not in up)
            if begin > first and end <= last:
                runs.append(end - begin)
            else:
                censored += 1
    assert (found.nodes_complete, found.nodes_censored) == (len(runs), censored)
    assert found.node_median_lifetime_s == (statistics.median(runs) if runs else None)
    assert found.node_mean_lifetime_s == (pytest.approx(sum(runs) / len(runs)) if runs else None)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=30))
def test_counts_equal_a_table_that_later_lines_overwrite(lines):
    """Brute force: a table of seconds, in which each line overwrites its own second and all later ones."""
    table: dict[int, int] = {}
    for second, count in lines:
        table = {s: c for s, c in table.items() if s < second} | {second: count}
    content = "".join(f"2026-01-02, 03:04:{s:02}, {count}\n" for s, count in lines).encode()
    if len(table) < 2:
        with pytest.raises(HistoryError, match="fewer than two"):
            read_bamboo_counts("f", content, NOW_S)
        return
    history = read_bamboo_counts("f", content, NOW_S)
    zero = min(table)
    assert (*history.times_s, history.end_s) == tuple(second - zero for second in sorted(table))
    assert history.capacity == tuple(table[second] for second in sorted(table))[:-1]
    final = {s: table[max(t for t in table if t <= s)] for s in range(zero, 41)}
    wrong = [n for n, (s, count) in enumerate(lines, 1) if final.get(s) != count]
    assert history.contradicted_lines == tuple(wrong)


# Durations read off the files, from the first line to the last; the traces are 60 lines of a minute each.
REAL = {
    "bamboo/g4dn-trace.csv": ("bamboo", 38280.0),
    "bamboo/p3-trace.csv": ("bamboo", 40920.0),
    "bamboo/a100x1-east1b.txt": ("bamboo-counts", 97266.0),
    "bamboo/v100x1-east1c.txt": ("bamboo-counts", 87013.0),
    "parcae/p3.csv": ("parcae", 40920.0),
    "parcae/trace_hh_55_65.txt": ("parcae-trace", 3600.0),
    "parcae/trace_ll_10_11.txt": ("parcae-trace", 3600.0),
}


@pytest.mark.parametrize("file", REAL)
def test_real_files_are_recognised_and_read(file: str, spot_histories: Path):
    content = (spot_histories / file).read_bytes()
    form, duration_s = REAL[file]
    assert recognise(file, content) == form
    record = read_source(file, content, form, NOW_S)
    assert isinstance(record, History)
    found = facts(record)
    assert (found.duration_s, found.availability, found.interruptions) == (duration_s, 1.0, 0)


@pytest.mark.parametrize("file", ["bamboo/g4dn-trace.csv", "bamboo/p3-trace.csv"])
def test_lifetimes_of_real_nodes_by_a_second_count(file: str, spot_histories: Path):
    """In these files each node is added once and removed at most once, so a dictionary for each is enough."""
    rows = [line.split(",") for line in (spot_histories / file).read_text().split()]
    added = {node: int(ms) for ms, event, node in rows if event == "add"}
    removed = {node: int(ms) for ms, event, node in rows if event == "remove"}
    assert len(added) + len(removed) == len(rows)
    first = int(rows[0][0])
    lived = [(removed[node] - ms) / 1000 for node, ms in added.items() if node in removed and ms > first]
    found = facts(read_bamboo(file, (spot_histories / file).read_bytes()))
    assert (found.nodes_complete, found.nodes_censored) == (len(lived), len(added) - len(lived))
    assert found.node_median_lifetime_s == statistics.median(lived)
    assert found.node_mean_lifetime_s == pytest.approx(sum(lived) / len(lived))


def test_real_files_of_one_market_agree(spot_histories: Path):
    """Parcae's p3.csv is Bamboo's p3-trace.csv without the names of the nodes."""
    events = read_bamboo("a", (spot_histories / "bamboo/p3-trace.csv").read_bytes())
    counts = read_parcae("b", (spot_histories / "parcae/p3.csv").read_bytes())
    assert (events.times_s, events.capacity, events.end_s) == (counts.times_s, counts.capacity, counts.end_s)


def test_the_unsorted_real_file_has_contradictions_and_the_sorted_one_gaps(spot_histories: Path):
    unsorted = read_bamboo_counts("v", (spot_histories / "bamboo/v100x1-east1c.txt").read_bytes(), NOW_S)
    assert (len(unsorted.contradicted_lines), unsorted.contradicted_lines[0]) == (23, 2)
    gaps = read_bamboo_counts("a", (spot_histories / "bamboo/a100x1-east1b.txt").read_bytes(), NOW_S)
    assert gaps.contradicted_lines == ()
    assert facts(gaps).longest_gap_s == 18060.0
