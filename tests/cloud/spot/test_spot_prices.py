"""Spot prices: AWS's history and SkyPilot's catalog, and what is wrong with a file. Samples are our own."""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.prices import (
    PriceHistory,
    SpotPrice,
    price_facts,
    read_aws_prices,
    read_catalog_prices,
    region_of_zone,
)
from cloud.spot.text import HistoryError, item_line

NOW_S = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone\n"
)


def _row(usd: object, at: object = "2026-11-20T12:00:00+00:00", **more: object) -> dict[str, object]:
    return {
        "AvailabilityZone": "us-west-2a",
        "InstanceType": "g4dn.xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": at,
        **more,
    }


def _aws(*rows: object) -> bytes:
    return json.dumps({"SpotPriceHistory": rows}, indent=1).encode()


def test_aws_prices_are_sorted_by_time_and_kept_to_the_last_digit():
    rows = (
        _row("0.215500"),
        _row("0.300000", "2026-11-20T11:30:00.000Z", AvailabilityZone="us-west-2-lax-1a"),
        _row("0.198100", "2026-11-20T11:00:00"),  # without a zone: UTC
    )
    found = read_aws_prices("f", _aws(*rows), NOW_S)
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    assert [(p.at_s, p.region, p.zone, str(p.usd_per_h)) for p in found.prices] == [
        (noon - 3600, "us-west-2", "us-west-2a", "0.198100"),
        (noon - 1800, "us-west-2", "us-west-2-lax-1a", "0.300000"),
        (noon, "us-west-2", "us-west-2a", "0.215500"),
    ]
    assert read_aws_prices("f", json.dumps(rows).encode(), NOW_S).prices == found.prices  # only the list


def test_two_prices_of_one_offer_and_time_are_a_contradiction_and_a_repeated_one_is_not():
    windows = _row("0.9", ProductDescription="Windows")
    found = price_facts(read_aws_prices("f", _aws(_row("0.1"), _row("0.10"), _row("0.2"), windows), NOW_S))
    assert (found.prices, found.contradictions, len(found.series)) == (4, 1, 2)


def test_catalog_is_a_snapshot_without_a_date():
    content = (
        HEAD
        + "g4dn.xlarge,T4,1.0,4,16,0.526,0.1578,us-east-1,use1-az6\n"
        + "m6i.large,,,2,8,0.096,,us-east-1,\n"  # no spot price
        + ",A100,8,,,29.4,8.8,us-central1,us-central1-a\n"
    )
    found = read_catalog_prices("f", content.encode()).prices
    assert found == (
        SpotPrice(None, "us-central1", "us-central1-a", None, None, "A100:8", Decimal("8.8")),
        SpotPrice(None, "us-east-1", "use1-az6", "g4dn.xlarge", None, "T4:1", Decimal("0.1578")),
    )
    assert price_facts(PriceHistory("f", "0", found)).last_at_s is None


