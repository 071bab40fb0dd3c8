"""Feeds a run's core with events, one by one, and checks what must hold after each."""

from metrics.records import EventRecord
from orchestrator.core.events import MONITOR, Observed, Tick
from orchestrator.core.invariants import validate_step
from orchestrator.core.journal import begin, created
from orchestrator.core.machine import step
from orchestrator.core.state import RunSpec


class Driver:
    """Feeds events, checks the invariants after each, remembers facts and instructions."""

    def __init__(self, run: RunSpec) -> None:
        self.state = begin(run)
        self.facts = []
        self.now_s = 100.0

    def feed(self, event):
        before = self.state
        done = step(before, event, lambda: 1.0)
        validate_step(before, done.state)
        self.state = done.state
        self.facts += done.facts
        return list(done.instructions)

    def tick(self, after_s: float = 1.0):
        self.now_s += after_s
        return self.feed(Tick(self.now_s))

    def sees(self, vm: str, state: str = "running", phase: str = "", **more):
        return self.feed(Observed(self.now_s, vm, state, phase, **more))

    def of(self, name: str):
        return self.state.slot(name)

    def train(self) -> "Driver":
        """Both peers training, the monitor up."""
        self.tick()
        self.sees("r-a-0", phase="dht", maddr="/ip4/10.0.0.2/tcp/1/p2p/A")
        self.tick()
        self.sees("r-b-0", phase="ready", maddr="/ip4/10.0.0.3/tcp/1/p2p/B")
        self.sees("r-a-0", phase="training")
        self.sees("r-b-0", phase="training")
        self.sees(MONITOR)
        return self


def rows(run: Driver) -> list[EventRecord]:
    """The journal of a run, as the store has it."""
    facts = [created(run.state.spec), *run.facts]
    return [
        EventRecord(
            n, 0.0, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate(facts)
    ]
