"""Map a pipeline's operations to native functions, by samples of their run or by counted instructions."""

from __future__ import annotations

import pickle
import platform
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.pipeline import lotus_map
from analysis.pipeline.callgrind_file import CallgrindFileError, read_callgrind
from analysis.pipeline.map_records import (
    BETWEEN,
    OTHER_THREADS,
    FunctionRow,
    LotusComparison,
    LotusRow,
    OpRow,
    PipelineMap,
    changes,
    function_rows,
)
from analysis.pipeline.op_functions import Functions, Joined, Span, join
from analysis.pipeline.perf_script import (
    CLOCK_EVENT,
    PerfSample,
    PerfScriptError,
    event_name,
    read_perf_script,
)
from experiments.pipeline.trace_format import SUFFIX, Code, read_thread
from orchestrator.errors import UsageError
from orchestrator.pipeline.map_job import ALONE_TRACE, JOB, TRACE, MapJob
from orchestrator.pipeline.map_programs import (
    MapError,
    answer,
    check_frequency,
    counted,
    program,
    sampled,
    unknown_events,
)

if TYPE_CHECKING:
    from orchestrator.pipeline.opened import OpenInput

_FOREVER_NS = 1 << 63


def read_samples(opened: OpenInput, count: int) -> tuple[dict[str, Any], ...]:
    """Read the first `count` samples of the target's shards (fewer, if it has no more).

    Raises StorageError, MapError if there is none.
    """
    from cloud.storage.samples import read_shard

    samples: list[dict[str, Any]] = []
    for shard in opened.shards:
        with opened.opener.open(shard) as file:
            samples += islice(read_shard(shard, file), count - len(samples))
        if len(samples) >= count:
            break
    if not samples:
        raise MapError(f"{opened.name}: its shards contain no samples; check data.shards")
    return tuple(samples)


def map_by_samples(
    opened: OpenInput,
    samples: tuple[dict[str, Any], ...],
    *,
    seconds: float,
    frequency_hz: int,
    events: Sequence[str],
    lotus: bool,
    progress: Callable[[str], None],
) -> PipelineMap:
    """Run the operations for `seconds` under perf and join its samples to their spans. Raises MapError, UsageError."""
    program("perf")
    check_frequency(frequency_hz)
    unknown = unknown_events(events)
    counting = [event for event in events if event not in unknown]
    job = MapJob(opened.pipeline, samples, opened.seed, False, seconds, 1e9 / frequency_hz, lotus)
    with tempfile.TemporaryDirectory(prefix="orch-map-") as made:
        folder = _prepared(Path(made), job)
        progress(
            f"running {len(samples)} samples for {seconds:g} s, {frequency_hz} times a second under perf"
        )
        lines = sampled(folder, frequency_hz=frequency_hz, events=counting, seconds=seconds)
        found = answer(folder)
        try:
            read = list(read_perf_script(lines))
        except PerfScriptError as error:
            raise MapError(f"{error}; map with --exact") from error
        spans = _spans(folder / TRACE, Code.OP)
        alone = _spans(folder / ALONE_TRACE, Code.PHASE) if lotus else []
    clock = [sample for sample in read if sample.event == CLOCK_EVENT]
    start_ns, end_ns = found["start_ns"], found["end_ns"]
    # A sample of cpu-clock stands for one interval, whatever its period says in nanoseconds.
    clock = [PerfSample(s.pid, s.tid, s.time_ns, s.event, 1, s.function) for s in clock]
    joined = join(clock, spans, start_ns, end_ns)
    if not sum(functions.total() for functions in joined.ops.values()):
        raise MapError(
            f"{opened.name}: no sample fell into an operation; use more --seconds, or --exact for short operations"
        )
    by_event: dict[str, dict[str, Functions]] = {}
    for event in counting:
        named = [sample for sample in read if sample.event == event_name(event)]
        if named:
            by_event[event] = join(named, spans, start_ns, end_ns).ops
        else:
            unknown[event] = "perf recorded no sample of it under this name"
    ops = _op_rows(
        joined.ops,
        Counter(span.op for span in spans),
        _wall_ns(spans),
        {op: {e: by_event[e][op].total() if e in by_event else None for e in events} for op in joined.ops},
    )
    functions = [row for op, its in joined.ops.items() for row in function_rows(op, its, sampled=True)]
    functions += function_rows(BETWEEN, joined.between, sampled=True)
    functions += function_rows(OTHER_THREADS, joined.other_threads, sampled=True)
    compared = (
        _compared(joined, spans, join(clock, alone, end_ns, _FOREVER_NS), found["alone"], job.interval_ns)
        if lotus
        else None
    )
    return _map(
        opened,
        samples,
        ops,
        functions,
        unit="samples",
        frequency_hz=frequency_hz,
        seconds=(end_ns - start_ns) / 1e9,
        between=joined.between.total(),
        other_threads=joined.other_threads.total(),
        unknown_events=unknown,
        lotus=compared,
    )


