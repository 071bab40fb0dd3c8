"""What can go wrong between us and an object store; every message is one sentence that says what to do.

StorageError
├── StoreUnreachableError    nobody answers at the endpoint: start it, or correct the URL
├── StoreRefusedError        the store does not accept our credentials: correct them
├── BucketMissingError       the bucket is not there: make it, or correct its name
├── KeyMissingError          the object is not there: make it, or correct the pattern
├── StoreFullError           the store has no room
├── StoreFailedError         the store answered with an error of its own: try again later
├── BadUrlError              not an s3:// URL, or no shards at all: correct the experiment
├── ShardError               the data is not what it should be: make it again
│   ├── ShardChangedError    it was overwritten while it was read
│   ├── TruncatedShardError  the tar ends too early
│   └── CorruptShardError    the tar or a member of it cannot be read
├── CacheInUseError          another process holds the cache's folder
└── EmbeddedStoreError       the embedded Swift cannot be installed or started
    └── PortTakenError       something else listens there
"""

from __future__ import annotations


class StorageError(Exception):
    """Object storage did not do what was asked. The message never holds a secret."""


class StoreUnreachableError(StorageError):
    """Nobody answers at the endpoint."""


class StoreRefusedError(StorageError):
    """The store does not accept our credentials, or there are none."""


class BucketMissingError(StorageError):
    """The bucket does not exist."""


class KeyMissingError(StorageError):
    """The object does not exist."""


class StoreFullError(StorageError):
    """The store has no room for the object."""


class StoreFailedError(StorageError):
    """The store answered with an error of its own."""


class BadUrlError(StorageError):
    """Not a URL (or a list of URLs) that we can read shards from."""


class ShardError(StorageError):
    """A shard's bytes are not what they should be."""


class ShardChangedError(ShardError):
    """The shard was overwritten while it was being read."""


class TruncatedShardError(ShardError):
    """The tar ends before its end-of-archive mark. `shard` is its URL, `offset` where the bytes end."""

    def __init__(self, shard: str, offset: int) -> None:
        super().__init__(
            f"{shard}: the tar ends at byte {offset}, before its end-of-archive mark: "
            "it was written or uploaded only in part; make it again and upload it"
        )
        self.shard = shard
        self.offset = offset

    def __reduce__(self) -> tuple[type[TruncatedShardError], tuple[str, int]]:
        return type(self), (self.shard, self.offset)


class CorruptShardError(ShardError):
    """The shard, or one member of it, cannot be read. `offset` is None where only the member is known."""

    def __init__(self, shard: str, offset: int | None, what: str) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{shard}{where}: {what}; make the shard again and upload it")
        self.shard = shard
        self.offset = offset
        self.what = what

    def __reduce__(self) -> tuple[type[CorruptShardError], tuple[str, int | None, str]]:
        return type(self), (self.shard, self.offset, self.what)


class CacheInUseError(StorageError):
    """Another process holds the cache's folder."""


class EmbeddedStoreError(StorageError):
    """The embedded Swift cannot be installed, started or kept alive."""


class PortTakenError(EmbeddedStoreError):
    """Something else listens on the wished address and port."""


def is_final(error: StorageError) -> bool:
    """Whether another machine that asks later would get the same: wrong data, names or credentials."""
    kinds = (ShardError, StoreRefusedError, BucketMissingError, KeyMissingError, BadUrlError)
    return isinstance(error, kinds)
