"""Asynchronous provider calls with deadlines: submitted under a key, one at a time per key, and polled."""

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
from orchestrator.ray.processes import named_for

_log = logging.getLogger("orchestrator.controller")

_MAX_IDLE_WORKERS = 4  # idle workers kept for the next calls; those of SkyPilot take 250 MB each


@dataclass(frozen=True)
class Call:
    """A call of a provider method; `key` identifies it while it is in progress."""

    key: str
    method: str
    arguments: tuple[Any, ...] = ()
    deadline_s: float = 60.0


@dataclass(frozen=True)
class Done:
    """The result of a call, or the provider's error (AmbiguousError if it was abandoned)."""

    call: Call
    result: Any = None
    error: ProviderError | None = None


class Calls(Protocol):
    """Provider calls as the shell makes them."""

    def submit(self, call: Call) -> bool:
        """Start a call. Returns False if a call with this key is already in progress."""
        ...

    def poll(self) -> list[Done]:
        """Calls that ended since the last poll, including those abandoned at their deadline. Never blocks."""
        ...

    def drop(self, key: str) -> bool:
        """Remove a queued call. Returns False if it is not queued or has already started."""
        ...

    def wait(self, call: Call) -> Any:
        """Make a call and wait for its result. Raises ProviderError."""
        ...

    def busy(self, what: str) -> bool:
        """Whether a call with this key ("request r-a-1") or of this method ("request") is queued or in progress."""
        ...


