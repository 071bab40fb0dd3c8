"""Simulated runs with seeded fault histories; every invariant is checked at every event."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from decimal import Decimal
from multiprocessing import get_context
from typing import Any

import pytest

from analysis.planning.plan import plan_of
from cloud.prices.book import load as load_book
from cloud.sim import TraceEvent, Window
from cloud.sim.traces import SAMPLE, load_trace
from experiments.parse.load import load
from orchestrator.cli.app import run
from orchestrator.core.journal import replay
from orchestrator.quotes import sky_quoter
from orchestrator.simulation.checks import SimulationError
from orchestrator.simulation.driver import Outcome, simulate
from orchestrator.simulation.experiments import of_experiment
from orchestrator.simulation.scenario import BEGAN_S, FAULT_CLASSES, ClockSet, Crash, Scenario, scenario

SEEDS = int(os.environ.get("ORCH_SEEDS", "200"))  # `make soak`: 50000
FIRST_SEED = int(os.environ.get("ORCH_FIRST_SEED", "0"))
_CHUNK = 10  # histories that one process goes through at a time


def through(first: int) -> Counter[str]:
    """Simulate a chunk of histories; count the faults by class, the final statuses, and the progress checks."""
    counts: Counter[str] = Counter()
    for seed in range(first, min(first + _CHUNK, FIRST_SEED + SEEDS)):
        outcome = simulate(scenario(seed, days=1.0 if seed % 10 == 0 else 0.2))
        counts.update(outcome.fired)
        counts.update((outcome.status,))
        counts["progress was due"] += outcome.fault_free_checks
    return counts


@pytest.mark.timeout(72000)
@pytest.mark.slow
def test_invariants_hold_in_every_history_and_every_fault_class_occurs():
    """The histories are distributed over all cores."""
    pool = ProcessPoolExecutor(os.cpu_count(), get_context("spawn"))
    try:
        chunks = pool.map(through, range(FIRST_SEED, FIRST_SEED + SEEDS, _CHUNK))
        counts = sum(chunks, Counter[str]())
    finally:
        pool.shutdown(cancel_futures=True)
    ends = ("stopped", "budget", "done", "lost")
    never = [kind for kind in (*FAULT_CLASSES, *ends, "progress was due") if not counts[kind]]
    assert never == [], f"over {SEEDS} seeds: {counts}"


_A_CLOCK_SET_BACK = (1555, 3046, 3651, 3969, 4126, 4305, 6243, 7256, 7909, 7937)
_A_VM_IN_NO_LIST = (1719, 3974, 4035)
_A_PLACE_IN_NO_LIST = (1927, 5611, 7192)
_A_PRICE_IN_NO_LIST = (4149, 7608)
_A_PRICE_THAT_ROSE_WITHOUT_A_CONTROLLER = (6902, 8263)


@pytest.mark.parametrize(
    "seed",
    [
        *_A_CLOCK_SET_BACK,
        *_A_VM_IN_NO_LIST,
        *_A_PLACE_IN_NO_LIST,
        *_A_PRICE_IN_NO_LIST,
        *_A_PRICE_THAT_ROSE_WITHOUT_A_CONTROLLER,
    ],
)
def test_histories_that_once_violated_an_invariant(seed: int):
    simulate(scenario(seed, days=0.2))


def test_a_list_that_was_lost_shows_no_vm():
    """The controller missed the only list with a VM in a minute and a half, and requested another: nobody could know."""
    simulate(scenario(2144, days=0.3, peers=5))


def test_the_same_seed_gives_the_same_run():
    def facts(outcome: Outcome) -> object:
        return [(e.at_s, e.kind, e.vm, e.cause) for e in outcome.journal], outcome.spent_usd, outcome.fired

    assert facts(simulate(scenario(11, days=0.3))) == facts(simulate(scenario(11, days=0.3)))
    assert facts(simulate(scenario(11, days=0.3))) != facts(simulate(scenario(12, days=0.3)))


def test_controller_that_acts_before_it_writes_is_detected():
    with pytest.raises(SimulationError, match=r"exists but is not in the journal") as found:
        simulate(scenario(3, days=0.2), write_late=True)
    assert "orch simulate --seed 3 --days 0.2 --peers 8" in str(found.value)


def test_reserve_that_is_too_small_is_detected():
    """Without a reserve for the teardown, a run whose API fails at its stop exceeds its budget."""
    calm = scenario(5, days=0.5, faults=("preemption",))
    calm = replace(calm, spec=replace(calm.spec, budget_usd=Decimal("5")))
    made = replace(calm, at_stop=(Window("outage", 0.0, 3600.0),))
    outcome = simulate(made)
    assert outcome.status == "budget"
    # No VM could be stopped: the leases expired.
    assert 0.75 * made.spec.lease_s <= outcome.dead_after_s <= made.death_bound_s
    careless = replace(made.spec, teardown_s=0.0)
    reported = simulate(replace(calm, spec=careless))
    assert (reported.status, reported.dead_after_s) == ("budget", 0.0)
    with pytest.raises(SimulationError, match=r"spent, above the budget of 5"):
        simulate(replace(made, spec=careless))


def test_clock_set_back_at_reboot_hides_no_more_than_the_downtime(
    monkeypatch: pytest.MonkeyPatch,
):
    """After two quiet hours the clock is set back an hour, when only the recorded clock shows the time."""
    made = scenario(5, days=0.5, faults=())
    made = replace(
        made, spec=replace(made.spec, budget_usd=Decimal("5"), max_usd_per_h=None),
        crashes=(Crash(9000.0, "before_write", 20.0, -3600.0),),
        # So that the controller has something to write down once the crash is due.
        trace=(TraceEvent(9001.0, "*", "preempt", Decimal(1)),),
    )  # fmt: skip
    outcome = simulate(made)
    assert (outcome.status, outcome.fired["clock_jump"]) == ("budget", 1)
    assert outcome.spent_usd < Decimal("5"), "the reserve is for longer than a minute"
    monkeypatch.setattr("orchestrator.controller.tick._CLOCK_PERIOD_S", 1e9)
    with pytest.raises(
        SimulationError, match=r"the run's clock is 3600 s behind after \d\d s without a controller"
    ):
        simulate(made)


def test_unlisted_prices_are_excused_and_listed_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
):
    """Prices rise for a quarter of an hour, once while no listing succeeds and once visible in listings."""
    made = scenario(5, days=0.2, faults=())
    spec = replace(made.spec, budget_usd=None, max_usd_per_h=None)
    made = replace(made, spec=spec, peers=replace(made.peers, max_epochs=0))

    def rises(at_s: float) -> tuple[TraceEvent, ...]:
        usual = {place.location: place.spot_usd_per_h for place in made.places}
        dear = [TraceEvent(at_s, where, "price", usd * Decimal("1.4")) for where, usd in usual.items()]
        return (*dear, *(TraceEvent(at_s + 900.0, where, "price", usd) for where, usd in usual.items()))

    outage = Window("outage", BEGAN_S + 7100.0, BEGAN_S + 8050.0)
    unlisted = replace(made, trace=rises(7120.0), windows=(outage,))
    assert simulate(unlisted).status == "stopped"
    listed = replace(made, trace=rises(7120.0))
    assert simulate(listed).status == "stopped"
    monkeypatch.setattr("orchestrator.controller.records.Rows._note_prices", lambda *_: None)
    with pytest.raises(SimulationError, match=r"the provider bills .* USD, but the controller accounts for"):
        simulate(listed)


def test_leases_by_wall_clock_are_detected():
    """VM clocks are wrong by up to an hour and changed during the run: forward ends a lease, back extends it."""
    made = scenario(2, days=0.2, faults=("vm_clock",))
    made = replace(made, clocks_set=(ClockSet(3000.0, -3000.0), ClockSet(9000.0, 3500.0)))
    assert simulate(made).fired["vm_clock"] >= 10
    careless = replace(made, peers=replace(made.peers, by_wall_clock=True))
    with pytest.raises(
        SimulationError, match=r"the lease of .* expired although its peer was in contact with the controller"
    ):
        simulate(careless)
    lost = replace(
        careless, clocks_set=(ClockSet(3100.0, -3000.0),), crashes=(Crash(3000.0, "after_write", None),),
        trace=(TraceEvent(3001.0, "*", "preempt", Decimal(1)),), peers=replace(careless.peers, skew_s=0.0),
    )  # fmt: skip
    with pytest.raises(SimulationError, match=r"is still running .* s after the end"):
        simulate(lost)


def test_a_lost_controller_leaves_nothing_alive():
    made = replace(scenario(8, days=0.2, faults=()), crashes=(Crash(3000.0, "after_write", None),))
    # So that the controller has something to write down once the crash is due.
    made = replace(made, trace=(TraceEvent(3001.0, "*", "preempt", Decimal(1)),))
    outcome = simulate(made)
    assert outcome.status == "lost"
    assert 0 < outcome.dead_after_s <= made.death_bound_s
    assert outcome.vms >= 8


def test_run_recovers_after_hours_without_capacity():
    made = scenario(4, days=0.5, faults=())
    spec = replace(made.spec, budget_usd=None, max_usd_per_h=None)
    trace = (
        TraceEvent(7200.0, "*", "capacity", Decimal(0)),
        TraceEvent(18000.0, "*", "capacity", Decimal("Infinity")),
    )
    outcome = simulate(replace(made, spec=spec, trace=trace))
    assert outcome.preemptions == 8
    assert outcome.vms == 16
    assert outcome.training_share > 0.9
    causes = " ".join(e.cause for e in outcome.journal)
    assert "not asked before" in causes


def test_a_trace_drives_the_same_simulation():
    made = replace(scenario(1, faults=()), trace=tuple(load_trace(SAMPLE)))
    outcome = simulate(made)
    assert outcome.fired["storm"] > 0
    assert outcome.fired["price"] > 0
    assert outcome.preemptions >= outcome.fired["storm"]


def test_journal_records_the_end():
    outcome = simulate(scenario(2, days=0.2, faults=("storm", "crash")))
    state = replay(outcome.journal)
    assert state.ended
    assert state.launched_s == BEGAN_S
    assert outcome.journal[-1].kind == "run_ended"


def test_simulate_command(capsys: pytest.CaptureFixture[str]):
    assert run(["simulate", "--seed", "2", "--days", "0.2", "--faults", "storm,crash", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["status"] in ("stopped", "budget", "done")
    assert {kind for kind, count in row["fired"].items() if count} <= {"storm", "crash"}
    calm = ["simulate", "geo-c8", "--days", "0.1", "--trace", str(SAMPLE), "--faults", "none"]
    assert run([*calm, "--epochs", "0"]) == 0
    assert "stopped" in capsys.readouterr().out


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[Any, str]:
    """Run `orch simulate` on geo-b2 without random faults; returns the JSON and what was said."""
    assert run(["simulate", "geo-b2", "--faults", "none", "-o", "json", *arguments]) == code
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_an_experiments_measure_budget_and_settings_are_honoured(capsys: pytest.CaptureFixture[str]):
    shown, said = simulated(capsys, "--set", "measure.epochs=4")
    (row,) = shown["runs"]
    assert (row["status"], row["epochs"]) == ("done", 5), "one warm-up epoch and four"
    assert "geo-b2: 5 epochs, those of 'measure'" in said
    assert [f"ignored: {what}" in said for what in shown["ignored"]] == [True] * 3
    shown, said = simulated(capsys, "--set", "budget_usd=2", "--epochs", "0")
    (row,) = shown["runs"]
    assert (row["status"], row["budget_usd"]) == ("budget", 2)
    assert 1 < row["spent_usd"] <= 2
    assert "of 'measure'" not in said
    shown, _ = simulated(capsys, "--set", "swarm.compression=uniform8bit")
    assert shown["ignored"][-1] == "without effect: swarm.compression, emulation, except its preempt"


def test_traffic_is_named_as_ignored_and_costs_nothing(capsys: pytest.CaptureFixture[str]):
    """geo-b2's two VMs cost $0.54 an hour together, and its traffic may cost $2.57 an hour."""
    shown, said = simulated(capsys, "--set", "budget_usd=1", "--epochs", "0")
    (traffic,) = (what for what in shown["ignored"] if "traffic" in what)
    assert "egress of VMs and of the store" in traffic
    assert "neither billed nor kept back from the budget" in traffic
    assert f"ignored: {traffic}" in said.splitlines()
    (row,) = shown["runs"]
    assert row["spent_usd"] == pytest.approx(row["vm_hours"] * (0.27946 + 0.26502) / 2, rel=0.01)


