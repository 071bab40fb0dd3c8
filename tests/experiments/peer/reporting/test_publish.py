"""The publisher: stored values, retries, and that it never blocks the caller."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey

from experiments.peer.reporting.publish import Publisher, PublishError, use_record_key
from experiments.wire.dht_records import (
    KEEP_EPOCHS,
    MAX_EPOCHS,
    OrchSchema,
    RecordError,
    decode_epochs,
    decode_evaluations,
)
from experiments.wire.record_keys import generate_record_key
from metrics.records import EgressRecord, EpochRecord, IngressRecord

_NOW_S = 1_790_000_000.0
_VM = "run-a-0"


class _Dht:
    """A fake hivemind.DHT that runs coroutines with given results (the real one: test_monitor_processes)."""

    def __init__(self, answers=()):
        self.answers = list(answers)
        self.stored = []
        self.validators = []
        self.gate = threading.Event()
        self.gate.set()

    def add_validators(self, validators):
        self.validators += validators

    def run_coroutine(self, work, return_future):
        assert return_future
        assert self.gate.wait(10)
        self.stored.append(work.args)  # key, subkey, value
        answer = self.answers.pop(0) if self.answers else True
        future = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


@pytest.fixture
def record_key(tmp_path, monkeypatch):
    monkeypatch.setattr(RSAPrivateKey, "_process_wide_key", None)
    pem, public = generate_record_key()
    (tmp_path / "record.key").write_bytes(pem)
    return tmp_path / "record.key", public


@pytest.fixture
def start(record_key):
    started = []

    def make(dht, **more):
        started.append(Publisher(dht, "run", _VM, "a", 0, record_key[0], unix_time=lambda: _NOW_S, **more))
        return started[-1]

    yield make
    for publisher in started:
        publisher.close()


def _epoch(number, **more):
    base = EpochRecord(
        _VM,
        number,
        _NOW_S - 4,
        _NOW_S,
        4,
        64,
        0.5,
        0.0,
        1.5,
        1.0,
        0.0,
        1.0,
        0.0,
        3.0,
        1.0,
        2.3,
        2,
        "",
        "digits",
    )
    return replace(base, **more), (), IngressRecord(_VM, number, 10, 0)


def test_value_holds_the_last_epochs_with_increasing_sequence(start, record_key):
    dht = _Dht()
    publisher = start(dht)
    for number in range(1, 6):
        publisher.epoch(*_epoch(number))
        assert publisher.flush(5)
    sequences = []
    for key, subkey, value in dht.stored:
        assert key == "run_orch_epochs"
        assert subkey == f"{_VM}[owner:{record_key[1]}]".encode()
        sequences.append(decode_epochs(value, _VM, "a", 0, _NOW_S)[0])
    assert sequences == sorted(set(sequences))
    _, reports = decode_epochs(dht.stored[-1][2], _VM, "a", 0, _NOW_S)
    assert [report.epoch for report in reports] == [_epoch(n)[0] for n in (3, 4, 5)]
    assert len(reports) == KEEP_EPOCHS


def test_keep_sets_the_number_of_published_epochs(start):
    """A monitor that reads every second, or every five, sees all of them; the value fits Hivemind's pipe."""
    dht = _Dht()
    publisher = start(dht, keep=MAX_EPOCHS)
    for number in range(1, 41):
        publisher.epoch(*_epoch(number))
    assert publisher.flush(5)
    value = dht.stored[-1][2]
    _, reports = decode_epochs(value, _VM, "a", 0, _NOW_S)
    assert [report.epoch.epoch for report in reports] == list(range(9, 41))
    assert len(MSGPackSerializer.dumps(value)) < 12 * 1024


def test_refused_and_failed_stores_are_retried(start, monkeypatch):
    monkeypatch.setattr("experiments.peer.reporting.publish._RETRY_S", 0.01)
    dht = _Dht([False, RuntimeError("its process is gone"), True])
    publisher = start(dht)
    publisher.epoch(*_epoch(1))
    publisher.flush(0)
    assert publisher.flush(10)
    assert len(dht.stored) == 3
    assert publisher.warnings == []


