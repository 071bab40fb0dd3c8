"""VMs of one network are told each other's internal addresses, as reported by SkyPilot and not by the VMs."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloud.prices.classes import network_of
from cloud.sky.records import VmRecord
from cloud.sky.skypilot import sdk
from cloud.sky.state import Listed, neighbours, observed
from cloud.sky.vm.bootstrap import NEIGHBOURS, peek_command

A = VmRecord(
    "r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "T4:1", True, 100.0, launched=True, address="203.0.113.1",
    internal="172.31.0.1",
)  # fmt: skip
B = replace(A, vm="r-b-0", address="203.0.113.2", internal="172.31.0.2", location="aws/us-west-2/us-west-2b")
FAR = replace(A, vm="r-c-0", internal="172.31.0.3", location="aws/us-east-1/us-east-1a")
GOOGLE = replace(A, vm="r-d-0", internal="10.128.0.4", location="gcp/us-central1/us-central1-a")
ROSTER = {"peers": [{"vm": vm, "peer_id": f"Qm{vm}"} for vm in ("r-a-0", "r-b-0", "r-c-0", "r-d-0", "r-e-0")]}


def test_neighbours_are_exactly_the_vms_of_the_region():
    living = [A, B, FAR, GOOGLE]
    assert neighbours(A, living, ROSTER) == "Qmr-b-0 172.31.0.2"
    assert neighbours(B, living, ROSTER) == "Qmr-a-0 172.31.0.1"
    assert neighbours(FAR, living, ROSTER) == neighbours(GOOGLE, living, ROSTER) == ""


def test_address_claimed_by_two_vms_is_ignored():
    twice = replace(B, vm="r-e-0")
    assert neighbours(A, [A, B, twice], ROSTER) == ""
    assert neighbours(B, [A, B, twice], ROSTER) == "Qmr-a-0 172.31.0.1"


@pytest.mark.parametrize("missing", [{"internal": ""}, {"vm": "r-unknown-0"}])
def test_unknown_neighbours_are_left_out(missing: dict[str, str]):
    assert neighbours(A, [A, replace(B, **missing)], ROSTER) == ""  # type: ignore[arg-type]
    assert neighbours(A, [A, B], {}) == ""


def test_which_places_share_a_network():
    assert network_of("aws/us-west-2/us-west-2a") == network_of("aws/us-west-2") == "aws/us-west-2"
    assert network_of("gcp/us-central1/us-central1-a") == "gcp/us-central1"
    assert network_of("azure/eastus") == network_of("lambda/us-west-1") == network_of("onprem/x") == ""
    assert network_of("") == network_of("aws") == ""


def test_neighbours_file_is_atomic_and_last_value_counts(tmp_path: Path):
    folder = tmp_path / "orch-vm"
    folder.mkdir()
    for said in ("QmB 172.31.0.2", "", "QmB 172.31.0.2\nQmC 172.31.0.3; $(id)"):
        command = ["bash", "-c", peek_command("203.0.113.1", neighbours=said)]
        subprocess.run(command, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert (folder / NEIGHBOURS).read_text() == "QmB 172.31.0.2\nQmC 172.31.0.3; $(id)\n"
    assert {path.name for path in folder.iterdir()} == {"address", NEIGHBOURS}


@pytest.mark.parametrize(
    ("pairs", "internal"),
    [
        ([("172.31.0.1", "203.0.113.1")], "172.31.0.1"),
        ([("198.18.2.2", "198.18.2.2")], ""),  # SkyPilot has the public one only
        ([(None, "203.0.113.1")], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_internal_address_is_read_from_skypilots_handle(pairs: object, internal: str):
    handle = SimpleNamespace(head_ip="203.0.113.1", stable_internal_external_ips=pairs)
    found = sdk._cluster({"name": "r-a-0", "status": SimpleNamespace(name="UP"), "handle": handle})
    assert (found.address, found.internal) == ("203.0.113.1", internal)


def test_it_is_shown_to_the_controller():
    assert observed(A, Listed("r-a-0", "UP", A.address), 200.0).internal_address == "172.31.0.1"
