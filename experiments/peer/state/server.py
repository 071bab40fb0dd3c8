"""A state averager with its own state download: consistent, resumable, from a donor that the receiver chooses.

Hivemind's download sends tensors while they may be changing (one epoch too new during a step), from a random donor, and
cannot be resumed. Here the peer's own process packs a snapshot between two steps. It keeps the snapshot, and the
averaged gradients of the following epochs, as long as they may be downloaded.
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
from experiments.peer.state.client import (
    BlobRequest,
    Chunk,
    DownloadError,
    OpenStream,
    ReceivedBlob,
    download,
)
from experiments.peer.state.encoding import CHUNK_BYTES, Blob, StateBytesError, pack, shared, unpack
from experiments.peer.state.snapshot_cache import SnapshotCache
from experiments.peer.state.transport import answers, chunks_of, message_of
from experiments.peer.state.update_encoding import load_update, pack_update, round_for_update
from experiments.peer.swarm.members import declared_peers

_log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")
_OFFER_BYTES = 256
_ANSWER_S = 2.0


class StateDonor(TrainingStateAverager):
    """Serves and downloads states and averaged gradients. Requests to other peers run in the averager's process."""

    _rpc_handlers = None  # not inherited from a parent class

    def __init__(
        self, *, ask_timeout_s: float = 10.0, update_compression: CompressionBase | None = None, **kwargs: Any
    ) -> None:
        """`update_compression`: compression of the averaged gradients that are served."""
        self.lineage = ""  # hash over the rounds that led to the weights; changes with them
        self.next_lineage: Callable[[], str] = lambda: self.lineage  # called when the weights change
        self.before_step: Callable[[int], None] = lambda epoch: None  # called with the epoch that a step ends
        self._update_compression = update_compression or NoCompression()
        self._ask_timeout_s = ask_timeout_s
        self.last_update: Callable[[], Sequence[torch.Tensor] | None] = lambda: None
        self.rank: int | None = None  # of the averaged factors (PowerSGD)
        # factors of the last round, if it led to weights of that lineage
        self.last_factors: Callable[[str], Factors | None] = lambda lineage: None
        self._offer: Any = _FORK.Array("c", _OFFER_BYTES)  # JSON, read in the averager's process
        # through which the averager's process requests blobs from the peer's
        self._requests, self._requests_out = _FORK.Pipe()
        self._weights_lock = threading.RLock()  # held while weights change or are packed
        self._cache = SnapshotCache()
        self._before = ""  # the lineage before the last round
        self._streams: dict[PeerID, object] = {}
        super().__init__(**kwargs)
        self.say(averaging=False)
        threading.Thread(target=self._serve_requests, name="state-requests", daemon=True).start()

    # In the peer's own process.

    def say(self, *, averaging: bool) -> None:
        """Update the offer sent to peers that ask for it: whether a round is running, epoch and lineage."""
        with self._weights_lock:
            oldest = self._cache.oldest_update(self.local_epoch, self.last_update() is not None)
            offer = (self.local_epoch, averaging, oldest, self.lineage)
            self._offer.value = json.dumps(offer).encode()

    def round_ended(self) -> None:
        """Call when the weights have become those of the next epoch."""
        with self._weights_lock:
            self._cache.epoch_ended(self.local_epoch, lambda: self._packed_update(self.local_epoch))
        self.say(averaging=False)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Like Hivemind's, but no state is packed while epoch, weights and lineage change.

        All steps of this peer come here: those of rounds, and those taken with a downloaded update.
        """
        if not kwargs.get("increment_epoch"):
            return super().step(*args, **kwargs)
        with self._weights_lock:
            if kwargs.get("optimizer_step"):
                self.before_step(self.local_epoch + 1)
            result = super().step(*args, **kwargs)
            self._before, self.lineage = self.lineage, self.next_lineage()
        return result

    def start_at(self, epoch: int, lineage: str) -> None:
        """Call when weights and statistics of this epoch were loaded from elsewhere."""
        with self._weights_lock:
            self.local_epoch, self.lineage = epoch, lineage
            self._cache.clear()
        self._update_scheduler()
        self.say(averaging=False)

    def round_for_update(self, gradients: Sequence[torch.Tensor]) -> None:
        """Round the gradients in place to the values that peers downloading this update will receive."""
        round_for_update(gradients, self._update_compression)

    @property
    def epoch(self) -> int:
        """Epoch of these weights."""
        return self.local_epoch

    def ask(self) -> Any:
        """Ask all peers for their offers. Returns a future of a list of `Offer`s, without those that do not respond."""
        future: Any = MPFuture()
        pipe: Any = self._outer_pipe
        pipe.send(("_ask_all", [], {"future": future}))
        return future

    def offers(self) -> list[Offer]:
        """Ask all peers for their offers and wait for the responses."""
        return self._wait(self.ask())

    def fetch(self, get: Get) -> ReceivedBlob:
        """Download. Raises DownloadError."""
        future: Any = MPFuture()
        pipe: Any = self._outer_pipe
        pipe.send(("_download", [], {"get": get, "future": future}))
        return self._wait(future)

    def use(self, get: Get, received: ReceivedBlob) -> None:
        """Load a download into the weights. Raises DownloadError if it does not fit."""
        try:
            about, tensors = unpack(received.header, received.body)
            (self._use_state if get.kind == "state" else self._use_update)(about, tensors)
        except (StateBytesError, ValueError, KeyError, StopIteration) as error:
            raise DownloadError(f"the {get.kind} of {received.donor} does not fit: {error!r}") from error

    def _wait(self, future: Any) -> Any:
        while True:
            try:
                return future.result(1.0)
            except FutureTimeoutError:
                if not self.is_alive():
                    raise DownloadError("the averager's process has ended") from None

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _use_state(self, about: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        targets = [*self._parameters(), *self.extra_tensors]
        if [t.shape for t in targets] != [t.shape for t in tensors[: len(targets)]]:
            raise ValueError("its tensors have other shapes than this peer's")
        with self._weights_lock, torch.no_grad():
            load_optimizer_state(self.optimizer, about["optimizer"], tensors[len(targets) :])
            for target, tensor in zip(targets, tensors, strict=False):  # the rest are the optimizer's
                target.copy_(tensor)
            self.local_epoch, self.lineage = int(about["epoch"]), str(about["lineage"])
            self._cache.clear()
        self._update_scheduler()
        self.say(averaging=False)

    def _use_update(self, about: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        if about["epoch"] != self.local_epoch + 1:
            raise ValueError(f"an update to epoch {about['epoch']} at epoch {self.local_epoch}")
        if about["after"] != self.lineage:
            # this peer stepped alone or with others; the split would stay undetected
            raise ValueError(f"an update of the weights after {about['after']!r}, not {self.lineage!r}")
        load_update(self._parameters(), about, tensors, self.rank)
        with self._weights_lock:
            self.step(increment_epoch=True, optimizer_step=True)
            self.lineage = str(about["lineage"])
            self._cache.clear()
        self.say(averaging=False)

    def _serve_requests(self) -> None:
        """Serve requests of the averager's process until the pipe is closed with this process."""
        while True:
            try:
                kind, epoch, key, future = self._requests.recv()
            except (EOFError, OSError):
                return
            try:
                future.set_result(self._blob(kind, epoch, key))
            except Exception as error:  # noqa: BLE001 - raised in the requesting process
                _log.warning("cannot provide %s %d: %r", kind, epoch, error)
                future.set_exception(DownloadError(repr(error)))

    def _blob(self, kind: str, epoch: int, key: str) -> Blob | None:
        with self._weights_lock:
            if kind == "update":
                return self._cache.update(epoch, lambda: self._packed_update(epoch))
            if (begun := self._cache.with_key(key)) is not None:
                return begun
            if self.local_epoch < max(epoch, 1) or not self.allow_state_sharing:
                return None
            return self._cache.snapshot(self.local_epoch, self._packed_state)

    def _packed_state(self) -> Blob:
        began = time.monotonic()
        about, tensors, infos = self.get_current_state()
        header = {
            "epoch": about["epoch"],
            "lineage": self.lineage,
            "weights": len(self._parameters())
            + len(self.extra_tensors),  # followed by the optimizer's tensors
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
            return None  # the averager already holds the factors of another round
        about = {"epoch": epoch, "after": self._before, "lineage": self.lineage}
        return shared(pack_update(about, tensors, factors, self._update_compression))

    # In the averager's process.

    async def rpc_offer_state(self, request: DownloadRequest, context: P2PContext) -> DownloadData:
        """Return this peer's offer. The caller measures the response time to find the nearest donor."""
        offer = self._offer.value if self.allow_state_sharing else b'[0, false, 0, ""]'
        return DownloadData(metadata=offer)

    async def rpc_take_state(self, request: DownloadData, context: P2PContext) -> AsyncIterator[DownloadData]:
        """Stream a state or an update from an offset on. A new request of a peer ends its previous stream."""
        message: Any = request
        fields: Any = MSGPackSerializer.loads(message.metadata)
        wanted = BlobRequest(*fields)
        token = self._streams[context.remote_id] = object()
        future: Any = MPFuture()
        self._requests_out.send((wanted.kind, wanted.epoch, wanted.key, future))
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
        """Hivemind's own download, disabled since its tensors may change while they are read."""
        for nothing in ():
            yield nothing

    async def _ask_all(self, future: Any) -> None:
        try:
            matchmaking: Any = self._matchmaking
            key = f"{matchmaking.group_key_manager.prefix}.all_averagers"
            dht: Any = self.dht  # its types do not express that return_future=True returns a future
            found = await asyncio.wait_for(dht.get(key, latest=True, return_future=True), self._ask_timeout_s)
            peers = declared_peers(found.value if found is not None else None)
            calls = [self._ask(peer) for peer in peers if peer != self.peer_id]
            future.set_result(await answers(calls, _ANSWER_S, self._ask_timeout_s))
        except Exception as error:  # noqa: BLE001 - a slow DHT: the caller asks again
            _log.warning("could not ask any peer for its state: %r", error)
            future.set_result([])

    async def _ask(self, peer: PeerID) -> Offer | None:
        """Ask a peer twice: the response time of the first call may include dialling."""
        stub: Any = self.get_stub(self._p2p, peer, namespace=self.prefix)
        try:
            began = time.monotonic()
            for _ in range(2):
                began = time.monotonic()
                answer = await stub.rpc_offer_state(DownloadRequest(), timeout=self._ask_timeout_s)
            epoch, averaging, oldest, lineage = json.loads(answer.metadata)
            answered_s = time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - the peer may be dead; another one will respond
            _log.info("%s does not offer its state: %r", peer, error)
            return None
        return Offer(str(peer), answered_s, int(epoch), bool(averaging), int(oldest), str(lineage))

    async def _download(self, get: Get, future: Any) -> None:
        try:
            silence_s = self.next_chunk_timeout or 30.0
            wanted = BlobRequest(get.kind, get.epoch)
            future.set_result(await download(self._open, get.donors, wanted, silence_s))
        except Exception as error:  # noqa: BLE001 - raised in the requesting process
            future.set_exception(error if isinstance(error, DownloadError) else DownloadError(repr(error)))

    async def _open(self, donor: str, wanted: BlobRequest) -> AsyncIterator[Chunk]:
        return await open_from(self._p2p, self.prefix)(donor, wanted)


def open_from(p2p: P2P, namespace: str) -> OpenStream:
    """Return the `OpenStream` for `client.download`, with donors given as libp2p ids. `namespace`: averager prefix."""

    async def open_stream(donor: str, wanted: BlobRequest) -> AsyncIterator[Chunk]:
        stub: Any = StateDonor.get_stub(p2p, PeerID.from_base58(donor), namespace=namespace)
        fields = (wanted.kind, wanted.epoch, wanted.key, wanted.offset)
        stream = await stub.rpc_take_state(DownloadData(metadata=MSGPackSerializer.dumps(fields)))
        return chunks_of(stream)

    return open_stream