def test_planned_preemptions_happen(capsys: pytest.CaptureFixture[str]):
    preempt = ["--epochs", "0", "--days", "0.1", "--set", "emulation.preempt.at_s=1200"]
    shown, said = simulated(capsys, *preempt, "--set", "emulation.preempt.slot=us-0", "--slot", "us-0")
    (row,) = shown["runs"]
    assert (row["preemptions"], row["replacements"]) == (1, 1)
    at_s = {
        what: next(float(line.split("+")[1].split()[0]) for line in said.splitlines() if what in line)
        for what in ("-> TRAINING", "preempted: ")
    }
    assert at_s["preempted: "] - at_s["-> TRAINING"] == pytest.approx(1200, abs=120)  # joined; noticed
    shown, said = simulated(capsys, *preempt, "--set", "emulation.preempt.slot=us-0", "--slot", "eu-0")
    assert "preempted" not in "\n".join(line for line in said.splitlines() if "eu-0#" in line)
    shown, said = simulated(capsys, *preempt, "--set", "emulation.preempt.notice_s=60", "--slot", "us-0")
    assert shown["runs"][0]["preemptions"] == 1
    often = ["--set", "emulation.preempt.rate_per_h=2", "--epochs", "0", "--days", "0.1"]
    shown, _ = simulated(capsys, *often, "--set", "emulation.preempt.slot=us-0", "--slot", "us-0")
    assert 1 <= shown["runs"][0]["preemptions"] <= 11


