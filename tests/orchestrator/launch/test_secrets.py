"""Objects with secret values never show them: not in a repr, an error, a traceback, the log or the store."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path

import pytest

from cloud.provider import LaunchRequest, ProviderError, TransientError
from cloud.storage.swift_config import StoreCredentials
from experiments.parse.load import find, from_document, load
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.schema.errors import SpecError
from metrics.store.database import RunStore
from orchestrator.controller.calls import Call, Done, InlineCalls
from orchestrator.controller.json_log import about, log_to
from orchestrator.core.events import RequestVm
from orchestrator.errors import UsageError
from orchestrator.launch.keys import VmKeys, forget_keys, vm_keys
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare, write_environment

SECRET = "canary-8f2c1d7ab9"
PEER = RequestVm("geo-1-us-0-0", "us-0", 0, 0, ())


@pytest.fixture
def quick_keys(monkeypatch):
    monkeypatch.setattr("orchestrator.launch.keys.generate_identity", lambda: (SECRET.encode(), "id"))
    monkeypatch.setattr(
        "orchestrator.launch.keys.generate_record_key", lambda: (SECRET.encode(), "ssh-rsa AAAA")
    )


@pytest.fixture
def folder(tmp_path, monkeypatch, quick_keys) -> Path:
    """A run with a secret of the experiment's."""
    monkeypatch.setenv("ORCH_CANARY", SECRET)
    spec = load("local-2", ["secrets.ORCH_CANARY=null"])
    folder = prepare(approved_plan(spec, "local", {}, cores=2), find("local-2"), "geo-1", tmp_path, now_s=1.0)
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")  # as the shell writes them
    return folder


def request_of(folder: Path) -> LaunchRequest:
    with RunStore.open_reader(folder / "run.db") as store:
        spec = from_document(store.meta("experiment"))
        requests = RunRequests(folder, store)
    assert "ORCH_CANARY" in spec.secrets
    place = next(iter(_places(folder)))
    return requests.peer(PEER, place)


def _places(folder: Path):
    from orchestrator.core.journal import replay

    with RunStore.open_reader(folder / "run.db") as store:
        return replay(store.records("events")).spec.slots[0].places


def test_objects_with_secrets_do_not_show_them(folder):
    request = request_of(folder)
    assert request.config["environment"]["ORCH_CANARY"] == SECRET  # it is in there
    assert request.files["record.key"] == SECRET.encode()
    config = PeerConfig(**{**request.config, "shards": tuple(request.config["shards"])})
    call = Call("request geo-1-us-0-0", "request", (request,))
    carriers = [
        request, config, call, Done(call, error=TransientError("no answer")), vm_keys(folder, PEER.vm),
        VmKeys(SECRET.encode(), "id", SECRET.encode(), ""), StoreCredentials("id", SECRET),
    ]  # fmt: skip
    for carrier in carriers:
        assert SECRET not in f"{carrier!r} {carrier}", type(carrier).__name__


def test_a_failed_call_shows_no_secret(folder, tmp_path):
    """Neither the error, nor its traceback, nor what the log says of it."""

    class Broken:
        def request(self, request: LaunchRequest) -> None:
            raise TransientError(f"{request.vm}: no answer to {request!r}")

    log = logging.getLogger("orchestrator.controller.test_secrets")
    log_to(log, tmp_path / "controller.log", "geo-1")
    calls = InlineCalls(Broken())  # type: ignore[arg-type]
    try:
        calls.wait(Call("request geo-1-us-0-0", "request", (request_of(folder),)))
    except ProviderError as error:
        log.exception("refused", extra=about(vm=PEER.vm, cause=error))
        told = "".join(traceback.format_exception(error)) + str(error) + repr(error)
    for handler in log.handlers[:]:
        log.removeHandler(handler)
        handler.close()
    assert "no answer" in told
    assert SECRET not in told
    assert SECRET not in (tmp_path / "controller.log").read_text()


@pytest.mark.parametrize("damage", ["unknown", "missing", "cut", "kind"])
def test_an_unreadable_config_shows_no_secret(folder, tmp_path, damage):
    config = dict(request_of(folder).config)
    text = json.dumps(
        {
            "unknown": {**config, "novel": SECRET},
            "missing": {k: v for k, v in config.items() if k != "vm"},
            "cut": config,
            "kind": [SECRET],
        }[damage]
    )
    path = tmp_path / "config.json"
    path.write_text(text[:-9] if damage == "cut" else text)
    with pytest.raises(PeerConfigError) as raised:
        PeerConfig.load(path)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_secret_written_into_the_experiment_is_not_repeated(tmp_path):
    text = find("local-2").read_text() + f"secrets:\n  AWS_SECRET_ACCESS_KEY: {SECRET}\n"
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SpecError) as raised:
        load(str(tmp_path / "mine.yaml"))
    assert "AWS_SECRET_ACCESS_KEY" in str(raised.value)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_an_unset_secret_is_reported_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("ORCH_CANARY", raising=False)
    with pytest.raises(UsageError, match="ORCH_CANARY: not set"):
        write_environment(tmp_path, load("local-2", ["secrets.ORCH_CANARY=null"]))


def test_secrets_are_in_private_files_and_removed_at_the_end(folder):
    vm = folder / "vms" / PEER.vm
    vm.mkdir(parents=True)
    request = request_of(folder)
    (vm / "config.json").write_text(json.dumps(dict(request.config)))
    (vm / "record.key").write_bytes(request.files["record.key"])
    with_it = {
        p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()
    }
    assert {p.parts[0] for p in with_it} == {"keys", "vms"}
    private = [p for p in (folder / "keys").rglob("*") if p.is_file() and p.suffix == ".key"]
    assert {p.stat().st_mode & 0o077 for p in (*private, folder)} == {0}
    forget_keys(folder)
    left = [p for p in folder.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert left == []
    assert "ORCH_CANARY" in json.loads((vm / "config.json").read_text())["environment"]