def map_by_instructions(
    opened: OpenInput, samples: tuple[dict[str, Any], ...], *, progress: Callable[[str], None]
) -> PipelineMap:
    """Run each operation once on each sample under callgrind. Raises MapError."""
    import torch

    for name in ("_valgrind_toggle", "_valgrind_toggle_and_dump_stats", "_valgrind_supported_platform"):
        if not hasattr(torch._C, name):
            raise MapError(
                f"this torch cannot control callgrind (it has no {name}); install torch's wheel for Linux"
            )
    if not torch._C._valgrind_supported_platform():
        raise MapError("torch cannot control callgrind on this platform; map without --exact")
    ops = [op.name for op in opened.pipeline.ops]
    with tempfile.TemporaryDirectory(prefix="orch-map-") as made:
        folder = _prepared(Path(made), MapJob(opened.pipeline, samples, opened.seed, True, 0.0, 1.0, False))
        progress(f"counting the instructions of {len(samples)} samples under callgrind")
        dumps = counted(folder)
        answer(folder)
        if len(dumps) != len(ops) * len(samples):
            raise MapError(
                f"callgrind wrote {len(dumps)} profiles for {len(ops)} operations on {len(samples)} samples; use "
                "another version of valgrind (3.19 is known)"
            )
        counts: dict[str, Functions] = {op: Counter() for op in ops}
        try:
            for number, dump in enumerate(dumps):
                text = dump.read_text(encoding="utf-8", errors="replace")
                counts[ops[number % len(ops)]] += read_callgrind(text, dump.name)
        except CallgrindFileError as error:
            raise MapError(str(error)) from error
    calls = dict.fromkeys(ops, len(samples))
    rows = _op_rows(counts, calls, {}, {})
    functions = [row for op, its in counts.items() for row in function_rows(op, its, sampled=False)]
    return _map(opened, samples, rows, functions, unit="instructions")


def map_document(found: PipelineMap) -> dict[str, Any]:
    """The map in JSON types, as it is written to map.json."""
    return {"schema_version": 1, **asdict(found)}


