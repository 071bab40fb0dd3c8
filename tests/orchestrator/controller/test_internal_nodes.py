"""VMs by internal address: per network, and while the VM lives."""

from __future__ import annotations

from cloud.provider import Observed, VmState
from orchestrator.controller.records import internal_nodes

OREGON, VIRGINIA = "aws/us-west-2/us-west-2a", "aws/us-east-1/us-east-1a"


def vm(
    name: str, internal: str, location: str = OREGON, state: VmState = "running", at_s: float = 1.0
) -> Observed:
    return Observed(
        name, state, location, "203.0.113.1", at_s, None, None, "", None, {}, internal_address=internal
    )


def test_internal_addresses_are_per_network():
    found = internal_nodes({}, [vm("a", "172.31.0.1"), vm("b", "172.31.0.1", VIRGINIA)])
    assert found == {"aws/us-west-2": {"172.31.0.1": "a"}, "aws/us-east-1": {"172.31.0.1": "b"}}


def test_a_shared_address_is_unknown_until_one_vm_is_gone():
    both = internal_nodes({}, [vm("a", "172.31.0.1"), vm("b", "172.31.0.1")])
    assert both == {"aws/us-west-2": {"172.31.0.1": ""}}
    after = internal_nodes(both, [vm("a", "172.31.0.1", state="preempted"), vm("b", "172.31.0.1")])
    assert after == {"aws/us-west-2": {"172.31.0.1": "b"}}


def test_an_address_stays_with_its_last_vm():
    known = internal_nodes({}, [vm("a", "172.31.0.1")])
    assert internal_nodes(known, []) == known
    assert internal_nodes(known, [vm("a", "172.31.0.1", state="terminated")]) == known
    missed = [
        vm("a", "172.31.0.1", state="terminated"),
        vm("c", "172.31.0.1", state="terminated", at_s=9.0),
    ]
    assert internal_nodes({}, missed) == {"aws/us-west-2": {"172.31.0.1": "c"}}


def test_clouds_without_a_shared_network_and_vms_without_an_address_have_none():
    assert internal_nodes({}, [vm("a", "10.0.0.1", "azure/eastus"), vm("b", "")]) == {}
