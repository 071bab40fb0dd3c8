"""`orch simulate --spot`: the real controller on histories of spot capacity, all policies, good and bad input."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.spot.timeline import Timeline, covered, timeline
from cloud.spot.history import History
from cloud.spot.sources import read_history
from experiments.parse.load import load
from orchestrator.cli.app import run
from orchestrator.core.state import Policy
from orchestrator.simulation.controller import CrashPoint
from orchestrator.simulation.driver import Outcome, simulate
from orchestrator.simulation.experiments import of_experiment
from orchestrator.simulation.policies import POLICIES, Market, capacities, on_market
from orchestrator.simulation.scenario import Crash, Scenario, scenario

ZONES = ("us-central1-a", "us-east1-c", "us-west1-a")
PLACES = tuple(f"gcp/{zone[:-2]}/{zone}" for zone in ZONES)
EXPERIMENT = """\
name: spot-{count}
model: ConvNextLarge
data:
  shards: s3://digits/train-{{000000..000031}}.tar
  heldout: s3://digits/heldout-000000.tar
  location: b2/us-west-1
swarm: {{target_batch_size: 32768, batch_size: 32, optimizer: {{name: adam, lr: 0.01}}}}
peers:
  - name: us
    count: {count}
    any_of:
      - {{infra: gcp/us-central1/us-central1-a, accelerators: "T4:1", use_spot: true}}
      - {{infra: gcp/us-east1/us-east1-c, accelerators: "T4:1", use_spot: true}}
      - {{infra: gcp/us-west1/us-west1-a, accelerators: "T4:1", use_spot: true}}
    replace: {{policy: next_place, max_replacements: 1000}}
measure: {{warmup_epochs: 1, epochs: 2}}
emulation: null
"""
NOWHERE = {"HOME": "/nonexistent"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment of one peer and one of three, and a day of made-up histories of three zones with outages."""
    for count in (1, 3):
        (tmp_path / f"spot-{count}.yaml").write_text(EXPERIMENT.format(count=count))
    histories = tmp_path / "zones"
    histories.mkdir()
    for n, zone in enumerate(ZONES):
        random, data, up = Random(n), [], n > 0
        while len(data) < 288:
            data += [int(up)] * max(1, int(random.expovariate(1 / (30 if up else 12))))
            up = not up
        (histories / f"{zone}_t4_1.json").write_text(skypilot(data[:288]))
    (histories / "us-east1-b_t4_1.json").write_text(skypilot([1]))
    return tmp_path


def skypilot(data: list[int], gap_s: int = 300) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data})


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[Any, str]:
    assert run(["simulate", *arguments, "-o", "json"]) == code
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def market_of(*columns: list[int], gap_s: float = 300.0, restart_s: float = 390.0) -> Market:
    """Histories of the zones, one value per gap; the last one counts for the zones that are left."""
    values = [*columns, *[columns[-1]] * (len(ZONES) - len(columns))]
    histories = {
        place: History(
            place, place, tuple(n * gap_s for n in range(len(data))), tuple(data), len(data) * gap_s
        )
        for place, data in zip(PLACES, values, strict=True)
    }
    return Market(histories, restart_s, None)


def on(market: Market, folder: Path, count: int = 1, seed: int = 0, **more: Any) -> Scenario:
    spec = load(str(folder / f"spot-{count}.yaml"))
    from_s, until_s = market.window(seed)
    days = (until_s - from_s) / 86400.0
    made = of_experiment(spec, seed, days=days, faults=(), epochs=more.pop("epochs", 0), environ=NOWHERE)
    return on_market(made, market, spec, policy=more.pop("policy", None), faults=())


# The simulated controller


def test_run_without_an_interruption_trains_all_the_time(folder: Path):
    made = on(market_of([1] * 100), folder)
    outcome = simulate(made)
    share = outcome.trained_s / made.duration_s
    assert outcome.preemptions == outcome.refusals == 0
    assert 1 - 450.0 / made.duration_s < share <= 1 - 390.0 / made.duration_s
    assert outcome.below_min_peers_s == pytest.approx(made.duration_s - outcome.trained_s, abs=1.0)


def test_outage_everywhere_costs_its_time_and_a_restart(folder: Path):
    """Two hours up, one down, two up. The state is lost with the only peer, as no checkpoint is stored."""
    market = market_of([1] * 24 + [0] * 12 + [1] * 24)
    outcome = simulate(on(market, folder, policy="any_place_up"))
    assert outcome.preemptions == 1
    assert outcome.refusals >= 3
    least_s, longest_s = (
        3600.0 + 2 * 390.0,
        3600.0 + 2 * 390.0 + 420.0,
    )  # back-off and a closed zone at the end
    assert least_s <= outcome.below_min_peers_s <= longest_s
    assert outcome.lost_samples > 0
    assert outcome.lost_epochs > 0


