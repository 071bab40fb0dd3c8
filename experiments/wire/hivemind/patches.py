"""All patches of Hivemind 1.1.12, in the list `PATCHES`. docs/hivemind.md describes each.

Three more replacements need an object of the peer, which installs them: its clock (`swarm/clock.py: follow`), its
allowlist (`swarm/allowlist.py: install_allowlist`) and its counter of model bytes (`reporting/model_bytes.py:
count_tensors`).
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from hivemind.averaging import averager
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.partition import TensorPartReducer
from hivemind.dht import dht
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import MSGPackSerializer, timed_storage
from hivemind.utils.asyncio import _AsyncContextWrapper
from hivemind.utils.mpfuture import MPFuture

from experiments.wire.hivemind.sockets import short_socket_folder
from experiments.wire.hivemind.values import MAX_ENTRIES, entries_of, is_sound, sound_value

_log = logging.getLogger(__name__)

Program = Literal["peer", "monitor"]
_DRAIN_S = 5.0  # a reader normally notices within milliseconds that its handler has ended
_SEARCH_EACH_S = 0.1  # at least between the beginnings of two DHT queries for a group


@dataclass(frozen=True)
class Patch:
    """One patch. `apply` is idempotent."""

    name: str
    corrects: str
    apply: Callable[[], object]
    programs: tuple[Program, ...]
    tests: str  # below tests/experiments/


def apply(program: Program) -> None:
    """Apply the program's patches to this process and those forked from it. Idempotent. Raises SocketFolderError."""
    for patch in PATCHES:
        if program in patch.programs:
            patch.apply()


def replace(owner: Any, name: str, patched: Callable[[Any], Any]) -> None:
    """Replace `owner.name` by `patched(original)`, once. The original is kept as `unpatched` of the replacement."""
    original = getattr(owner, name)
    if hasattr(original, "unpatched"):
        return
    replacement = patched(original)
    replacement.unpatched = original
    setattr(owner, name, replacement)


def shield_reducer() -> None:
    """Shield the part reducer's shared future from the failure of one sender.

    `TensorPartReducer.accumulate_part` awaits one future per part from the handler of every sender. When a sender dies,
    its handler is cancelled, which cancels the shared future: the reducer fails for all senders, the local part is never
    completed, and this peer hangs until `allreduce_timeout`.
    """

    def patched(original: Any) -> Any:
        async def accumulate_part(self: TensorPartReducer, *args: Any, **kwargs: Any) -> Any:
            task = asyncio.ensure_future(original(self, *args, **kwargs))
            task.add_done_callback(_retrieve_error)
            return await asyncio.shield(task)

        return accumulate_part

    replace(TensorPartReducer, "accumulate_part", patched)


def release_cancelled_locks() -> None:
    """Release a lock that was acquired for a task that has been cancelled.

    `enter_asynchronously` acquires a lock in a thread. If the task is cancelled, the thread still acquires the lock, which
    is then never released: an all-reduce that was cancelled within milliseconds of its start kept the gradients locked,
    and the peer waited for them forever in its next round.
    """

    def patched(original: Any) -> Any:
        async def enter(self: Any) -> Any:
            loop = asyncio.get_running_loop()
            entering = loop.run_in_executor(self.get_process_wide_executor(), self._context.__enter__)
            try:
                return await asyncio.shield(entering)
            except asyncio.CancelledError:
                entering.add_done_callback(lambda entered: _leave(self._context, entered))
                raise

        return enter

    replace(_AsyncContextWrapper, "__aenter__", patched)


def keep_tasks_of_hiveminds_loops() -> None:
    """Keep references to the tasks in the processes of the DHT and the averagers (`keep_tasks`)."""

    def patched(original: Any) -> Any:
        def switch_to_uvloop() -> asyncio.AbstractEventLoop:
            loop = original()
            keep_tasks(loop)
            return loop

        return switch_to_uvloop

    replace(dht, "switch_to_uvloop", patched)
    replace(averager, "switch_to_uvloop", patched)