def refusal_of(error: ProviderError) -> Refusal:
    """The core's kind of refusal for a provider error."""
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
    """Makes calls synchronously in this process; for providers that never block, and for tests."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._done: list[Done] = []

    def submit(self, call: Call) -> bool:
        """Make the call now; the next `poll` returns its result."""
        try:
            self._done.append(Done(call, self.wait(call)))
        except ProviderError as error:
            self._done.append(Done(call, error=error))
        return True

    def poll(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def drop(self, key: str) -> bool:
        return False

    def wait(self, call: Call) -> Any:
        return getattr(self._provider, call.method)(*call.arguments)

    def busy(self, what: str) -> bool:
        return is_under_way(what, [d.call.key for d in self._done])


class Line:
    """Queues of calls, one per method, in order of arrival; at most `max_parallel` of a method run at once.

    Methods do not wait for each other: many requests, each of which may take a quarter of an hour, do not
    delay a termination.
    """

    def __init__(self, max_parallel: int) -> None:
        self._max_parallel = max_parallel
        self._waiting: dict[str, Call] = {}
        self._methods = Counter[str]()  # number of waiting calls by method

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, call: Call) -> None:
        """Append a call to the queue of its method."""
        if call.key not in self._waiting:
            self._methods[call.method] += 1
        self._waiting[call.key] = call

    def drop(self, key: str) -> bool:
        """Remove a call. Returns whether it was queued."""
        call = self._waiting.pop(key, None)
        if call is None:
            return False
        self._methods[call.method] -= 1
        if not self._methods[call.method]:
            del self._methods[call.method]
        return True

    def take(self, under_way: Iterable[Call]) -> list[Call]:
        """Remove and return the calls that may start, given those in progress."""
        busy = Counter(call.method for call in under_way)
        free = {method for method in self._methods if busy[method] < self._max_parallel}
        taken: list[Call] = []
        for call in self._waiting.values():
            if not free:
                break
            if call.method not in free:
                continue
            taken.append(call)
            busy[call.method] += 1
            if busy[call.method] == self._max_parallel:
                free.remove(call.method)
        for call in taken:
            self.drop(call.key)
        return taken


class RayCalls:
    """Makes each call in a Ray worker (num_cpus=0) with a deadline; a stuck call is abandoned as ambiguous.

    At most `max_parallel` calls of one method run at once; the others are queued. The workers are actors
    owned by the controller, each for one call at a time. Plain Ray tasks would not do: Ray ends their workers
    as soon as they are idle, once the driver that created the controller is gone, and the next call would
    import its provider again (SkyPilot: 2.4 s of CPU).
    """

    def __init__(
        self,
        make_provider: Callable[[], Provider],
        monotonic_s: Callable[[], float],
        run_id: str,
        max_parallel: int = 8,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`prepare` is called in each worker before anything else. `run_id`: for the titles of their processes."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Providers act on this machine, so their workers must run here even in a larger cluster.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        worker: Any = ray.remote(named_for(run_id, _CallWorker))
        self._prepare = prepare
        self._worker_class = worker.options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
        self._idle: list[Any] = []
        self._make_provider = make_provider
        self._monotonic_s = monotonic_s
        self._queue = Line(max_parallel)
        self._under_way: dict[str, tuple[Call, Any, Any, float]] = {}

    def submit(self, call: Call) -> bool:
        if call.key in self._under_way or call.key in self._queue:
            return False
        self._queue.add(call)
        self._start()
        return True

    def drop(self, key: str) -> bool:
        return self._queue.drop(key)

    def _start(self) -> None:
        """Start queued calls as far as the limit allows. Deadlines count from here."""
        for call in self._queue.take([call for call, *_ in self._under_way.values()]):
            worker, reference = self._start_call(call)
            self._under_way[call.key] = (call, worker, reference, self._monotonic_s() + call.deadline_s)

    def _start_call(self, call: Call) -> tuple[Any, Any]:
        worker = self._idle.pop() if self._idle else self._worker_class.remote(self._prepare)
        return worker, worker.call.remote(self._make_provider, call.method, call.arguments)

    def _release_worker(self, worker: Any, done: Done) -> None:
        """Keep the worker for the next call, unless enough are idle or it may have died."""
        if len(self._idle) < _MAX_IDLE_WORKERS and not isinstance(done.error, AmbiguousError):
            self._idle.append(worker)

    def poll(self) -> list[Done]:
        import ray

        done: list[Done] = []
        for key, (call, worker, reference, deadline_s) in list(self._under_way.items()):
            ready, _ = ray.wait([reference], timeout=0)
            if ready:
                done.append(self._outcome(call, reference))
                self._release_worker(worker, done[-1])
            elif self._monotonic_s() > deadline_s:
                ray.kill(worker)
                done.append(Done(call, error=abandoned(call)))
            else:
                continue
            del self._under_way[key]
        self._start()
        return done

    def wait(self, call: Call) -> Any:
        import ray

        worker, reference = self._start_call(call)
        ready, _ = ray.wait([reference], timeout=call.deadline_s)
        if not ready:
            ray.kill(worker)
            raise abandoned(call)
        done = self._outcome(call, reference)
        self._release_worker(worker, done)
        if done.error is not None:
            raise done.error
        return done.result

    def busy(self, what: str) -> bool:
        return is_under_way(what, self._under_way, self._queue)

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
        except RayError as error:  # the worker died: the state of the call is unknown
            return Done(
                call, error=AmbiguousError(f"{call.method}: its Ray worker died ({type(error).__name__})")
            )


class _CallWorker:
    """A Ray actor that makes calls one after the other, each with a new provider object, which is cheap."""

    def __init__(self, prepare: Callable[[], None] | None) -> None:
        if prepare is not None:
            prepare()

    def call(self, make_provider: Callable[[], Provider], method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(make_provider(), method)(*arguments)


class Keys(Protocol):
    """Keys of calls."""

    def __contains__(self, key: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...


def is_under_way(what: str, *keys: Keys) -> bool:
    """Whether one of the keys is `what` or of the method `what`.

    A key does not match keys that it is a prefix of. The key of one VM's call is looked up, not searched for.
    """
    for some in keys:
        if what in some:
            return True
    return " " not in what and any(what == key.partition(" ")[0] for some in keys for key in some)


def broken(call: Call, cause: BaseException, traceback: BaseException) -> AmbiguousError:
    """Log an unexpected exception in the provider's code.

    The effect of the call is unknown; the run continues.
    """
    _log.error("%s raised an unexpected exception", call.key, exc_info=traceback)
    return AmbiguousError(f"the provider's {call.method} failed ({type(cause).__name__}); see controller.log")


def abandoned(call: Call) -> AmbiguousError:
    """The error of a call that was not answered by its deadline."""
    return AmbiguousError(f"{call.method}: no answer within {call.deadline_s:.0f} s")