def test_checkpoints_bound_the_lost_work(folder: Path):
    market = market_of([1] * 48 + [0] * 12 + [1] * 48)
    spec = load(str(folder / "spot-1.yaml"), ["checkpoint.every_epochs=1"])
    made = of_experiment(spec, 0, days=1.0, faults=(), epochs=0, environ=NOWHERE)
    stored = simulate(on_market(made, market, spec, policy="wait", faults=()))
    without = simulate(on(market, folder, policy="wait"))
    assert 0 <= stored.lost_samples <= 2 * 32768 < without.lost_samples
    assert stored.samples > without.samples


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["wait", "any_place_up"])
def test_sparse_ticks_decide_as_frequent_ones(folder: Path, policy: str):
    columns = [
        [int(Random(f"{n} {k}").random() < 0.6) for k in range(60) for _ in range(4)] for n in range(3)
    ]
    made = on(market_of(*columns), folder, count=3, policy=policy)
    sparse = simulate(made)
    frequent = simulate(replace(made, sparse=False, tick_s=6.0, busy_tick_s=6.0))
    assert sparse.rounds < frequent.rounds / 3
    assert sparse.trained_s == pytest.approx(frequent.trained_s, rel=0.03)
    assert sparse.preemptions == pytest.approx(frequent.preemptions, abs=3)


def test_the_same_seed_gives_the_same_run_of_a_policy(folder: Path):
    def facts(outcome: Outcome) -> object:
        return (
            [(e.at_s, e.kind, e.vm, e.cause) for e in outcome.journal],
            outcome.spent_usd,
            outcome.trained_s,
        )

    market = market_of([1, 1, 0, 1] * 20, [0, 1, 1, 1] * 20, [1, 0, 1, 1] * 20)
    made = on(market, folder, count=3, policy="any_place_up")
    assert facts(simulate(made)) == facts(simulate(made))


@pytest.mark.slow
@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_controller_killed_with_any_place_up_loses_nothing(folder: Path, point: CrashPoint):
    """The invariants are checked by the simulation: one VM a slot, nothing left, every VM in the journal."""
    columns = [
        [int(Random(f"{n} {k}").random() < 0.6) for k in range(12) for _ in range(3)] for n in range(3)
    ]
    made = on(market_of(*columns), folder, count=3, policy="any_place_up")
    whole = simulate(made)
    for write in range(0, whole.writes * 3 // 4, 9):
        outcome = simulate(replace(made, crashes=(Crash(0.0, point, 30.0, writes=write),)))
        assert outcome.status == "stopped"
        assert outcome.restarts == 1
        assert outcome.trained_s == pytest.approx(whole.trained_s, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_with_any_place_up_and_all_faults(seed: int):
    made = scenario(seed, days=0.2)
    slots = tuple(
        replace(slot, policy=Policy("any_place_up", 10**6, 10**6, backoff_s=5.0, backoff_max_s=300.0))
        for slot in made.spec.slots
    )
    simulate(replace(made, spec=replace(made.spec, slots=slots)))


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30))
@settings(deadline=None)
def test_events_of_capacity_are_the_timeline(rows: list[tuple[int, ...]]):
    histories = {
        f"z{n}": History(f"z{n}", "", tuple(5.0 + t for t in range(len(rows))), column, 5.0 + len(rows))
        for n, column in enumerate(zip(*rows, strict=True))
    }
    line = timeline(histories, *covered(histories))
    now: dict[str, Decimal] = {}
    events = list(capacities(line))
    for t, row in enumerate(rows):
        while events and events[0].at_s <= t:
            event = events.pop(0)
            assert event.event == "capacity"
            now[event.location] = event.value
        assert tuple(int(now[f"z{n}"]) for n in range(3)) == row
    assert events == []
    assert isinstance(line, Timeline)


def test_windows_are_drawn_from_the_seed_and_lie_within_the_histories():
    market = replace(market_of([1] * 1000), days=0.5)
    windows = [market.window(seed) for seed in range(20)]
    assert len(set(windows)) == 20
    assert windows == [market.window(seed) for seed in range(20)]
    assert all(0 <= a < b <= 300_000 and b - a == pytest.approx(43_200) for a, b in windows)
    assert replace(market, days=99.0).window(7) == (0.0, 300_000.0)


# The command