def check_before(before: Any, name: str) -> dict[str, tuple[int, int]]:
    """(count, calls) by operation of an exact map's document. Raises UsageError if it is not one."""
    try:
        if before["unit"] != "instructions":
            raise UsageError(
                f"--check: {name} is a map by {before['unit']}; give one that was made with --exact"
            )
        rows = {row["op"]: (int(row["count"]), int(row["calls"])) for row in before["ops"]}
        if (
            not isinstance(before["data_sha256"], str)
            or min((calls for _, calls in rows.values()), default=0) < 1
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--check: {name} is not a map; give the map.json of an earlier map") from error
    return rows


def regressions(before: Any, now: PipelineMap, limit_percent: float, name: str) -> str:
    """A sentence on the operations that execute more instructions than before, beyond the limit; "" if none does.

    Raises UsageError if the maps cannot be compared.
    """
    rows = check_before(before, name)
    if before["data_sha256"] != now.data_sha256:
        raise UsageError(
            f"--check: {name} was made with other samples; use its --samples ({before.get('samples')}) and data, or make "
            "it anew"
        )
    compared = changes(rows, {row.op: (row.count, row.calls) for row in now.ops})
    if not compared:
        raise UsageError(f"--check: {name} is of other operations ({', '.join(rows)}); make it anew")
    worse = [change for change in compared if change.percent > limit_percent]
    if not worse:
        return ""
    listed = ", ".join(f"{c.op} {c.percent:+.2f} % ({c.before:.0f} to {c.now:.0f})" for c in worse)
    return (
        f"more instructions a sample than in {name}, beyond {limit_percent:g} %: {listed}; correct the operation, or make "
        f"{name} anew"
    )


def _prepared(made: Path, job: MapJob) -> Path:
    folder = made.resolve()
    (folder / JOB).write_bytes(pickle.dumps(job))
    return folder


def _spans(folder: Path, code: Code) -> list[Span]:
    spans = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        thread = read_thread(file.read_bytes(), file.name)
        tid = thread.header.tid
        spans += [
            Span(tid, event.name, event.start_ns, event.start_ns + event.wall_ns)
            for event in thread.events
            if event.code == code
        ]
    return spans


def _wall_ns(spans: Sequence[Span]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for span in spans:
        total[span.op] += span.end_ns - span.start_ns
    return total


def _op_rows(
    functions: Mapping[str, Functions],
    calls: Mapping[str, int],
    wall_ns: Mapping[str, int],
    events: Mapping[str, Mapping[str, int | None]],
) -> list[OpRow]:
    total = sum(its.total() for its in functions.values())
    return [
        OpRow(
            op,
            calls[op],
            its.total(),
            its.total() / total if total else 0.0,
            wall_ns[op] / calls[op] if op in wall_ns else None,
            events.get(op, {}),
        )
        for op, its in functions.items()
    ]


def _compared(
    joined: Joined, spans: Sequence[Span], alone: Joined, runs: Mapping[str, Any], interval_ns: float
) -> LotusComparison:
    mapped = {op: set(alone.ops.get(op, ())) for op in joined.ops}
    whole: Functions = Counter(joined.between)
    for functions in joined.ops.values():
        whole += functions
    found = lotus_map.split(whole, mapped, _wall_ns(spans))
    rows = tuple(
        LotusRow(
            op,
            runs[op]["runs"],
            runs[op]["function_ns"],
            interval_ns,
            len(mapped[op]),
            sum(found[op].values()),
        )
        for op in joined.ops
    )
    total = whole.total()
    unmapped = sum(found[None].values()) / total if total else None
    return LotusComparison(lotus_map.CONFIDENCE, lotus_map.error(joined, found), unmapped, rows)


def _map(
    opened: OpenInput,
    samples: Sequence[Mapping[str, Any]],
    ops: Sequence[OpRow],
    functions: Sequence[FunctionRow],
    *,
    unit: str,
    frequency_hz: int | None = None,
    seconds: float | None = None,
    between: int | None = None,
    other_threads: int | None = None,
    unknown_events: Mapping[str, str] | None = None,
    lotus: LotusComparison | None = None,
) -> PipelineMap:
    return PipelineMap(
        target=opened.name,
        pipeline=opened.pipeline.name,
        fingerprint=opened.pipeline.fingerprint(),
        data_sha256=_sha256(samples),
        unit=unit,
        samples=len(samples),
        frequency_hz=frequency_hz,
        seconds=seconds,
        machine=platform.node(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ops=tuple(ops),
        functions=tuple(functions),
        between=between,
        other_threads=other_threads,
        unknown_events=unknown_events or {},
        lotus=lotus,
    )


def _sha256(samples: Sequence[Mapping[str, Any]]) -> str:
    found = sha256()
    for sample in samples:
        found.update(repr(sample["__key__"]).encode())
        for name in sorted(name for name in sample if not name.startswith("__")):
            found.update(f"\0{name}\0{len(sample[name])}\0".encode("utf-8", "surrogatepass"))
            found.update(sample[name])
    return found.hexdigest()
