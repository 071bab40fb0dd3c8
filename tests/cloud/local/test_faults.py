"""What the emulated provider refuses, and when it takes VMs back: decisions only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud.local import LocalOptions, PreemptOptions, StoreOptions
from cloud.local.check import probe
from cloud.local.host import faults
from cloud.local.host.preemption import Preemptions
from cloud.local.host.vms import Vm, process_title
from cloud.provider import InvalidRequestError, NoCapacityError


def test_lifetimes_follow_the_rate_and_repeat_with_the_seed():
    drawn = [faults.lifetime_s(7, f"vm-{k}", 6.0) for k in range(4000)]
    assert drawn == [faults.lifetime_s(7, f"vm-{k}", 6.0) for k in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(600, rel=0.05)  # 6 an hour
    assert drawn[:5] != [faults.lifetime_s(8, f"vm-{k}", 6.0) for k in range(5)]
    assert faults.lifetime_s(7, "vm", 0.0) is None


def test_the_victim_depends_on_seed_and_names_not_on_their_order():
    names = [f"vm-{k}" for k in range(8)]
    assert faults.victim(1, 30.0, names) == faults.victim(1, 30.0, reversed(names))
    assert {faults.victim(seed, 30.0, names) for seed in range(100)} == set(names)
    assert faults.victim(1, 30.0, []) is None


def test_preemptions_of_one_slot_leave_the_others_alone():
    timers: list[tuple[float, Callable[[], None]]] = []
    taken: list[str] = []
    training: set[str] = set()
    vms = {
        name: Vm(name, "gcp/x", "10.0.0.1", 1, "p", name != "monitor", 0.0, state="running")
        for name in ("r-eu-0-0", "r-us-0-0", "r-us-0-0-0", "monitor")
    }
    plan = PreemptOptions(rate_per_h=3600, at_s=(20.0,), seed=3, slot="r-us-0")
    preemptions = Preemptions(
        plan,
        vms,
        lambda s, do: timers.append((s, do)),
        lambda vm: vm.vm in training,
        lambda vm: taken.append(vm.vm),
        lambda _: None,
    )
    preemptions.started(vms["r-eu-0-0"])
    preemptions.started(vms["r-us-0-0-0"])  # of the slot "us-0-0"
    assert timers == []
    preemptions.started(vms["r-us-0-0"])
    assert len(timers) == 1  # by its rate; `at_s` counts from training
    training |= {"r-eu-0-0", "r-us-0-0-0", "monitor"}
    preemptions.tick()
    assert len(timers) == 1
    training.add("r-us-0-0")
    preemptions.tick()
    preemptions.tick()
    assert [seconds for seconds, _ in timers[1:]] == [20.0]
    for _, do in timers:
        do()
    assert taken == ["r-us-0-0", "r-us-0-0"]


def test_a_planned_preemption_is_announced_before_its_time_after_training_began():
    timers: list[float] = []
    vms = {"r-a-0": Vm("r-a-0", "gcp/x", "10.0.0.1", 1, "p", True, 0.0, state="pending")}
    plan = PreemptOptions(at_s=(20.0, 3.0), notice_s=5.0)
    preemptions = Preemptions(
        plan, vms, lambda s, _: timers.append(s), lambda _: True, lambda _: None, lambda _: None
    )
    preemptions.tick()
    assert timers == []  # what a VM without a program says is of an earlier one
    vms["r-a-0"].state = "running"
    preemptions.tick()
    assert timers == [15.0, 0.0]


def test_processes_are_named_by_run_and_vm():
    assert process_title("geo-b2-1-us-0-0", "geo-b2-1") == "orch: geo-b2-1-us-0-0"
    assert process_title("monitor-1", "geo-b2-1") == "orch: geo-b2-1 monitor-1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("title", ["orch: r-a-0", "x" * 10_000])
def test_a_named_process_shows_its_title_in_place_of_its_command_line(title: str):
    code = f"""
import os
from cloud.local.network.kernel import name_process
length = len(open("/proc/self/cmdline", "rb").read())
name_process({title!r})
shown = open("/proc/self/cmdline", "rb").read()
assert len(shown) <= length
assert shown.rstrip(b"\\0") == {title!r}.encode()[: length - 1], shown
assert os.environ["KEPT"] == "yes" and b"KEPT=yes" in open("/proc/self/environ", "rb").read()
"""
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": root, "KEPT": "yes"}, check=True)


def test_a_full_place_refuses_and_others_do_not():
    alive = ["x", "x", "y"]
    faults.check_capacity("y", {"x": 2, "y": 2}, alive)
    faults.check_capacity("z", {"x": 2}, alive)
    with pytest.raises(NoCapacityError, match="1 of 1"):
        faults.check_capacity("gcp/us/a", {"gcp/us": 1}, ["gcp/us/b"])
    faults.check_capacity("gcp/us-2/a", {"gcp/us": 1}, ["gcp/us/b"])
    with pytest.raises(NoCapacityError, match=r"x: no capacity .*2 of 2"):
        faults.check_capacity("x", {"x": 2}, alive)


def test_memory_refusal_has_figures():
    faults.check_memory(8, 700_000_000, 6_000_000_000)
    faults.check_memory(1000, 700_000_000, None)
    with pytest.raises(InvalidRequestError, match=r"8 peers need about 5\.6 GB .*has 4\.0 GB free"):
        faults.check_memory(8, 700_000_000, 4_000_000_000)


def test_options_come_back_as_written(tmp_path):
    options = LocalOptions(
        bytes_scale=20,
        capacity={"gcp/us-central1": 2},
        preempt=PreemptOptions(rate_per_h=3, at_s=(20.0, 40.0), notice_s=30.0, seed=4),
        store=StoreOptions("swift", "gcp/us-central1", dataset="a:b", dataset_arguments={"shards": 4}),
    )
    options.save(tmp_path / "options.json")
    assert LocalOptions.load(tmp_path / "options.json") == options
    assert (tmp_path / "options.json").stat().st_mode & 0o777 == 0o600


def test_no_vm_measures_two_things_in_one_round():
    places = ["u", "e", "a", "s"]
    vms = {place: [f"{place}1", f"{place}2"] for place in places}
    pairs = [(a, b) for a in places for b in places]
    packed = probe.rounds(pairs, vms)
    for batch in packed:
        busy = [vm for pair in batch for vm in pair]
        assert len(busy) == len(set(busy))
    assert sorted((a[0], b[0]) for batch in packed for a, b in batch) == sorted(pairs)
    assert len(packed) <= 8
