"""Preemption notices: metadata endpoints of three clouds on loopback, their errors, and a watch that survives them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloud.vendors.aws import instance_action
from cloud.vendors.azure import azure_notice
from cloud.vendors.gcp import gcp_notice
from cloud.vendors.notices import Notice, NoticeError
from experiments.peer.shutdown.preemption_notices import NoticeWatch, Source

ACTION = json.dumps({"action": "terminate", "time": "2026-11-21T15:00:00Z"})
AT_S = 1795273200.0
NOW_S = 1795273100.0
Answer = tuple[int, str]


@contextlib.contextmanager
def endpoint(answer: Callable[[str, str, dict[str, str]], Answer]) -> Iterator[str]:
    """Serves `answer(method, path, headers)`; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            with contextlib.suppress(OSError):  # the client may have disconnected
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

        do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def source(kind: str, base: str, timeout_s: float = 1.0) -> Source:
    return Source(kind, unix_time=lambda: NOW_S, timeout_s=timeout_s, metadata=base)


class Imds:
    """AWS's metadata service, where only the last token is valid."""

    def __init__(self, action: Answer = (404, "")) -> None:
        self.action, self.tokens, self.valid = action, 0, ""

    def __call__(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        if path == "/latest/api/token":
            if method != "PUT" or not headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                return 400, ""
            self.tokens += 1
            self.valid = f"token-{self.tokens}"
            return 200, self.valid
        if path != "/latest/meta-data/spot/instance-action" or method != "GET":
            return 405, ""
        return self.action if headers.get("x-aws-ec2-metadata-token") == self.valid else (401, "")


def test_aws_token_is_requested_once_and_again_when_refused() -> None:
    service = Imds()
    with endpoint(service) as base:
        aws = source("aws", base)
        assert aws.poll() is None
        assert aws.poll() is None
        assert service.tokens == 1
        service.valid = "expired"
        service.action = (200, ACTION)
        assert aws.poll() == Notice(AT_S, "terminate")
        assert service.tokens == 2


def test_aws_that_refuses_its_own_tokens_is_an_error() -> None:
    with (
        endpoint(lambda method, *_: (200, "t") if method == "PUT" else (401, "")) as base,
        pytest.raises(NoticeError, match="rejects the token"),
    ):
        source("aws", base).poll()


@pytest.mark.parametrize(
    ("preempted", "maintenance", "action"),
    [
        ("FALSE", (200, "NONE"), None),
        ("FALSE", (404, ""), None),
        ("FALSE", (200, "MIGRATE_ON_HOST_MAINTENANCE"), None),
        ("FALSE", (200, "TERMINATE_ON_HOST_MAINTENANCE"), "TERMINATE_ON_HOST_MAINTENANCE"),
        ("TRUE", (200, "NONE"), "preempted"),
    ],
)
def test_gcp_notice_without_a_time_assumes_thirty_seconds(
    preempted: str, maintenance: Answer, action: str | None
) -> None:
    def answer(_: str, path: str, headers: dict[str, str]) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return 403, ""
        if path == "/computeMetadata/v1/instance/preempted":
            return 200, preempted
        return maintenance if path == "/computeMetadata/v1/instance/maintenance-event" else (404, "")

    with endpoint(answer) as base:
        found = source("gcp", base).poll()
    assert found == (None if action is None else Notice(NOW_S + 30.0, action))


def azure_event(kind: str = "Preempt", vm: str = "ours", at: str = "Sat, 21 Nov 2026 15:00:00 GMT") -> dict:
    return {"EventId": "1", "EventType": kind, "Resources": [vm], "EventStatus": "Scheduled", "NotBefore": at}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([azure_event("Reboot")], None),
        ([azure_event(vm="another")], None),
        ([azure_event("Freeze"), azure_event()], Notice(AT_S, "Preempt")),
        ([azure_event(at="")], Notice(NOW_S + 30.0, "Preempt")),
    ],
)
def test_azure_preempts_only_the_vm_it_names(events: list[dict], expected: Notice | None) -> None:
    def answer(_: str, path: str, headers: dict[str, str]) -> Answer:
        if headers.get("metadata") != "true":
            return 400, ""
        if path.startswith("/metadata/scheduledevents?api-version="):
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": events})
        return (200, "ours") if path.startswith("/metadata/instance/compute/name?") else (404, "")

    with endpoint(answer) as base:
        assert source("azure", base).poll() == expected


