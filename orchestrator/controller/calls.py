"""Provider calls: slow, failing, sometimes stuck. Submitted under a key, one at a time, polled for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cloud.provider import (
    AmbiguousError,
    CredentialsError,
    InvalidRequestError,
    NoCapacityError,
    Provider,
    ProviderError,
    QuotaError,
)
from orchestrator.core.events import Refusal

_log = logging.getLogger("orchestrator.controller")

_IDLE_CALLERS = 4  # so many workers wait for the next call; SkyPilot's take 250 MB each


@dataclass(frozen=True)
class Call:
    """One call of a provider's method; `key` names it while it is under way."""

    key: str
    method: str
    arguments: tuple[Any, ...] = ()
    deadline_s: float = 60.0


@dataclass(frozen=True)
class Done:
    """How a call ended: its result, or the provider's error (AmbiguousError when it was abandoned)."""

    call: Call
    result: Any = None
    error: ProviderError | None = None


class Calls(Protocol):
    """How the shell reaches the provider."""

    def submit(self, call: Call) -> bool:
        """Start a call; False when one of that key is under way already."""
        ...

    def poll(self) -> list[Done]:
        """The calls that ended since, and those past their deadline (abandoned). Never blocks."""
        ...

    def drop(self, key: str) -> bool:
        """Take a call that only stands in line out of it; False when there is none, or it has begun."""
        ...

    def wait(self, call: Call) -> Any:
        """Make a call and wait for its result. Raises ProviderError."""
        ...

    def busy(self, what: str) -> bool:
        """Whether a call of that key ("request r-a-1"), or any of that method ("request"), is under way."""
        ...


def refusal_of(error: ProviderError) -> Refusal:
    """The core's word for a provider's error."""
    kinds: tuple[tuple[type[ProviderError], Refusal], ...] = (
        (NoCapacityError, "no_capacity"),
        (QuotaError, "quota"),
        (CredentialsError, "credentials"),
        (InvalidRequestError, "invalid"),
        (AmbiguousError, "ambiguous"),
    )
    for kind, word in kinds:
        if isinstance(error, kind):
            return word
    return "transient"


class InlineCalls:
    """Calls made at once in this process: for providers that never block, and for tests."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._done: list[Done] = []

    def submit(self, call: Call) -> bool:
        """Make the call now; its end is told by the next `poll`."""
        try:
            self._done.append(Done(call, self.wait(call)))
        except ProviderError as error:
            self._done.append(Done(call, error=error))
        return True

    def poll(self) -> list[Done]:
        """What ended since."""
        done, self._done = self._done, []
        return done

    def drop(self, key: str) -> bool:
        """Nothing stands in line here."""
        return False

    def wait(self, call: Call) -> Any:
        """Make the call."""
        return getattr(self._provider, call.method)(*call.arguments)

    def busy(self, what: str) -> bool:
        """Whether such a call's end has not been told yet."""
        return is_under_way(what, [d.call.key for d in self._done])


class Line:
    """Calls that stand in line: at most so many of one method are under way at once, in the order they came.

    Methods do not wait for each other: many requests, each of which may take a quarter of an hour, keep no VM
    from being ended.
    """

    def __init__(self, max_parallel: int) -> None:
        self._max_parallel = max_parallel
        self._waiting: dict[str, Call] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, call: Call) -> None:
        """At the end of its method's line."""
        self._waiting[call.key] = call

    def drop(self, key: str) -> bool:
        """Whether it stood in line; it does no longer."""
        return self._waiting.pop(key, None) is not None

    def take(self, under_way: Iterable[Call]) -> list[Call]:
        """Those there is room for beside these, out of the line."""
        busy = Counter(call.method for call in under_way)
        taken: list[Call] = []
        for call in self._waiting.values():
            if busy[call.method] < self._max_parallel:
                busy[call.method] += 1
                taken.append(call)
        for call in taken:
            del self._waiting[call.key]
        return taken


