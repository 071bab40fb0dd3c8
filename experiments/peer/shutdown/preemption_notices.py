"""The provider's notice that it will take this VM back, read on the VM itself.

Sources (all plain HTTP on the link-local metadata address, none needs credentials):
- `aws`: IMDSv2, a token by PUT, then spot/instance-action; 404 means that nothing is announced;
- `gcp`: instance/preempted and instance/maintenance-event; Google says no time, a spot VM has 30 s;
- `azure`: scheduled events of the type Preempt that name this VM;
- an URL `http://...` or `file://...` that answers AWS's JSON: the emulated cloud, tests.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit

_log = logging.getLogger(__name__)

_METADATA = "http://169.254.169.254"
_TIMEOUT_S = 1.0
_PERIOD_S = 2.0
_MAX_BYTES = 64 * 1024
_FAILURES_TO_WARN = 3  # an endpoint that stays away, not one that hiccups
_TOKEN_LIFE_S = 21600
_GRACE_S = 30.0  # what a spot VM has where the provider names no time (GCP; Azure once an event has started)
_GCP_ENDS = "TERMINATE_ON_HOST_MAINTENANCE"
# The metadata address is on the link: no proxy of the environment may be asked for it.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class NoticeError(Exception):
    """The answer cannot be had, or is none."""


@dataclass(frozen=True)
class Notice:
    """The provider will take this VM back."""

    at_s: float  # unix time; not before
    action: str  # the provider's own word: "terminate", "preempted", "Preempt" ...


def instance_action(text: str) -> Notice:
    """AWS's JSON: {"action": "terminate", "time": "2026-11-21T15:00:00Z"}. Raises NoticeError."""
    document = _document(text)
    action, at = document.get("action"), document.get("time")
    if not isinstance(action, str) or not isinstance(at, str):
        raise NoticeError(f"not an instance action: {text[:80]!r}")
    try:
        time_ = datetime.fromisoformat(at)
    except ValueError as error:
        raise NoticeError(f"not a time: {at[:80]!r}") from error
    return Notice((time_ if time_.tzinfo else time_.replace(tzinfo=UTC)).timestamp(), action)


def gcp_notice(preempted: str, maintenance: str, now_s: float) -> Notice | None:
    """Google's two values: TRUE or FALSE, and NONE or what the host's maintenance does. Raises NoticeError."""
    if preempted.strip().upper() not in ("TRUE", "FALSE"):
        raise NoticeError(f"instance/preempted is neither TRUE nor FALSE: {preempted[:80]!r}")
    if preempted.strip().upper() == "TRUE":
        return Notice(now_s + _GRACE_S, "preempted")
    return Notice(now_s + _GRACE_S, _GCP_ENDS) if maintenance.strip() == _GCP_ENDS else None


def azure_notice(text: str, vm: str, now_s: float) -> Notice | None:
    """The first Preempt event that names the VM (`vm` "": whichever it names). Raises NoticeError."""
    events = _document(text).get("Events")
    if not isinstance(events, list):
        raise NoticeError(f"no scheduled events: {text[:80]!r}")
    for event in events:
        if not isinstance(event, dict):
            raise NoticeError(f"not a scheduled event: {event!r}"[:120])
        named = event.get("Resources")
        ours = not vm or not isinstance(named, list) or not named or vm in named
        if event.get("EventType") == "Preempt" and ours:
            return Notice(_azure_time(event.get("NotBefore"), now_s), "Preempt")
    return None


def _azure_time(not_before: object, now_s: float) -> float:
    """NotBefore is empty once the event has started."""
    if not not_before:
        return now_s + _GRACE_S
    try:
        return parsedate_to_datetime(str(not_before)).timestamp()
    except ValueError as error:
        raise NoticeError(f"not a time: {str(not_before)[:80]!r}") from error


