"""s3:// URLs."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.storage.errors import BadUrlError


@dataclass(frozen=True, slots=True)
class S3Url:
    """`s3://bucket/key`; the key is "" for the bucket itself and may be a prefix."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Url:
        """Parse a URL. Raises BadUrlError unless it is s3://bucket[/key]."""
        scheme, mark, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or not mark or not bucket:
            raise BadUrlError(f"'{text}' is not a URL of an object store; write it as s3://bucket/key")
        return cls(bucket, key)

    def join(self, name: str) -> S3Url:
        """Return the URL of the object `name` under this bucket or prefix."""
        prefix = self.key if not self.key or self.key.endswith("/") else f"{self.key}/"
        return S3Url(self.bucket, f"{prefix}{name}")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"
