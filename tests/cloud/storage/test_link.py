"""A link delivers no more than its rate and one window, and each request takes a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.storage.link import Link, LinkedClient, TokenBucket
from cloud.storage.opener import ShardOpener
from tests.cloud.storage_fakes import DATA, FakeStore, VirtualTime

RATES = st.floats(0.1, 10_000)


@given(
    link=st.builds(Link, RATES, st.floats(0, 500)),
    reads=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1 << 20)), min_size=1, max_size=30),
)
def test_a_stream_delivers_at_most_its_rate_and_one_window(link, reads):
    bucket, now_s, delivered = TokenBucket(0.0, 0.0), 0.0, 0
    for idle_s, count_bytes in reads:
        now_s += idle_s
        bucket, wait_s = bucket.take(count_bytes, now_s, link)
        now_s += wait_s
        delivered += count_bytes
        assert delivered <= link.bytes_per_s * now_s * (1 + 1e-9) + 1
        if wait_s:
            # a reader who waits gets the whole rate from here on
            again, more_s = bucket.take(1000, now_s, link)
            assert more_s == pytest.approx(1000 / link.bytes_per_s, rel=1e-6, abs=1e-9)
            assert again.tokens < 0


@given(link=st.builds(Link, RATES, st.floats(0, 500)), idle_s=st.floats(0, 100))
def test_an_idle_stream_saves_one_window(link, idle_s):
    bucket, _ = TokenBucket(0.0, 0.0).take(0, idle_s, link)
    assert bucket.tokens == pytest.approx(min(idle_s * link.bytes_per_s, link.window_bytes))


def test_each_request_and_each_reopening_takes_a_round_trip():
    time = VirtualTime()
    link = Link(8, 100)
    store = FakeStore({"a.tar": DATA}, [10_000])
    opener = ShardOpener(
        lambda: LinkedClient(store, link, clock=time.clock, sleep=time.sleep),
        clock=time.clock,
        sleep=time.sleep,
        buffer_bytes=4096,
    )
    with opener.open("s3://b/a.tar") as file:
        assert file.read() == DATA
    assert time.now_s == pytest.approx(2 * 0.1 + 0.2 + len(DATA) / 1e6)


@pytest.mark.parametrize(
    "text", ["", "210", "210,", "a,b", "0,103", "-1,5", "210,-1", "nan,1", "inf,1", "1,2,3"]
)
def test_bad_links_are_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r"link") as caught:
        Link.parse(text)
    assert "\n" not in str(caught.value)


def test_a_link_is_parsed():
    link = Link.parse("210,103")
    assert (link.bytes_per_s, link.rtt_s) == (26.25e6, 0.103)
    assert link.window_bytes == pytest.approx(2_703_750)
    assert Link.parse("1,0").window_bytes == 65536
