"""Errors of object storage; every message is one sentence that says what to do.

StorageError
├── StoreUnreachableError    the endpoint does not answer: start the store or correct the URL
├── StoreRefusedError        the store rejects the credentials: correct them
├── BucketMissingError       the bucket does not exist: create it or correct its name
├── KeyMissingError          the object does not exist: create it or correct the pattern
├── StoreFullError           the store has no space
├── StoreFailedError         the store reported an internal error: try again later
├── BadUrlError              not an s3:// URL, or no shards at all: correct the experiment
├── ShardError               the data is wrong: create it again
│   ├── ShardChangedError    it was overwritten while it was read
│   ├── TruncatedShardError  the tar ends too early
│   └── CorruptShardError    the tar or one of its members cannot be read
├── DataSourceError          what a data set is made from cannot be used: correct the source or the options
├── PrefixTakenError         another data set is stored at the destination
├── CacheInUseError          another process uses the cache's folder
└── EmbeddedStoreError       the embedded Swift cannot be installed or started
    └── PortTakenError       another program listens on the port
"""

from __future__ import annotations


class StorageError(Exception):
    """An object storage operation failed. The message never contains a secret."""


class StoreUnreachableError(StorageError):
    """The endpoint does not answer."""


class StoreRefusedError(StorageError):
    """The store rejects the credentials, or there are none."""


class BucketMissingError(StorageError):
    """The bucket does not exist."""


class KeyMissingError(StorageError):
    """The object does not exist."""


class StoreFullError(StorageError):
    """The store has no space for the object."""


class StoreFailedError(StorageError):
    """The store reported an internal error."""


class BadUrlError(StorageError):
    """Not a URL (or list of URLs) from which shards can be read."""


class ShardError(StorageError):
    """The bytes of a shard are wrong."""


class ShardChangedError(ShardError):
    """The shard was overwritten while it was being read."""


class TruncatedShardError(ShardError):
    """The tar ends before its end-of-archive mark. `shard` is its URL, `offset` the number of bytes it has."""

    def __init__(self, shard: str, offset: int) -> None:
        super().__init__(
            f"{shard}: the tar ends at byte {offset}, before its end-of-archive mark: "
            "it was only partially written or uploaded; create it again and upload it"
        )
        self.shard = shard
        self.offset = offset

    def __reduce__(self) -> tuple[type[TruncatedShardError], tuple[str, int]]:
        return type(self), (self.shard, self.offset)


class CorruptShardError(ShardError):
    """A shard or one of its members cannot be read. `offset` is None if only the member is known."""

    def __init__(self, shard: str, offset: int | None, what: str) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{shard}{where}: {what}; create the shard again and upload it")
        self.shard = shard
        self.offset = offset
        self.what = what

    def __reduce__(self) -> tuple[type[CorruptShardError], tuple[str, int | None, str]]:
        return type(self), (self.shard, self.offset, self.what)


class DataSourceError(StorageError):
    """The source of a data set is empty or unreadable, or does not fit the options."""


class PrefixTakenError(StorageError):
    """The destination of a data set has shards of another one."""


class CacheInUseError(StorageError):
    """Another process uses the cache's folder."""


class EmbeddedStoreError(StorageError):
    """The embedded Swift cannot be installed, started or kept running."""


class PortTakenError(EmbeddedStoreError):
    """Another program listens on the requested address and port."""


def is_final(error: StorageError) -> bool:
    """Whether another machine would get the same error later: wrong data, names or credentials."""
    kinds = (ShardError, StoreRefusedError, BucketMissingError, KeyMissingError, BadUrlError)
    return isinstance(error, kinds)
