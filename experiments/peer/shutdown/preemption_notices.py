"""Reads the provider's preemption notice on the VM itself.

The readers of the vendors' metadata services are in `cloud.vendors` (plain HTTP on the link-local address, without
credentials). A URL `http://...` or `file://...` returns AWS's JSON; the emulated cloud and the tests use it.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cloud.vendors import VENDORS
from cloud.vendors.aws import instance_action
from cloud.vendors.notices import Notice, NoticeError

_METADATA = "http://169.254.169.254"
_TIMEOUT_S = 1.0
_PERIOD_S = 2.0
_MAX_BYTES = 64 * 1024
_FAILURES_TO_WARN = 3  # in a row: warn about an endpoint that is down, not about a single failure
# The metadata address is link-local, so the environment's proxy must not be used for it.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Source:
    """A source of preemption notices: a vendor's metadata service or a URL."""

    def __init__(
        self,
        url: str,
        *,
        unix_time: Callable[[], float] = time.time,
        timeout_s: float = _TIMEOUT_S,
        metadata: str = _METADATA,
    ) -> None:
        """`url`: a vendor with preemption notices, http(s)://... or file://...; raises ValueError for anything else."""
        readers = {name: vendor.notices for name, vendor in VENDORS.items() if vendor.notices}
        scheme = urlsplit(url).scheme
        if url not in readers and scheme not in ("http", "https", "file"):
            known = ", ".join((*readers, "http://...", "file://..."))
            raise ValueError(f"notice_url: {url!r} is not one of {known}")
        self._url, self._metadata, self._timeout_s = url, metadata, timeout_s
        if url in readers:
            self._read = readers[url](self._ask_metadata, unix_time)
        else:
            self._read = self._file if scheme == "file" else self._plain

    def poll(self) -> Notice | None:
        """Return the current notice, or None. Raises NoticeError."""
        return self._read()

    def _plain(self) -> Notice | None:
        status, text = self._ask(self._url, {}, allowed=(404,))
        return None if status == 404 else instance_action(text)

    def _file(self) -> Notice | None:
        try:
            text = Path(unquote(urlsplit(self._url).path)).read_text()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise NoticeError(f"{self._url}: {error}") from error
        return instance_action(text)

    def _ask_metadata(
        self, path: str, headers: dict[str, str], method: str = "GET", allowed: tuple[int, ...] = ()
    ) -> tuple[int, str]:
        """See `cloud.vendors.notices.Ask`."""
        return self._ask(self._metadata + path, headers, method, allowed)

    def _ask(
        self, url: str, headers: dict[str, str], method: str = "GET", allowed: tuple[int, ...] = ()
    ) -> tuple[int, str]:
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            with _open(request, timeout=self._timeout_s) as answer:
                return 200, answer.read(_MAX_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in allowed:
                return error.code, ""
            raise NoticeError(f"{url}: {error}") from error
        except (OSError, HTTPException) as error:  # URLError, timeouts, responses that are not HTTP
            raise NoticeError(f"{url}: {error}") from error


class NoticeWatch:
    """Polls a source every `period_s` in a thread and calls `on_notice` once, in that thread. Errors are warnings."""

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
        """End the thread without waiting for it."""
        self._ended.set()

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                notice = self._source.poll()
            except NoticeError as error:
                failures += 1
                if failures == _FAILURES_TO_WARN:
                    self._warn(f"cannot read the provider's preemption notice: {error}")
            else:
                failures = 0
                if notice is not None:
                    self._on_notice(notice)
                    return
            self._ended.wait(self._period_s)
