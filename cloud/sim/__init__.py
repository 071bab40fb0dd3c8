"""A cloud in virtual time, without processes, sockets or sleeps; faults occur on request or are drawn from a seed."""

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
