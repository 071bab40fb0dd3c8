"""Random orders of events, dropped and duplicated: never two VMs for a slot, nothing left after a stop."""

from dataclasses import replace
from decimal import Decimal
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metrics.records import EventRecord
from orchestrator.core.events import (
    EndRun,
    Missing,
    Observed,
    OfferRefused,
    Requested,
    RequestVm,
    Silent,
    Spending,
    StartMonitor,
    StopWanted,
    TerminateVm,
    Tick,
)
from orchestrator.core.invariants import validate, validate_step
from orchestrator.core.journal import begin, created, replay
from orchestrator.core.machine import advance, step
from orchestrator.core.observations import missing
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec

PLACES = tuple(Place(f"gcp/{n}/a", "n1", "T4:1", True, Decimal(n), "book") for n in range(1, 4))
POLICIES = ("same_place", "next_place", "cheapest_place", "any_place_up", "wait", "never")
PHASES = ("", "waiting", "starting", "dht", "ready", "training", "leaving", "done", "failed")
NOWHERE = ("", "waiting", "starting")  # phases without an address


class Cloud(RuleBasedStateMachine):
    """A world that does what it likes, and a controller that is killed now and then."""

    def __init__(self) -> None:
        super().__init__()
        slots = tuple(SlotSpec(f"s{n}", PLACES, Policy(POLICIES[n], max_refusals=3)) for n in range(6))
        spec = RunSpec(
            "r", slots, min_peers=2, vms_per_min=6, replacements_per_h=12, budget_usd=Decimal(1000),
            max_usd_per_h=Decimal(9), breaker_failures=2, breaker_open_s=60.0,
        )  # fmt: skip
        self.random = Random(7)
        self.state = begin(spec)
        self.journal = []
        self.write([created(spec)])
        self.vms: dict[str, tuple[str, str]] = {}  # what is really there: state, phase
        self.old: list[Observed] = []  # said before, may be said again
        self.noticed: set[str] = set()  # announced to go
        self.wishes: list = []
        self.now_s = 1000.0
        self.ended = False
        self.unlisted = {}
        self.index = False

    def write(self, facts) -> None:
        for f in facts:
            self.journal.append(
                EventRecord(
                    len(self.journal), 0.0, f.kind, f.slot, f.generation, f.vm,
                    f.from_state, f.to_state, f.cause, f.data_json,
                )
            )  # fmt: skip

    def feed(self, event) -> None:
        before = self.state
        if self.index:  # as the shell does it, or as a fresh start would: the same
            before = replace(before, index=None)
        done = step(before, event, self.random.random)
        validate_step(before, done.state)
        self.state = done.state
        self.write(done.facts)
        self.wishes = list(done.instructions) or self.wishes
        self.ended = self.ended or any(isinstance(i, EndRun) for i in done.instructions)

    def live(self) -> list[str]:
        return [vm for vm, (state, _) in self.vms.items() if state in ("pending", "running")]

    @rule(after_s=st.sampled_from([0.5, 3.0, 40.0, 400.0]))
    def time_passes(self, after_s) -> None:
        self.now_s += after_s
        self.feed(Tick(self.now_s))

    @rule(data=st.data())
    def an_instruction_is_done(self, data) -> None:
        """Done in any order, some never, answers lost or not."""
        if not self.wishes:
            return
        wish = data.draw(st.sampled_from(self.wishes))
        answer = data.draw(
            st.sampled_from(["told", "lost", "no_capacity", "quota", "transient", "ambiguous"])
        )
        if isinstance(wish, RequestVm):
            current = any(s.vm == wish.vm for s in self.state.slots)
            if answer in ("no_capacity", "quota", "transient") and wish.vm not in self.vms and current:
                refusal = OfferRefused(self.now_s, wish.vm, answer, "none")
                self.feed(refusal)
                if answer != "transient":
                    self.feed(refusal)  # heard twice
            elif current:  # the shell does no wish the state has dropped
                assert wish.vm in self.state.intents
                self.vms.setdefault(wish.vm, ("pending", ""))
                if answer == "told":
                    self.feed(Requested(self.now_s, wish.vm))
                if answer == "ambiguous":
                    self.feed(OfferRefused(self.now_s, wish.vm, "ambiguous", "no answer"))
        elif isinstance(wish, TerminateVm) and wish.vm in self.vms:
            self.vms[wish.vm] = ("terminated", self.vms[wish.vm][1])
        elif isinstance(wish, StartMonitor) and not self.state.stop_status:
            self.vms.setdefault(wish.vm, ("running", ""))

    @rule(data=st.data())
    def a_vm_goes_on(self, data) -> None:
        if self.live():
            vm = data.draw(st.sampled_from(self.live()))
            state = data.draw(st.sampled_from(["running", "running", "preempted", "failed"]))
            self.vms[vm] = (state, data.draw(st.sampled_from(PHASES)) if state == "running" else "")

    def seen(self) -> list[Observed]:
        return [
            Observed(self.now_s, vm, state, phase, f"/{vm}" if phase not in NOWHERE else "", ended=True)
            for vm, (state, phase) in self.vms.items()
        ]

    @rule(data=st.data())
    def some_vms_are_seen(self, data) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.seen()))) if self.vms else []
        for event in chosen:  # in any order, some twice, some not
            self.old.append(event)
            self.feed(event)

    @rule()
    def all_vms_are_seen(self) -> None:
        seen = self.seen()
        lost, self.unlisted = missing(self.state, self.vms, self.now_s, self.unlisted)
        for event in [*seen, *lost]:
            self.feed(event)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def an_old_word_comes_again(self, data) -> None:
        event = data.draw(st.sampled_from(self.old))
        if event.state in (
            "pending",
            "running",
        ):  # the dead do not come back, but the living are said to live
            self.feed(event)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), after_s=st.sampled_from([-5.0, 30.0, 120.0]))
    def a_vm_is_noticed(self, data, after_s) -> None:
        vm = data.draw(st.sampled_from(self.live()))
        state, phase = self.vms[vm]
        self.noticed.add(vm)
        self.feed(Observed(self.now_s, vm, state, phase, notice_at_s=self.now_s + after_s))

    @rule(cents=st.integers(0, 9000), burn=st.integers(0, 9))
    def the_bill_comes(self, cents, burn) -> None:
        self.feed(Spending(self.now_s, Decimal(cents) / 100, Decimal(burn), Decimal(burn)))

    @rule()
    def the_indexes_are_used_or_not(self) -> None:
        self.index = not self.index

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def a_peer_is_silent(self, data) -> None:
        self.feed(Silent(self.now_s, data.draw(st.sampled_from(self.live())), 200))

    @rule()
    def the_controller_is_killed_and_rebuilt(self) -> None:
        rebuilt = replay(self.journal)
        assert rebuilt == self.state
        self.state = rebuilt
        self.wishes = []

    @precondition(lambda self: len(self.journal) > 60)
    @rule()
    def the_user_stops_it(self) -> None:
        self.feed(StopWanted(self.now_s, "stopped", "the user"))

    @invariant()
    def no_slot_has_two_vms(self) -> None:
        """But for those that were announced to go."""
        stay = [vm for vm in self.live() if vm not in self.noticed]
        slots = [vm.rsplit("-", 1)[0] for vm in stay if not vm.startswith("monitor")]
        assert len(slots) == len(set(slots)), self.live()

    def teardown(self) -> None:
        """However it went: after a stop all is gone, and every prefix of the journal is a valid state."""
        self.feed(StopWanted(self.now_s, "stopped", "the test is over"))
        for _ in range(6):
            self.now_s += 10
            self.feed(Tick(self.now_s))
            for wish in self.wishes:
                if isinstance(wish, TerminateVm) and wish.vm in self.vms:
                    self.vms[wish.vm] = ("terminated", "")
            self.wishes = []
            self.all_vms_are_seen()
        self.feed(Tick(self.now_s))
        assert self.ended
        assert self.live() == []
        for length in range(1, len(self.journal) + 1):
            validate(replay(self.journal[:length]))
        assert replay(self.journal) == self.state


