"""A finished run whose cloud cannot be closed keeps its end and reports that VMs may be left."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from cloud.provider import AmbiguousError, CredentialsError, NoCapacityError, TransientError
from metrics.records import EventRecord
from metrics.store.database import RunStore, StoreError
from orchestrator.controller import actor, client, loop
from orchestrator.controller.calls import Call, RayCalls
from orchestrator.controller.client import RunConnection
from orchestrator.core.events import StopWanted
from orchestrator.core.journal import begin, created
from orchestrator.core.machine import advance
from orchestrator.errors import RunFailedError, TeardownError, exit_code
from tests.orchestrator.shell_world import RUN


@pytest.fixture
def folder(tmp_path):
    """Of a run that has ended for lack of money, and is not closed."""
    path = tmp_path / "runs" / "r"
    path.mkdir(parents=True)
    over = advance(begin(RUN), [StopWanted(9.0, "budget", "4.99 USD spent")], 9.0, lambda: 0.5)
    with RunStore.open_writer(path / "run.db") as store:
        store.set_meta("status", "running")
        for seq, f in enumerate([created(RUN), *over.facts]):
            row = (f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json)
            store.append("events", [EventRecord(seq, 9.0, *row)])
    return path


class _Calls:
    """Whatever is called fails."""

    def __init__(self) -> None:
        self.called = []

    def wait(self, call):
        self.called.append(call.method)
        raise TransientError("no answer")


def broken(folder, monkeypatch, error):
    """A controller whose ticks raise this, to its end; what it said last."""
    monkeypatch.setattr(actor, "_exit_actor", lambda name: None)
    monkeypatch.setattr(actor, "_LINGER_S", 0.0)
    monkeypatch.setattr(loop, "_PERIOD_S", 0.0)
    monkeypatch.setattr(
        "ray.get_runtime_context",
        lambda: SimpleNamespace(was_current_actor_reconstructed=False, gcs_address="x"),
    )

    def tick():
        raise error

    made = actor.ControllerActor(str(folder), str(folder.parent.parent))
    made._store = RunStore.open_writer(folder / "run.db")
    shell = SimpleNamespace(tick=tick, state=SimpleNamespace(stop_status="done"))
    made._shells = loop.Shells(
        lambda: shell, folder, asked_to_stop=lambda _: "", free_reserve=lambda _: False
    )
    made._calls = _Calls()
    made._loop()
    return made, json.loads((folder / "controller.json").read_text())


def status_of(folder) -> str:
    with RunStore.open_reader(folder / "run.db") as store:
        return store.meta("status")


def test_a_failed_close_leaves_the_end_to_the_next_close(folder, monkeypatch):
    made, said = broken(folder, monkeypatch, TransientError("r-a-0 still lives"))
    assert made._calls.called == []  # closing was tried often enough
    assert status_of(folder) == "running"
    assert said["open"] is True
    assert "r is over (done), but VMs may be left" in said["failure"]
    assert said["failure"].endswith("r-a-0 still lives; retry with `orch down r`")


def test_an_unexpected_error_ends_the_vms_and_the_run(folder, monkeypatch):
    made, said = broken(folder, monkeypatch, ZeroDivisionError("a fault"))
    assert made._calls.called == ["close"]
    assert status_of(folder) == "failed"
    assert said["open"] is False


def test_an_unreadable_database_does_not_keep_vms_alive(folder, monkeypatch):
    """What closing needs of it is read when the controller starts."""

    def meta(*_):
        raise StoreError("run.db: disk I/O error")

    monkeypatch.setattr(RunStore, "meta", meta)
    made, said = broken(folder, monkeypatch, StoreError("run.db: disk I/O error"))
    assert made._calls.called == ["close"]
    assert "disk I/O error" in said["failure"]


@pytest.mark.parametrize(("is_open", "error", "code"), [(True, TeardownError, 5), (False, RunFailedError, 1)])
def test_wait_raises_the_controllers_failure(folder, monkeypatch, is_open, error, code):
    monkeypatch.setattr(client, "controller_alive", lambda folder: False)
    (folder / "controller.json").write_text(json.dumps({"failure": "so it is", "open": is_open}))
    with pytest.raises(error, match="so it is") as raised:
        RunConnection("r", folder).wait(1.0)
    assert exit_code(raised.value) == code


def test_a_later_teardown_keeps_the_end_in_the_journal(folder):
    client._write_end(folder, "taken down")
    with RunStore.open_reader(folder / "run.db") as store:
        assert (store.meta("status"), store.meta("error")) == ("budget", "4.99 USD spent")


# A fault of the provider's code is no end of the run


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (KeyError("region"), AmbiguousError),
        (NoCapacityError("none there"), NoCapacityError),
        (CredentialsError("expired"), CredentialsError),
    ],
)
def test_a_call_raises_only_provider_errors(monkeypatch, caplog, raised, becomes):
    def get(reference):
        raise RayTaskError("request", "its traceback", raised)

    monkeypatch.setattr("ray.get", get)
    logger = logging.getLogger("orchestrator.controller")  # another test's controller logs to its file alone
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "disabled", False)
    calls = RayCalls.__new__(RayCalls)
    done = calls._outcome(Call("request r-a-0", "request"), "a reference")
    assert type(done.error) is becomes
    assert ("request r-a-0 raised an unexpected exception" in caplog.text) == (becomes is AmbiguousError)
