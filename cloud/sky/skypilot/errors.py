"""Translate SkyPilot's exceptions to a closed set with one readable sentence each. Pure: classes are matched by name."""

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
# Too many calls in a short time, which does not mean that the account may not rent.
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
# Two launches that set up the account's network for a region at the same moment: EC2 refuses the second one's rule.
_CONFLICT = re.compile(r"Invalid(?:Permission|Group|KeyPair)\.Duplicate|EntityAlreadyExists", re.IGNORECASE)
# The last line of a traceback in a provisioning log, behind the log's own prefix.
_EXCEPTION_LINE = re.compile(r"^(?:[A-Z] [^\]]*\] )?(?:\w+\.)*\w*(?:Error|Exception): (?P<message>.+)$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REQUEST_DETAILS = re.compile(r"\.? Relax the task's| for \{")
_LONGEST = 300


def translate(error: BaseException, doing: str, reason: str = "") -> ProviderError:
    """Return the ProviderError for an error of SkyPilot; `doing` begins the sentence ("request r-a-0 at aws/us-west-2").

    `reason`: the cloud's own message, where SkyPilot has it in its log only (`cloud_message`).
    """
    if isinstance(error, ProviderError):
        return error
    names = {cls.__name__ for cls in type(error).__mro__}
    message = sentence(error)
    everything = _everything(error, reason)
    if names & _CREDENTIALS:
        return CredentialsError(
            f"{doing}: SkyPilot has no access: {message}; `orch check` shows what is missing"
        )
    if "ResourcesUnavailableError" in names:
        if _REFUSED.search(everything):
            more = " --aws-role FILE`, which prints the grant" if "iam:PassRole" in everything else "`"
            return CredentialsError(
                f"{doing}: the cloud denied access: {_matching(error, _REFUSED, reason)}; see `orch check{more}"
            )
        if _THROTTLED.search(everything) and not (_QUOTA.search(everything) or _CAPACITY.search(everything)):
            return TransientError(
                f"{doing}: the cloud's API is throttling requests: {_matching(error, _THROTTLED, reason)}"
            )
        # If capacity is mentioned too, "limit" is the cloud's way of saying that it is full.
        if _QUOTA.search(everything) and not _CAPACITY.search(everything):
            return QuotaError(f"{doing}: over the account's quota: {_matching(error, _QUOTA, reason)}")
        if _CONFLICT.search(everything):
            return TransientError(
                f"{doing}: another launch was setting up the same region: {_matching(error, _CONFLICT, reason)}"
            )
        # `doing` already says what was requested.
        return NoCapacityError(f"{doing}: {_REQUEST_DETAILS.split(_matching(error, _CAPACITY, reason))[0]}")
    if "ProvisionPrechecksError" in names:
        for each in getattr(error, "reasons", None) or ():
            return translate(each, doing)
    if names & _SERVER_LOST or ("404" in message and "equest" in message):
        return TransientError(f"{doing}: SkyPilot's API server does not answer: {message}")
    if "RequestCancelled" in names:
        return TransientError(f"{doing}: the request was cancelled")
    if "Failed to run setup commands" in everything or "ClusterSetUpError" in names:
        return TransientError(f"{doing}: the VM was lost or unreachable while SkyPilot set it up")
    if names & _INVALID and "ClusterDoesNotExist" not in names:
        return InvalidRequestError(f"{doing}: {message}")
    return TransientError(f"{doing}: {message}")


def is_unexplained(error: BaseException) -> bool:
    """Whether SkyPilot says that a VM could not be rented, but not why: the cloud's message is in its log only."""
    names = {cls.__name__ for cls in type(error).__mro__}
    known = (_REFUSED, _THROTTLED, _QUOTA, _CAPACITY, _CONFLICT)
    everything = _everything(error)
    return "ResourcesUnavailableError" in names and not any(each.search(everything) for each in known)


def is_conflict(error: BaseException, reason: str = "") -> bool:
    """Whether a launch failed only because another one set up the same region at that moment: repeating it helps."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return "ResourcesUnavailableError" in names and bool(_CONFLICT.search(_everything(error, reason)))


def cloud_message(provision_log: str) -> str:
    """The message of the last exception in the text of a provisioning log; "" if there is none."""
    lines = (_EXCEPTION_LINE.match(line.strip()) for line in _ANSI.sub("", provision_log).splitlines())
    return next((found["message"] for found in reversed(list(lines)) if found), "")


def is_server_lost(error: BaseException) -> bool:
    """Whether SkyPilot's API server died or was restarted during a call, which may or may not have taken effect."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    return bool(names & _SERVER_LOST) or ("404" in text and "equest" in text)


def is_gone(error: BaseException) -> bool:
    """Whether the error says that there is no such cluster."""
    return any(cls.__name__ == "ClusterDoesNotExist" for cls in type(error).__mro__)


def sentence(error: BaseException) -> str:
    """First meaningful line of an error as plain text without a full stop."""
    return _shorten(str(error)) or type(error).__name__


def _shorten(text: str) -> str:
    for line in _ANSI.sub("", text).splitlines():
        clean = re.sub(r"\s+", " ", re.sub(r"[│├└─╰•]+", " ", line)).strip(" .:")
        if clean:
            return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 3]}..."
    return ""


def _causes(error: BaseException) -> list[BaseException]:
    """Errors that led to an error. SkyPilot includes some errors in their own history."""
    found: list[BaseException] = []
    waiting: list[Any] = list(getattr(error, "failover_history", None) or ())
    while waiting:
        each = waiting.pop(0)
        if each is not error and not any(each is known for known in found):
            found.append(each)
            waiting += getattr(each, "failover_history", None) or ()
    return found


def _everything(error: BaseException, reason: str = "") -> str:
    """All messages of an error and its causes in one text."""
    return " | ".join([_ANSI.sub("", str(error)), *(str(cause) for cause in _causes(error)), reason])


def _matching(error: BaseException, pattern: re.Pattern[str], reason: str) -> str:
    """The cloud's own message that matches the pattern, or else its reason, or else SkyPilot's sentence."""
    for cause in (reason, *_causes(error), error):
        for line in _ANSI.sub("", str(cause)).splitlines():
            if pattern.search(line):
                return _shorten(line)
    return _shorten(reason) or next((text for text in map(sentence, _causes(error)) if text), sentence(error))
