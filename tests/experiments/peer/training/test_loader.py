"""Workers of all kinds deliver the same items; bad samples are counted; damage is raised in its place."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from storage_fakes import FakeStore, make_tar, opener  # noqa: E402 - after torch is known to exist

from cloud.storage.errors import CorruptShardError, TruncatedShardError  # noqa: E402
from cloud.storage.samples import Cursor  # noqa: E402
from experiments.peer.config import PeerConfigError  # noqa: E402
from experiments.peer.processes import descendants  # noqa: E402
from experiments.peer.training.bad_samples import BadSamples  # noqa: E402
from experiments.peer.training.batches import Batches  # noqa: E402
from experiments.peer.training.decoding import Decoder, WorkerEndedError, Workers  # noqa: E402
from experiments.peer.training.loader import HeldOut, Loaded, TaskSource  # noqa: E402
from experiments.pipeline.errors import BadSampleError, PipelineError  # noqa: E402
from experiments.pipeline.op import Op  # noqa: E402
from experiments.pipeline.pipeline import Pipeline  # noqa: E402

SAMPLES = 40  # per shard
SHARDS = {
    f"{name}.tar": make_tar({f"{name}{n:02d}": {"dat": bytes([n, n + 1]) * 300} for n in range(SAMPLES)})
    for name in "abc"
}
URLS = tuple(f"s3://b/{name}" for name in SHARDS)
THREADS = [Workers("thread", count, in_order) for count in (1, 3) for in_order in (True, False)]
PROCESSES = [
    pytest.param(Workers("process", 2, in_order), marks=pytest.mark.slow) for in_order in (True, False)
]


def pipeline_of(function: str, gives: str = "array", *, random: bool = False) -> Pipeline:
    op = Op("decode", f"decode_ops:{function}", "data", "bytes", gives, random=random)
    return Pipeline("test", {"data": ("dat",)}, (op,))


NOISY = pipeline_of("noisy", random=True)


class Sources:
    """Makes sources and closes them."""

    def __init__(self) -> None:
        self.made: list[TaskSource] = []
        self.warnings: list[str] = []

    def __call__(
        self,
        workers: Workers,
        *,
        store: FakeStore | None = None,
        pipeline: Pipeline = NOISY,
        policy: str = "fail",
        shards: Sequence[str] = URLS,
        cursor: Cursor | None = None,
        streams: int = 1,
    ) -> TaskSource:
        bad = BadSamples(policy, lambda found: self.warnings.append(str(found)))
        open_shard = opener(store or FakeStore(SHARDS)).open
        decoder = Decoder(pipeline, 5)
        source = TaskSource(
            shards, open_shard, decoder, list, workers, bad, shuffle=7, cursor=cursor, streams=streams
        )
        self.made.append(source)
        return source


@pytest.fixture
def sources() -> Iterator[Sources]:
    made = Sources()
    yield made
    for source in made.made:
        source.close()


def found(batches: Sequence[Loaded]) -> list[tuple[str, str]]:
    """(key, SHA-256 of the item) of each sample."""
    return [
        (key, hashlib.sha256(item["data"].tobytes()).hexdigest())
        for loaded in batches
        for (_, key), item in zip(loaded.samples, loaded.batch, strict=True)
    ]


def taken(source: TaskSource, batches: int) -> list[Loaded]:
    return [source.next_batch(8) for _ in range(batches)]


TWO_PASSES = 2 * len(URLS) * SAMPLES // 8  # batches


def reference(sources: Sources) -> list[tuple[str, str]]:
    made = found(taken(sources(Workers()), TWO_PASSES))
    assert len(set(made)) == 2 * len(URLS) * SAMPLES  # the passes differ
    assert len({key for key, _ in made}) == len(URLS) * SAMPLES
    return made


@pytest.mark.parametrize("workers", [*THREADS, *PROCESSES])
def test_all_workers_make_the_same_items_of_a_broken_connection(workers: Workers, sources: Sources) -> None:
    expected = reference(sources)
    store = FakeStore(SHARDS, cuts=[9_000, 20_000, 777, 31_000])
    got = found(taken(sources(workers, store=store), TWO_PASSES))
    if workers.in_order or workers.count == 1:
        assert got == expected
    else:
        # a slow worker may hold its samples back for any time, but not more than these
        assert len(set(got)) == len(got)
        assert set(got) <= set(found(taken(sources(Workers()), TWO_PASSES + workers.count * 2)))
        assert len(set(expected) - set(got)) <= workers.count * 16
        assert workers.kind == "process" or got != expected


@pytest.mark.parametrize("streams", [2, 4])
def test_streams_make_the_same_batches_and_go_on_from_any_of_their_cursors(
    streams: int, sources: Sources
) -> None:
    expected = taken(sources(Workers()), TWO_PASSES)
    for batches in (0, 7, TWO_PASSES - 1):
        got = taken(sources(Workers("thread", 3), streams=streams), batches)
        cursor = got[-1].cursor if got else None
        got += taken(sources(Workers(), streams=streams, cursor=cursor), TWO_PASSES - batches)
        assert found(got) == found(expected)
        assert got[-1].cursor == expected[-1].cursor
        assert [loaded.spans for loaded in got] == [loaded.spans for loaded in expected]


def test_the_position_is_changed_before_the_first_batch_only(sources: Sources) -> None:
    expected = reference(sources)
    before = taken(sources(Workers()), 11)
    source = sources(Workers(), cursor=Cursor(1))
    batches = Batches(source, 8)
    batches.start_at(before[-1].cursor)
    after = taken(source, TWO_PASSES - 11)
    assert [*found(before), *found(after)] == expected
    assert after[-1].cursor == taken(sources(Workers()), TWO_PASSES)[-1].cursor
    with pytest.raises(RuntimeError, match="once samples have been read"):
        batches.start_at(Cursor())


@pytest.mark.parametrize("workers", [*THREADS, *PROCESSES])
def test_a_restart_from_a_cursor_loses_nothing(workers: Workers, sources: Sources) -> None:
    expected = reference(sources)
    before = taken(sources(workers), 11)
    at = before[-1].cursor
    after = taken(sources(workers, cursor=at), TWO_PASSES - 11)
    if workers.in_order or workers.count == 1:
        assert [*found(before), *found(after)] == expected
        return
    position = len(at.done) * SAMPLES + at.samples  # samples before the cursor
    assert at.epoch == 0
    assert position <= 11 * 8
    assert set(expected[:position]) <= set(found(before))  # whoever was slow
    following = expected[position:][: len(found(after))]
    assert len(set(following) - set(found(after))) <= workers.count * 16


@pytest.mark.parametrize("workers", [*THREADS, *PROCESSES])
def test_what_was_read_before_damage_is_delivered_first(workers: Workers, sources: Sources) -> None:
    cut = {"a.tar": SHARDS["a.tar"][: len(SHARDS["a.tar"]) // 2]}
    source = sources(workers, store=FakeStore(cut), shards=["s3://b/a.tar"])
    keys: list[str] = []
    endless = (key for _ in iter(int, 1) for _, key in source.next_batch(1).samples)
    with pytest.raises(TruncatedShardError):
        keys.extend(endless)  # keeps what came before the error
    assert len(set(keys)) == len(keys) >= SAMPLES // 4


def with_bad(bad: Sequence[int], count: int = SAMPLES) -> FakeStore:
    content = {f"a{n:03d}": {"dat": b"bad" if n in bad else bytes([n % 200]) * 9} for n in range(count)}
    return FakeStore({"a.tar": make_tar(content)})


@pytest.mark.parametrize("workers", [*THREADS, *PROCESSES])
def test_a_bad_sample_fails_or_is_left_out_and_counted(workers: Workers, sources: Sources) -> None:
    with pytest.raises(BadSampleError) as caught:
        taken(sources(workers, store=with_bad([3]), shards=["s3://b/a.tar"]), SAMPLES)
    error = caught.value
    assert (error.shard, error.key, error.op) == ("s3://b/a.tar", "a003", "decode")
    assert "decode_ops.py:" in error.reason
    assert "ValueError: it is bad" in error.reason
    source = sources(workers, store=with_bad([3, 5]), shards=["s3://b/a.tar"], policy="skip")
    keys = {key for loaded in taken(source, 15) for _, key in loaded.samples}
    assert len(keys) == SAMPLES - 2
    assert not {"a003", "a005"} & keys
    assert sources.warnings[-1].endswith("left out; the first: " + str(source._bad_samples._first))
    assert int(sources.warnings[-1].split()[0]) == 2  # each counts once, also in the next pass


def test_one_bad_sample_is_reported_in_the_singular(sources: Sources) -> None:
    source = sources(Workers(), store=with_bad([3], 200), shards=["s3://b/a.tar"], policy="skip")
    taken(source, 24)
    (warning,) = sources.warnings
    assert warning.startswith(
        "1 bad sample left out; the first: s3://b/a.tar: sample a003, operation decode: "
    )


def test_if_all_samples_are_bad_they_cannot_be_skipped(sources: Sources) -> None:
    source = sources(Workers(), store=with_bad(range(SAMPLES)), shards=["s3://b/a.tar"], policy="skip")
    with pytest.raises(PipelineError, match=r"the first 100 samples are all bad.*sample a0\d\d"):
        source.next_batch(8)
    good = sources(Workers(), store=with_bad(range(150), 151), shards=["s3://b/a.tar"], policy="skip")
    with pytest.raises(PipelineError, match="first 100 samples"):
        good.next_batch(1)


def test_a_share_without_a_good_sample_ends_the_run_also_after_a_change(sources: Sources) -> None:
    bad = make_tar({f"d{n:03d}": {"dat": b"bad"} for n in range(150)})
    store = FakeStore({**SHARDS, "d.tar": bad})
    for workers in THREADS:
        some = sources(workers, store=store, shards=["s3://b/a.tar", "s3://b/d.tar"], policy="skip")
        keys = {key for loaded in taken(some, 15) for _, key in loaded.samples}
        assert len(keys) == SAMPLES, "a bad shard among good ones is left out"
        some.set_shards(["s3://b/d.tar"])
        with pytest.raises(PipelineError, match=r"the last \d+ samples are all bad.*sample d\d\d\d"):
            taken(some, 100)


def test_a_sample_without_a_member_is_bad(sources: Sources) -> None:
    store = FakeStore({"a.tar": make_tar({"x": {"cls": b"1"}})})
    with pytest.raises(BadSampleError, match=r"s3://b/a\.tar: sample x: it has no member x\.dat"):
        sources(Workers(), store=store, shards=["s3://b/a.tar"]).next_batch(1)


def test_a_changed_share_takes_effect_with_every_kind_of_workers(sources: Sources) -> None:
    for workers in THREADS:
        source = sources(workers, shards=["s3://b/a.tar"])
        assert {key[0] for loaded in taken(source, 1) for _, key in loaded.samples} == {"a"}
        source.set_shards(["s3://b/b.tar"])
        keys = [key[0] for loaded in taken(source, 15) for _, key in loaded.samples]
        assert keys.count("a") < 2 * SAMPLES  # what was being read
        assert set(keys[-40:]) == {"b"}


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "fork"},
        {"count": 0},
        {"count": 257},
        {"count": True},
        {"count": "2"},
        {"in_order": 1},
    ],
)
def test_wrong_workers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PeerConfigError, match=rf"workers\.{next(iter(settings))}: "):
        Workers.of(settings)
    assert Workers.of({}) == Workers("thread", 1, in_order=True)


def test_wrong_policy_is_refused() -> None:
    with pytest.raises(PeerConfigError, match="bad_samples: 'ignore'"):
        BadSamples("ignore", print)


def held(store: FakeStore, shards: Sequence[str], policy: str = "fail") -> tuple[HeldOut, list[str]]:
    warnings: list[str] = []
    made = HeldOut(
        shards, opener(store).open, NOISY, list, Workers("thread", 3, in_order=False),
        lambda: BadSamples(policy, lambda found: warnings.append(str(found)), "held-out samples"), 16,
    )  # fmt: skip
    return made, warnings


def test_held_out_samples_are_the_same_in_every_evaluation() -> None:
    made, _ = held(FakeStore(SHARDS), URLS)
    first = list(made.batches())
    assert [len(batch) for batch in first] == [16] * 7 + [8]
    assert made.samples == 3 * SAMPLES
    again = list(made.batches())
    assert made.samples == 3 * SAMPLES
    for one, other in zip(first, again, strict=True):
        assert [item["data"].tobytes() for item in one] == [item["data"].tobytes() for item in other]


def test_wrong_held_out_data_is_found_at_the_start() -> None:
    made, _ = held(with_bad([0]), ["s3://b/a.tar"])
    with pytest.raises(BadSampleError, match="a000"):
        made.check()
    made, _ = held(FakeStore({"a.tar": make_tar({})}), ["s3://b/a.tar"])
    with pytest.raises(CorruptShardError, match="no samples"):
        made.check()
    store = FakeStore(SHARDS)
    made, _ = held(store, URLS)
    made.check()
    assert [request["Key"] for request in store.requests] == ["a.tar"]


def test_bad_held_out_samples_are_counted() -> None:
    made, warnings = held(with_bad([0, 7]), ["s3://b/a.tar"], "skip")
    made.check()
    list(made.batches())
    assert made.samples == SAMPLES - 2
    assert warnings[-1].startswith("2 bad held-out samples left out; the first: s3://b/a.tar: sample a000")
    made, _ = held(with_bad(range(SAMPLES)), ["s3://b/a.tar"], "skip")
    with pytest.raises(PipelineError, match=f"the first {SAMPLES} held-out samples are all bad"):
        made.check()


@pytest.mark.slow
def test_processes_end_with_the_source_and_are_descendants(sources: Sources) -> None:
    before = set(descendants(os.getpid()))
    source = sources(Workers("process", 2), pipeline=pipeline_of("process_id", "number"))
    batches = Batches(source, 8)
    batches.start()
    workers = {item["data"] for _ in range(8) for item in batches.next().batch}  # type: ignore[union-attr]
    assert len(workers) == 2
    assert workers <= set(descendants(os.getpid())) - before
    batches.close(120.0)  # at idle priority it may take long
    assert not workers & set(descendants(os.getpid()))


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_one_sentence(sources: Sources) -> None:
    with pytest.raises(
        PipelineError, match=r"an item cannot be sent between processes.*workers\.kind: thread"
    ):
        sources(Workers("process", 1), pipeline=pipeline_of("unpicklable")).next_batch(1)
    with pytest.raises(PipelineError, match="nothing_there"):
        sources(Workers("process", 1), pipeline=pipeline_of("nothing_there")).next_batch(1)
    with pytest.raises(WorkerEndedError, match=r"lower data\.workers\.count"):
        sources(Workers("process", 1), pipeline=pipeline_of("die")).next_batch(1)


@pytest.mark.slow
@pytest.mark.timeout(300)  # at idle priority too
def test_a_dead_process_is_noticed_while_others_deliver(
    sources: Sources, request: pytest.FixtureRequest
) -> None:
    # other tests may have made torch's handler, which a peer does not have, because its main thread makes no loader
    request.addfinalizer(
        partial(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, signal.SIG_DFL))
    )
    batches = Batches(
        sources(Workers("process", 2, in_order=False), pipeline=pipeline_of("process_id", "number")), 8
    )
    batches.start()  # in a thread: torch looks for dead processes in the main thread only
    first = batches.next()
    assert first is not None
    os.kill(first.batch[0]["data"], signal.SIGKILL)
    with pytest.raises(WorkerEndedError, match=r"is gone|exited|killed"):
        _ = [batches.next() for _ in range(1000)]
    batches.close(10.0)


@pytest.mark.slow
@pytest.mark.timeout(300)  # at idle priority too
@pytest.mark.parametrize("workers", [Workers("thread", 1), Workers("thread", 2), Workers("process", 1)])
def test_code_that_ends_the_process_is_an_error_of_the_pipeline(sources: Sources, workers: Workers) -> None:
    batches = Batches(sources(workers, pipeline=pipeline_of("leave")), 8)
    batches.start()
    with pytest.raises(PipelineError, match=r"decode_ops\.py:\d+: SystemExit: 3"):
        batches.next()
    batches.close(10.0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [Workers("thread", 1), Workers("process", 1)])
def test_a_machine_without_memory_has_no_bad_samples(sources: Sources, workers: Workers) -> None:
    with pytest.raises(MemoryError):
        sources(workers, pipeline=pipeline_of("too_large")).next_batch(8)


@pytest.mark.timeout(300)  # at idle priority too
def test_a_process_whose_parent_is_gone_ends() -> None:
    code = "from experiments.peer.processes import die_with_parent; die_with_parent(1); print('alive')"
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert (done.returncode, done.stdout) == (1, "")


def program_with_workers(folder: Path, ending: str) -> Path:
    """A program that prints the worker's process id of each item, and then does `ending`."""
    root = Path(__file__).parents[4]
    program = folder / "parent.py"
    program.write_text(
        "import sys\n"
        f"sys.path[:0] = {[str(root), str(root / 'tests' / 'experiments')]!r}\n"
        "from experiments.peer.training.decoding import Decoder, Read, Workers, decoded\n"
        "from experiments.pipeline.op import Op\n"
        "from experiments.pipeline.pipeline import Pipeline\n"
        "if __name__ == '__main__':\n"
        "    op = Op('id', 'decode_ops:process_id', 'data', 'bytes', 'number')\n"
        "    decoder = Decoder(Pipeline('test', {'data': ('dat',)}, (op,)), 0)\n"
        "    sample = {'__key__': 'k', '__url__': 's3://b/a.tar', 'dat': b'x'}\n"
        "    reads = (Read(n, sample, 0) for n in range(10**9))\n"
        "    for found in decoded(reads, decoder, Workers('process', 2)):\n"
        "        print(found.result['data'], flush=True)\n"
        f"        if found.number == 99: {ending}\n"
    )
    return program


@pytest.mark.slow
@pytest.mark.timeout(300)  # at idle priority too
@pytest.mark.parametrize("ending", ["sys.stdin.readline()", "break", "raise ValueError"])
def test_processes_die_with_a_program_that_is_killed_or_ends(tmp_path: Path, ending: str) -> None:
    program = program_with_workers(tmp_path, ending)
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(100)}
        if "stdin" in ending:
            parent.kill()
        parent.wait(120)
    assert len(workers) == 2
    deadline = time.monotonic() + 60.0
    while (left := [pid for pid in workers if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
