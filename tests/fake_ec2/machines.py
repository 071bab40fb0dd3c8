"""The VMs behind moto's instances, and the faults that a test injects."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, InstanceBackend, StateReason
from vm import VM

REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "ap-southeast-2")
_ROOTFS = os.environ["ORCH_FAKE_EC2_DIR"] + "/rootfs"
_STATE = Path(os.environ["FAKE_EC2_STATE"])
_UP = ("pending", "running")


class _NoCapacityError(EC2ClientError):
    def __init__(self, zone: str) -> None:
        super().__init__(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient capacity in the Availability Zone you requested ({zone}).",
        )


def _log(line: str) -> None:
    print(f"{time.time():.3f} {line}", flush=True)


@dataclass
class Machine:
    """An instance of moto and the VM behind it."""

    instance: Instance
    vm: VM
    launched_s: float  # unix time
    ended_s: float | None = None
    notice: str = ""  # when it will be terminated, in the metadata service's format

    @property
    def tags(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.instance.get_tags()}

    @property
    def cluster(self) -> str:
        """SkyPilot's name for its cluster on the cloud."""
        return self.tags.get("skypilot-cluster-name", "")

    @property
    def up(self) -> bool:
        return self.instance.state in _UP

    def about(self) -> dict[str, Any]:
        """An entry in the admin API's list."""
        instance = self.instance
        return {
            "id": instance.id,
            "state": instance.state,
            "zone": instance.placement.zone,
            "ip": self.vm.ip,
            "type": instance.instance_type,
            "spot": instance.lifecycle == "spot",
            "alive": self.vm.process is not None,
            "cluster": self.cluster,
            "tags": self.tags,
            "launched_s": self.launched_s,
            "ended_s": self.ended_s,
        }


@dataclass
class Machines:
    """All VMs of this EC2 by instance id, including those that have ended."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    by_id: dict[str, Machine] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)  # launches to refuse by zone; -1: all
    boot_delay_s: float = 0.0
    _used: dict[str, int] = field(default_factory=dict)

    def check_capacity(self, zone: str) -> None:
        """Raise EC2's InsufficientInstanceCapacity if a test has requested it."""
        with self.lock:
            left = self.failing.get(zone, 0)
            if left:
                self.failing[zone] = left - 1 if left > 0 else left
                _log(f"no capacity in {zone}")
                raise _NoCapacityError(zone)

    def launch(self, instance: Instance) -> None:
        """Boot the instances that moto has just created, now or after the requested delay."""
        with self.lock:
            vm = VM(
                instance.id, self._address(instance), str(instance.user_data or ""), _STATE / "vms", _ROOTFS
            )
            self.by_id[instance.id] = Machine(instance, vm, time.time())
        for nic in instance.nics.values():
            nic.private_ip_address = vm.ip
        _log(f"launch {instance.id} {vm.ip} {instance.placement.zone}")
        if self.boot_delay_s:
            threading.Timer(self.boot_delay_s, self._boot, [instance.id]).start()
        else:
            self._boot(instance.id)

    def _address(self, instance: Instance) -> str:
        """198.18.REGION.N: the third byte encodes the region."""
        region = instance.ec2_backend.region_name
        number = self._used[region] = self._used.get(region, 0) + 1
        subnet = REGIONS.index(region) + 1 if region in REGIONS else 200
        return f"198.{18 + number // 254}.{subnet}.{number % 254 + 1}"

    def _boot(self, instance_id: str) -> None:
        with self.lock:
            machine = self.by_id[instance_id]
            if machine.up:
                machine.vm.start()

    def ended(self, instance_id: str) -> None:
        """End the VM of an instance that moto has terminated."""
        if machine := self.by_id.get(instance_id):
            _log(f"terminate {instance_id}")
            machine.vm.delete()
            machine.ended_s = machine.ended_s or time.time()

    def find(self, want: dict[str, Any]) -> list[Machine]:
        """The running VMs with this "id", or of this "cluster" (SkyPilot's name, without the user's hash)."""
        with self.lock:
            return [
                m
                for i, m in self.by_id.items()
                if m.up
                and (
                    want.get("id") == i or ("cluster" in want and m.cluster.startswith(want["cluster"] + "-"))
                )
            ]

    def at_address(self, ip: str) -> Machine | None:
        """The VM with this address."""
        return next((m for m in self.by_id.values() if m.vm.ip == ip), None)

    def announce(self, machine: Machine, notice_s: float) -> None:
        """Preempt it after a notice in its metadata."""
        machine.notice = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + notice_s))
        threading.Timer(notice_s, self.preempt, [machine]).start()

    def preempt(self, machine: Machine) -> None:
        """Power off at once; EC2 reports it as a spot interruption."""
        with self.lock:
            if machine.up:
                machine.instance.terminate()
                code = "Server.SpotInstanceTermination"
                machine.instance.state_reason = StateReason(f"{code}: Spot instance termination", code)


def hang_on_moto(machines: Machines) -> None:
    """Make moto's EC2 launch, stop, start and terminate these machines from now on."""
    run, terminate = InstanceBackend.run_instances, Instance.terminate
    stop, start = Instance.stop, Instance.start

    def run_instances(self: Any, *args: Any, **kwargs: Any) -> Any:
        nics = kwargs.get("nics") or []
        subnet = kwargs.get("subnet_id") or next((n["SubnetId"] for n in nics if "SubnetId" in n), None)
        named = kwargs.get("placement") or self.region_name + "a"
        zone = self.get_subnet(subnet).availability_zone if subnet else named
        machines.check_capacity(zone)
        reservation = run(self, *args, **kwargs)
        for instance in reservation.instances:
            # The root volume is deleted with its VM unless the launch says otherwise; moto would keep it.
            if root := instance.block_device_mapping.get("/dev/sda1"):
                root.delete_on_termination = True
            machines.launch(instance)
        return reservation

    def terminate_(self: Any) -> Any:
        was = terminate(self)
        machines.ended(self.id)
        return was

    def stop_(self: Any) -> Any:
        machines.by_id[self.id].vm.kill()
        return stop(self)

    def start_(self: Any) -> Any:
        machines.by_id[self.id].vm.start()
        return start(self)

    def public_ip(self: Any) -> str | None:
        machine = machines.by_id.get(self.id)
        return machine.vm.ip if machine and self.state == "running" else None

    InstanceBackend.run_instances = run_instances
    Instance.terminate, Instance.stop, Instance.start = terminate_, stop_, start_
    Instance.public_ip = Instance.public_ip_address = property(public_ip)
