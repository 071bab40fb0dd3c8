"""The reserve for the traffic of rented VMs depends on the addresses that they use."""

from decimal import Decimal

from analysis.planning.reserve import epoch_egress_usd, unpriced_traffic
from cloud.prices.book import load as load_book
from experiments.catalog import models
from experiments.parse.load import load

LISTED = load_book("list-2026-11")
IOWA = "gcp/us-central1/us-central1-a"


def test_rented_peers_of_one_zone_pay_for_public_addresses():
    """A-8's vectors inside Iowa are most of the cost of its traffic."""
    spec = load("geo-a8")
    free, billed = (epoch_egress_usd(spec, LISTED, rented=rented) for rented in (False, True))
    model = models()[spec.model]
    sent = LISTED.egress(IOWA, IOWA, 2 * model.parameters * 2 // 8, public=True)
    state = LISTED.egress(IOWA, IOWA, 12 * model.parameters, public=True)
    assert free is not None
    assert billed is not None
    assert sent is not None
    assert state is not None
    assert billed - free == (56 * sent + state) * Decimal("1.25")
    assert unpriced_traffic(spec, LISTED, rented=True) == []


def test_one_vm_a_place_costs_the_same_at_any_address():
    spec = load("geo-b2")
    assert epoch_egress_usd(spec, LISTED, rented=True) == epoch_egress_usd(spec, LISTED, rented=False)
