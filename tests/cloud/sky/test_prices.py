"""A VM's price is compared with its ceiling before it is requested, and again with what was rented."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.provider import LaunchRequest, NoCapacityError, Offer
from cloud.sky import clusters, launching, records
from cloud.sky.price_check import REMEMBERED_S, refusal_before, refusal_remembered
from cloud.sky.provider import SkyCloud
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk

OFFER = Offer(
    "aws/us-west-2/us-west-2a", "g4dn.2xlarge", "T4:1", True, Decimal("0.19"), "price book list-2026-11:12"
)
REQUEST = LaunchRequest("r-a-0", OFFER, "programs:stay", {}, max_usd_per_h=Decimal("0.209"))
CATALOG = "SkyPilot's catalog, read back on 2026-11-24"


def test_both_prices_and_the_command_are_in_the_sentence():
    said = refusal_before(REQUEST, Decimal("0.2256"), CATALOG)
    assert said.startswith(
        "g4dn.2xlarge with T4:1 spot costs $0.2256/h (SkyPilot's catalog, read back on 2026-11-24), more than its "
        "ceiling of $0.209/h; the plan assumed $0.19/h (price book list-2026-11:12); nothing was requested."
    )
    assert "`orch prices --book NAME --provider aws --product vm`" in said


@pytest.mark.parametrize("usd", ["0.209", "0.19", "0.0001"])
def test_a_price_up_to_the_ceiling_is_requested(usd: str):
    assert refusal_before(REQUEST, Decimal(usd), CATALOG) == ""


def test_an_unknown_price_is_refused_only_where_there_is_a_ceiling_to_be_kept():
    without = "SkyPilot's catalog has no price (ValueError)"
    said = refusal_before(REQUEST, None, without)
    assert said.startswith(
        f"{without}, so the ceiling of $0.209/h for g4dn.2xlarge with T4:1 spot cannot be enforced"
    )
    assert refusal_before(replace(REQUEST, max_usd_per_h=None), None, without) == ""
    assert refusal_before(REQUEST, None, "") == "", "a VM that SkyPilot does not know is its own to refuse"


def test_place_with_vm_above_ceiling_is_avoided_for_an_hour():
    location = "aws/us-west-2/us-west-2c"
    was = VmRecord(
        "r-b-0", "r-b-0", location, "T4:1", True, 10.0, end_state="terminated", ended_at_s=100.0, usd_per_h="0.25",
        asked=OFFER.location, too_dear=True,
    )  # fmt: skip
    said = refusal_remembered(REQUEST, [was], 160.0)
    assert "r-b-0 was rented there at $0.25/h and ended 60 s ago, above the ceiling of $0.209/h" in said
    assert refusal_remembered(REQUEST, [was], 100.0 + REMEMBERED_S) == ""
    for other in (
        replace(was, asked="aws/us-west-2/us-west-2b"),
        replace(was, use_spot=False),
        replace(was, accelerator="A10:1"),
        replace(was, too_dear=False),
        replace(was, usd_per_h="0.2"),
    ):
        assert refusal_remembered(REQUEST, [other], 160.0) == ""


class World:
    """SkyPilot's calls during a launch: the catalog's price, and the price of the rented VM."""

    def __init__(self) -> None:
        self.catalog_usd: Decimal | None = Decimal("0.2")
        self.rented_usd: Decimal | None = Decimal("0.2")
        self.launches: list[str] = []
        self.living: dict[str, sdk.Cluster] = {}

    def quote(self, request: LaunchRequest) -> tuple[Decimal | None, str]:
        return self.catalog_usd, CATALOG

    def launch(self, request: LaunchRequest, ship: Path, key: str, aws_role: str) -> str:
        self.launches.append(request.vm)
        self.living[request.vm] = sdk.Cluster(
            request.vm, "UP", {}, "203.0.113.9", "us-west-2", "us-west-2a", "aws", "g4dn.2xlarge",
            usd_per_h=self.rented_usd, price_source=CATALOG,
        )  # fmt: skip
        return "request"

    def find(self, cluster: str, *, ask_cloud: bool = False) -> sdk.Cluster | None:
        return self.living.get(cluster)

    def down(self, cluster: str) -> None:
        self.living.pop(cluster, None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for name in ("quote", "launch", "find", "down"):
        monkeypatch.setattr(sdk, name, getattr(made, name))
    monkeypatch.setattr(sdk, "pending_launch", lambda cluster: None)
    monkeypatch.setattr(sdk, "wait_launch", lambda request_id: None)
    for module in (launching, clusters):
        monkeypatch.setattr(module.server, "ensure", lambda home: None)
    monkeypatch.setattr(launching.server, "claim", lambda home, run: None)
    monkeypatch.setattr(launching.aws_role, "ensure", lambda buckets, written: "role")
    monkeypatch.setattr(launching, "ship_folder", lambda folder, home, request: (folder / "x.ship", "key"))
    return made


def test_catalog_price_above_ceiling_rents_nothing_on_repeated_requests(world: World, tmp_path: Path):
    cloud = SkyCloud(tmp_path / "runs" / "r")
    world.catalog_usd = Decimal("0.2256")
    for generation in range(5):
        with pytest.raises(NoCapacityError, match=r"costs \$0\.2256/h .* ceiling of \$0\.209/h"):
            cloud.request(replace(REQUEST, vm=f"r-a-{generation}"))
    assert world.launches == []
    assert cloud.observe() == [], "nothing was rented, so nothing is billed"
    world.catalog_usd = Decimal("0.2")
    cloud.request(replace(REQUEST, vm="r-a-5"))
    assert world.launches == ["r-a-5"]


@pytest.mark.parametrize("rented_usd", [Decimal("0.25"), None])
def test_vm_above_ceiling_is_ended_and_its_place_is_avoided(
    world: World, tmp_path: Path, rented_usd: Decimal | None
):
    cloud = SkyCloud(tmp_path / "runs" / "r")
    world.rented_usd = rented_usd
    with pytest.raises(NoCapacityError, match="it was ended again"):
        cloud.request(REQUEST)
    assert world.living == {}
    [record] = records.read_all(tmp_path / "runs" / "r" / "sky")
    assert (record.end_state, record.too_dear) == ("terminated", True)
    for generation in range(1, 5):
        with pytest.raises(NoCapacityError, match="r-a-0 was rented there at"):
            cloud.request(replace(REQUEST, vm=f"r-a-{generation}"))
    assert world.launches == ["r-a-0"]
