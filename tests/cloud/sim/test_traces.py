"""Histories of a spot market: our CSV, AWS's JSON, and what is wrong with a file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.sim.traces import SAMPLE, TraceError, TraceEvent, load_trace, read_aws, read_csv

HEAD = "at_s,location,event,value\n"
ZONE = "gcp/us-central1/us-central1-a"


def history(*rows: tuple[str, str, str, str]) -> str:
    """As `aws ec2 describe-spot-price-history` prints it: the newest first."""
    return json.dumps({
        "SpotPriceHistory": [
            {
                "AvailabilityZone": zone,
                "InstanceType": kind,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": usd,
                "Timestamp": at,
            }
            for at, zone, kind, usd in rows
        ]
    })  # fmt: skip


def test_aws_price_history_becomes_prices_by_zone():
    text = history(
        ("2026-11-20T12:00:00+00:00", "us-west-2a", "g4dn.xlarge", "0.215500"),
        ("2026-11-20T11:30:00.000Z", "us-west-2-lax-1a", "g4dn.xlarge", "0.300000"),
        ("2026-11-20T11:00:00+00:00", "us-west-2a", "g4dn.xlarge", "0.198100"),
        ("2026-11-20T10:00:00+00:00", "us-west-2a", "p3.2xlarge", "0.900000"),
    )
    assert read_aws(text, instance="g4dn.xlarge") == [
        TraceEvent(0.0, "aws/us-west-2/us-west-2a", "price", Decimal("0.198100")),
        TraceEvent(1800.0, "aws/us-west-2/us-west-2-lax-1a", "price", Decimal("0.300000")),
        TraceEvent(3600.0, "aws/us-west-2/us-west-2a", "price", Decimal("0.215500")),
    ]
    with pytest.raises(TraceError, match=r"g4dn\.xlarge, p3\.2xlarge; select one with --instance"):
        read_aws(text)
    with pytest.raises(TraceError, match="no prices of t4g"):
        read_aws(text, instance="t4g")


@pytest.mark.parametrize(
    "text", ["{}", '{"SpotPriceHistory": [{"SpotPrice": "1"}]}', "[1]", "{", '{"SpotPriceHistory": []}']
)
def test_invalid_price_history_says_how_to_create_one(text):
    with pytest.raises(TraceError, match=r"describe-spot-price-history|no price"):
        read_aws(text)


@pytest.mark.parametrize("usd", ["0", "-1", "nan", "inf"])
def test_a_price_of_aws_is_finite_and_above_zero(usd):
    with pytest.raises(TraceError, match=r"^h:1: the price must be finite, above 0"):
        read_aws(history(("2026-11-20T12:00:00Z", "us-west-2a", "g4dn.xlarge", usd)), name="h")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "missing columns: at_s, location, event, value"),
        (HEAD + f"0,{ZONE},boom,1\n", "t:2: 'boom' is not an event"),
        (HEAD + f"0,{ZONE},price,0.1\nx,{ZONE},price,1\n", "t:3: 'x' and '1' must be numbers"),
        (HEAD + f"-1,{ZONE},price,1\n", "negative"),
        (HEAD + f"nan,{ZONE},price,1\n", "must be numbers"),
        (HEAD + f"0,{ZONE},price,inf\n", "a price must be a finite number"),
        (HEAD + f"0,{ZONE},preempt,1.5\n", "not a whole number"),
        (HEAD + "0,,price,1\n", "no location"),
        (HEAD + "0\n", "is not an event"),
    ],
)
def test_a_wrong_line_is_named(text, says):
    with pytest.raises(TraceError, match=says.replace("(", r"\(")):
        read_csv(text.splitlines(), name="t")


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "none.csv")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "bytes")


def test_the_sample_is_a_day_of_three_zones():
    events = load_trace(SAMPLE)
    assert len({e.location for e in events}) == 3
    assert {e.event for e in events} == {"price", "preempt", "capacity", "refuse"}
    assert 80_000 < events[-1].at_s < 86_400
