"""Inside a zone the price of a byte depends on the address that it was sent to: of rented VMs, by bytes."""

from __future__ import annotations

from decimal import Decimal

from cloud.prices.book import load
from metrics.cost.bill import bill_so_far
from metrics.cost.ledger import Ledger, Terms
from metrics.epochs.scaling import Scales
from metrics.epochs.throughput import swarm_epochs
from metrics.run import terms_of
from metrics.store.meta import RunMeta
from metrics.traffic import flows, traffic
from tests.metrics.synthetic_runs import egress, epoch, vm

OREGON, OREGON_B = "aws/us-west-2/us-west-2a", "aws/us-west-2/us-west-2b"
ADDRESSES = {"203.0.113.1": "a", "203.0.113.2": "b", "203.0.113.3": "c", "172.31.0.2": "b"}
LOCATIONS = {"a": OREGON, "b": OREGON, "c": OREGON_B}
GB = 10**9
SENT = [
    egress("a", 1, "203.0.113.2", "comm", 2, 3 * GB),
    egress("a", 1, "172.31.0.2", "comm", 2, 5 * GB),
    egress("a", 1, "203.0.113.3", "comm", 2, 7 * GB),
    egress("b", 1, "203.0.113.1", "comm", 2, GB),
    egress("c", 1, "203.0.113.1", "comm", 2, 0),
]
EPOCHS = [epoch(name) for name in "abc"]


def bill(public: bool) -> Ledger:
    terms = Terms(
        scales=Scales(), raw_target=None, book=load("list-2026-11"), addresses=ADDRESSES, locations=LOCATIONS,
        bytes_per_sample=1.0, store_location="b2/us-west-004", public=public,
    )  # fmt: skip
    rows = [vm(name, location=where) for name, where in LOCATIONS.items()]
    return bill_so_far(rows, EPOCHS, SENT, 100.0, terms, {})


def test_bytes_are_priced_by_their_destination_address():
    ways = bill(public=True).by_link_and_class()
    assert ways["a", "b", "same_zone_public"] == Decimal("0.06")
    assert ways["a", "b", "same_zone"] == 0
    assert ways["a", "c", "inter_zone"] == Decimal("0.14")
    assert ways["b", "a", "same_zone_public"] == Decimal("0.02")
    assert bill(public=True).by_link()["a", "b"] == Decimal("0.06")


def test_addresses_within_a_zone_count_as_internal_in_the_emulated_cloud():
    ways = bill(public=False).by_link_and_class()
    assert ways["a", "b", "same_zone"] == 0
    assert not [way for way in ways if way[2] == "same_zone_public"]


def test_a_pair_that_used_both_has_two_rows_and_no_byte_twice():
    study = swarm_epochs(EPOCHS, 0)
    found = flows(SENT, ADDRESSES, LOCATIONS, public=True)
    rows = {(row.src, row.dst, row.kind): row.bytes for row in traffic(found, study, Scales(), "abc")}
    assert (rows["a", "b", "same_zone_public"], rows["a", "b", "same_zone"]) == (3 * GB, 5 * GB)
    assert sum(rows.values()) == 16 * GB
    scaled = Scales(bytes=10)
    big = {(row.src, row.dst, row.kind): row.bytes for row in traffic(found, study, scaled, "abc")}
    assert big["a", "b", "same_zone_public"] == 30 * GB


def test_which_runs_are_priced_so():
    for target, public in (("sky", True), ("local", False), ("loopback", False)):
        assert terms_of(RunMeta(target=target))[0].public is public


INTERNAL = {"aws/us-west-2": {"172.31.0.9": "b", "172.31.0.8": "", "172.31.0.7": "c"}}


def one(address: str) -> tuple[str, str, str | None]:
    """Where a byte from `a` went: node, class, location."""
    [flow] = flows(
        [egress("a", 1, address, "comm", 2, GB)], {"203.0.113.2": "b"}, LOCATIONS, "internet", public=True,
        internal=INTERNAL,
    )  # fmt: skip
    return flow.dst, flow.kind, flow.dst_location


def test_internal_addresses_are_the_vms_of_the_senders_network():
    assert one("172.31.0.9") == ("b", "same_zone", OREGON)
    assert one("172.31.0.7") == ("c", "inter_zone", OREGON_B)
    assert one("203.0.113.2") == ("b", "same_zone_public", OREGON)


def test_internal_address_of_two_vms_has_an_unknown_price():
    assert one("172.31.0.8") == ("172.31.0.8", "unknown", None)
    assert one("10.9.9.9") == ("private", "inter_zone", "aws/us-west-2")
    assert one("198.51.100.1") == ("internet", "internet", None)


def test_bytes_to_an_unknown_private_address_are_billed_with_a_warning():
    sent = [*SENT, egress("a", 1, "10.9.9.9", "comm", 2, 50 * GB)]
    terms = Terms(
        scales=Scales(), raw_target=None, book=load("list-2026-11"), addresses=ADDRESSES, locations=LOCATIONS,
        bytes_per_sample=1.0, store_location="b2/us-west-004", public=True, internal=INTERNAL,
    )  # fmt: skip
    rows = [vm(name, location=where) for name, where in LOCATIONS.items()]
    found = bill_so_far(rows, EPOCHS, sent, 100.0, terms, {})
    assert found.by_link_and_class()["a", "private", "inter_zone"] == Decimal("1.00")
