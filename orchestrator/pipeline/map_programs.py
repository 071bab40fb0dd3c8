"""Runs the profilers of `orch pipeline map`: perf, and valgrind with vgdb. Whatever happens, they are ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from analysis.pipeline.perf_script import CLOCK_EVENT
from orchestrator.errors import OrchError, UsageError
from orchestrator.pipeline.map_job import ANSWER, DUMPS, GO, READY

_INSTALL: Mapping[str, str] = {
    "perf": "install it (Debian: apt install linux-perf; Ubuntu: apt install linux-tools-generic)",
    "valgrind": "install it (apt install valgrind)",
    "vgdb": "install it (apt install valgrind, which contains it)",
}
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_MOST_PARANOID = 2  # with it, users may sample their own processes
_MOST_SAMPLES_HZ = Path("/proc/sys/kernel/perf_event_max_sample_rate")
_START_S = 300.0  # imports and warming up
_EXACT_S = 3600.0
_SCRIPT_S = 600.0
_POLL_S = 0.05
_LOG = "log"
_DATA = "perf.data"
_SCRIPT = "perf.txt"
_VGDB_NEEDS = "use valgrind 3.19 or newer, and a temporary folder (TMPDIR) that can hold named pipes"
_SCRIPT_FIELDS = "pid,tid,time,ip,sym,dso"


class MapError(OrchError):
    """A pipeline cannot be mapped; the message is a sentence that says what to do."""


def program(name: str) -> str:
    """The path of an installed program. Raises MapError."""
    found = shutil.which(name)
    if found is None:
        raise MapError(f"{name} is not installed; {_INSTALL[name]}")
    return found


def check_frequency(frequency_hz: int) -> None:
    """Raises UsageError if the kernel does not take so many samples."""
    most = _number(_MOST_SAMPLES_HZ)
    if frequency_hz < 1 or (most is not None and frequency_hz > most):
        limit = "" if most is None else f" to {most} (kernel.perf_event_max_sample_rate)"
        raise UsageError(f"--frequency: {frequency_hz} samples/s are out of range; use 1{limit}")


def unknown_events(events: Sequence[str]) -> dict[str, str]:
    """Which of the events cannot be counted on this machine, and why. Raises MapError, UsageError for an unknown name."""
    found = {}
    for event in events:
        command = [program("perf"), "stat", "-x", ";", "-e", event, "--", sys.executable, "-c", ""]
        late = f"perf stat did not count {event} within {_START_S:g} s; leave it out of --events"
        _, text = _run(command, late, _START_S)
        rows = [line.split(";") for line in text.splitlines() if line.count(";") >= 3]
        if not rows:
            _refuse_forbidden()
            raise UsageError(f"--events: perf cannot count {event}; choose from those that `perf list` shows")
        if rows[0][0].startswith("<"):  # <not supported> or <not counted>
            found[event] = (
                f"perf: {rows[0][0].strip('<>')} on this machine; virtual machines often have no counters (PMU)"
            )
    return found


def sampled(folder: Path, *, frequency_hz: int, events: Sequence[str], seconds: float) -> Iterator[str]:
    """Run the job in `folder` under perf. Returns the lines of `perf script`. Raises MapError."""
    perf = program("perf")
    _refuse_forbidden()
    record = [perf, "record", "-N", "-q", "-k", "CLOCK_MONOTONIC", "-e", ",".join((CLOCK_EVENT, *events))]
    record += ["-F", str(frequency_hz), "-o", _DATA, "--", *_child()]
    with _running(record, folder, {}) as process:
        _wait(process, time.monotonic() + _START_S + 3 * seconds)
    if not (folder / ANSWER).exists():
        raise MapError(f"perf record did not run the operations ({_last_line(folder)}); {_allow()}")
    fields = f"{_SCRIPT_FIELDS},event,period" if events else _SCRIPT_FIELDS
    with (folder / _SCRIPT).open("wb") as output, (folder / _LOG).open("ab") as log:
        late = f"perf script did not print the samples within {_SCRIPT_S:g} s; use fewer --seconds, or a lower --frequency"
        script = [perf, "script", "-i", _DATA, "-F", fields, "--ns"]
        code, _ = _run(script, late, _SCRIPT_S, cwd=folder, stdout=output, stderr=log)
    if code:
        raise MapError(f"perf script failed ({_last_line(folder)}); map the pipeline with --exact")
    return _lines(folder / _SCRIPT)


def counted(folder: Path) -> list[Path]:
    """Run the job in `folder` under callgrind. Returns the dumps in their order. Raises MapError."""
    valgrind, vgdb = program("valgrind"), program("vgdb")
    prefix = f"--vgdb-prefix={folder / 'vgdb'}"
    command = [valgrind, "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", prefix]
    command += [f"--callgrind-out-file={DUMPS}", *_child()]
    # One thread, and the same hashes of texts, so that two runs execute the same instructions.
    alike = {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    with _running(command, folder, alike) as process:
        deadline = time.monotonic() + _EXACT_S
        while not (folder / READY).exists() and process.poll() is None:
            if time.monotonic() > deadline:
                raise MapError(f"the operations did not warm up within {_EXACT_S:.0f} s; use fewer --samples")
            time.sleep(_POLL_S)
        if process.poll() is None:
            switch = [vgdb, prefix, f"--pid={process.pid}", "instrumentation", "on"]
            late = f"vgdb could not switch callgrind on within {_START_S:g} s; {_VGDB_NEEDS}"
            code, text = _run(switch, late, _START_S)
            if code:
                raise MapError(f"vgdb could not switch callgrind on ({_last(text)}); {_VGDB_NEEDS}")
            (folder / GO).touch()
        _wait(process, deadline)
    if not (folder / ANSWER).exists():
        raise MapError(
            f"valgrind did not run the operations ({_last_line(folder)}); use another version of it"
        )
    dumps = [path for path in folder.glob(f"{DUMPS}.*") if path.suffix[1:].isdigit()]
    return sorted(dumps, key=lambda path: int(path.suffix[1:]))


def answer(folder: Path) -> dict[str, Any]:
    """What the process of the job wrote. Raises MapError with its error."""
    found = json.loads((folder / ANSWER).read_bytes())
    if "error" in found:
        raise MapError(found["error"])
    return found


def _child() -> list[str]:
    return [sys.executable, "-m", "orchestrator.pipeline.map_child"]


@contextlib.contextmanager
def _running(command: list[str], folder: Path, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The program that runs the job in `folder`, with more environment variables."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([*filter(None, sys.path), root])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, **more},
            stdin=subprocess.PIPE,  # its end is that of this process
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with _ended(process):
        yield process


def _run(
    command: list[str],
    late: str,
    limit_s: float,
    *,
    cwd: Path | None = None,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.PIPE,
) -> tuple[int, str]:
    """Run a program to its end; returns its exit status and its stderr, if that is a pipe.

    Raises MapError with the sentence `late` if it takes longer than `limit_s`.
    """
    process = subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )
    with _ended(process):
        try:
            _, error = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise MapError(late) from None
    return process.returncode, (error or b"").decode(errors="replace")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a program that leads a session, and all its processes, at the end of the block."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stderr):
            if stream is not None:
                stream.close()


def _wait(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise MapError("the operations took too long; use fewer --samples, or fewer --seconds") from None


def _refuse_forbidden() -> None:
    level = _number(_PARANOID)
    if level is not None and level > _MOST_PARANOID and os.geteuid() != 0:
        raise MapError(f"perf may not sample (kernel.perf_event_paranoid is {level}); {_allow()}")


def _allow() -> str:
    return (
        f"allow it with: sudo sysctl kernel.perf_event_paranoid={_MOST_PARANOID} (in a container, on its host, and start "
        "the container with --cap-add PERFMON), or map with --exact"
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _last_line(folder: Path) -> str:
    return _last((folder / _LOG).read_text(encoding="utf-8", errors="replace"))


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200].rstrip(".") if lines else "no message"
