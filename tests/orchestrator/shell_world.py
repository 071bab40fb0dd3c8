"""A run's cloud, swarm and clock in memory, for the shell: what is not under test is as simple as can be."""

import json
from dataclasses import asdict, replace
from decimal import Decimal
from random import Random

from cloud.provider import LaunchRequest, Observed, Offer
from metrics.records import EpochRecord
from orchestrator.controller.calls import InlineCalls
from orchestrator.controller.tick import Shell
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec

PLACE = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.18"), "book")
RUN = RunSpec("r", (SlotSpec("a", (PLACE,), Policy()), SlotSpec("b", (PLACE,), Policy())))
LAST = 3


class World:
    """A cloud, a swarm and a clock. Peers finish after `LAST` epochs of `epoch_s`."""

    name = "memory"

    def __init__(self, folder) -> None:
        self.now_s = 1000.0
        self.folder = folder
        self.vms: dict[str, Observed] = {}
        self.requests: list[str] = []
        self.closed = 0
        self.preempt_at_s: float | None = None
        self.refuse: list[Exception] = []
        self.skews: dict[str, float] = {}  # by VM
        (folder / "monitor").mkdir(parents=True)

    def request(self, request: LaunchRequest) -> None:
        self.requests.append(request.vm)
        if self.refuse:
            raise self.refuse.pop(0)
        self.vms.setdefault(
            request.vm,
            Observed(
                request.vm,
                "running",
                request.offer.location,
                "10.0.0.1",
                self.now_s,
                self.now_s,
                None,
                "",
                None,
                {},
            ),
        )

    def observe(self) -> list[Observed]:
        out = []
        for vm, o in self.vms.items():
            if (
                o.state == "running"
                and self.preempt_at_s
                and self.now_s >= self.preempt_at_s
                and vm == "r-b-0"
            ):
                o = self.vms[vm] = replace(o, state="preempted", ended_at_s=self.now_s)
            for_s = self.now_s - o.requested_at_s
            phase = (
                "starting" if for_s < 2 else "ready" if for_s < 4 else "training" if for_s < 20 else "done"
            )
            status = {"phase": phase, "maddr": f"/m/{vm}" if for_s >= 2 else None, "error": None}
            out.append(replace(o, status=status, clock_skew_s=self.skews.get(vm)))
            if phase == "done" and vm != "monitor":
                self.monitor_reads(vm)
        return out

    def monitor_reads(self, vm: str) -> None:
        path = self.folder / "monitor" / "monitor.jsonl"
        if path.exists() and f'"vm": "{vm}", "epoch": {LAST}' in path.read_text():
            return
        epoch = EpochRecord(
            vm, LAST, 0.0, 9.0, 3, 30, 1.0, 0.0, 1.0, 2.0, 0.1, 4.0, 0.0, 5.0, 4.0, 2.3, 2, "", "d"
        )
        lines = [
            {"kind": "epoch", "epoch": asdict(epoch), "egress": [], "ingress": None},
            {
                "kind": "evaluation",
                "vm": vm,
                "epoch": LAST,
                "at_s": 1.0,
                "accuracy": 0.9,
                "loss": 0.1,
                "samples": 9,
            },
        ]
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def terminate(self, vm: str) -> None:
        o = self.vms.get(vm)
        if o and o.state == "running":
            self.vms[vm] = replace(o, state="terminated", ended_at_s=self.now_s)

    def collect(self, vm: str) -> str:
        return str(self.folder / "vms" / vm)

    def close(self) -> None:
        self.closed += 1
        for vm in self.vms:
            self.terminate(vm)

    def alive(self) -> list[str]:
        return [vm for vm, o in self.vms.items() if o.state == "running"]


class Requests:
    last_epoch = LAST
    evaluates = True
    checkpoints = False
    most_checkpoint_bytes = 10**9

    def peer(self, request, place) -> LaunchRequest:
        return LaunchRequest(request.vm, Offer(place.location, "n1", "T4:1", True, None, ""), "p", {})

    def monitor(self, vm) -> LaunchRequest:
        return LaunchRequest(
            vm, Offer("gcp/us-central1/us-central1-a", "m", "CPU:1", False, None, ""), "p", {}
        )

    def nodes(self) -> dict[str, tuple[str, str]]:
        return {"store": ("10.0.0.9", "b2/us-west-1")}


def shell(world, store, **more) -> Shell:
    return Shell(
        store, InlineCalls(world), Requests(), world.folder,
        now_s=lambda: world.now_s, jitter=Random(1).random, **more,
    )  # fmt: skip


def run(world, controller, ticks: int = 120) -> None:
    for _ in range(ticks):
        if controller.tick():
            return
        world.now_s += 1.0
    raise AssertionError(f"not finished after {ticks} ticks: {controller.state}")
