"""S3 clients by endpoint URL, with boto3's own credential chain, and the translation of their errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloud.storage.errors import (
    BucketMissingError,
    KeyMissingError,
    ShardChangedError,
    StorageError,
    StoreFailedError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
)

_REFUSED_CODES = {
    "403",
    "401",
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_MISSING_CODES = {"404", "NoSuchKey", "NotFound"}
_CHANGED_CODES = {"412", "PreconditionFailed", "416", "InvalidRange"}
_FULL_CODES = {"507", "InsufficientStorage", "QuotaExceeded"}
_CREDENTIALS_ADVICE = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to credentials of this store"
)


def make_client(
    endpoint: str = "",
    *,
    region: str = "",
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    connect_timeout_s: float = 10.0,
    read_timeout_s: float = 30.0,
    attempts: int = 3,
    connections: int = 10,
) -> Any:
    """Create an S3 client. Create it in the process that uses it: botocore clients do not survive a fork.

    `endpoint` "" means AWS (or AWS_ENDPOINT_URL). Without keys, boto3's chain finds credentials (environment, profile,
    instance role). `attempts` limits botocore's own attempts of one request; at most `connections` are kept open for
    further requests. Raises StoreUnreachableError for an endpoint that is not a URL and StoreRefusedError for a profile
    that does not exist.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        # Stores other than AWS do not support trailing checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=connections,
        # A bucket cannot be a subdomain of an IP address: only AWS itself is addressed by host name.
        s3={"addressing_style": "path" if _resolved(endpoint) else "auto"},
    )
    try:
        return boto3.Session().client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=region or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=session_token,
            config=config,
        )
    except ValueError as error:
        raise StoreUnreachableError(
            f"the endpoint '{endpoint}' is not a URL; write it as http://host:port or https://host"
        ) from error
    except BotoCoreError as error:
        raise StoreRefusedError(f"cannot create a client for {_place(endpoint)} ({error})") from error


class ClientPerProcess:
    """Creates the client on first use in each process, so that it may be passed through a fork."""

    def __init__(self, endpoint: str = "", **options: Any) -> None:
        self.endpoint = endpoint
        self._options = options
        self._lock = threading.Lock()
        self._pid = -1
        self._client: Any = None

    def __call__(self) -> Any:
        pid = os.getpid()
        if self._pid != pid:
            # A fork may have copied the lock while it was held, so the child creates its own.
            self._lock = threading.Lock()
            self._client = None
            self._pid = pid
        with self._lock:
            if self._client is None:
                self._client = make_client(self.endpoint, **self._options)
            return self._client

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.endpoint, self._options)


def _rebuild(endpoint: str, options: dict[str, Any]) -> ClientPerProcess:
    return ClientPerProcess(endpoint, **options)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: broken or silent connections, throttling, errors of the store itself.

    Refusals, missing objects and changed objects are answers and not transient.
    """
    from botocore import exceptions as boto
    from urllib3.exceptions import HTTPError

    if isinstance(error, boto.ClientError):
        status = _status(error)
        return (status >= 500 and status != 507) or status in (408, 429)
    transient = (
        boto.ConnectionError,  # refused, reset, timed out while connecting
        boto.HTTPClientError,  # no answer, or one that broke off
        boto.IncompleteReadError,
        HTTPError,
        ConnectionError,
        TimeoutError,
    )
    return isinstance(error, transient)


def translate(error: BaseException, endpoint: str, bucket: str = "", key: str = "") -> StorageError:
    """Return the StorageError for an exception of boto3 or of its connection."""
    from botocore import exceptions as boto

    place = _place(endpoint)
    thing = f"s3://{bucket}/{key}" if bucket else place
    if isinstance(error, StorageError):
        return error
    if isinstance(error, boto.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = _status(error)
        codes = {code, str(status)}
        if code == "NoSuchBucket" or (status == 404 and not key and bucket):
            return BucketMissingError(
                f"{place} has no bucket '{bucket}'; create it (`orch data make` does) or correct its name"
            )
        if code == "InvalidBucketName":
            return _bad_name(bucket)
        if codes & _REFUSED_CODES:
            return StoreRefusedError(
                f"{place} refused our credentials for {thing} ({code or status}); {_CREDENTIALS_ADVICE}"
            )
        if codes & _MISSING_CODES:
            return KeyMissingError(
                f"{place} has no object {thing}; correct the shard pattern or create the shards (`orch data make`)"
            )
        if codes & _CHANGED_CODES:
            return ShardChangedError(
                f"{thing} changed while it was read; do not modify shards during a run, then launch again"
            )
        if codes & _FULL_CODES:
            return StoreFullError(f"{place} has no space for {thing} ({code or status}); free some and retry")
        return StoreFailedError(f"{place} failed for {thing} ({code or status}); check its log, then retry")
    if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
        return StoreRefusedError(f"no credentials for {place} were found; {_CREDENTIALS_ADVICE}")
    if isinstance(error, boto.ParamValidationError):
        return _bad_name(bucket)
    if isinstance(error, (boto.ConnectTimeoutError, boto.EndpointConnectionError)):
        return StoreUnreachableError(
            f"no answer from {place} ({type(error).__name__}); start the store or correct the endpoint"
        )
    return StoreFailedError(
        f"the connection to {place} broke while accessing {thing} ({type(error).__name__}); check the store, then retry"
    )


@contextmanager
def storage_errors(endpoint: str, bucket: str = "", key: str = "") -> Iterator[None]:
    """Convert boto3's exceptions inside the block to StorageErrors that name endpoint, bucket and key."""
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (BotoCoreError, ClientError, HTTPError) as error:
        raise translate(error, endpoint, bucket, key) from error


def _bad_name(bucket: str) -> BucketMissingError:
    return BucketMissingError(
        f"'{bucket}' is not a valid bucket name; use 3 to 63 lower-case letters, digits, dots or hyphens"
    )


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _resolved(endpoint: str) -> str:
    """Return the endpoint that boto3 will use: the given one, or else the one of its environment variables."""
    return endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _place(endpoint: str) -> str:
    resolved = _resolved(endpoint)
    return f"the object store at {resolved}" if resolved else "the object store (AWS S3)"
