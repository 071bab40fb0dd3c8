"""The core's specification from an experiment, and refusals of limits in dollars."""

from dataclasses import dataclass, fields
from decimal import Decimal

import pytest

from analysis.planning.checkpoints import checkpoint_bytes
from analysis.planning.plan import place_key, plan_of
from cloud.prices.book import load as load_book
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load
from experiments.schema.limits import Limits
from metrics.records import EventRecord
from orchestrator.cli.render.summary import plan_lines
from orchestrator.cli.render.words import duration
from orchestrator.core.journal import created, replay
from orchestrator.errors import RefusedError
from orchestrator.launch.rented import patient
from orchestrator.launch.run_spec import _transfer_s, check_money, run_spec

BOOK = load_book("study-2023-04")
EMPTY = type(BOOK).from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
VMLESS = type(BOOK).from_text(
    "".join(line for line in BOOK.text.splitlines(keepends=True) if ",vm," not in line), "no-vms.csv"
)
LISTED = load_book("list-2026-11")
ASIALESS = type(BOOK).from_text(
    "".join(line for line in LISTED.text.splitlines(keepends=True) if "gcp,egress,US,ASIA," not in line),
    "asialess.csv",
)
IOWA = "gcp/us-central1/us-central1-a"


def told(name="geo-b2", *settings: str, book=BOOK, **more):
    spec = load(name, list(settings))
    return spec, run_spec(spec, "r", book, resolve_emulation(spec, 2), **more)


def test_every_limit_of_the_file_reaches_the_core():
    _, run = told(
        "geo-b2", "min_peers=2", "max_usd_per_h=3.5", "max_wall_time_s=7200", "lease_s=120",
        "limits.vms_per_min=4", "limits.replacements_per_h=9", "budget_usd=8", "peers.us.replace.backoff_s=2",
    )  # fmt: skip
    assert (run.min_peers, run.max_usd_per_h, run.max_wall_s, run.lease_s) == (2, Decimal("3.5"), 7200, 120)
    assert (run.vms_per_min, run.replacements_per_h, run.budget_usd) == (4, 9, Decimal(8))
    assert run.breaker_open_s == 60
    assert run.egress_usd_per_h > 0


def test_deadlines_grow_with_the_size_of_a_checkpoint():
    _, without = told("geo-b2", "emulation.accelerators=host")
    spec, known = told("geo-b2", "checkpoint.every_epochs=5", "emulation.accelerators=host")
    size_bytes = checkpoint_bytes(spec)
    assert size_bytes is not None
    assert size_bytes > 2_000_000_000
    assert (without.restore_s, known.restore_s) == (0.0, size_bytes / 2e6)
    assert known.straggler_s == without.straggler_s + 600.0 + size_bytes / 2e6
    assert _transfer_s(load("glyphs-2", ["checkpoint.every_epochs=5"])) == 600.0, "unknown"
    rented = patient(known)
    assert rented.restore_s == known.restore_s


def test_each_key_of_the_section_limits_reaches_the_plan_its_text_the_core_and_the_journal():
    for key in fields(Limits):
        spec, run = told("geo-b2", f"limits.{key.name}=7")
        plan = plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict()
        assert plan["limits"][key.name] == 7
        limits = next(line for line in plan_lines(plan) if line.startswith("  limits: "))
        assert key.metadata["plan"].format(7) in limits or key.metadata["plan"].format(duration(7)) in limits
        assert getattr(run, key.name) == 7
        first = created(run)
        row = EventRecord(0, 0.0, first.kind, "", -1, "", "", "", "", first.data_json)
        assert replay([row]).spec == run


def test_seconds_of_the_section_limits_are_the_cores_own():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Later(Limits):
        max_vm_age_s: float | None = 600.0
        other_s: float | None = None

    assert Later(vms_per_min=4).shrunk(10.0) == {
        "vms_per_min": 4, "replacements_per_h": 60, "max_vm_age_s": 60.0, "other_s": None,
    }  # fmt: skip


def test_the_plans_ceilings_hold_unless_the_file_has_its_own():
    ceilings = {place_key(IOWA, "T4:1", True): "0.198"}
    _, run = told(ceilings=ceilings)
    by_zone = {p.location: p for slot in run.slots for p in slot.places}
    assert by_zone[IOWA].max_usd_per_h == by_zone[IOWA].ceiling_usd_per_h == Decimal("0.198")
    other = next(p for p in by_zone.values() if p.location != IOWA)
    assert other.max_usd_per_h is None
    assert other.ceiling_usd_per_h == other.usd_per_h
    _, run = told("geo-b2", "peers.us.resources.max_usd_per_h=0.25", ceilings=ceilings)
    assert run.slots[0].places[0].max_usd_per_h == Decimal("0.25")


@pytest.mark.parametrize("limit", ["budget_usd=5", "max_usd_per_h=5"])
def test_an_unknown_price_is_refused_unless_it_has_a_ceiling(limit):
    spec, run = told("geo-b2", limit, book=EMPTY)
    with pytest.raises(RefusedError, match=r"empty\.csv has no price for every place"):
        check_money(spec, run, EMPTY)
    capped = [f"peers.{group}.resources.max_usd_per_h=0.5" for group in ("us", "eu")]
    spec, run = told("geo-b2", limit, *capped, book=VMLESS)
    check_money(spec, run, VMLESS)


def test_a_budget_without_traffic_prices_is_refused_with_an_alternative():
    spec, run = told("geo-c8", "budget_usd=20", book=ASIALESS)
    with pytest.raises(
        RefusedError, match=r"asialess\.csv has no price for the traffic of .*asia.*prices=list-2026-11"
    ):
        check_money(spec, run, ASIALESS)
    check_money(*told("geo-c8", "max_usd_per_h=20", book=ASIALESS), ASIALESS)  # of VMs only
    for book in (BOOK, LISTED):
        check_money(*told("geo-c8", "budget_usd=200", book=book), book)


def test_free_traffic_is_not_traffic_of_unknown_price():
    check_money(*told("geo-a2", "budget_usd=20", book=LISTED), LISTED)


def test_impossible_limits_are_refused_with_the_sums():
    spec, run = told("geo-b2", "min_peers=2", "max_usd_per_h=0.30")
    with pytest.raises(RefusedError, match=r"min_peers \(2\) cost at least 0\.36 USD an hour"):
        check_money(spec, run, BOOK)
    spec, run = told("geo-b2", "budget_usd=0.01")
    with pytest.raises(RefusedError, match="allows not even the first VM"):
        check_money(spec, run, BOOK)
    check_money(*told("geo-b2", "budget_usd=5", "max_usd_per_h=0.36"), BOOK)


def test_further_accelerators_of_a_vm_compile_after_the_first():
    alone = "emulation.accelerators=host"
    _, one = told("geo-b2", alone, "swarm.compile=true")
    _, two = told("geo-b2", alone, "swarm.compile=true", "peers.us.resources.accelerators=T4:2")
    assert two.start_deadline_s == one.start_deadline_s + 1200.0


def test_a_peer_that_compiles_may_take_longer():
    _, plain = told("geo-b2", "emulation.accelerators=host")
    _, compiled = told("geo-b2", "emulation.accelerators=host", "swarm.compile=true")
    assert (plain.restore_s, compiled.restore_s) == (0.0, 600.0)
    assert compiled.start_deadline_s == plain.start_deadline_s + 1200.0  # its own, and the others'