def test_a_lost_run_ends_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def lost(made: Scenario) -> Outcome:
        return simulate(replace(made, crashes=(Crash(600.0, "before_write", None),)))

    monkeypatch.setattr("orchestrator.simulation.driver.simulate", lost)
    shown, said = simulated(capsys, code=1)
    assert shown["runs"][0]["status"] == "lost"
    assert "1 of 1 runs were lost, their controller never came back: seed 0" in said


@pytest.mark.parametrize(("slot", "keeps_the_markets_own"), [("", False), ("us-0", True)])
def test_a_planned_rate_of_one_slot_leaves_the_market_to_the_others(slot: str, keeps_the_markets_own: bool):
    planned = ["emulation.preempt.rate_per_h=1", *([f"emulation.preempt.slot={slot}"] if slot else [])]
    spec, environ = load("geo-b2", planned), {"HOME": "/nonexistent"}
    made = of_experiment(spec, 0, days=0.1, faults=("preemption",), environ=environ)
    assert {place.preempt_per_h > 0 for place in made.places} == {keeps_the_markets_own}


def test_unpriced_traffic_refuses_no_simulated_budget(capsys: pytest.CaptureFixture[str]):
    shown, _ = simulated(capsys, "--set", "budget_usd=5", "--set", "data.location=lambda/us-west-1")
    assert shown["runs"][0]["status"] == "done"


