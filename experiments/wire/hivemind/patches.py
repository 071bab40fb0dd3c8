"""Every patch of Hivemind 1.1.12 in one list, `PATCHES`; docs/hivemind.md describes each.

Three more replacements take an object of the peer's and are installed by it: its clock (`swarm/clock.py: follow`), its
allowlist (`swarm/allowlist.py: install_allowlist`) and its ledger of model bytes (`reporting/model_bytes.py:
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
from hivemind.averaging.partition import TensorPartReducer
from hivemind.dht import dht
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import MSGPackSerializer, timed_storage
from hivemind.utils.asyncio import _AsyncContextWrapper
from hivemind.utils.mpfuture import MPFuture

from experiments.wire.hivemind.sockets import short_socket_folder
from experiments.wire.hivemind.values import MOST_ENTRIES, entries_of, is_sound, sound_value

_log = logging.getLogger(__name__)

Program = Literal["peer", "monitor"]
_DRAIN_S = 5.0  # a reader sees within milliseconds that its handler has ended


@dataclass(frozen=True)
class Patch:
    """One patch. `apply` may be called twice."""

    name: str
    corrects: str
    apply: Callable[[], object]
    programs: tuple[Program, ...]
    tests: str  # below tests/experiments/


def apply(program: Program) -> None:
    """Apply the program's patches to this process and those forked from it. Safe to call twice.

    Raises SocketFolderError.
    """
    for patch in PATCHES:
        if program in patch.programs:
            patch.apply()


def replace(owner: Any, name: str, patched: Callable[[Any], Any]) -> None:
    """Set `owner.name` to `patched(original)`, once; the replacement's `unpatched` is the original."""
    original = getattr(owner, name)
    if hasattr(original, "unpatched"):
        return
    replacement = patched(original)
    replacement.unpatched = original
    setattr(owner, name, replacement)


def shield_reducer() -> None:
    """Shield the part reducer's shared future from the end of one sender.

    `TensorPartReducer.accumulate_part` awaits one future per part from the handler of every
    sender. When a sender dies, cancelling its handler cancels that shared future: the reducer
    breaks for all, the local part never comes, and this peer hangs until `allreduce_timeout`.
    """

    def patched(original: Any) -> Any:
        async def accumulate_part(self: TensorPartReducer, *args: Any, **kwargs: Any) -> Any:
            task = asyncio.ensure_future(original(self, *args, **kwargs))
            task.add_done_callback(_retrieve_error)
            return await asyncio.shield(task)

        return accumulate_part

    replace(TensorPartReducer, "accumulate_part", patched)


def release_cancelled_locks() -> None:
    """Release a lock that was acquired for a task which was cancelled meanwhile.

    `enter_asynchronously` takes a lock in a thread. When the task is cancelled, the thread still gets the lock, and
    nobody releases it: an all-reduce that was given up within milliseconds of its beginning kept the gradients locked,
    and the peer waited for them for ever in its next round.
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
    """Keep each task of the DHT's and the averagers' processes until it is done (`keep_tasks`)."""

    def patched(original: Any) -> Any:
        def switch_to_uvloop() -> asyncio.AbstractEventLoop:
            loop = original()
            keep_tasks(loop)
            return loop

        return switch_to_uvloop

    replace(dht, "switch_to_uvloop", patched)
    replace(averager, "switch_to_uvloop", patched)


def keep_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Keep the loop's tasks until they are done. A program that runs its own loop calls this itself.

    A loop refers weakly to its tasks, and a connection weakly to the reader that a task waits for
    (https://github.com/python/cpython/issues/91887): where nothing else holds it, the garbage collector ends the task
    in the middle of its work.
    """
    kept: set[asyncio.Future[Any]] = set()

    def keep(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **kwargs)
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    loop.set_task_factory(keep)


def drain_streams() -> None:
    """Let a stream end when its handler has ended, though its sender went on.

    A stream's reader puts messages into a short queue for the handler. When the handler ends while the queue is
    full, the reader waits for ever: the stream is not closed, and its sender does not learn that this peer has failed.
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
    """Calls by their id; a call that was given up counts as absent, though its caller has not removed it yet."""

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id)
        return call is not None and not call.done()


def ignore_late_answers() -> None:
    """Ignore the answer to a call that was given up.

    One task reads the answers to all of a process's calls from p2pd. When a call is given up in the moment its
    answer arrives, the answer is put into a cancelled future; that raises, the task ends, and no call of this process
    is ever answered again.
    """

    def patched(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self._pending_calls = _OpenCalls()

        return init

    replace(ControlClient, "__init__", patched)


def refuse_unsound_values() -> None:
    """Refuse values that not everybody can read (`values.is_sound`) where they reach this process's DHT node.

    A node may send anything: values that are no bytes or that msgpack cannot read, entries for months ahead, dictionaries
    of a size that is no number. Hivemind reads them when somebody asks for the key, in the asker's search: one such
    entry, and nobody who asks that node gets any value of the key.
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
            except Exception as error:  # noqa: BLE001 - a validator's; whatever it is, this is no record of ours
                _log.info("a record that cannot be judged: %r", error)
                return False

        return validate

    def patched_dictionary(original: Any) -> Any:
        def validate(self: Any, key: bytes, values: Any) -> bool:
            try:
                now_s = timed_storage.get_dht_time()
                with values.freeze():
                    few = len(values) <= MOST_ENTRIES
                sound = all(is_sound(k, e.value, e.expiration_time, now_s) for k, e in entries_of(values))
                return few and sound and bool(original(self, key, values))
            except Exception as error:  # noqa: BLE001 - as above
                _log.info("values that cannot be judged: %r", error)
                return False

        return validate

    replace(DHTProtocol, "call_find", patched_find)
    replace(DHTProtocol, "_validate_record", patched_record)
    replace(DHTProtocol, "_validate_dictionary", patched_dictionary)


_locks_of = 0  # the process that made its own


def own_locks() -> None:
    """Give this process, and those it will fork, Hivemind's module-wide locks of their own.

    The emulated cloud forks its VMs from one process that has Hivemind loaded, and with it those locks: a VM killed
    while it holds one would stop all the others for ever, which no real VM can do.
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
        "values", "one unreadable entry of the DHT hides all values of its key",
        refuse_unsound_values, ("peer", "monitor"), "wire/test_dht_values.py",
    ),
)  # fmt: skip


async def _drain(requests: AsyncIterator[Any]) -> None:
    """Take what is left, so that the reader goes on to see that the handler has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in requests:
                pass


def _leave(context: Any, entered: asyncio.Future[Any]) -> None:
    if not entered.cancelled() and entered.exception() is None:
        context.__exit__(None, None, None)


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error: nobody awaits it any more once its sender has gone."""
    if not task.cancelled():
        task.exception()


def _sound_item(item: Any, now_s: float) -> Any:
    if item is None or not isinstance(item.expiration_time, int | float):
        return None
    value = sound_value(item.value, now_s)
    return None if value is None else timed_storage.ValueWithExpiration(value, item.expiration_time)