@pytest.mark.parametrize("usd", ["0", "-0.1", "nan", "inf", "1e9", float("1e-400"), 0])
def test_a_price_is_finite_and_above_zero(usd):
    with pytest.raises(HistoryError, match=r"^f:10: the price must be finite, above 0"):
        read_aws_prices("f", _aws(_row("0.1"), _row(usd)), NOW_S)
    with pytest.raises(HistoryError, match=r"^f:3: the price must be finite, above 0"):
        read_catalog_prices("f", f"{HEAD}a,T4,1,4,16,1,0.1,r,\nb,T4,1,4,16,1,{usd},r,\n".encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f:1: no valid JSON"),
        (b'{"SpotPriceHistory": [{"SpotPr', "f:1: no valid JSON"),
        (_aws(_row(float("nan"))), "f:1: NaN is no JSON number"),
        (b"{}", "f:1: not a spot price history"),
        (b'{"SpotPriceHistory": []}', "f:1: not a spot price history"),
        (_aws(_row("0.1"), 5), "f:10: expected a row"),
        (_aws({"SpotPrice": "1"}), "f:3: a row of AWS's spot price history has a Timestamp, Avail"),
        (_aws(_row("many")), "f:3: the price must be a number"),
        (_aws(_row(True)), "f:3: the price must be a number"),
        (_aws(_row("0.1", "yesterday")), "f:3: Timestamp must be a time"),
        (_aws(_row("0.1", "0001-01-01T00:00:00+23:00")), "f:3: Timestamp must be of the years 1970"),
        (_aws(_row("0.1", "2026-11-28T01:00:01Z")), "f:3: 2026-11-28T01:00:01.* is in the future"),
        (_aws(_row("0.1", InstanceType=7)), "f:3: AvailabilityZone and InstanceType"),
        (_aws(_row("0.1", ProductDescription=7)), "f:3: ProductDescription"),
        (b"\xff", "f:1: the file is no UTF-8"),
    ],
)
def test_a_wrong_aws_history_is_one_sentence_with_its_line(content, message):
    with pytest.raises(HistoryError, match=message):
        read_aws_prices("f", content, NOW_S)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1: a catalog of SkyPilot has a column InstanceType, "),
        (HEAD, "f:1: no row has a SpotPrice"),
        (HEAD + "a,T4,1,4,16,1,,r,\n", "f:1: no row has a SpotPrice"),
        (HEAD + "a,T4,1,4,16,1,0.1,r,\nb,T4,1,4", "f:3: 4 cells, but 9 columns; is the file complete"),
        (HEAD + "a,T4,none,4,16,1,0.1,r,\n", "f:2: AcceleratorCount must be a number"),
        (HEAD + "a,T4,nan,4,16,1,0.1,r,\n", "f:2: AcceleratorCount must be finite"),
        (HEAD + "a,T4,1,4,16,1,cheap,r,\n", "f:2: the price must be a number"),
        (HEAD + "a,T4,1,4,16,1,0.1,,\n", "f:2: the row has no Region"),
        (HEAD + '"' + "a" * 200_000 + "\n", "f:2: no valid CSV"),
    ],
)
def test_a_wrong_catalog_is_one_sentence_with_its_line(text, message):
    with pytest.raises(HistoryError, match=message):
        read_catalog_prices("f", text.encode())


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.decimals("0.0001", 99, places=4)),
        min_size=1,
        max_size=20,
    )
)
def test_price_facts_equal_brute_force(stated):
    rows = [_row(str(usd), f"2026-11-20T0{hour}:00:00Z", AvailabilityZone=zone) for hour, zone, usd in stated]
    found = price_facts(read_aws_prices("f", _aws(*rows), NOW_S))
    assert found.prices == len(stated)
    start = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
    hours = [hour for hour, _, _ in stated]
    assert (found.first_at_s, found.last_at_s) == (start + 3600 * min(hours), start + 3600 * max(hours))
    assert found.contradictions == len({*stated}) - len({(hour, zone) for hour, zone, _ in stated})
    for one in found.series:
        usd = [price for _, zone, price in stated if zone == one.zone]
        assert (one.prices, one.lowest_usd_per_h, one.highest_usd_per_h) == (len(usd), min(usd), max(usd))
        assert one.median_usd_per_h == statistics.median(usd)


@given(
    st.lists(st.integers() | st.lists(st.integers()) | st.text(max_size=3), min_size=1, max_size=6),
    st.booleans(),
)
def test_the_line_of_an_item_is_where_it_begins(items, nested):
    text = json.dumps({"before": [1], "k": items} if nested else items, indent=2)
    for index, item in enumerate(items):
        line = item_line(text, "k" if nested else "", index)
        first = json.dumps(item, indent=2).splitlines()[0]
        assert text.splitlines()[line - 1].strip().rstrip(",") == first.rstrip(",")


def test_regions_of_zones():
    assert region_of_zone("us-west-2a") == "us-west-2"
    assert region_of_zone("us-west-2-lax-1a") == "us-west-2"
    assert region_of_zone("elsewhere") == "elsewhere"