def _document(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoticeError(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise NoticeError(f"not a JSON object: {text[:80]!r}")
    return found


class Source:
    """Asks one source. Keeps AWS's token and this VM's name on Azure between two looks."""

    def __init__(
        self,
        url: str,
        *,
        unix_time: Callable[[], float] = time.time,
        timeout_s: float = _TIMEOUT_S,
        metadata: str = _METADATA,
    ) -> None:
        """`url`: aws, gcp, azure, http(s)://... or file://...; raises ValueError for another."""
        kinds = {"aws": self._aws, "gcp": self._gcp, "azure": self._azure}
        scheme = urlsplit(url).scheme
        if url not in kinds and scheme not in ("http", "https", "file"):
            raise ValueError(f"notice_url: {url!r} is none of aws, gcp, azure, http://..., file://...")
        self._look = kinds.get(url, self._file if scheme == "file" else self._plain)
        self._url, self._metadata = url, metadata
        self._unix_time, self._timeout_s = unix_time, timeout_s
        self._token = self._vm = ""

    def look(self) -> Notice | None:
        """What is announced now; None: nothing. Raises NoticeError."""
        return self._look()

    def _plain(self) -> Notice | None:
        status, text = self._ask(self._url)
        return None if status == 404 else instance_action(text)

    def _file(self) -> Notice | None:
        try:
            text = Path(unquote(urlsplit(self._url).path)).read_text()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise NoticeError(f"{self._url}: {error}") from error
        return instance_action(text)

    def _aws(self) -> Notice | None:
        for _ in range(2):  # a token that has become invalid is asked for once more
            if not self._token:
                life = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}
                _, self._token = self._ask(f"{self._metadata}/latest/api/token", life, "PUT", allowed=())
            status, text = self._ask(
                f"{self._metadata}/latest/meta-data/spot/instance-action",
                {"X-aws-ec2-metadata-token": self._token},
                allowed=(401, 404),
            )
            if status != 401:
                return None if status == 404 else instance_action(text)
            self._token = ""
        raise NoticeError("the metadata service refuses the token it gave")

    def _gcp(self) -> Notice | None:
        base, flavor = f"{self._metadata}/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
        _, preempted = self._ask(f"{base}/preempted", flavor, allowed=())
        _, maintenance = self._ask(f"{base}/maintenance-event", flavor)  # not there: 404, no word of it
        return gcp_notice(preempted, maintenance, self._unix_time())

    def _azure(self) -> Notice | None:
        flavor = {"Metadata": "true"}
        url = f"{self._metadata}/metadata/scheduledevents?api-version=2020-07-01"
        _, text = self._ask(url, flavor, allowed=())
        if '"Preempt"' in text and not self._vm:
            name = f"{self._metadata}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            try:
                self._vm = self._ask(name, flavor, allowed=())[1].strip()
            except NoticeError as error:  # leaving for somebody else's event is better than not leaving
                _log.warning("this VM's name on Azure is not known: %s", error)
        return azure_notice(text, self._vm, self._unix_time())

    def _ask(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        allowed: tuple[int, ...] = (404,),
    ) -> tuple[int, str]:
        """(status, text); a status that is neither 200 nor `allowed` is an error. Raises NoticeError."""
        request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
        try:
            with _open(request, timeout=self._timeout_s) as answer:
                return 200, answer.read(_MAX_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in allowed:
                return error.code, ""
            raise NoticeError(f"{url}: {error}") from error
        except (OSError, HTTPException) as error:  # URLError, time-outs, lines that are no HTTP
            raise NoticeError(f"{url}: {error}") from error


class NoticeWatch:
    """Looks each `period_s` in a thread and calls `on_notice` once, there. Bad answers are warnings."""

    def __init__(
        self,
        source: Source,
        on_notice: Callable[[Notice], None],
        warn: Callable[[str], None],
        period_s: float = _PERIOD_S,
    ) -> None:
        """Starts the thread."""
        self._source, self._on_notice, self._warn, self._period_s = source, on_notice, warn, period_s
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def stop(self) -> None:
        """End the thread; it is not waited for."""
        self._ended.set()

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                notice = self._source.look()
            except NoticeError as error:
                failures += 1
                if failures == _FAILURES_TO_WARN:
                    self._warn(f"the provider's notice cannot be read: {error}")
            else:
                failures = 0
                if notice is not None:
                    self._on_notice(notice)
                    return
            self._ended.wait(self._period_s)
