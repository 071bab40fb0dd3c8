"""What this peer still does when it leaves the swarm, by the orderly end or by the watchdog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.peer.processes import remove_folder
from experiments.peer.status import Status


class LeaveSequence:
    """Tells the swarm that this peer leaves. Each step has a time limit of its own.

    The orderly end calls `tell_swarm` among its other steps. `cut_short` is the watchdog's (`processes.Departure`),
    for an orderly end that takes too long: it repeats all steps, since nobody knows where the other thread is.
    """

    def __init__(self, status: Status, write_egress: Callable[[], None], temporary: Path) -> None:
        """`write_egress`: the last reading of the meter; `temporary`: the folder removed at last."""
        self._status, self._write_egress, self._temporary = status, write_egress, temporary
        self._steps: list[Callable[[], object]] = []

    def add(self, *steps: Callable[[], object]) -> None:
        """Add steps of `tell_swarm`, which runs them in the order in which they were added."""
        self._steps += steps

    def tell_swarm(self) -> None:
        """Run the steps. Raises what one of them raises."""
        for step in self._steps:
            step()

    def cut_short(self) -> None:
        """Do only what others depend on; the rest ends with the process."""
        self._status.leaving()
        self.tell_swarm()
        self._write_egress()
        remove_folder(self._temporary)
