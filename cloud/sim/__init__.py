"""A cloud in virtual time: no process, socket or sleep; faults on demand or drawn from a seed."""

from cloud.sim.client import Reply, SimCloud
from cloud.sim.faults import FAULTS, Fault, Faults, Window
from cloud.sim.traces import TraceEvent
from cloud.sim.world import SimPlace, SimVm, SimWorld, VirtualClock

__all__ = [
    "FAULTS",
    "Fault",
    "Faults",
    "Reply",
    "SimCloud",
    "SimPlace",
    "SimVm",
    "SimWorld",
    "TraceEvent",
    "VirtualClock",
    "Window",
]
