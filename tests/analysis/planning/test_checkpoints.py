"""Checkpoints in the plan and the reserve: size, number, writer and dollars, computed by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from analysis.planning.budget import planned_budget
from analysis.planning.checkpoints import (
    checkpoint_bytes,
    kept_usd,
    planned_checkpoints,
    restore_usd,
    upload_usd,
    uploads_in,
    writers_of,
)
from analysis.planning.reserve import (
    LOCAL_PACE,
    missing_traffic,
    pace_of,
    unpriced_traffic,
    uploads_in_flight_usd,
)
from cloud.prices.book import PriceBook
from cloud.prices.book import load as load_book
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load
from experiments.schema.models import ExperimentSpec

LISTED = load_book("list-2026-11")
IOWA, IRELAND = "gcp/us-central1/us-central1-a", "aws/eu-west-1/eu-west-1b"


def spec_of(
    *changes: str, places: tuple[str, ...] = (IRELAND, IOWA), store: str = "gcp/us-central1"
) -> ExperimentSpec:
    spec = load("geo-b2", ["model=ResNet152", "emulation=null", *changes])
    groups = tuple(
        spec.peers[0].model_copy(
            update={
                "name": f"g{n}",
                "resources": spec.peers[0].alternatives[0].model_copy(update={"infra": place}),
            }
        )
        for n, place in enumerate(places)
    )
    return spec.model_copy(update={"peers": groups, "data": spec.data.model_copy(update={"location": store})})


def test_size_number_and_dollars_of_the_cheapest_writer() -> None:
    spec = spec_of("checkpoint.every_epochs=3", "measure.warmup_epochs=1", "measure.epochs=10")
    assert checkpoint_bytes(spec) == 60_192_808 * 4 * 3
    found = planned_checkpoints(spec, LISTED, None)
    assert found is not None
    assert (found.writer, found.location, found.count) == ("g1-0", IOWA, 4)  # after 3, 6, 9 and 11
    assert found.usd == 0, "clouds bill nothing for what a VM sends to a store of its region"
    down = [LISTED.store_egress("gcp/us-central1", at, 60_192_808 * 4 * 3) or 0 for at in (IRELAND, IOWA)]
    assert (found.restore_usd, found.kept_usd) == (sum(down), None)
    for_a_month = planned_checkpoints(spec, LISTED, 730 * 3600.0)
    assert for_a_month is not None
    assert for_a_month.kept_usd == pytest.approx(Decimal("0.02") * 2 * 60_192_808 * 12 / 2**30)
    assert upload_usd(spec, LISTED) == LISTED.egress(IRELAND, "gcp/us-central1", 60_192_808 * 4 * 3)


@pytest.mark.parametrize(
    ("optimizer", "values"), [("sgd", 1), ("{name: sgd, momentum: 0.9}", 2), ("adam", 3), ("lamb", 3)]
)
def test_the_optimizers_state_counts(optimizer: str, values: int) -> None:
    key = "swarm.optimizer" if "{" in optimizer else "swarm.optimizer.name"
    spec = spec_of(f"{key}={optimizer}", "checkpoint.every_epochs=3")
    assert checkpoint_bytes(spec) == 60_192_808 * 4 * values


def test_by_time_the_number_needs_a_duration() -> None:
    spec = spec_of("checkpoint.every_s=600")
    counts = [planned_checkpoints(spec, LISTED, s) for s in (None, 3000.0)]
    assert [(one.count, one.usd is None) for one in counts if one is not None] == [(None, True), (6, False)]


def test_writers_by_price_then_in_order() -> None:
    spec = spec_of(places=(IRELAND, IOWA, IOWA))
    assert writers_of(spec, LISTED) == ("g1-0", "g2-0", "g0-0")
    assert writers_of(spec, None) == ("g0-0", "g1-0", "g2-0")


def test_the_reserve_has_the_upload_in_progress_and_those_until_the_end() -> None:
    assert [uploads_in(spec_of(f"checkpoint.every_epochs={n}"), 100.0, 10.0) for n in (1, 5, 50)] == [
        12,
        4,
        2,
    ]
    spec = spec_of("checkpoint.every_epochs=5", "budget_usd=50")
    one = upload_usd(spec, LISTED)
    assert one is not None
    found = uploads_in_flight_usd(spec, LISTED, 25.0, LOCAL_PACE)
    down = restore_usd(spec, LISTED)
    kept = kept_usd(spec, LISTED, LOCAL_PACE.all_s)
    assert down == sum(
        LISTED.store_egress("gcp/us-central1", at, 60_192_808 * 12) or 0 for at in (IRELAND, IOWA)
    )
    assert down
    assert kept == pytest.approx(
        Decimal("0.02") * 3 * 60_192_808 * 12 / 2**30 * Decimal(LOCAL_PACE.all_s) / (730 * 3600)
    )
    assert found == (one * 2 + down) * Decimal("1.25") + kept
    emulation = resolve_emulation(load("geo-b2"), 2)
    rates = [
        planned_budget(s, LISTED, Decimal(1), emulation, rented=True).egress_usd_per_h
        for s in (spec_of(), spec)
    ]
    pace = pace_of(emulation, True, spec.lease_s)
    most = uploads_in_flight_usd(spec, LISTED, emulation.reckoned_epoch_s, pace)
    assert most is not None
    assert rates[1] == pytest.approx((rates[0] or 0) + most * 3600 / Decimal(repr(pace.all_s)))


def test_unknown_stays_unknown() -> None:
    rows = [
        line for line in LISTED.text.splitlines() if ",egress," not in line or "aws" not in line.split(",")[0]
    ]
    partial = PriceBook.from_text("\n".join(rows) + "\n", "partial.csv")
    spec = spec_of("checkpoint.every_epochs=5")
    assert upload_usd(spec, partial) is None
    assert uploads_in_flight_usd(spec, partial, 10.0, LOCAL_PACE) is None
    route = f"{IRELAND} to the store in gcp/us-central1"
    assert route in unpriced_traffic(spec, partial)
    assert route not in unpriced_traffic(spec_of(), partial)
    unstored = spec_of("checkpoint.every_epochs=5", store="azure/eastus")
    assert kept_usd(unstored, LISTED, 10.0) is None
    assert uploads_in_flight_usd(unstored, LISTED, 10.0, LOCAL_PACE) is None
    assert "storage at azure/eastus" in unpriced_traffic(unstored, LISTED)
    assert any(row.product == "storage" for row in missing_traffic(unstored, LISTED))
    assert len(missing_traffic(spec, partial)) >= len(missing_traffic(spec_of(), partial))
