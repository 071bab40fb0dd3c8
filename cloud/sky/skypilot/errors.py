"""SkyPilot's exceptions as ours: a closed set, one readable sentence each. Pure: classes are told by name."""

from __future__ import annotations

import re
from typing import Any

from cloud.provider import (
    CredentialsError,
    InvalidRequestError,
    NoCapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)

_CREDENTIALS = {
    "NoCloudAccessError", "InvalidCloudCredentials", "CloudUserIdentityError", "ClusterOwnerIdentityMismatchError",
    "PermissionDeniedError", "NoWorkspaceAccessError", "ApiServerAuthenticationError",
}  # fmt: skip
_INVALID = {
    "InvalidClusterNameError", "InvalidSkyPilotConfigError", "InvalidCloudConfigs", "ResourcesMismatchError",
    "NotSupportedError", "UserRequestRejectedByPolicy", "StorageSpecError", "StorageSourceError",
    "StorageNameError", "StorageModeError", "APINotSupportedError", "InvalidWorkspaceNameError", "ValueError",
    "TypeError",
}  # fmt: skip
_SERVER_LOST = {
    "ApiServerConnectionError", "ConnectionError", "ConnectTimeout", "ReadTimeout", "ChunkedEncodingError",
    "ProtocolError", "RemoteDisconnected", "ConnectionResetError", "ConnectionRefusedError",
    "ServerTemporarilyUnavailableError", "RequestInterruptedError", "ServerDisconnectedError",
    "ClientConnectorError", "ClientOSError", "ClientPayloadError",
}  # fmt: skip
# Too many calls in a short time; the account may rent all the same.
_THROTTLED = re.compile(
    r"RequestLimitExceeded|Throttl|TooManyRequests|SlowDown|rateLimitExceeded|Rate Limit Exceeded|\b429\b",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"quota|VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|(?<!Request)(?<!rate)LimitExceeded|"
    r"exceeded your|not authorized to launch|OperationNotAllowed",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"UnauthorizedOperation|AuthFailure|InvalidClientTokenId|ExpiredToken|SignatureDoesNotMatch|"
    r"credentials (?:are|were) (?:invalid|not)|Could not automatically determine credentials|AccessDenied",
    re.IGNORECASE,
)
_CAPACITY = re.compile(
    r"Insufficient\w*Capacity|sufficient capacity|RESOURCE_POOL_EXHAUSTED|SkuNotAvailable|AllocationFailed|stockout|"
    r"No resource satisfying",
    re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ASKED = re.compile(r"\.? Relax the task's| for \{")
_LONGEST = 300


def translate(error: BaseException, doing: str) -> ProviderError:
    """Our error for SkyPilot's; `doing` begins the sentence ("request r-a-0 at aws/us-west-2")."""
    if isinstance(error, ProviderError):
        return error
    names = {cls.__name__ for cls in type(error).__mro__}
    said = sentence(error)
    everything = " | ".join([_ANSI.sub("", str(error)), *(str(e) for e in _causes(error))])
    if names & _CREDENTIALS:
        return CredentialsError(f"{doing}: SkyPilot has no access: {said}; `orch check` says what is missing")
    if "ResourcesUnavailableError" in names:
        if _REFUSED.search(everything):
            more = " --aws-role FILE`, which prints the grant" if "iam:PassRole" in everything else "`"
            return CredentialsError(
                f"{doing}: the cloud refused us: {_matching(error, _REFUSED)}; see `orch check{more}"
            )
        if _THROTTLED.search(everything) and not (_QUOTA.search(everything) or _CAPACITY.search(everything)):
            return TransientError(
                f"{doing}: the cloud's API is throttling us: {_matching(error, _THROTTLED)}"
            )
        # With capacity named beside it, "limit" is the cloud's way of saying that it is full.
        if _QUOTA.search(everything) and not _CAPACITY.search(everything):
            return QuotaError(f"{doing}: over the account's quota: {_matching(error, _QUOTA)}")
        # What SkyPilot was asked for stands in `doing` already.
        return NoCapacityError(f"{doing}: {_ASKED.split(_matching(error, _CAPACITY))[0]}")
    if "ProvisionPrechecksError" in names:
        for reason in getattr(error, "reasons", None) or ():
            return translate(reason, doing)
    if names & _SERVER_LOST or ("404" in said and "equest" in said):
        return TransientError(f"{doing}: SkyPilot's API server does not answer: {said}")
    if "RequestCancelled" in names:
        return TransientError(f"{doing}: it was cancelled")
    if "Failed to run setup commands" in everything or "ClusterSetUpError" in names:
        return TransientError(f"{doing}: the VM was lost or unreachable while SkyPilot set it up")
    if names & _INVALID and "ClusterDoesNotExist" not in names:
        return InvalidRequestError(f"{doing}: {said}")
    return TransientError(f"{doing}: {said}")


def is_server_lost(error: BaseException) -> bool:
    """Whether SkyPilot's API server died or was restarted under a call: nobody knows how far the call came."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    return bool(names & _SERVER_LOST) or ("404" in text and "equest" in text)


def is_gone(error: BaseException) -> bool:
    """Whether it says that there is no such cluster: what an ending wants to hear."""
    return any(cls.__name__ == "ClusterDoesNotExist" for cls in type(error).__mro__)


def sentence(error: BaseException) -> str:
    """The first line that says something, plain, without a final stop."""
    return _shorten(str(error)) or type(error).__name__


def _shorten(text: str) -> str:
    for line in _ANSI.sub("", text).splitlines():
        clean = re.sub(r"\s+", " ", re.sub(r"[│├└─╰•]+", " ", line)).strip(" .:")
        if clean:
            return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 3]}..."
    return ""


def _causes(error: BaseException) -> list[BaseException]:
    """What an error was made of. SkyPilot puts some errors into their own history."""
    found: list[BaseException] = []
    waiting: list[Any] = list(getattr(error, "failover_history", None) or ())
    while waiting:
        each = waiting.pop(0)
        if each is not error and not any(each is known for known in found):
            found.append(each)
            waiting += getattr(each, "failover_history", None) or ()
    return found


def _matching(error: BaseException, pattern: re.Pattern[str]) -> str:
    """What the cloud itself said, if any of it fits; else SkyPilot's sentence."""
    for cause in (*_causes(error), error):
        for line in _ANSI.sub("", str(cause)).splitlines():
            if pattern.search(line):
                return _shorten(line)
    return next((said for said in map(sentence, _causes(error)) if said), sentence(error))