def test_azure_without_a_name_leaves_for_any_event() -> None:
    def answer(_: str, path: str, __: dict[str, str]) -> Answer:
        return (200, json.dumps({"Events": [azure_event()]})) if "scheduledevents" in path else (500, "")

    with endpoint(answer) as base:
        assert source("azure", base).poll() == Notice(AT_S, "Preempt")


def test_url_and_file_sources_return_aws_json(tmp_path: Path) -> None:
    file = tmp_path / "notice of the provider.json"
    assert Source(file.as_uri()).poll() is None
    file.write_text(ACTION)
    assert Source(file.as_uri()).poll() == Notice(AT_S, "terminate")
    replies = [(404, ""), (200, ACTION)]
    with endpoint(lambda *_: replies.pop(0)) as base:
        plain = Source(f"{base}/notice")
        assert plain.poll() is None
        assert plain.poll() == Notice(AT_S, "terminate")


def test_unknown_url_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of aws, gcp, azure"):
        Source("gopher://x")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"action": 1, "time": "2026-11-21T15:00:00Z"}', '{"action": "stop"}',
     '{"action": "stop", "time": "soon"}', "[" * 100_000],
)  # fmt: skip
def test_invalid_responses_are_errors(text: str) -> None:
    with pytest.raises(NoticeError):
        instance_action(text)
    with pytest.raises(NoticeError):
        azure_notice(text, "ours", NOW_S)


@pytest.mark.parametrize("events", ["1", "[1]", '[{"EventType": "Preempt", "NotBefore": "soon"}]'])
def test_invalid_scheduled_events_are_errors(events: str) -> None:
    with pytest.raises(NoticeError):
        azure_notice(f'{{"Events": {events}}}', "ours", NOW_S)


def test_gcp_response_other_than_true_or_false_is_an_error() -> None:
    with pytest.raises(NoticeError, match="neither"):
        gcp_notice("<html>", "NONE", NOW_S)


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_service_that_refuses_is_an_error(kind: str, status: int) -> None:
    with endpoint(lambda *_: (status, "no")) as base, pytest.raises(NoticeError, match=str(status)):
        source(kind, base).poll()


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_unreachable_service_is_an_error(kind: str) -> None:
    with pytest.raises(NoticeError):
        source(kind, "http://127.0.0.1:1").poll()


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_hanging_service_is_an_error_after_a_timeout(kind: str) -> None:
    released = threading.Event()

    def hang(*_: object) -> Answer:
        released.wait(10.0)
        return 200, ""

    with endpoint(hang) as base:
        began = time.monotonic()
        with pytest.raises(NoticeError):
            source(kind, base, timeout_s=0.1).poll()
        released.set()
    assert time.monotonic() - began < 5.0


def test_environment_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with endpoint(Imds((200, ACTION))) as base:
        assert source("aws", base).poll() == Notice(AT_S, "terminate")


def test_watch_warns_once_about_bad_responses_and_still_finds_the_notice() -> None:
    service = Imds((200, "not JSON"))
    warnings: list[str] = []
    notices: list[Notice] = []
    found = threading.Event()

    def noticed(notice: Notice) -> None:
        notices.append(notice)
        found.set()

    with endpoint(service) as base:
        watch = NoticeWatch(source("aws", base), noticed, warnings.append, period_s=0.01)
        deadline = time.monotonic() + 10.0
        while not warnings and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not notices
        service.action = (200, ACTION)
        assert found.wait(10.0)
        watch.stop()
    assert notices == [Notice(AT_S, "terminate")]
    assert len(warnings) == 1
    assert "not JSON" in warnings[0]