TestCloud = Cloud.TestCase
TestCloud.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


# A batch is the same as its events one by one, whatever they are and whether the indexes are kept or made anew.

VMS = tuple(f"r-s{n}-{g}" for n in range(4) for g in range(3))
WORDS = st.one_of(
    st.builds(
        Observed,
        st.just(0.0),
        st.sampled_from(VMS),
        st.sampled_from(["pending", "running", "running", "running", "preempted", "failed", "terminated"]),
        st.sampled_from(PHASES),
        st.sampled_from(["", "/m"]),
        ended=st.booleans(),
        notice_at_s=st.sampled_from([None, None, 50.0]),
    ),
    st.builds(Requested, st.just(0.0), st.sampled_from(VMS)),
    st.builds(
        OfferRefused,
        st.just(0.0),
        st.sampled_from(VMS),
        st.sampled_from(["no_capacity", "no_capacity", "quota", "transient", "ambiguous"]),
        st.just("none"),
    ),
    st.builds(Missing, st.just(0.0), st.sampled_from(VMS)),
    st.builds(Spending, st.just(0.0), st.sampled_from([Decimal(1), Decimal(8)]), st.just(Decimal(1))),
)
BATCHES = st.lists(
    st.tuples(st.sampled_from([0.5, 5.0, 70.0, 400.0]), st.lists(WORDS, max_size=6)), max_size=25
)
LIMITED = RunSpec(
    "r",
    tuple(SlotSpec(f"s{n}", PLACES, Policy(POLICIES[n], max_refusals=3, backoff_s=2.0)) for n in range(4)),
    budget_usd=Decimal(9), max_usd_per_h=Decimal(7), min_peers=2, vms_per_min=3, replacements_per_h=4,
    breaker_failures=2, breaker_open_s=90.0, first_alone=False,
)  # fmt: skip


@given(BATCHES)
@settings(max_examples=150, derandomize=True)
def test_a_batch_equals_its_events_one_by_one(batches):
    kept = alone = fresh = begin(LIMITED)
    dice = [Random(3) for _ in range(3)]
    facts, now_s = [created(LIMITED)], 0.0
    for after_s, batch in batches:
        now_s += after_s
        events = [replace(event, now_s=now_s) for event in batch]
        batched = advance(kept, events, now_s, dice[0].random)
        anew = advance(replace(fresh, index=None), events, now_s, dice[1].random)
        told, wished = [], []
        for event in (*events, Tick(now_s)):
            one = step(alone, event, dice[2].random)
            validate_step(alone, one.state)
            alone, told, wished = one.state, [*told, *one.facts], [*wished, *one.instructions]
        assert (batched.state, batched.facts) == (anew.state, anew.facts) == (alone, tuple(told))
        assert list(batched.instructions) == list(anew.instructions) == wished
        kept, fresh = batched.state, anew.state
        facts += batched.facts
    rows = [
        EventRecord(
            n, 0.0, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate(facts)
    ]
    assert replay(rows) == kept
