"""Whole runs on rented VMs: from the YAML to the report, with what goes wrong on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from canaries import in_bytes, in_files
from canary import CommandLines, in_launches
from fate import instances, no_capacity, preempt
from machine import clusters, in_ec2, pids
from running import Running, orch, wait_for

from cloud.sky import records
from cloud.sky.vm import ssh
from metrics.store.database import RunStore

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1500)]

TWIN = str(Path(__file__).with_name("twin.yaml"))
EPOCHS = 20  # the twin's, warm-up included
# Spot prices of a g4dn.2xlarge in the world's catalog (tests/fake_ec2/seed_home.py).
PRICES = {
    "aws/us-west-2/us-west-2b": Decimal("0.2632"),
    "aws/eu-central-1/eu-central-1a": Decimal("0.282"),
}
_SHORT = ("--set", "measure.epochs=5", "--set", "swarm.target_batch_size=960")


@pytest.fixture
def launch(clean_home: Path) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def begin(*options: str) -> Running:
        begun.append(Running(clean_home, TWIN, "--on", "sky", *options))
        return begun[-1]

    yield begin
    no_capacity("us-west-2a", 0)
    for running in begun:
        running.close(600)


@pytest.fixture
def other_clouds() -> Iterator[Sequence[str]]:
    """Credentials of clouds that no VM is rented at, below the home: one that SkyPilot can be told to keep, one not."""
    files = (".lambda_cloud/lambda_keys", ".config/gcloud/application_default_credentials.json")
    for name in files:
        path = Path.home() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("api_key = of-another-cloud")
    yield files
    for name in files:
        (Path.home() / name).unlink()


def of_slot(run: Running, slot: str, *, up: bool | None = None) -> list[dict[str, Any]]:
    """EC2's VMs of a slot, the oldest first."""
    found = [i for i in instances(up=up) if i["tags"].get("orch-run") == run.run_id]
    return sorted(
        (i for i in found if i["tags"].get("orch-slot") == slot), key=lambda i: float(i["launched_s"])
    )


def taken_down(run: Running) -> None:
    """`orch down` of a run that has ended finds nothing, and neither does anybody else."""
    down = orch("down", run.run_id, "--yes", timeout_s=120)
    assert down.returncode == 0, down.stderr
    assert (in_ec2(), clusters()) == ([], [])


def test_two_regions_one_refused_one_preempted(
    launch: Callable[..., Running],
    clean_home: Path,
    store: dict[str, str],
    other_clouds: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ORCH_CANARY", f"canary-{token_hex(16)}")
    secrets = {
        "canary": os.environ["ORCH_CANARY"].encode(),
        "store": store["AWS_SECRET_ACCESS_KEY"].encode(),
    }
    no_capacity("us-west-2a", -1)
    with CommandLines(secrets, clean_home) as commands:
        run = launch("--set", "secrets.ORCH_CANARY=null")
        run.wait_for_epoch(2, 600)
        check_credentials(run, other_clouds)
        rented = of_slot(run, "eu-0")
        assert len(rented) == 1, orch("why", run.run_id, "eu-0").stdout
        preempt(rented[0]["id"])
        code, summary = run.finish(900)
    assert code == 0, run.stderr.read_text()
    assert summary["status"] == "done"
    assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 2}
    assert {p["slot"]: p["preemptions"] for p in summary["peers"]} == {"us-0": 0, "eu-0": 1}
    assert summary["accuracy"] > 0.7
    taken_down(run)
    assert "us-west-2a" in orch("why", run.run_id, "us-0").stdout
    with RunStore.open_reader(run.folder / "run.db") as db:
        vms = {row.vm: row for row in db.records("vms")}
        epochs = list(db.records("epochs"))
        egress = list(db.records("egress"))
    assert commands.looks > 50
    assert commands.found == set()
    check_secrets(run, commands.values)
    check_vms(run, vms)
    check_training(vms, epochs, egress)
    check_bill(summary, vms)


def check_credentials(run: Running, files: Sequence[str]) -> None:
    """No VM has what this machine could rent others with."""
    vms = [r for r in records.read_all(run.folder / "sky") if r.launched and not r.end_state]
    assert len(vms) == 2
    for vm in vms:
        assert ssh.run_on(
            vm.address, vm.ssh, "ls .aws/credentials " + " ".join(files) + "; echo looked", 20
        ) == ("looked\n")


def check_secrets(run: Running, secrets: dict[str, bytes]) -> None:
    """No file of this machine has one once the run has ended (SkyPilot's logs and databases, Ray's, the report), nor EC2."""
    assert len(secrets) >= 8, "identity and record keys of three VMs, at least"
    found = in_files(secrets, [Path("/tmp"), Path("/dev/shm")])
    # The store itself, which is no part of the run.
    assert {path: names for path, names in found.items() if not path.parts[2].startswith("store-")} == {}
    assert in_launches(secrets) == []
    told = run.stderr.read_text() + orch("why", run.run_id).stdout
    assert in_bytes(told.encode(), secrets) == []


