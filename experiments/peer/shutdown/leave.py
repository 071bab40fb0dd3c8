"""Steps with which a peer leaves the swarm, in an orderly shutdown or run by the watchdog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.peer.processes import remove_folder
from experiments.peer.status import Status


class LeaveSequence:
    """Tells the swarm that this peer leaves. Each step has its own time limit.

    An orderly shutdown calls `tell_swarm` among its other steps. The watchdog (`processes.Departure`) calls `cut_short`
    when the orderly shutdown takes too long. It repeats all steps, since it cannot know which ones the other thread
    has completed.
    """

    def __init__(self, status: Status, write_egress: Callable[[], None], temporary: Path) -> None:
        """`write_egress`: record the last meter reading; `temporary`: the folder to remove at the end."""
        self._status, self._write_egress, self._temporary = status, write_egress, temporary
        self._steps: list[Callable[[], object]] = []

    def add(self, *steps: Callable[[], object]) -> None:
        """Add steps to `tell_swarm`, which runs them in the order added."""
        self._steps += steps

    def tell_swarm(self) -> None:
        """Run the steps. Raises what one of them raises."""
        for step in self._steps:
            step()

    def cut_short(self) -> None:
        """Run only what others depend on; the rest ends with the process."""
        self._status.leaving()
        self.tell_swarm()
        self._write_egress()
        remove_folder(self._temporary)
