"""An interrupted download resumes from any donor with the same bytes, one stream at a time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import torch
import virtual_time
from hivemind.compression import CompressionInfo, Float16Compression, NoCompression, TensorRole
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.optimizer.build import state_compression
from experiments.peer.state.client import BlobRequest, Chunk, DownloadError, ReceivedBlob, download
from experiments.peer.state.encoding import Blob, StateBytesError, pack, unpack
from experiments.peer.state.transport import answers

CHUNK = 16
STATE = BlobRequest("state", 3)


def blob_of(epoch: int, seed: int = 0, size: int = 20) -> Blob:
    tensor = torch.arange(size, dtype=torch.float32) + seed
    return pack({"epoch": epoch}, [tensor], [CompressionInfo.from_tensor(tensor, key=0)], NoCompression())


@dataclass
class Donor:
    """Streams its blob; `cuts`: number of chunks after which each stream ends; later streams are complete."""

    blob: Blob | None
    cuts: list[int] = field(default_factory=list)
    spoil: Callable[[Chunk], Chunk] = lambda chunk: chunk
    asked: list[BlobRequest] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)


class Streams:
    """Opens streams and counts the open ones."""

    def __init__(self) -> None:
        self.open = self.most = 0

    async def __call__(self, donor: Donor, wanted: BlobRequest) -> AsyncIterator[Chunk]:
        donor.asked.append(wanted)
        return self._stream(donor, wanted)

    async def _stream(self, donor: Donor, wanted: BlobRequest) -> AsyncIterator[Chunk]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            blob, left = donor.blob, donor.cuts.pop(0) if donor.cuts else 10**9
            if blob is None:
                yield Chunk(refused="nothing here")
                return
            body = bytes(blob.body.tolist())
            offset = wanted.offset if wanted.key == blob.key else 0
            yield Chunk(key=blob.key, header=blob.header, total=len(body), offset=offset)
            for at in range(offset, len(body), CHUNK):
                if left == 0:
                    raise ConnectionResetError("cut")
                left -= 1
                data = body[at : at + CHUNK]
                yield donor.spoil(Chunk(offset=at, crc=zlib.crc32(data), data=data))
                await asyncio.sleep(0)
        finally:
            self.open -= 1


def downloaded(*donors: Donor, silence_s: float = 5.0) -> tuple[ReceivedBlob, Streams]:
    streams = Streams()
    blob = virtual_time.run(download(streams, donors, STATE, silence_s))
    assert streams.open == 0
    return blob, streams


def test_interrupted_download_resumes_at_its_offset() -> None:
    donor = Donor(blob_of(3), cuts=[2, 1])
    blob, _ = downloaded(donor)
    assert (blob.resumed, blob.restarted, blob.received) == (2, 0, 80)
    assert [wanted.offset for wanted in donor.asked] == [0, 32, 48]
    assert unpack(blob.header, blob.body)[1][0].tolist() == list(range(20))


def test_another_donor_of_the_epoch_sends_the_rest() -> None:
    """Its numbers are equal only up to the rounding of float16 averaging, not bitwise."""
    dies, other = Donor(blob_of(3), cuts=[2, 0, 0]), Donor(blob_of(3, seed=100))
    blob, _ = downloaded(dies, other)
    assert blob.donor is other
    assert (blob.resumed, blob.received, other.asked[0].offset) == (1, 80, 32)
    numbers = unpack(blob.header, blob.body)[1][0].tolist()
    assert numbers == [*range(8), *range(108, 120)]


def test_donor_of_another_epoch_restarts_the_download() -> None:
    dies, other = Donor(blob_of(3), cuts=[2, 0, 0]), Donor(blob_of(4))
    blob, _ = downloaded(dies, other)
    assert unpack(blob.header, blob.body)[0] == {"epoch": 4}
    assert (blob.resumed, blob.restarted, blob.received) == (0, 1, 112)


def test_damaged_chunk_is_requested_again_before_the_donor_is_given_up() -> None:
    def spoil(chunk: Chunk) -> Chunk:
        return Chunk(offset=chunk.offset, crc=chunk.crc ^ (chunk.offset == 32), data=chunk.data)

    bad, good = Donor(blob_of(3), spoil=spoil), Donor(blob_of(3))
    blob, _ = downloaded(bad, good)
    assert len(bad.asked) == 3
    assert (blob.donor, good.asked[0].offset) == (good, 32)
    with pytest.raises(DownloadError, match="damaged"):
        downloaded(Donor(blob_of(3), spoil=spoil))


def test_refusing_donor_is_not_asked_twice() -> None:
    empty = Donor(None)
    blob, _ = downloaded(empty, Donor(blob_of(3)))
    assert (blob.whole, len(empty.asked)) == (True, 1)
    with pytest.raises(DownloadError, match="nothing here"):
        downloaded(empty)
    with pytest.raises(DownloadError, match="there is no donor"):
        downloaded()


def test_silent_donor_is_abandoned_and_its_stream_closed() -> None:
    class Silent(Streams):
        async def _stream(self, donor: Donor, wanted: BlobRequest) -> AsyncIterator[Chunk]:
            async for chunk in super()._stream(donor, wanted):
                yield chunk
                if donor is silent and chunk.offset >= 16:
                    await asyncio.sleep(60.0)

    streams, silent, other = Silent(), Donor(blob_of(3)), Donor(blob_of(3))
    blob = virtual_time.run(download(streams, [silent, other], STATE, 0.05))
    assert [wanted.offset for wanted in silent.asked] == [0, 32, 32]  # then twice nothing
    assert (blob.whole, blob.donor, blob.received) == (True, other, 80)
    assert (streams.open, streams.most) == (0, 1)


@given(st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=4), st.integers(0, 40))
def test_one_stream_at_a_time_and_no_byte_twice(cuts: list[list[int]], size: int) -> None:
    donors = [Donor(blob_of(3, size=size), cuts=list(times)) for times in cuts]
    donors.append(Donor(blob_of(3, size=size)))
    blob, streams = downloaded(*donors)
    assert blob.body.tolist() == blob_of(3, size=size).body.tolist()
    assert blob.received == blob.body.numel()
    assert streams.most == 1


def test_dead_peers_are_not_awaited_if_any_peer_responds() -> None:
    async def call(after_s: float, value: str | None) -> str | None:
        await asyncio.sleep(after_s)
        return value

    async def asked(*calls: tuple[float, str | None]) -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await answers([call(*one) for one in calls], 0.1, 0.3)
        return found, loop.time() - began

    found, took_s = virtual_time.run(asked((0.0, "a"), (9.0, "dead"), (0.02, "b"), (0.0, None)))
    assert found == ["a", "b"]
    assert took_s < 0.2
    assert virtual_time.run(asked((0.2, "late"), (0.0, None)))[0] == ["late"]
    assert virtual_time.run(asked((9.0, "dead")))[0] == []
    assert virtual_time.run(asked())[0] == []


def test_state_is_decoded_as_compressed() -> None:
    weights, statistic, step = torch.randn(7, 3), torch.full((5,), 1e-12), torch.tensor(4.0)
    infos = [
        CompressionInfo.from_tensor(tensor, key=i, role=role)
        for i, (tensor, role) in enumerate(
            [(weights, TensorRole.PARAMETER), (statistic, TensorRole.OPTIMIZER), (step, TensorRole.OPTIMIZER)]
        )
    ]
    blob = pack({"epoch": 2}, [weights, statistic, step], infos, state_compression())
    assert blob.body.numel() == 48 + 24 + 8  # each ends at a multiple of 8
    about, (got, *rest) = unpack(blob.header, blob.body)
    assert about == {"epoch": 2}
    assert torch.allclose(got, weights, rtol=1e-3)
    assert [t.tolist() for t in rest] == [statistic.tolist(), 4.0]


def test_keys_depend_on_layout_and_epoch_only() -> None:
    assert blob_of(3).key == blob_of(3, seed=9).key
    assert len({blob_of(3).key, blob_of(4).key, blob_of(3, size=21).key}) == 3


@pytest.mark.parametrize("spoil", [lambda h: b"", lambda h: h[:-3], lambda h: b"\x01" + h])
def test_invalid_header_is_an_error(spoil: Callable[[bytes], bytes]) -> None:
    blob = blob_of(3)
    with pytest.raises(StateBytesError):
        unpack(spoil(blob.header), blob.body)
    with pytest.raises(StateBytesError, match="80"):
        unpack(blob.header, blob.body[:-8])


def test_tensors_are_padded_to_multiples_of_eight_bytes() -> None:
    tensor = torch.randn(3)
    blob = pack({}, [tensor], [CompressionInfo.from_tensor(tensor, key=0)], Float16Compression())
    assert blob.body.numel() == 8
