"""Telling a running VM which peers to join: once, while it waits, from the state at that time."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud.provider import LaunchRequest, Offer
from cloud.sky import provider
from cloud.sky.provider import SkyCloud
from cloud.sky.records import VmRecord, read, write
from cloud.sky.state import Listed, Skew, after_peek, after_skew, observed, peers_to_join, skew_of
from cloud.sky.vm.bootstrap import CLOCK_VARIABLE, PEERS_VARIABLE, peek_command, run_script
from experiments.peer.swarm.clock import CLOCK_VARIABLE as peers_variable
from experiments.peer.swarm.clock import controller_time

RECORD = VmRecord(
    "r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "CPU:2", True, 100.0, launched=True, address="198.18.2.2"
)
UP = Listed("r-a-0", "UP", "198.18.2.2")
WAITING = after_peek(RECORD, ({"phase": "waiting", "at_s": 150.0}, {}), 200.0)


def test_waiting_vm_is_running_with_phase_waiting():
    shown = observed(WAITING, UP, 200.0)
    assert (shown.state, shown.ready_at_s, shown.status) == ("running", 150.0, {"phase": "waiting"})
    told = observed(after_peek(WAITING, ({"phase": "running", "at_s": 160.0}, {}), 201.0), UP, 201.0)
    assert (told.ready_at_s, told.status) == (150.0, {"phase": "starting"})
    joined = after_peek(WAITING, ({"phase": "running", "at_s": 160.0}, {"phase": "dht"}), 202.0)
    assert observed(joined, UP, 202.0).status == {"phase": "dht"}
    assert observed(after_peek(RECORD, ({"phase": "preparing"}, {}), 200.0), UP, 200.0).status == {}


@pytest.mark.parametrize("phase", ["setup", "installing"])
def test_installing_vm_is_pending_and_reports_its_step(phase: str):
    shown = observed(after_peek(RECORD, ({"phase": phase, "at_s": 150.0}, {}), 200.0), UP, 200.0)
    assert (shown.state, shown.ready_at_s, shown.status) == ("pending", None, {"phase": phase})


@pytest.mark.parametrize(
    ("roster", "told"),
    [
        ({}, ""),
        ({"seed": "", "join": []}, ""),
        ({"seed": "r-b-0", "join": []}, ""),
        ({"seed": "r-a-0", "join": []}, "alone"),
        ({"seed": "r-b-0", "join": ["/b", "/c"]}, "/b /c"),
        ({"seed": "r-a-0", "join": ["/b"]}, "/b"),
    ],
)
def test_vm_joins_running_peers_and_starts_swarm_only_when_chosen(roster: dict[str, Any], told: str):
    assert peers_to_join(WAITING, roster) == told
    assert peers_to_join(RECORD, roster) == "", "who is up while it gets its software may be gone after that"


def peek(home: Path, peers: str) -> str:
    command = ["bash", "-c", peek_command("198.18.2.2", peers)]
    return subprocess.run(command, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE,
                          text=True, check=True).stdout  # fmt: skip


def test_peers_file_keeps_first_value_and_leaves_no_temporary_files(tmp_path: Path):
    folder = tmp_path / "orch-vm"
    folder.mkdir()
    (folder / "job.json").write_text('{"phase": "waiting"}')
    assert peek(tmp_path, "").startswith('{"phase": "waiting"}\n\n')
    assert not (folder / "peers").exists()
    peek(tmp_path, "/ip4/1.2.3.4/tcp/1/p2p/A /ip4/$(id)/tcp/1/p2p/B")
    peek(tmp_path, "alone")
    assert (folder / "peers").read_text() == "/ip4/1.2.3.4/tcp/1/p2p/A /ip4/$(id)/tcp/1/p2p/B\n"
    assert {path.name for path in folder.iterdir()} == {"address", "job.json", "peers"}


def test_last_peek_before_start_exchanges_clocks(tmp_path: Path):
    folder = tmp_path / "orch-vm"
    folder.mkdir()
    for now_s in (1_790_000_000.0, 1_790_000_004.125):
        command = ["bash", "-c", peek_command("198.18.2.2", now_s=now_s)]
        began_s, began = time.time(), time.monotonic()
        said = subprocess.run(command, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE,
                              text=True, check=True).stdout  # fmt: skip
        skew = skew_of(said, began_s - 700.0, time.monotonic() - began)
    assert skew is not None
    assert skew.ahead_s == pytest.approx(700.0, abs=skew.error_s + 0.1)
    assert {path.name for path in folder.iterdir()} == {"address", "clock"}
    told_s = controller_time((folder / "clock").read_text(), lambda: 0.0)
    assert 0.0 <= told_s() - 1_790_000_004.125 < 60.0
    assert peers_variable == CLOCK_VARIABLE


@pytest.mark.parametrize("ahead_s", [-3500.0, -700.0, -31.0, 0.2, 31.0, 3500.0])
def test_small_clock_skew_is_tolerated_and_times_are_corrected(ahead_s: float):
    record = after_skew(RECORD, Skew(ahead_s, 0.1))
    waiting = after_peek(record, ({"phase": "waiting", "at_s": 150.0 + ahead_s}, {}), 200.0)
    shown = observed(waiting, UP, 200.0)
    assert (shown.state, shown.ready_at_s, shown.clock_skew_s) == ("running", pytest.approx(150.0), ahead_s)
    assert peers_to_join(waiting, {"seed": "r-a-0"}) == "alone"


@pytest.mark.parametrize(("ahead_s", "where"), [(3700.0, "ahead of"), (-90_000.0, "behind")])
def test_vm_with_wrong_clock_is_refused_before_its_program_starts(ahead_s: float, where: str):
    record = after_skew(RECORD, Skew(ahead_s, 0.1))
    for phase in ("preparing", "waiting"):
        refused = after_peek(record, ({"phase": phase, "at_s": 150.0}, {}), 200.0)
        shown = observed(refused, UP, 200.0)
        assert shown.state == "failed"
        assert f"{abs(ahead_s):.0f} s {where} this machine's, at most 3600 s are allowed" in shown.cause
        assert "`sudo chronyc makestep`" in shown.cause
        assert peers_to_join(refused, {"seed": "r-a-0"}) == "", "it is not let in"
    running = after_peek(record, ({"phase": "running", "at_s": 150.0}, {}), 200.0)
    assert observed(running, UP, 200.0).state == "running", "a clock that is set in mid-run ends nobody"


def test_clock_skew_is_measured_each_time_and_recorded_when_it_changes():
    record = after_skew(RECORD, Skew(10.0, 2.0))
    assert after_skew(record, Skew(10.5, 2.0)) is record
    assert after_skew(record, None) is record
    exact = after_skew(record, Skew(10.5, 0.1))
    assert (exact.clock_skew_s, exact.clock_error_s) == (10.5, 0.1)
    assert after_skew(exact, Skew(9.0, 2.0)) is exact
    assert after_skew(exact, Skew(-3600.0, 2.0)).clock_skew_s == -3600.0  # it was set
    for said in (None, "", "{}\n{}", "{}\n{}\nx", "{}\n{}\nnan", "{}\n{}\n1e300", "{}\n{}\n-1"):
        assert skew_of(said, 100.0, 0.1) is None
    assert skew_of("{}\n{}\n130.0\n", 100.0, 20.0) is None  # not exact enough
    assert skew_of("{}\n{}\n130.0\n", 100.0, 0.2) == Skew(29.9, 0.1)


@pytest.mark.parametrize(("peers", "waits"), [([f"env:{PEERS_VARIABLE}"], "WAIT=900"), ([], "WAIT=0")])
def test_a_script_waits_where_the_program_asks_for_it(peers: list[str], waits: str):
    offer = Offer("aws/us-west-2/us-west-2a", "m6i.large", "CPU:2", True, None, "")
    request = LaunchRequest("r-a-0", offer, "programs:tell", {"initial_peers": peers})
    assert waits in run_script(request, "orch-0-py3-none-any.whl", "0" * 64).splitlines()


def test_provider_reads_roster_of_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A VM, its script as it was left, and no ssh in between."""
    vm = tmp_path / "home" / "orch-vm"
    vm.mkdir(parents=True)
    (vm / "job.json").write_text('{"phase": "waiting", "at_s": 150.0}')
    run = tmp_path / "orch" / "runs" / "r"
    (run / "monitor").mkdir(parents=True)
    monkeypatch.setattr(
        provider.ssh,
        "run_on",
        lambda address, how, command, timeout_s: subprocess.run(
            ["bash", "-c", command], env={"HOME": str(vm.parent), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout,
    )  # fmt: skip
    write(run / "sky", replace(RECORD, ssh={"key": "x"}))
    cloud = SkyCloud(run)

    def look() -> VmRecord:
        record = read(run / "sky", "r-a-0")
        assert record is not None
        return cloud._look(record, UP, 200.0)  # pyright: ignore[reportPrivateUsage] - the rest of a list needs SkyPilot

    roster = run / "monitor" / "roster.json"
    assert look().job["phase"] == "waiting"
    assert look().ready_at_s == pytest.approx(150.0, abs=5.0)
    assert not (vm / "peers").exists(), "there is no roster yet"
    roster.write_text(json.dumps({"seed": "r-b-0", "join": [], "peers": []}))
    look()
    assert not (vm / "peers").exists(), "another one begins, and is not up"
    roster.write_text(json.dumps({"seed": "r-b-0", "join": ["/b"], "peers": []}))
    told = look()
    assert (vm / "peers").read_text() == "/b\n"
    assert (told.told, told.job["phase"]) == (True, "waiting"), "it may not have looked yet"
    assert observed(told, UP, 200.0).status == {"phase": "starting"}, "but nobody takes it for one that waits"