def test_policies_are_compared_on_the_same_history(folder: Path, capsys: pytest.CaptureFixture[str]):
    one = str(folder / "spot-1.yaml")
    shown, said = simulated(
        capsys, one, "--spot", str(folder / "zones"), "--policy", "all", "--epochs", "0", "--seeds", "2"
    )
    by_policy = {row["policy"]: row for row in shown["policies"]}
    assert list(by_policy) == list(POLICIES)
    assert {row["runs"] for row in shown["policies"]} == {2}
    assert min(row["regret"] for row in shown["policies"]) >= 0
    assert by_policy["any_place_up"]["time_training"] > by_policy["same_place"]["time_training"] + 0.05
    references = {row["policy"]: row for row in shown["references"]}
    assert references["oracle"]["regret"] == 0
    assert references["pinned_to_best"]["time_training"] <= references["oracle"]["time_training"]
    assert by_policy["any_place_up"]["time_training"] <= references["oracle"]["time_training"]
    assert [h["place"] for h in shown["histories"]] == list(PLACES)
    assert "1 files of other zones are not used" in said
    assert "the histories have 1.00 days in common, as long as a run lasts at most" in said
    assert "ignored: notices before preemptions" in said
    assert "never, seed 0: gave up after" in said
    assert by_policy["never"]["ended"] == {"failed": 2}
    runs = [row for row in shown["runs"] if row["policy"] == "never"]
    assert all(row["hours"] < 24 for row in runs), "it gave up, and is judged by the whole day"
    assert by_policy["never"]["time_training"] < max(row["hours"] for row in runs) / 24
    assert {row["from_s"] for row in shown["runs"]} == {0.0}


def test_target_ends_a_run_and_its_time_is_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    arguments = (str(folder / "spot-3.yaml"), "--spot", f"*={folder / 'zones' / 'us-west1-a_t4_1.json'}")
    shown, said = simulated(capsys, *arguments, "--epochs", "0", "--days", "30", "--policy", "wait")
    assert shown["policies"][0]["reached"] == 0
    assert shown["policies"][0]["hours_to_target"] is None
    assert "the histories have 1.00 days in common: runs end there, nothing is repeated" in said
    assert shown["runs"][0]["hours"] == pytest.approx(24.0, abs=0.1)
    assert "3 places have the history of" in said
    always = folder / "always.json"
    always.write_text(skypilot([1] * 200))
    shown, said = simulated(capsys, arguments[0], "--spot", f"*={always}")
    (row,) = shown["policies"]
    assert (row["reached"], row["ended"], row["policy"]) == (1, {"done": 1}, "next_place")
    assert row["hours_to_target"] == pytest.approx(shown["runs"][0]["hours"])
    assert shown["runs"][0]["epochs"] == 3
    assert "3 epochs, those of 'measure'" in said


def test_shorter_runs_begin_at_times_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]):
    shown, _ = simulated(
        capsys, str(folder / "spot-1.yaml"), "--spot", str(folder / "zones"), "--days", "0.1", "--epochs", "0",
        "--seeds", "3", "--policy", "wait,any_place_up",
    )  # fmt: skip
    starts = {(row["policy"], row["seed"]): row["from_s"] for row in shown["runs"]}
    assert len(set(starts.values())) == 3
    assert all(starts["wait", seed] == starts["any_place_up", seed] for seed in range(3))


