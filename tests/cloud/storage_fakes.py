"""An in-memory S3 client whose connections break where a test requests it, and a clock that sleeping advances."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from cloud.storage.opener import RetryPolicy, ShardOpener

DATA = random.Random(7).randbytes(50_000)


def opener(store, time=None, cache=None, **retry):
    """A ShardOpener over a FakeStore that never really sleeps."""
    time = time or VirtualTime()
    return ShardOpener(
        store,
        endpoint="http://store:1",
        cache=cache,
        retry=RetryPolicy(**retry),
        clock=time.clock,
        sleep=time.sleep,
        buffer_bytes=4096,
    )


class VirtualTime:
    def __init__(self):
        self.now_s = 0.0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds


class FakeStore:
    """`cuts`: bytes that successive connections carry before they break; further connections do not break."""

    def __init__(self, objects: Mapping[str, bytes], cuts=(), *, ranges=True):
        self.objects = dict(objects)
        self.cuts = list(cuts)
        self.ranges = ranges
        self.errors: list[BaseException] = []  # raised by the next openings, one each
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[_Body] = []

    def __call__(self):
        return self

    def get_object(self, **request):
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        data = self.objects.get(request["Key"])
        if data is None:
            raise client_error("NoSuchKey", 404)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if request.get("IfMatch", etag) != etag:
            raise client_error("PreconditionFailed", 412)
        start = int(request["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in request else 0
        answer: dict[str, Any] = {"ETag": etag}
        if start and self.ranges:
            answer["ContentRange"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data = data[start:]
        body = _Body(data, self.cuts.pop(0) if self.cuts else None)
        self.bodies.append(body)
        return {**answer, "ContentLength": len(data), "Body": body}


class _Body:
    def __init__(self, data: bytes, cut: int | None):
        self._file = io.BytesIO(data if cut is None else data[:cut])
        self._breaks = cut is not None
        self.closed = False

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if not data and self._breaks:
            raise ConnectionResetError("cut")
        return data

    def close(self) -> None:
        self.closed = True


def client_error(code: str, status: int) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "GetObject")


def make_tar(samples: Mapping[str, Mapping[str, bytes]], *, style: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=style) as tar:
        for key, members in samples.items():
            for extension, data in members.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                member.mtime = 1.5  # as webdataset's writer: a fraction makes pax headers
                tar.addfile(member, io.BytesIO(data))
    return target.getvalue()
