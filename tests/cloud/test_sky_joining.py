"""How a VM that is up is told whom to join: once, when it waits for it, by what is so then."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud.provider import LaunchRequest, Offer
from cloud.sky import provider
from cloud.sky.provider import SkyCloud
from cloud.sky.records import VmRecord, read, write
from cloud.sky.script import PEERS_VARIABLE, peek_command, run_script
from cloud.sky.state import Listed, after_peek, observed, whom_to_join

RECORD = VmRecord(
    "r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "CPU:2", True, 100.0, launched=True, address="198.18.2.2"
)
UP = Listed("r-a-0", "UP", "198.18.2.2")
WAITING = after_peek(RECORD, ({"phase": "waiting", "at_s": 150.0}, {}), 200.0)


def test_a_vm_that_waits_runs_and_its_phase_says_so():
    shown = observed(WAITING, UP, 200.0)
    assert (shown.state, shown.ready_at_s, shown.status) == ("running", 150.0, {"phase": "waiting"})
    told = observed(after_peek(WAITING, ({"phase": "running", "at_s": 160.0}, {}), 201.0), UP, 201.0)
    assert (told.ready_at_s, told.status) == (150.0, {"phase": "starting"})
    joined = after_peek(WAITING, ({"phase": "running", "at_s": 160.0}, {"phase": "dht"}), 202.0)
    assert observed(joined, UP, 202.0).status == {"phase": "dht"}
    assert observed(after_peek(RECORD, ({"phase": "preparing"}, {}), 200.0), UP, 200.0).status == {}


@pytest.mark.parametrize("phase", ["setup", "installing"])
def test_a_vm_that_gets_its_software_is_pending_and_says_which_step(phase: str):
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
def test_it_joins_who_is_up_and_begins_only_when_chosen(roster: dict[str, Any], told: str):
    assert whom_to_join(WAITING, roster) == told
    assert whom_to_join(RECORD, roster) == "", "who is up while it gets its software may be gone after that"


def peek(home: Path, peers: str) -> str:
    command = ["bash", "-c", peek_command("198.18.2.2", peers)]
    return subprocess.run(command, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE,
                          text=True, check=True).stdout  # fmt: skip


def test_the_first_word_counts_and_nothing_else_is_left(tmp_path: Path):
    folder = tmp_path / "orch-vm"
    folder.mkdir()
    (folder / "job.json").write_text('{"phase": "waiting"}')
    assert peek(tmp_path, "") == '{"phase": "waiting"}\n\n'
    assert not (folder / "peers").exists()
    peek(tmp_path, "/ip4/1.2.3.4/tcp/1/p2p/A /ip4/$(id)/tcp/1/p2p/B")
    peek(tmp_path, "alone")
    assert (folder / "peers").read_text() == "/ip4/1.2.3.4/tcp/1/p2p/A /ip4/$(id)/tcp/1/p2p/B\n"
    assert {path.name for path in folder.iterdir()} == {"address", "job.json", "peers"}


@pytest.mark.parametrize(("peers", "waits"), [([f"env:{PEERS_VARIABLE}"], "WAIT=900"), ([], "WAIT=0")])
def test_a_script_waits_where_the_program_asks_for_it(peers: list[str], waits: str):
    offer = Offer("aws/us-west-2/us-west-2a", "m6i.large", "CPU:2", True, None, "")
    request = LaunchRequest("r-a-0", offer, "programs:tell", {"initial_peers": peers})
    assert waits in run_script(request, "orch-0-py3-none-any.whl", "0" * 64).splitlines()


def test_the_provider_reads_it_from_what_the_controller_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    assert look().ready_at_s == 150.0
    assert not (vm / "peers").exists(), "there is no roster yet"
    roster.write_text(json.dumps({"seed": "r-b-0", "join": [], "peers": []}))
    look()
    assert not (vm / "peers").exists(), "another one begins, and is not up"
    roster.write_text(json.dumps({"seed": "r-b-0", "join": ["/b"], "peers": []}))
    told = look()
    assert (vm / "peers").read_text() == "/b\n"
    assert (told.told, told.job["phase"]) == (True, "waiting"), "it may not have looked yet"
    assert observed(told, UP, 200.0).status == {"phase": "starting"}, "but nobody takes it for one that waits"