def test_table_and_csv_have_policies_and_references(folder: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["simulate", str(folder / "spot-1.yaml"), "--spot", str(folder / "zones"), "--days", "0.1"]
    assert run(arguments) == 0
    table = capsys.readouterr().out
    assert table.startswith("POLICY")
    assert "past_availability" in table
    assert run([*arguments, "-o", "csv", "--slot", "us-0"]) == 0
    shown = capsys.readouterr()
    assert "reference oracle," in shown.out
    assert "us-0#0 WAITING -> PROVISIONING" in shown.err
    assert run([*arguments, "-o", "yaml"]) == 0
    assert "references:" in capsys.readouterr().out


def test_trace_of_prices_is_added(folder: Path, capsys: pytest.CaptureFixture[str]):
    always = folder / "always.json"
    always.write_text(skypilot([1] * 100))
    trace = folder / "prices.csv"
    trace.write_text("at_s,location,event,value\n0,*,price,0.1\n")
    arguments = (str(folder / "spot-1.yaml"), "--spot", f"*={always}", "--epochs", "0")
    usual, _ = simulated(capsys, *arguments)
    cheap, _ = simulated(capsys, *arguments, "--trace", str(trace))
    assert cheap["policies"][0]["spent_usd"] < 0.5 * usual["policies"][0]["spent_usd"]
    assert cheap["policies"][0]["time_training"] == usual["policies"][0]["time_training"]


@pytest.mark.parametrize(
    ("content", "arguments", "says"),
    [
        ("", ["*={f}"], "f.json:1: the file is empty"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1, 1', ["*={f}"], "f.json:1: no valid JSON"),
        ("5,1\n4,1\n", ["*={f}"], "f.json:2: the time is before that of the line above"),
        ("a b c\n", ["*={f}"], "f.json:1: not one of the known formats"),
        ("0,1\n5,1\n", ["{f}"], "its name is no zone of this experiment"),
        ("0,1\n5,1\n", ["us-centrl1-a={f}"], "did you mean"),
        (
            "0,1\n5,1\n",
            ["us-central1-a={f}"],
            "no history for gcp/us-east1/us-east1-c, gcp/us-west1/us-west1-a",
        ),
        ("0,1\n5,1\n", ["*={f}", "*={f}"], "there is already a history for every other place"),
        ("0,1\n5,1\n", ["us-east1-c={f}", "us-east1-c={f}"], "two histories for gcp/us-east1/us-east1-c"),
        ("0,1\n5,1\n", ["*={f}.not"], "cannot be read: No such file"),
        ("0,1\n5,1\n", ["x" * 300], "cannot be read: File name too long"),
        ("0,1\n5,1\n", ["*={d}"], "a folder has a file for each place"),
        ("0,1\n5,1\n", ["{d}"], "no file is named after a zone of this experiment"),
        ("0,1\n5,1\n", ["*={f}", "{g}"], "use histories of the same time"),
    ],
)
def test_bad_history_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, arguments: list[str], says: str
):
    empty = folder / "empty"
    empty.mkdir()
    (folder / "f.json").write_text(content)
    (folder / "us-east1-c.csv").write_text("900000,1\n990000,1\n")
    names = {"f": folder / "f.json", "d": empty, "g": folder / "us-east1-c.csv"}
    options = [word for each in arguments for word in ("--spot", each.format(**names))]
    assert run(["simulate", str(folder / "spot-1.yaml"), *options]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_imports_are_named_also_with_a_dot_and_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]):
    names = []
    for n in range(2):
        (folder / str(n)).mkdir()
        file = folder / str(n) / "us.v2.json"
        file.write_text(skypilot([1] * (200 + n)))
        names.append(f"us.v{n}")
        assert run(["spot", "import", str(file), "--name", names[n]]) == 0
    capsys.readouterr()
    options = [
        word for name, place in zip(names, PLACES, strict=False) for word in ("--spot", f"{place}={name}")
    ]
    always = folder / "always.json"
    always.write_text(skypilot([1] * 300))
    _, err = simulated(
        capsys, str(folder / "spot-1.yaml"), *options, "--spot", f"*={always}", "--policy", "any_place_up",
        "--epochs", "0",
    )  # fmt: skip
    assert f"{PLACES[0]}: us.v2.json" in err
    assert "places have the history" not in err
    assert "same bytes" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--spot", "*=x"], "--spot: only with an experiment"),
        (["geo-b2", "--policy", "all"], "--policy: only with --spot"),
        (["geo-b2", "--restart-s", "60"], "--restart-s: only with --spot"),
        (["geo-b2", "--spot", "*=ALWAYS", "--policy", "any_place"], "did you mean 'any_place_up'"),
        (["geo-b2", "--spot", "*=ALWAYS", "--policy", ","], "no policy is named"),
        (["geo-b2", "--spot", "*=ALWAYS", "--slot", "us-9"], "'us-9' is not a slot of this run"),
        (["geo-b2", "--spot", "*=ALWAYS", "--set", "peers.us.resources.use_spot=false",
          "--set", "peers.eu.resources.use_spot=false"], "geo-b2 uses no spot VM"),
    ],
)  # fmt: skip
def test_bad_option_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
):
    (folder / "always.json").write_text(skypilot([1] * 9))
    assert run(["simulate", *(a.replace("ALWAYS", str(folder / "always.json")) for a in arguments)]) == 2
    assert says in capsys.readouterr().err


# Published histories


@pytest.mark.parametrize("name", ["bamboo/g4dn-trace.csv", "bamboo/p3-trace.csv", "parcae/p3.csv"])
def test_published_histories_drive_a_run(spot_histories: Path, folder: Path, name: str):
    path = spot_histories / name
    history = read_history(path.name, path.read_bytes(), time.time())
    market = Market(dict.fromkeys(PLACES[:1], history), 390.0, None)
    spec = load(
        str(folder / "spot-3.yaml"), ["peers.us.any_of=null", f"peers.us.resources.infra={PLACES[0]}"]
    )
    made = of_experiment(spec, 0, days=1.0, faults=(), epochs=0, environ=NOWHERE)
    outcome = simulate(on_market(made, market, spec, policy="any_place_up", faults=()))
    assert outcome.status == "stopped"
    assert outcome.simulated_s == pytest.approx(history.end_s - history.times_s[0], abs=1.0)
    assert 0.5 < outcome.trained_s / (3 * outcome.simulated_s) < 1
