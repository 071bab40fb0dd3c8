"""SkyPilot's own catalog is asked for the price before anything is rented."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from fate import instances
from machine import clusters, in_ec2

from cloud.provider import LaunchRequest, NoCapacityError, Offer
from cloud.sky import SkyCloud
from cloud.sky.names import label_value
from cloud.sky.skypilot import sdk

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

OFFER = Offer("aws/us-west-2/us-west-2b", "g4dn.2xlarge", "T4:1", True, Decimal("0.1"), "price book old:3")
REQUEST = LaunchRequest("dear-a-0", OFFER, "stays:stay", {}, max_usd_per_h=Decimal("0.11"))


def test_the_catalogs_price_is_that_of_the_place(clean_home: Path):
    """Spot prices of tests/fake_ec2/seed_home.py: 0.30, 0.35 and 0.40 of the on-demand price by zone."""
    spot = {zone: sdk.quote(_at(f"aws/us-west-2/us-west-2{zone}"))[0] for zone in "abc"}
    assert spot == {"a": Decimal("0.2256"), "b": Decimal("0.2632"), "c": Decimal("0.3008")}
    assert sdk.quote(_at("aws/us-west-2"))[0] == Decimal("0.2256"), "the cheapest of the region's zones"
    on_demand = replace(OFFER, use_spot=False)
    assert sdk.quote(replace(REQUEST, offer=on_demand))[0] == Decimal("0.752")
    nameless = replace(OFFER, instance="unknown", accelerator="CPU:2")
    usd, source = sdk.quote(replace(REQUEST, offer=nameless))
    assert usd is not None
    assert usd < Decimal("0.1")
    assert "SkyPilot's catalog" in source


def _at(location: str) -> LaunchRequest:
    return replace(REQUEST, offer=replace(OFFER, location=location))


def test_a_place_above_its_ceiling_is_refused_before_a_vm_is_rented(clean_home: Path):
    cloud = SkyCloud(clean_home / "runs" / "dear")
    (clean_home / "runs" / "dear").mkdir(parents=True)
    try:
        for generation in range(2):
            with pytest.raises(
                NoCapacityError, match=r"costs \$0\.2632/h .* ceiling of \$0\.11/h.*`orch prices"
            ):
                cloud.request(replace(REQUEST, vm=f"dear-a-{generation}"))
    finally:
        cloud.close()
    ever = [i for i in instances(up=None) if i["tags"].get("orch-vm", "").startswith(label_value("dear"))]
    assert (ever, in_ec2(), clusters()) == ([], [], [])
