"""The server's processes: what an operation does to them costs its own sample's offloading and no more."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from experiments.offload.cores import Cores, _Worker
from experiments.offload.errors import PlanError
from experiments.offload.job import Job
from experiments.offload.mixed import as_stored
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.shard_stream import sample_bytes
from tests.experiments.offload.worker_ops import PIPELINE

pytestmark = pytest.mark.processes

TEXTS = ("raise", "hang", "exit", "allocate", "threads", "print", "plain")
WHERE = "tests.experiments.offload.worker_ops:PIPELINE"
TOKENS = {"a-0": "0123456789abcdef"}


def sample(text: str):
    return {"__key__": text, "__url__": "s3://b/t.tar", "txt": text.encode()}


def job(**changes) -> Job:
    plan = OffloadPlan.of(PIPELINE, 7, {text: Choice(1) for text in TEXTS})
    return Job(
        **{"where": WHERE, "plan": plan, "shards": frozenset({"s3://b/t.tar"}), "tokens": TOKENS, **changes}
    )


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_an_operation_that_fails_costs_its_sample_only() -> None:
    reports: list[str] = []
    cores = Cores(job(), 2, limit_s=2, memory_bytes=1 << 30, report=reports.append)
    try:
        first = cores.pids
        futures = {text: cores.submit(sample(text), 0, {}) for text in TEXTS}
        found = {text: future.result() for text, future in futures.items()}
        again = [cores.submit(sample("plain"), 1, {}).result() for _ in range(2)]
        last = cores.pids
    finally:
        cores.close()
    for text in ("raise", "hang", "exit", "allocate"):
        assert found[text] == sample_bytes(as_stored(sample(text)), {})
    for text, value in (("threads", b"1 1"), ("print", b"PRINT"), ("plain", b"PLAIN")):
        assert found[text] == sample_bytes(as_stored({"__key__": text, "text.op1.txt": value}), {})
    assert again == [found["plain"]] * 2
    assert len(first) == len(last) == 2
    assert not set(first) & set(last)
    assert not [pid for pid in (*first, *last) if is_alive(pid)]
    sentences = {report.partition("sample ")[2].partition(" ")[0]: report for report in reports}
    assert len(reports) == len(sentences) == 4
    assert "RuntimeError: this one is bad" in sentences["raise"]
    assert "took longer than 2 s" in sentences["hang"]
    assert "the process that ran its operations ended" in sentences["exit"]
    assert "MemoryError" in sentences["allocate"]


@pytest.mark.parametrize(
    ("changes", "count", "sentence"),
    [
        ({}, 0, "cores: 0 is not a whole number"),
        ({}, 1.5, "cores: 1.5 is not a whole number"),
        ({"where": "imagenet"}, 1, "the plan was made for pipeline acting"),
        ({"where": "nowhere:PIPELINE"}, 1, "nowhere:PIPELINE: cannot be imported"),
    ],
)
def test_processes_that_cannot_work_are_a_sentence(changes, count, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Cores(job(**changes), count, limit_s=2, memory_bytes=1 << 30, report=print)
    assert not [
        c
        for t in Path("/proc/self/task").iterdir()
        for c in (t / "children").read_text().split()
        if is_worker(c)
    ]


def is_worker(pid: str) -> bool:
    return b"experiments.offload.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shards": frozenset()}, "no shards to offer"),
        ({"tokens": {}}, "each slot needs a token"),
        ({"tokens": {"a-0": "short"}}, "each slot needs a token of at least 16"),
        ({"tokens": {"a-0": "0" * 16, "a-1": "0" * 16}}, "two slots have the same token"),
    ],
)
def test_a_job_without_what_it_needs_is_a_sentence(changes, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        job(**changes)


def test_tokens_are_no_part_of_what_is_printed() -> None:
    assert TOKENS["a-0"] not in repr(job())
    assert job().slot_of(TOKENS["a-0"]) == "a-0"
    assert job().slot_of("0123456789abcdeF") is None


def test_an_error_that_nobody_expects_costs_no_core(monkeypatch) -> None:
    cores = Cores(job(), 1, limit_s=20, memory_bytes=1 << 30, report=lambda _: None)
    ask = _Worker.ask

    def fails(*_):
        monkeypatch.setattr(_Worker, "ask", ask)
        raise MemoryError

    try:
        monkeypatch.setattr(_Worker, "ask", fails)
        with pytest.raises(MemoryError):
            cores.submit(sample("plain"), 0, {}).result(60)
        assert cores.submit(sample("plain"), 0, {}).result(60)
    finally:
        cores.close()


def test_processes_that_run_operations_get_no_tokens() -> None:
    assert TOKENS["a-0"].encode() not in pickle.dumps(job().work)
