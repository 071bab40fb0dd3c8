"""The plan of an experiment before anything is started."""

from __future__ import annotations

from decimal import Decimal

from analysis.planning.plan import plan_of
from cloud.prices.book import load as load_book
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load
from orchestrator.cli.render.prediction import prediction_lines, prediction_words
from orchestrator.cli.render.summary import _checkpoint_line, plan_lines

BOOK = load_book("study-2023-04")


def test_prices_add_up_and_the_duration_follows_from_the_epochs():
    spec = load("geo-c8", ["measure.warmup_epochs=1", "measure.epochs=2"])
    emulation = resolve_emulation(spec, 2)
    plan = plan_of(spec, BOOK, emulation)
    assert [p.first.usd_per_h for p in plan.peers] == [Decimal("0.180")] * 8
    assert plan.usd_per_h == Decimal("1.440")
    assert plan.raw_duration_s == 3 * emulation.epoch_s
    # by hand: three epochs at the study's scale at $1.44/h, to the cent
    assert plan.vm_usd == round(Decimal("1.44") * Decimal(3 * emulation.study_epoch_s) / 3600, 2)


def test_prediction_is_shown_with_its_interval_and_its_meaning():
    spec = load("geo-c8", ["measure.warmup_epochs=1", "measure.epochs=2"])
    plan = plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict()
    rate, more, dollars, parts = prediction_lines(plan)
    # by hand: granularity 5.52 -> (5.52 + 1) / (5.52 / 2 + 1) = 1.734
    assert rate.startswith(
        "  predicted of the real VMs, not of this machine: 241 [232, 247] samples/s; granularity 5.52"
    )
    assert more.startswith(
        "    granularity 5.52: twice the peers would give 1.73 times the samples/s by the paper's rule; by prediction 1.65 times"
    )
    assert more.endswith(
        "; more stop paying at 24 peers, where a doubling gives less than 10 % (by prediction)"
    )
    assert " per 1M samples, " in dollars
    assert dollars.endswith(" for 98,304 samples")
    assert "most of an epoch: calculation" in parts
    assert "from slow spells" in parts
    assert all(line in plan_lines(plan) for line in (rate, more, dollars, parts))


def test_what_limits_the_exchange_is_named():
    spec = load("geo-c8-nlp")
    parts = prediction_lines(plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict())[-1]
    assert "the exchange between gcp/australia-southeast1 and gcp/europe-west1" in parts


def test_unknown_prediction_says_why():
    spec = load("geo-b2", ["swarm.batch_size=16"])
    plan = plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict()
    (line,) = prediction_lines(plan)
    assert line.startswith(
        "  not predicted: the step time of ConvNextLarge on T4:1 was measured with 32 samples"
    )
    assert prediction_words(plan["prediction"]) == "not predicted"


def test_prediction_without_a_price_says_which_row_is_missing():
    spec = load("geo-b2")
    empty = type(BOOK).from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
    lines = prediction_lines(plan_of(spec, empty, resolve_emulation(spec, 2)).as_dict())
    assert "; by prediction 1.96 times; more stop paying at " in lines[1]  # without dollars
    assert "for 98,304 samples; dollars are unknown: empty.csv has no price of egress" in lines[2]
    assert lines[2].endswith("; a VM has no price")


def test_plan_of_an_older_version_has_no_prediction():
    assert prediction_lines({"prediction": None, "emulated": False, "on": "local"}) == []
    assert prediction_words(None) == ""


def test_vms_for_less_than_a_cent_are_not_free():
    spec = load("geo-b2", ["measure.warmup_epochs=1", "measure.epochs=2"])
    plan = plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict()
    said = [line for line in plan_lines({**plan, "vm_usd": "0.00"}) if "expected duration" in line]
    free = [
        line
        for line in plan_lines({**plan, "vm_usd": "0.00", "usd_per_h": "0"})
        if "expected duration" in line
    ]
    assert [line.rpartition("VMs ")[2] for line in said + free] == ["< $0.01", "$0.00"]


def test_one_unknown_price_makes_the_total_unknown():
    spec = load("geo-b2")
    empty = type(BOOK).from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
    plan = plan_of(spec, empty, resolve_emulation(spec, 2))
    assert plan.usd_per_h is None
    assert plan.vm_usd is None
    assert plan.as_dict()["usd_per_h"] is None
    assert any(
        "T4:1 in gcp/europe-west1/europe-west1-b: empty.csv has no spot price for it" in note
        for note in plan.notes
    )
    assert any("all VMs unknown/h" in line for line in plan_lines(plan.as_dict()))


def test_budget_below_vm_cost_is_noted_before_the_start():
    spec = load("geo-b2", ["budget_usd=0.01"])
    plan = plan_of(spec, BOOK, resolve_emulation(spec, 2))
    assert any("the run will stop before its end" in note for note in plan.notes)


def test_without_emulation_duration_is_unknown():
    plan = plan_of(load("geo-b2"), BOOK, None).as_dict()
    assert (plan["emulated"], plan["duration_s"], plan["raw_duration_s"]) == (False, None, None)
    assert "  expected duration: unknown" in plan_lines(plan)


def test_an_unknown_number_of_checkpoints_is_a_whole_phrase():
    stored = {
        "count": None,
        "bytes": 28_900,
        "writer": "us-0",
        "usd": None,
        "restore_usd": "0.5",
        "kept_usd": None,
    }
    assert _checkpoint_line(stored) == (
        "checkpoints: an unknown number, of 28.9 kB each, written by us-0; a download by all peers costs $0.50, what sending "
        "them and keeping them costs is unknown"
    )
