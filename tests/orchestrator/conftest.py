"""The shell's world, for the tests that ask for it."""

import itertools

import pytest

from metrics.records import EventRecord
from metrics.store import RunStore
from orchestrator.core.journal import created
from tests.orchestrator.shell_world import RUN, World


@pytest.fixture
def quick_keys(monkeypatch):
    """RSA keys take a second each; the shell only passes them on."""
    ids = itertools.count()
    monkeypatch.setattr(
        "orchestrator.controller.keys.generate_identity", lambda: (b"identity", f"id{next(ids)}")
    )
    monkeypatch.setattr(
        "orchestrator.controller.keys.generate_record_key", lambda: (b"record", "ssh-rsa AAAA")
    )


@pytest.fixture
def world(tmp_path, quick_keys):
    world = World(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        fact = created(RUN)
        store.append(
            "events", [EventRecord(0, 999.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
        )
        for key, value in {
            "status": "running",
            "run_id": "r",
            "started_s": 999.0,
            "warmup_epochs": 1,
        }.items():
            store.set_meta(key, value)
    return world