def keep_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Keep references to the loop's tasks until they are done. A program that runs its own loop calls this itself.

    A loop has only weak references to its tasks, and a connection to the reader that a task waits for
    (https://github.com/python/cpython/issues/91887). Without another reference, the garbage collector destroys a task
    that is still running.
    """
    kept: set[asyncio.Future[Any]] = set()

    def keep(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **kwargs)
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    loop.set_task_factory(keep)


def drain_streams() -> None:
    """Close a stream when its handler has ended, even if the sender continues to send.

    A stream's reader puts messages into a short queue for the handler. If the handler ends while the queue is full, the
    reader waits forever: the stream is not closed, and the sender does not notice that this peer has failed.
    """

    def patched(original: Any) -> Any:
        async def add(self: Any, name: str, handler: Any, *args: Any, **kwargs: Any) -> None:
            async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
                try:
                    async with contextlib.aclosing(handler(requests, context)) as responses:
                        async for response in responses:
                            yield response
                finally:
                    task = asyncio.ensure_future(_drain(requests))
                    task.add_done_callback(_retrieve_error)

            await original(self, name, handle, *args, **kwargs)

        return add

    replace(P2P, "_add_protobuf_stream_handler", patched)


class _OpenCalls(dict[Any, "asyncio.Future[Any]"]):
    """Calls by id. A cancelled call counts as absent even before its caller has removed it."""

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id)
        return call is not None and not call.done()


def ignore_late_answers() -> None:
    """Ignore the answer to a cancelled call.

    One task reads the answers to all calls of a process from p2pd. If a call is cancelled just when its answer arrives,
    the answer is set on a cancelled future. That raises, the task ends, and no call of this process is ever answered
    again.
    """

    def patched(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self._pending_calls = _OpenCalls()

        return init

    replace(ControlClient, "__init__", patched)


def refuse_unsound_values() -> None:
    """Refuse values that cannot be read (`values.is_sound`) when they reach this process's DHT node.

    A node may send anything: values that are not bytes or not msgpack, entries that expire months ahead, dictionaries
    whose size is not a number. Hivemind parses them in the search of the node that asks for the key, so a single such
    entry prevents every node that asks from reading any value of the key.
    """

    def patched_find(original: Any) -> Any:
        async def call_find(self: Any, peer: Any, keys: Collection[Any]) -> Any:
            answer = await original(self, peer, keys)
            if answer is None:
                return None
            now_s = timed_storage.get_dht_time()
            return {key: (_sound_item(item, now_s), nearest) for key, (item, nearest) in answer.items()}

        return call_find

    def patched_record(original: Any) -> Any:
        def validate(self: Any, key: bytes, subkey: bytes, value: bytes, expiration: float) -> bool:
            try:
                plain: Any = MSGPackSerializer.loads(subkey)
                if not is_sound(plain, value, expiration, timed_storage.get_dht_time()):
                    return False
                return bool(original(self, key, subkey, value, expiration))
            except Exception as error:  # noqa: BLE001 - a validator may raise anything; the record is invalid
                _log.info("refused a record that cannot be validated: %r", error)
                return False

        return validate

    def patched_dictionary(original: Any) -> Any:
        def validate(self: Any, key: bytes, values: Any) -> bool:
            try:
                now_s = timed_storage.get_dht_time()
                with values.freeze():
                    few = len(values) <= MAX_ENTRIES
                sound = all(is_sound(k, e.value, e.expiration_time, now_s) for k, e in entries_of(values))
                return few and sound and bool(original(self, key, values))
            except Exception as error:  # noqa: BLE001 - as above
                _log.info("refused values that cannot be validated: %r", error)
                return False

        return validate

    replace(DHTProtocol, "call_find", patched_find)
    replace(DHTProtocol, "_validate_record", patched_record)
    replace(DHTProtocol, "_validate_dictionary", patched_dictionary)


_locks_of = 0  # id of the process that created its own locks


def pace_group_search() -> None:
    """Let a peer that looks for a group query the DHT at most 10 times a second.

    `PotentialLeaders` of a peer that knows no other one to follow queries again as soon as it has the answer, until it
    finds one or the search ends. A peer's DHT answers itself within a millisecond if it stores the key. Queries over a
    network that take longer than that are not delayed.
    """

    def patched(original: Any) -> Any:
        async def get_averagers(self: Any, *args: Any, **kwargs: Any) -> Any:
            now_s = asyncio.get_running_loop().time
            early_s = getattr(self, "_searched_s", float("-inf")) + _SEARCH_EACH_S - now_s()
            if early_s > 0.0:
                await asyncio.sleep(early_s)
            self._searched_s = now_s()
            return await original(self, *args, **kwargs)

        return get_averagers

    replace(GroupKeyManager, "get_averagers", patched)


def own_locks() -> None:
    """Give this process, and those it forks, their own copies of Hivemind's module-wide locks.

    The emulated cloud forks its VMs from one process in which Hivemind, with these locks, is already loaded. A VM that is
    killed while it holds one would block all others forever, which cannot happen between real VMs.
    """
    global _locks_of
    if _locks_of != os.getpid():
        _locks_of = os.getpid()
        MPFuture.reset_backend()
        _AsyncContextWrapper.EXECUTOR_LOCK = multiprocessing.Lock()


PATCHES = (
    Patch(
        "sockets", "UNIX sockets are put into /tmp, where a killed p2pd leaves them",
        short_socket_folder, ("peer", "monitor"), "monitor/test_progress.py",
    ),
    Patch(
        "locks", "processes forked from one that has Hivemind loaded share its locks",
        own_locks, ("peer",), "peer/optimizer/test_forks.py",
    ),
    Patch(
        "reducer", "a dying sender breaks the all-reduce for all others",
        shield_reducer, ("peer",), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "cancelled locks", "a lock acquired for a cancelled task is never released",
        release_cancelled_locks, ("peer",), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "tasks", "the garbage collector ends tasks that nothing refers to",
        keep_tasks_of_hiveminds_loops, ("peer",), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "streams", "a stream stays open when its handler ends while messages wait",
        drain_streams, ("peer",), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "late answers", "a late answer ends the task that reads all answers of a process",
        ignore_late_answers, ("peer", "monitor"), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "group search", "a peer that finds no group queries the DHT without a pause",
        pace_group_search, ("peer",), "wire/test_hivemind_patches.py",
    ),
    Patch(
        "values", "one unreadable entry of the DHT hides all values of its key",
        refuse_unsound_values, ("peer", "monitor"), "wire/test_dht_values.py",
    ),
)  # fmt: skip


async def _drain(requests: AsyncIterator[Any]) -> None:
    """Consume the remaining messages, so that the reader notices that the handler has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in requests:
                pass


def _leave(context: Any, entered: asyncio.Future[Any]) -> None:
    if not entered.cancelled() and entered.exception() is None:
        context.__exit__(None, None, None)


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, because no one awaits the task once its sender is gone."""
    if not task.cancelled():
        task.exception()


def _sound_item(item: Any, now_s: float) -> Any:
    if item is None or not isinstance(item.expiration_time, int | float):
        return None
    value = sound_value(item.value, now_s)
    return None if value is None else timed_storage.ValueWithExpiration(value, item.expiration_time)
