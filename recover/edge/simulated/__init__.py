"""A machine that isn't there: it obeys the same ports, has one fault, and knows itself whether it is cured.

Tests and `gpu-recover rehearse` climb against it. Nothing here sleeps: time is the simulated clock's.
"""

from recover.edge.simulated.container import SimulatedContainer
from recover.edge.simulated.fault import Fault
from recover.edge.simulated.faults import FAULTS
from recover.edge.simulated.machine import SimulatedMachine
from recover.edge.simulated.state import HELD_MIB, MAC, UUID, SimulatedClock

__all__ = [
    "FAULTS",
    "HELD_MIB",
    "MAC",
    "UUID",
    "Fault",
    "SimulatedClock",
    "SimulatedContainer",
    "SimulatedMachine",
    "simulate",
]


def simulate(fault: Fault, clock: SimulatedClock, *, baseline: bool = True) -> SimulatedMachine:
    """The machine that the fault is of."""
    kind = SimulatedContainer if fault.container else SimulatedMachine
    return kind(fault, clock, baseline=baseline)