def test_hanging_dht_does_not_block_training(start):
    dht = _Dht()
    dht.gate.clear()
    publisher = start(dht)
    for number in range(1, 4):
        publisher.epoch(*_epoch(number))  # returns although nothing is stored
    publisher.evaluation(3, {"accuracy": 0.5, "loss": 2.0}, 100)
    assert not publisher.flush(0.05)
    dht.gate.set()
    assert publisher.flush(5)
    assert {args[0] for args in dht.stored} == {"run_orch_epochs", "run_orch_evaluations"}


def test_records_that_readers_refuse_are_refused(start):
    publisher = start(_Dht())
    for wrong in (
        {"samples": -1},
        {"calc_s": 9.0},
        {"epoch": 0},
        {"vm": "run-b-0"},
        {"comm_s": float("nan")},
    ):
        with pytest.raises(RecordError):
            publisher.epoch(*_epoch(1, **wrong))
    with pytest.raises(RecordError):
        publisher.evaluation(1, {"accuracy": 1.5, "loss": 0.1}, 10)
    publisher.epoch(*_epoch(1, loss=float("nan")))  # a diverged training is still measured


def test_oldest_epochs_are_dropped_for_many_destinations(start):
    dht = _Dht()
    publisher = start(dht)
    for number in (1, 2, 3):
        epoch, _, ingress = _epoch(number)
        egress = [EgressRecord(_VM, number, f"10.0.1.{i}", "comm", 1.0, 10**9) for i in range(150)]
        publisher.epoch(epoch, egress, ingress)
    assert publisher.flush(5)
    _, reports = decode_epochs(dht.stored[-1][2], _VM, "a", 0, _NOW_S)
    assert reports[-1].epoch.epoch == 3
    assert len(reports) < 3


def test_record_key_becomes_hiveminds_process_key(record_key, tmp_path):
    key = use_record_key(record_key[0])
    assert RSAPrivateKey.process_wide() is key
    use_record_key(record_key[0])  # twice is fine
    assert key.get_public_key().to_bytes().decode() == record_key[1]
    other = tmp_path / "other.key"
    other.write_bytes(generate_record_key()[0])
    with pytest.raises(PublishError, match="before DHT"):
        use_record_key(other)
    other.write_text("no key")
    with pytest.raises(PublishError, match=r"other\.key"):
        use_record_key(other)


def test_an_evaluation_has_the_fields_of_earlier_versions_unless_the_task_has_other_figures(start):
    for figures, more in (
        ({"accuracy": 0.5, "loss": 2.0}, {"accuracy": 0.5, "loss": 2.0}),
        ({"accuracy": 0.5}, {"accuracy": 0.5, "loss": None}),
        ({"loss": 2.0, "wer": 1.5}, {"accuracy": None, "loss": 2.0, "metrics": {"wer": 1.5}}),
        ({"loss": 2.0}, {"accuracy": None, "loss": 2.0, "metrics": {}}),
    ):
        dht = _Dht()
        publisher = start(dht)
        publisher.evaluation(3, figures, 100)
        assert publisher.flush(5)
        value = dht.stored[-1][2]
        assert value["evals"] == [{"epoch": 3, "at": _NOW_S, "samples": 100, **more}]
        assert OrchSchema.parse_obj({
            "orch_epochs": {}, "orch_evaluations": {dht.stored[-1][1]: value}, "orch_members": {}
        }).dict()["orch_evaluations"] == {dht.stored[-1][1]: value}  # fmt: skip
        _, (row,) = decode_evaluations(value, _VM, "a", 0, _NOW_S)
        assert (row.accuracy, row.loss) == (more["accuracy"], more["loss"])
        assert row.metrics == more.get("metrics", {})
