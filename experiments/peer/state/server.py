"""The state averager with a download of its own: consistent, resumable, from a donor that the taker chooses.

Hivemind's hands out the tensors while they may be changing, one epoch too new during a step, to whoever picked this
peer at random, and cannot go on where it was cut. Here the peer's own process packs a snapshot between two steps and
keeps it, and the averaged gradients of the epochs that follow, while somebody may be downloading.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, AsyncIterator  # noqa: UP035 - Hivemind's servicer reads the name of typing's own

import torch
from hivemind.compression import CompressionBase, NoCompression
from hivemind.optim.state_averager import TrainingStateAverager, load_optimizer_state
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto.averaging_pb2 import DownloadData, DownloadRequest  # type: ignore[attr-defined]
from hivemind.utils import MPFuture, MSGPackSerializer

from experiments.peer.averaging.lineage import alone
from experiments.peer.averaging.powersgd_math import Factors
from experiments.peer.state.catch_up import Get, Offer
from experiments.peer.state.client import Chunk, OpenStream, Taken, TakingError, Wanted, take
from experiments.peer.state.encoding import CHUNK_BYTES, Blob, StateBytesError, pack, shared, unpack
from experiments.peer.state.snapshot_cache import Shelf
from experiments.peer.state.transport import answers, chunks_of, message_of
from experiments.peer.state.update_encoding import load_update, pack_update, round_for_update
from experiments.peer.swarm.members import declared_peers

_log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")
_SAID_BYTES = 256
_ANSWER_S = 2.0


class StateDonor(TrainingStateAverager):
    """Gives and takes states and averaged gradients. What is asked of others runs in the averager's process."""

    _rpc_handlers = None  # not those of a class above

    def __init__(
        self, *, ask_timeout_s: float = 10.0, update_compression: CompressionBase | None = None, **kwargs: Any
    ) -> None:
        """`update_compression`: of the averaged gradients that are given away."""
        self.lineage = ""  # which rounds the weights have been through: it changes with them
        self.next_lineage: Callable[[], str] = lambda: self.lineage  # asked when they change
        self._update_compression = update_compression or NoCompression()
        self._ask_timeout_s = ask_timeout_s
        self.last_update: Callable[[], Sequence[torch.Tensor] | None] = lambda: None
        self.rank: int | None = None  # of the factors that rounds average, if they do
        # those it was made of, if a round of factors led to weights of that lineage
        self.last_factors: Callable[[str], Factors | None] = lambda lineage: None
        self._said: Any = _FORK.Array("c", _SAID_BYTES)
        self._desk, self._window = _FORK.Pipe()  # the averager's process asks at the window
        self._whole = threading.RLock()  # held while weights change or are packed
        self._shelf = Shelf()
        self._before = ""  # the lineage before the last round
        self._streams: dict[PeerID, object] = {}
        super().__init__(**kwargs)
        self.say(averaging=False)
        threading.Thread(target=self._keep_desk, name="state-desk", daemon=True).start()

    # In the peer's own process.

    def say(self, *, averaging: bool) -> None:
        """Tell those who ask where this peer is: in the middle of a round, or with the weights of its epoch."""
        with self._whole:
            oldest = self._shelf.oldest_update(self.local_epoch, self.last_update() is not None)
            said = (self.local_epoch, averaging, oldest, self.lineage)
            self._said.value = json.dumps(said).encode()

    def round_ended(self) -> None:
        """The weights are another epoch's."""
        with self._whole:
            self._shelf.epoch_ended(self.local_epoch, lambda: self._packed_update(self.local_epoch))
        self.say(averaging=False)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """As Hivemind's; nobody packs a state while epoch, weights and lineage change."""
        if not kwargs.get("increment_epoch"):
            return super().step(*args, **kwargs)
        with self._whole:
            result = super().step(*args, **kwargs)
            self._before, self.lineage = self.lineage, self.next_lineage()
        return result

    def round_as_given_away(self, gradients: Sequence[torch.Tensor]) -> None:
        """Make of them, in place, what who takes the update of them over will have."""
        round_for_update(gradients, self._update_compression)

    @property
    def epoch(self) -> int:
        """Of these weights."""
        return self.local_epoch

    def ask(self) -> Any:
        """A future of what the others have, and how long their answers took; who does not answer is not in it."""
        future: Any = MPFuture()
        pipe: Any = self._outer_pipe
        pipe.send(("_ask_all", [], {"future": future}))
        return future

    def offers(self) -> list[Offer]:
        """The same, waited for."""
        return self._wait(self.ask())

    def fetch(self, get: Get) -> Taken:
        """Download. Raises TakingError."""
        future: Any = MPFuture()
        pipe: Any = self._outer_pipe
        pipe.send(("_take", [], {"get": get, "future": future}))
        return self._wait(future)

    def use(self, get: Get, taken: Taken) -> None:
        """Put what arrived into the weights. Raises TakingError."""
        try:
            about, tensors = unpack(taken.header, taken.body)
            (self._use_state if get.kind == "state" else self._use_update)(about, tensors)
        except (StateBytesError, ValueError, KeyError, StopIteration) as error:
            raise TakingError(f"the {get.kind} of {taken.donor} does not fit: {error!r}") from error

    def _wait(self, future: Any) -> Any:
        while True:
            try:
                return future.result(1.0)
            except FutureTimeoutError:
                if not self.is_alive():
                    raise TakingError("the averager's process is gone") from None

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _use_state(self, about: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        targets = [*self._parameters(), *self.extra_tensors]
        if [t.shape for t in targets] != [t.shape for t in tensors[: len(targets)]]:
            raise ValueError("other tensors than this peer's")
        with self._whole, torch.no_grad():
            load_optimizer_state(self.optimizer, about["optimizer"], tensors[len(targets) :])
            for target, tensor in zip(targets, tensors, strict=False):  # the optimizer's follow
                target.copy_(tensor)
            self.local_epoch, self.lineage = int(about["epoch"]), str(about["lineage"])
            self._shelf.clear()
        self._update_scheduler()
        self.say(averaging=False)

    def _use_update(self, about: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        if about["epoch"] != self.local_epoch + 1:
            raise ValueError(f"an update to epoch {about['epoch']} at epoch {self.local_epoch}")
        if (
            about["after"] != self.lineage
        ):  # this peer stepped alone, or with others, and nobody would see it any more
            raise ValueError(f"an update of the weights after {about['after']!r}, not {self.lineage!r}")
        load_update(self._parameters(), about, tensors, self.rank)
        with self._whole:
            self.step(increment_epoch=True, optimizer_step=True)
            self.lineage = str(about["lineage"])
            self._shelf.clear()
        self.say(averaging=False)

    def _keep_desk(self) -> None:
        """Answer the averager's process, until the pipe is closed with this process."""
        while True:
            try:
                kind, epoch, key, future = self._desk.recv()
            except (EOFError, OSError):
                return
            try:
                future.set_result(self._give(kind, epoch, key))
            except Exception as error:  # noqa: BLE001 - it is the asking process's to tell
                _log.warning("no %s %d can be given: %r", kind, epoch, error)
                future.set_exception(TakingError(repr(error)))

    def _give(self, kind: str, epoch: int, key: str) -> Blob | None:
        with self._whole:
            if kind == "update":
                return self._shelf.update(epoch, lambda: self._packed_update(epoch))
            if (begun := self._shelf.with_key(key)) is not None:
                return begun
            if self.local_epoch < max(epoch, 1) or not self.allow_state_sharing:
                return None
            return self._shelf.snapshot(self.local_epoch, self._packed_state)

    def _packed_state(self) -> Blob:
        began = time.monotonic()
        about, tensors, infos = self.get_current_state()
        header = {
            "epoch": about["epoch"],
            "lineage": self.lineage,
            "weights": len(self._parameters()) + len(self.extra_tensors),  # the optimizer's tensors follow
            "optimizer": about["optimizer_metadata"],
        }
        blob = shared(pack(header, tensors, infos, self.state_compression))
        size = blob.body.numel()
        _log.info("packed epoch %d in %.2f s: %d bytes", self.local_epoch, time.monotonic() - began, size)
        return blob

    def _packed_update(self, epoch: int) -> Blob | None:
        tensors = self.last_update() if epoch == self.local_epoch else None
        if tensors is None:
            return None
        factors = self.last_factors(self.lineage)
        whole = self.rank is None or self.lineage == alone(self._before, self.dht.peer_id)
        if factors is None and not whole:
            return None  # what the averager holds is another round's by now
        about = {"epoch": epoch, "after": self._before, "lineage": self.lineage}
        return shared(pack_update(about, tensors, factors, self._update_compression))

    # In the averager's process.

    async def rpc_offer_state(self, request: DownloadRequest, context: P2PContext) -> DownloadData:
        """Where this peer is; the time it takes tells how near it is."""
        said = self._said.value if self.allow_state_sharing else b'[0, false, 0, ""]'
        return DownloadData(metadata=said)

    async def rpc_take_state(self, request: DownloadData, context: P2PContext) -> AsyncIterator[DownloadData]:
        """Stream a state or an update from an offset on. Who asks anew ends the stream that it had."""
        message: Any = request
        asked: Any = MSGPackSerializer.loads(message.metadata)
        wanted = Wanted(*asked)
        token = self._streams[context.remote_id] = object()
        future: Any = MPFuture()
        self._window.send((wanted.kind, wanted.epoch, wanted.key, future))
        blob: Blob | None = await future
        if blob is None:
            yield message_of(Chunk(refused=f"no {wanted.kind} {wanted.epoch} here"))
            return
        numbers: Any = blob.body.numpy()
        body = memoryview(numbers)
        offset = wanted.offset if wanted.key == blob.key and wanted.offset <= len(body) else 0
        yield message_of(Chunk(key=blob.key, header=blob.header, total=len(body), offset=offset))
        for at in range(offset, len(body), CHUNK_BYTES):
            if self._streams.get(context.remote_id) is not token:
                return
            data = bytes(body[at : at + CHUNK_BYTES])
            yield message_of(Chunk(offset=at, crc=zlib.crc32(data), data=data))

    async def rpc_download_state(
        self, _request: DownloadRequest, _context: P2PContext
    ) -> AsyncIterator[DownloadData]:
        """Hivemind's own download, whose tensors may change while they are read: nobody gets one."""
        for nothing in ():
            yield nothing

    async def _ask_all(self, future: Any) -> None:
        try:
            matchmaking: Any = self._matchmaking
            key = f"{matchmaking.group_key_manager.prefix}.all_averagers"
            dht: Any = self.dht  # its methods' types cannot say that return_future=True returns a future
            found = await asyncio.wait_for(dht.get(key, latest=True, return_future=True), self._ask_timeout_s)
            peers = declared_peers(found.value if found is not None else None)
            calls = [self._ask(peer) for peer in peers if peer != self.peer_id]
            future.set_result(await answers(calls, _ANSWER_S, self._ask_timeout_s))
        except Exception as error:  # noqa: BLE001 - a slow DHT: the caller asks again
            _log.warning("nobody could be asked for the state: %r", error)
            future.set_result([])

    async def _ask(self, peer: PeerID) -> Offer | None:
        """Asked twice: the first answer may hold the dialling."""
        stub: Any = self.get_stub(self._p2p, peer, namespace=self.prefix)
        try:
            began = time.monotonic()
            for _ in range(2):
                began = time.monotonic()
                answer = await stub.rpc_offer_state(DownloadRequest(), timeout=self._ask_timeout_s)
            epoch, averaging, oldest, lineage = json.loads(answer.metadata)
            answered_s = time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - it may have gone; another will answer
            _log.info("%s does not offer its state: %r", peer, error)
            return None
        return Offer(str(peer), answered_s, int(epoch), bool(averaging), int(oldest), str(lineage))

    async def _take(self, get: Get, future: Any) -> None:
        try:
            silence_s = self.next_chunk_timeout or 30.0
            wanted = Wanted(get.kind, get.epoch)
            future.set_result(await take(self._open, get.donors, wanted, silence_s))
        except Exception as error:  # noqa: BLE001 - told to the process that asked
            future.set_exception(error if isinstance(error, TakingError) else TakingError(repr(error)))

    async def _open(self, donor: str, wanted: Wanted) -> AsyncIterator[Chunk]:
        return await open_from(self._p2p, self.prefix)(donor, wanted)


def open_from(p2p: P2P, namespace: str) -> OpenStream:
    """What `client.take` calls, for donors named by their libp2p ids; `namespace`: the averagers' prefix."""

    async def open_stream(donor: str, wanted: Wanted) -> AsyncIterator[Chunk]:
        stub: Any = StateDonor.get_stub(p2p, PeerID.from_base58(donor), namespace=namespace)
        asked = (wanted.kind, wanted.epoch, wanted.key, wanted.offset)
        stream = await stub.rpc_take_state(DownloadData(metadata=MSGPackSerializer.dumps(asked)))
        return chunks_of(stream)

    return open_stream