class RayCalls:
    """Each call is made in a Ray worker (num_cpus=0) with a deadline; a stuck one is abandoned: ambiguous.

    At most `max_parallel` of one method are under way, the others stand in line. The workers are actors of the
    controller's, each for one call at a time: Ray ends the workers of mere tasks as soon as they are idle, once the
    driver that made the controller has gone, and the next call would import its provider anew (SkyPilot: 2.4 s of CPU).
    """

    def __init__(
        self,
        make_provider: Callable[[], Provider],
        monotonic_s: Callable[[], float],
        max_parallel: int = 8,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`prepare`: called in each worker before anything else."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Providers of this machine act on this machine, whatever cluster we are in.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        caller: Any = ray.remote(_Caller)
        self._prepare = prepare
        self._caller = caller.options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
        self._idle: list[Any] = []
        self._make_provider = make_provider
        self._monotonic_s = monotonic_s
        self._line = Line(max_parallel)
        self._under_way: dict[str, tuple[Call, Any, Any, float]] = {}

    def submit(self, call: Call) -> bool:
        """Start the task, or put it in line."""
        if call.key in self._under_way or call.key in self._line:
            return False
        self._line.add(call)
        self._start()
        return True

    def drop(self, key: str) -> bool:
        """Out of the line; what has begun goes on."""
        return self._line.drop(key)

    def _start(self) -> None:
        """Start what there is room for. A deadline counts from here."""
        for call in self._line.take([call for call, *_ in self._under_way.values()]):
            caller, reference = self._make(call)
            self._under_way[call.key] = (call, caller, reference, self._monotonic_s() + call.deadline_s)

    def _make(self, call: Call) -> tuple[Any, Any]:
        caller = self._idle.pop() if self._idle else self._caller.remote(self._prepare)
        return caller, caller.call.remote(self._make_provider, call.method, call.arguments)

    def _back(self, caller: Any, done: Done) -> None:
        """It waits for the next call, unless there are enough, or it may have died."""
        if len(self._idle) < _IDLE_CALLERS and not isinstance(done.error, AmbiguousError):
            self._idle.append(caller)

    def poll(self) -> list[Done]:
        """Collect what is ready, abandon what is overdue."""
        import ray

        done: list[Done] = []
        for key, (call, caller, reference, deadline_s) in list(self._under_way.items()):
            ready, _ = ray.wait([reference], timeout=0)
            if ready:
                done.append(self._outcome(call, reference))
                self._back(caller, done[-1])
            elif self._monotonic_s() > deadline_s:
                ray.kill(caller)
                done.append(Done(call, error=abandoned(call)))
            else:
                continue
            del self._under_way[key]
        self._start()
        return done

    def wait(self, call: Call) -> Any:
        """Make the call in a worker and wait for it until its deadline."""
        import ray

        caller, reference = self._make(call)
        ready, _ = ray.wait([reference], timeout=call.deadline_s)
        if not ready:
            ray.kill(caller)
            raise abandoned(call)
        done = self._outcome(call, reference)
        self._back(caller, done)
        if done.error is not None:
            raise done.error
        return done.result

    def busy(self, what: str) -> bool:
        """Whether such a call is under way or in line."""
        return is_under_way(what, (*self._under_way, *self._line))

    def _outcome(self, call: Call, reference: Any) -> Done:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return Done(call, ray.get(reference))
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ProviderError):
                return Done(call, error=cause)
            return Done(call, error=broken(call, cause, error))
        except RayError as error:  # the task's worker died: nobody knows how far it came
            return Done(
                call, error=AmbiguousError(f"{call.method}: its Ray worker died ({type(error).__name__})")
            )


class _Caller:
    """A Ray actor that makes one call after the other; each with a provider of its own, which is cheap."""

    def __init__(self, prepare: Callable[[], None] | None) -> None:
        if prepare is not None:
            prepare()

    def call(self, make_provider: Callable[[], Provider], method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(make_provider(), method)(*arguments)


def is_under_way(what: str, keys: Iterable[str]) -> bool:
    """Whether one of the keys is `what`, or of the method `what`. No key stands for another that it begins."""
    return any(what in (key, key.partition(" ")[0]) for key in keys)


def broken(call: Call, cause: BaseException, told: BaseException) -> AmbiguousError:
    """A fault of the provider's code, which is logged: whether it did something, nobody knows; the run can go on."""
    _log.error("%s broke", call.key, exc_info=told)
    return AmbiguousError(f"the provider's {call.method} broke ({type(cause).__name__}); see controller.log")


def abandoned(call: Call) -> AmbiguousError:
    """Of a call that was not answered until its deadline."""
    return AmbiguousError(f"{call.method}: no answer within {call.deadline_s:.0f} s")