def check_vms(run: Running, vms: dict[str, Any]) -> None:
    """What was rented is what EC2 says: place, type, tags from the first moment, time at least EC2's."""
    rented = {slot: of_slot(run, slot) for slot in ("us-0", "eu-0")}
    assert [i["zone"] for i in rented["us-0"]] == ["us-west-2b"]
    assert [i["zone"] for i in rented["eu-0"]] == ["eu-central-1a"] * 2
    for slot, found in rented.items():
        for generation, instance in enumerate(found):
            row = next(
                r
                for r in vms.values()
                if r.slot == slot and r.location.endswith(instance["zone"]) and r.address == instance["ip"]
            )
            assert instance["tags"]["orch-run"] == run.run_id
            assert {"orch-owner", "orch-lease-until"} <= instance["tags"].keys()
            assert (row.instance, instance["spot"]) == ("g4dn.2xlarge", True)
            assert row.usd_per_h == PRICES[row.location]
            assert row.generation >= generation
            assert row.requested_s <= instance["launched_s"]
            # EC2 bills no VM that shuts down, and says so some seconds before it is gone.
            assert row.ended_s >= instance["ended_s"] - 10
            assert row.ended_s - row.requested_s < instance["ended_s"] - instance["launched_s"] + 120


def check_training(vms: dict[str, Any], epochs: list[Any], egress: list[Any]) -> None:
    """The replacement took the others' state, averaged with them, and what all sent was counted by destination."""
    newest = max((v for v in vms.values() if v.slot == "eu-0"), key=lambda v: v.generation)
    first = max((v for v in vms.values() if v.slot == "us-0"), key=lambda v: v.generation)
    joined = [row for row in epochs if row.vm == newest.vm]
    assert joined, "the replacement trained nothing"
    assert min(row.epoch for row in joined) > 2, "the replacement began anew"
    assert any(row.group_size == 2 for row in joined), "the replacement took part in no round"
    losses = {row.epoch: row.loss for row in epochs if row.vm == first.vm}
    assert all(row.loss < 1.5 * losses[row.epoch] + 0.5 for row in joined), "it learns as the others do"
    assert sorted(row.epoch for row in epochs if row.vm == first.vm) == list(range(1, EPOCHS + 1))
    sent = {
        (row.vm, row.dst_address): sum(
            r.bytes for r in egress if r.vm == row.vm and r.dst_address == row.dst_address
        )
        for row in egress
    }
    assert sent[first.vm, newest.address] > 100_000
    assert sent[newest.vm, first.address] > 100_000


def check_bill(summary: dict[str, Any], vms: dict[str, Any]) -> None:
    """VM seconds at the price read back, egress at the book's, add up to the dollars."""
    hours = sum((v.ended_s - v.requested_s) * float(v.usd_per_h) / 3600 for v in vms.values() if v.usd_per_h)
    assert summary["cost"]["vm_usd"] == pytest.approx(hours, rel=0.05)
    paid = [row for row in summary["egress"] if row["class"] == "inter_continent"]
    assert {(r["src"], r["dst"]) for r in paid} >= {("us-0", "eu-0"), ("eu-0", "us-0")}
    assert all(row["bytes"] > 0 and row["usd"] > 0 for row in paid)
    assert summary["cost"]["total_usd"] == pytest.approx(
        sum(
            summary["cost"][kind]
            for kind in ("vm_usd", "egress_usd", "data_usd", "storage_usd", "controller_usd")
        ),
        abs=5e-6,  # each is rounded to a millionth
    )


def test_killed_controller_between_request_and_reply(launch: Callable[..., Running]):
    run = launch(*_SHORT)
    [made] = wait_for("a VM that EC2 has made", lambda: of_slot(run, "us-0", up=True), 300)
    (controller,) = pids("ray::ControllerActor")
    os.kill(controller, signal.SIGKILL)
    attached = orch("attach", run.run_id, timeout_s=900)
    assert attached.returncode == 0, attached.stderr
    code, _ = run.finish(120)
    assert code == 0, run.stderr.read_text()
    taken_down(run)
    check_one_vm_a_slot(run)
    assert [i["id"] for i in of_slot(run, "us-0")] == [made["id"]], "the VM in between was not the run's"


def test_killed_api_server_during_a_launch(launch: Callable[..., Running]):
    run = launch(*_SHORT)
    wait_for("a VM that EC2 has made", lambda: of_slot(run, "eu-0", up=True), 300)
    killed = pids("sky.server.server")
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    code, summary = run.finish(900)
    assert code == 0, run.stderr.read_text()
    assert summary["status"] == "done"
    taken_down(run)
    check_one_vm_a_slot(run)


def check_one_vm_a_slot(run: Running) -> None:
    """Never two VMs of a slot at once, whatever was lost; nothing that the run does not know of."""
    with RunStore.open_reader(run.folder / "run.db") as store:
        known = {row.address for row in store.records("vms")}
        assert store.meta("status") == "done"
    for slot in ("us-0", "eu-0"):
        found = of_slot(run, slot)
        assert found
        for earlier, later in pairwise(found):
            assert earlier["ended_s"] <= later["launched_s"]
        assert found[-1]["ip"] in known
