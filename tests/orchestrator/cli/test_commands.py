"""Commands on prepared run folders, without a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.parse.load import find, load
from metrics.records import EventRecord
from metrics.store.database import RunStore
from orchestrator.cli import starting
from orchestrator.cli.app import run
from orchestrator.controller import client
from orchestrator.controller.reaping import Reach, Reaped
from orchestrator.controller.records import journal_takeover
from orchestrator.core.journal import replay
from orchestrator.errors import STATUS_CODES, HeldError
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare
from orchestrator.launch.start_lock import start_lock

RUN = "local-2-20261121-7f3a"
Output = Callable[[], tuple[str, str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        shown = capsys.readouterr()
        return shown.out, shown.err

    return read


@pytest.fixture
def folder(own_home: Path) -> Path:
    """A prepared run that has not begun."""
    spec = load("local-2")
    return prepare(starting.plan_for(spec), find("local-2"), RUN, own_home, now_s=1_800_000_000.0)


def test_run_keeps_published_figures_of_its_own_experiment_only(own_home: Path):
    kept: list[Any] = []
    for n, override in enumerate(("seed=1", "network_tuning=wan", "swarm.target_batch_size=1024")):
        spec = load("geo-a2", [override])
        plan = starting.plan_for(spec).document
        run_folder = prepare(
            approved_plan(spec, "local", plan, cores=2), find("geo-a2"), f"r-{n}", own_home, now_s=1e9
        )
        with RunStore.open_reader(run_folder / "run.db") as store:
            kept.append(store.meta("published"))
    assert [figures and figures["experiment"] for figures in kept] == ["geo-a2", "geo-a2", None]


def add_event(folder: Path, seq: int, slot: str, to_state: str, cause: str) -> None:
    with RunStore.open_writer(folder / "run.db") as store:
        row = EventRecord(seq, 1_800_000_000.0 + seq, "note", slot, 0, "", "", to_state, cause, "{}")
        store.append("events", [row])


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_ls_lists_runs_in_every_form(form: str, folder: Path, output: Output):
    assert run(["ls", "-o", form]) == 0
    text, _ = output()
    assert RUN in text
    if form in ("json", "yaml"):
        document = yaml.safe_load(text)
        assert document["schema_version"] == 1
        assert document["runs"][0].keys() == {
            "run", "status", "experiment", "peers", "epoch", "started", "elapsed_s", "spent_usd", "controller", "error",
            "target", "emulated", "scales", "host_contended", "clock_skew_s",
        }  # fmt: skip
        assert document["runs"][0]["peers"] == 2


def test_ls_names_runs_without_a_controller(folder: Path, output: Output):
    assert run(["ls"]) == 0
    table, told = output()
    assert "running, no controller" in table
    assert told.startswith(f"{RUN} has no controller")
    assert f"`orch attach {RUN}`" in told
    with start_lock(folder):  # another `orch` starts it now
        assert run(["ls"]) == 0
    table, told = output()
    assert "no controller" not in table + told
    assert run(["ls", "-o", "csv"]) == 0
    assert "running,local-2" in output()[0]  # one column, one meaning
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("status", "done")
    assert run(["ls"]) == 0
    assert "no controller" not in "".join(output())


def test_ls_shows_a_run_it_cannot_read(folder: Path, output: Output):
    (folder / "run.db").write_bytes(b"not a database, and long enough to be looked at by SQLite" * 50)
    assert run(["ls", "-o", "json"]) == 0
    (row,) = json.loads(output()[0])["runs"]
    assert row["status"] == "unreadable"
    assert "orch ls" in row["error"]


def test_status_and_its_json(folder: Path, output: Output):
    assert run(["status", "latest"]) == 0
    text, _ = output()
    assert text.startswith(f"{RUN}: ")
    [line] = [line for line in text.splitlines() if line.startswith("us-0")]
    assert line.split()[5:8] == ["-", "-", "0"]  # without a VM: no epoch, no rate, no preemption
    assert run(["status", RUN, "-o", "json"]) == 0
    document = json.loads(output()[0])
    assert document["schema_version"] == 1
    assert {peer["slot"] for peer in document["peers"]} == {"us-0", "eu-0"}
    assert {
        "scales",
        "epoch",
        "throughput_sps",
        "granularity",
        "cost",
        "events",
        "warnings",
    } <= document.keys()


def test_status_shows_the_last_evaluation(folder: Path, output: Output):
    assert run(["status", RUN, "-o", "json"]) == 0
    document = json.loads(output()[0])
    assert (document["evaluation"], document["evaluated_epoch"]) == (None, None)
    rows = [
        {
            "vm": "a",
            "epoch": e,
            "at_s": 1.0,
            "accuracy": None,
            "loss": 1.5 / e,
            "samples": 9,
            "metrics": {"wer": 0.25},
        }
        for e in (1, 2)
    ]
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("evaluations", rows)
    assert run(["status", RUN]) == 0
    assert "held-out loss 0.75, wer 0.25" in output()[0]
    assert run(["status", RUN, "-o", "json"]) == 0
    document = json.loads(output()[0])
    assert (document["evaluation"], document["evaluated_epoch"]) == ({"loss": 0.75, "wer": 0.25}, 2)


def test_why_and_status_count_bad_samples(folder: Path, output: Output):
    add_event(folder, 1, "eu-0", "PROVISIONING", "first try")
    add_event(folder, 2, "us-0", "PROVISIONING", "first try")
    none, some = {"count": 0, "first": ""}, {"count": 7, "first": "s3://b/a.tar: sample a003: it is bad"}
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("bad_samples", {"eu-0": {"training": some, "heldout": none}})
    told = "7 bad training samples (eu-0 7) were left out (data.bad_samples: skip); the first: s3://b/a.tar: sample a003"
    for command in (["why", RUN], ["why", RUN, "eu-0"], ["why", RUN, "-o", "csv"]):
        assert run(command) == 0
        events, warned = output()
        assert told not in events
        assert warned.startswith(f"warning: {told}")
    assert run(["why", RUN, "us-0"]) == 0
    assert output()[1] == ""
    assert run(["why", RUN, "-o", "json"]) == 0
    assert json.loads(output()[0])["warnings"][0].startswith(told)
    assert run(["status", RUN]) == 0
    assert f"warning: {told}" in output()[0]


def test_a_newer_schema_ends_with_2(folder: Path, output: Output):
    import sqlite3

    connection = sqlite3.connect(folder / "run.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert run(["status", RUN]) == 2
    assert "newer orch" in output()[1]
    assert run(["report", RUN, "-o", "json"]) == 2


def test_why_shows_one_slot_and_lists_the_slots_on_error(folder: Path, output: Output):
    add_event(folder, 1, "eu-0", "PROVISIONING", "first try")
    add_event(folder, 2, "us-0", "PROVISIONING", "first try elsewhere")
    assert run(["why", RUN, "eu-0"]) == 0
    text, _ = output()
    assert "first try" in text
    assert "elsewhere" not in text
    assert run(["why", RUN, "eu-0", "-o", "json"]) == 0
    (row,) = json.loads(output()[0])["events"]
    assert (row["slot"], row["to_state"], row["cause"]) == ("eu-0", "PROVISIONING", "first try")
    assert run(["why", RUN, "asia-0"]) == 2
    assert "eu-0, us-0" in output()[1]


def test_a_replaced_controller_is_part_of_every_slots_story(folder: Path, output: Output):
    with RunStore.open_writer(folder / "run.db") as store:
        journal_takeover(store, store.records("events"), 77, 123, 1_800_000_060.0)
        events = store.records("events")
    assert replay(events) == replay(events[:1])
    add_event(folder, 2, "eu-0", "PROVISIONING", "first try")
    for command in (["why", RUN], ["why", RUN, "eu-0"], ["status", RUN]):
        assert run(command) == 0
        assert "the controller was replaced: process 123 continues for process 77" in output()[0]


def test_logs_of_a_slot_list_its_vms_oldest_first(folder: Path, output: Output):
    for generation, text in ((10, "third\n"), (0, "first\n"), (2, "second\n")):
        vm = folder / "vms" / f"{RUN}-eu-0-{generation}"
        vm.mkdir(parents=True)
        (vm / "peer.log").write_text(text)
    (folder / "controller.log").write_text("ticked\n")
    assert run(["logs", RUN, "eu-0"]) == 0
    assert output()[0] == "first\nsecond\nthird\n"
    assert run(["logs", RUN, "eu-0", "-n", "1"]) == 0
    assert output()[0] == "third\n"
    assert run(["logs", RUN]) == 0
    assert output()[0] == "ticked\n"
    assert run(["logs", RUN, "us-0"]) == 2
    assert "available: eu-0, controller" in output()[1]


def test_launch_without_a_terminal_and_without_yes_refuses(own_home: Path, output: Output):
    assert run(["launch", "geo-b2"]) == 3
    text, printed = output()
    assert text == ""
    assert "1 x gcp/us-central1-a  T4:1 spot  $0.18/h each" in printed
    assert "expected duration: about" in printed
    assert printed.splitlines()[-1].endswith("there is no terminal to ask for confirmation; add --yes")
    assert not own_home.exists()


def test_reap_all_without_a_terminal_and_without_yes_refuses(output: Output):
    assert run(["reap", "--all"]) == 3
    assert "--yes" in output()[1]


def test_launch_prints_only_json_on_stdout(monkeypatch: pytest.MonkeyPatch, own_home: Path, output: Output):
    """Also with --detach. A run id that exists is attached to, not created again."""
    asked: list[str] = []

    def connected(run_id: str, home: Path) -> client.RunConnection:
        asked.append(run_id)
        return client.RunConnection(run_id, home / "runs" / run_id)

    monkeypatch.setattr(client, "launch", connected)
    monkeypatch.setattr(client, "attach", connected)
    for _ in range(2):
        assert run(["launch", "local-2", "--yes", "--detach", "-o", "json", "--run-id", RUN]) == 0
        text, printed = output()
        assert json.loads(text) == {"schema_version": 1, "run_id": RUN, "status": "running"}
    assert f"{RUN} exists: attaching to it" in printed
    assert asked == [RUN, RUN]
    assert run(["launch", "local-2", "--yes", "--detach"]) == 0
    assert output()[0].startswith("local-2-20")


def test_the_runs_status_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, folder: Path, output: Output):
    for status, code in STATUS_CODES.items():
        connection = _Ended(RUN, folder, status)
        monkeypatch.setattr(client, "attach", lambda run_id, home, c=connection: c)
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("status", status)
        assert run(["attach", RUN, "-o", "json"]) == code
        text, printed = output()
        assert json.loads(text)["status"] == status
        assert str(folder / "report" / "report.html") in printed


def test_a_run_held_by_another_controller_ends_with_6(
    monkeypatch: pytest.MonkeyPatch, folder: Path, output: Output
):
    def held(run_id: str, home: Path) -> Any:
        raise HeldError(f"{run_id}: another controller holds this run")

    monkeypatch.setattr(client, "attach", held)
    assert run(["attach", RUN]) == 6
    assert output()[1] == f"orch: {RUN}: another controller holds this run\n"


def test_down_prints_what_is_left_and_ends_with_5(
    monkeypatch: pytest.MonkeyPatch, folder: Path, output: Output
):
    monkeypatch.setattr(client, "down", lambda run_id, home: ["vm us-0 (pid 17)", "network namespace 4026"])
    assert run(["down", RUN, "--yes"]) == 5
    text, printed = output()
    assert text.splitlines() == ["vm us-0 (pid 17)", "network namespace 4026"]
    assert f"`orch down {RUN}`" in printed
    monkeypatch.setattr(client, "down", lambda run_id, home: [])
    assert run(["down", RUN]) == 0
    assert output()[0] == ""


def test_reap_prints_what_is_left_by_run(monkeypatch: pytest.MonkeyPatch, output: Output):
    reaped = Reaped({"a": ["pid 1"], "b": []})
    monkeypatch.setattr(client, "reap", lambda *_: reaped)
    assert run(["reap"]) == 5
    assert output()[0] == "a\tpid 1\n"
    assert run(["reap", "-o", "json"]) == 5
    assert json.loads(output()[0])["left"] == [{"run": "a", "what": "pid 1"}]


def test_reap_reports_searched_and_unsearched_clouds(monkeypatch: pytest.MonkeyPatch, output: Output):
    others = {"gcp": "orch cannot query it directly"}
    asked = Reaped({}, ("me",), Reach(("SkyPilot's list", "aws"), others))
    nobody = Reaped({}, ("me",), Reach(("SkyPilot's list",), {**others, "aws": "no credentials here"}))
    everything = ["reap", "--all", "--yes", "--on", "sky", "--owner", "me"]
    monkeypatch.setattr(client, "reap", lambda *_: asked)
    assert run(everything) == 0
    printed = "nothing of owner me is left in SkyPilot's list, aws; not searched: gcp (orch cannot query it directly)"
    assert printed in output()[1]
    assert run([*everything, "-o", "json"]) == 0
    assert json.loads(output()[0]) == {
        "schema_version": 1,
        "owners": ["me"],
        "left": [],
        "looked_at": ["SkyPilot's list", "aws"],
        "not_looked_at": [{"cloud": "gcp", "why": "orch cannot query it directly"}],
        "others": [],
        "unreadable": [],
    }
    monkeypatch.setattr(client, "reap", lambda *_: nobody)
    assert run(everything) == 5
    assert "resources of owner me may be left" in output()[1]
    assert run(["reap", "--on", "sky"]) == 0, "of its own runs SkyPilot's list knows"
    assert "of runs of this home" in output()[1]


def test_reap_requires_an_owner_and_creates_none(
    monkeypatch: pytest.MonkeyPatch, own_home: Path, output: Output
):
    monkeypatch.delenv("ORCH_OWNER", raising=False)
    assert run(["reap", "--all", "--yes", "--on", "sky"]) == 2
    assert "add `--owner NAME`" in output()[1]
    assert not (own_home / "owner").exists()
    assert run(["reap", "--all", "--yes", "--owner", "Alice Smith"]) == 2
    assert "--owner 'Alice Smith': must consist of a-z" in output()[1]


def test_owner_in_the_environment_alone_searches_no_cloud(monkeypatch: pytest.MonkeyPatch, output: Output):
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(client, "reap", lambda *given: asked.append(given[1:]) or Reaped())
    monkeypatch.setenv("ORCH_OWNER", "ci-1")
    assert run(["reap"]) == 0
    assert run(["reap", "--owner", "ci-1"]) == 0
    assert asked == [(False, "", ""), (False, "sky", "ci-1")]


class _Ended(client.RunConnection):
    """A run that has ended with a status."""

    def __init__(self, run_id: str, folder: Path, status: str) -> None:
        super().__init__(run_id, folder)
        object.__setattr__(self, "_status", status)

    def wait(self, timeout_s: float) -> str | None:
        return self.__dict__["_status"]

    def snapshot(self) -> dict[str, Any]:
        return client.snapshot(self.run_id, self.folder.parent.parent)