def test_experiment_has_places_and_prices_of_the_plan():
    spec = load("geo-c8", ["budget_usd=20", "prices=study-2023-04"])
    book, environ = load_book(spec.prices), {"HOME": "/nonexistent"}
    made = of_experiment(spec, 0, days=0.1, faults=(), environ=environ)
    planned = plan_of(spec, book, None, on="sky", quote=sky_quoter(book, environ)).as_dict()
    for slot, peer in zip(made.spec.slots, planned["peers"], strict=True):
        for place, at in zip(slot.places, peer["places"], strict=True):
            shown = (at["location"], at["instance"], Decimal(at["usd_per_h"]))
            assert (place.location, place.instance, place.usd_per_h) == shown
    outcome = simulate(made)
    mean_usd = Decimal(planned["usd_per_h"]) / len(planned["peers"])
    assert float(outcome.spent_usd) / outcome.vm_hours == pytest.approx(float(mean_usd), rel=0.02)
    assert made.spec.egress_usd_per_h == 0, "nothing is sent here"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "stom"], "did you mean 'storm'"),
        (["--trace", "no-such.csv"], "cannot be read"),
        (["no-such-experiment"], "no-such-experiment"),
        (["--slot", "p99"], "'p99' is not a slot of this run (slots: p0, p1,"),
        (["geo-c8", "--slot", "us-9"], "--slot: 'us-9' is not a slot of this run"),
        (["geo-c8", "--peers", "3"], "use --set peers.GROUP.count=N"),
        (["--epochs", "3", "--set", "budget_usd=1"], "--set and --epochs: only with an experiment"),
    ],
)
def test_invalid_simulate_command_gives_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["simulate", *arguments]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_controller_that_forgets_a_slot_is_detected(monkeypatch: pytest.MonkeyPatch):
    """Mutant: the replacement of one slot is never requested."""
    from orchestrator.core.events import RequestVm
    from orchestrator.core.machine import Step, advance

    def forgetful(*arguments) -> Step:
        done = advance(*arguments)
        kept = [i for i in done.instructions if not (isinstance(i, RequestVm) and i.vm == "sim-p0-1")]
        return replace(done, instructions=tuple(kept))

    made = scenario(6, days=0.4, faults=())
    spec = replace(made.spec, budget_usd=None, max_usd_per_h=None, min_peers=1)
    where = spec.slots[0].places[0].location
    made = replace(made, spec=spec, trace=(TraceEvent(3600.0, where, "preempt", Decimal("Infinity")),))
    assert simulate(made).preemptions >= 1
    monkeypatch.setattr("orchestrator.controller.tick.advance", forgetful)
    with pytest.raises(SimulationError, match=r"p0 .* after \d+ s without a fault") as found:
        simulate(made)
    assert "p0#1 WAITING -> PROVISIONING" in str(found.value)


def test_controller_that_duplicates_a_vm_is_detected(monkeypatch: pytest.MonkeyPatch):
    """Mutant: a slot's first VM is considered gone while it trains."""
    from orchestrator.core.events import Observed
    from orchestrator.core.machine import Step, advance

    def hasty(state, events, now_s, jitter) -> Step:
        young = [s.vm for s in state.slots if s.vm.endswith("-0") and s.state == "TRAINING"]
        lost = [Observed(now_s, vm, "terminated", ended=True) for vm in young[:1] if now_s - BEGAN_S > 1800.0]
        return advance(state, [*events, *lost], now_s, jitter)

    made = scenario(6, days=0.1, faults=())
    monkeypatch.setattr("orchestrator.controller.tick.advance", hasty)
    with pytest.raises(SimulationError, match=r"slot p\d has two VMs"):
        simulate(replace(made, spec=replace(made.spec, budget_usd=None, max_usd_per_h=None)))
