"""The end of a run: collect the peers' step logs, close the provider, write the final meta."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from cloud.provider import ProviderError
from experiments.catalog import step_time
from experiments.emulation.accelerators import HOST
from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from experiments.wire import coverage
from metrics.epochs.restarts import kept_records
from metrics.epochs.throughput import measured, swarm_epochs
from metrics.host_load import PaceSecond, host_trust, pace_of, spans_of, stretched_share
from metrics.records import CoverageRecord, EgressRecord, StepRecord, UtilisationRecord, VmRecord
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from orchestrator.controller.calls import Call, Calls
from orchestrator.controller.input_sums import InputSums
from orchestrator.controller.utilisation import is_plausible
from orchestrator.launch.keys import forget_keys

_log = logging.getLogger("orchestrator.controller")
_LARGEST_BYTES = 512_000_000  # of a CSV from a VM; more than any run writes


class _NoColumnError(ValueError):
    """A CSV lacks a required column."""


_Row = TypeVar("_Row", StepRecord, EgressRecord, UtilisationRecord, CoverageRecord)


def close_run(
    store: RunStore,
    calls: Calls,
    folder: Path,
    vms: Sequence[VmRecord],
    now_s: float,
    status: str,
    cause: str,
) -> None:
    """Close a run after its last VM.

    Raises ProviderError if the provider cannot be closed. The run then stays "running", and the next
    controller (or `orch down`) closes it.
    """
    warnings: list[str] = []
    folders: dict[str, Path] = {}
    shards = int(store.meta("training_shards") or 0)
    for vm in vms:
        try:
            collected = Path(calls.wait(Call(f"collect {vm.vm}", "collect", (vm.vm,), 60.0)))
        except ProviderError as error:
            warnings.append(f"the logs of {vm.vm} could not be collected: {error}")
            continue
        folders[vm.vm] = collected
        # One broken file does not affect the others.
        for table, read in (
            ("egress", read_egress),
            ("steps", read_steps),
            ("utilisation", read_utilisation),
            ("coverage", partial(read_coverage, shards=shards)),
        ):
            path = collected / f"{table}.csv"
            if table == "coverage" and not shards:
                continue
            try:
                if path.is_file():
                    store.append(table, read(path, vm.vm))
            except (ValueError, OSError) as error:
                warnings.append(f"{table}.csv of {vm.vm} cannot be read and is skipped: {error}")
    switch = _read_json(folder / "cloud" / "switch.json")
    close_provider(store, calls)
    warnings += InputSums(store).collect(folders)
    kept = _read_json(folder / "cloud" / "store" / "kept.json") or {}
    warnings += [
        f"a checkpoint was not copied to {folder}: {problem}" for problem in kept.get("problems", ())
    ]
    forget_keys(folder)
    with store.transaction():
        if switch is not None:
            store.set_meta("switch", switch)
            store.set_meta("host", host_report(store, folder / "cloud", switch))
        store.set_meta("warnings", [*store.meta("warnings", []), *warnings])
        store.set_meta("ended_s", now_s)
        store.set_meta("error", "" if status == "done" else cause)
        store.set_meta("status", status)


def close_provider(store: RunStore, calls: Calls) -> None:
    """Terminate everything the provider has of the run. Raises ProviderError if that cannot be proven."""
    calls.wait(Call("close", "close", (), store.run_meta().close_deadline_s))


def host_report(store: RunStore, cloud: Path, switch: dict[str, Any]) -> dict[str, Any]:
    """Whether the host kept the emulation's timing accurate during the measurement (metrics/host_load.py).

    `cloud`: folder of the emulated cloud, with its pace.csv. Raises StoreError.
    """
    meta, epochs, vms = store.run_meta(), store.records("epochs"), store.records("vms")
    raw = swarm_epochs(epochs, meta.warmup_epochs, vms=vms)
    chosen = [epoch.epoch for epoch in measured(raw)]
    stretched = stretched_share(kept_records(epochs, vms), chosen, _expected_step_s(meta, vms))
    calculates = meta.emulation is not None and meta.emulation.accelerators == HOST
    return host_trust(switch, _pace(cloud / "pace.csv"), spans_of(raw), stretched, calculates=calculates)


def _expected_step_s(meta: RunMeta, vms: Sequence[VmRecord]) -> dict[str, float]:
    """Seconds to which the forward and backward passes of a reported step are padded, by VM, on this machine's clock."""
    shrunk = meta.emulation
    if not meta.emulated or shrunk is None or shrunk.accelerators == HOST:
        return {}
    try:
        spec = from_document(meta.document)
    except SpecError as error:  # an experiment of an older orch: the run is still closed
        _log.warning("cannot check whether the emulated accelerators kept their pace: %s", error)
        return {}
    batch, found = spec.swarm.batch_size, {}
    for vm in vms:
        times = step_time(spec.timed_as, vm.accelerator, plain=spec.swarm.plain)
        if times is not None and times.padded:
            step_s = times.forward_s(batch) + times.backward_s(batch)
            found[vm.vm] = step_s * shrunk.steps_per_report(vm.accelerator) / shrunk.time_scale
    return found


def _pace(path: Path) -> list[PaceSecond]:
    """The host's recorded pace per second; [] if there is no record."""
    try:
        return pace_of(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return []


def read_steps(path: Path, vm: str) -> Iterable[StepRecord]:
    """The rows of a steps.csv, without a last line cut off by the VM's end. Raises ValueError."""
    return _read_rows(path, vm, StepRecord)


def read_egress(path: Path, vm: str) -> Iterable[EgressRecord]:
    """The rows of an egress.csv: bytes sent outside epochs. Raises ValueError."""
    rows = _read_rows(path, vm, EgressRecord)
    for row in rows:
        if row.phase not in ("joining", "leaving") or row.bytes < 0:
            raise ValueError(f"{path}: {row.bytes} bytes in phase {row.phase!r}")
    return rows


def read_utilisation(path: Path, vm: str) -> Iterable[UtilisationRecord]:
    """The rows of a utilisation.csv. Raises ValueError."""
    rows = _read_rows(path, vm, UtilisationRecord)
    for row in rows:
        if not is_plausible(row):
            raise ValueError(f"{path}: not a utilisation: {row}")
    return rows


def read_coverage(path: Path, vm: str, *, shards: int) -> Iterable[CoverageRecord]:
    """The rows of a coverage.csv of a run of `shards` shards. Raises ValueError."""
    rows = _read_rows(path, vm, CoverageRecord)
    for row in rows:
        if not coverage.is_plausible(row, shards):
            raise ValueError(f"{path}: not a report of used samples: {row}"[:500])
    return rows


def _read_rows(path: Path, vm: str, kind: type[_Row]) -> list[_Row]:
    """A VM's CSV as rows.

    The VM may be broken, so any malformed content raises ValueError, and nothing else.
    """
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind) if f.default is MISSING]
    later = [f.name for f in fields(kind) if f.default is not MISSING]  # optional; empty means unknown
    rows: list[_Row] = []
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError(f"{path}: more than {_LARGEST_BYTES} bytes")
    with path.open(newline="", encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    reader = csv.DictReader(lines)
    try:
        for row in reader:
            values = {**{k: v for k, v in row.items() if k in names}, "vm": vm}  # a VM speaks for itself only
            missing = [n for n in names if values.get(n) in (None, "")]
            if missing:
                raise _NoColumnError(f"{path}: no column {', '.join(missing)}")
            known: dict[str, Any] = {n: _value(_kind_of(hints[n]), row[n]) for n in later if row.get(n)}
            rows.append(kind(**{n: _value(hints[n], values[n]) for n in names}, **known))
    except _NoColumnError:
        raise
    except (csv.Error, ValueError, OverflowError) as error:
        raise ValueError(f"{path}:{reader.line_num}: {str(error)[:200]}") from error
    return rows


def _kind_of(hint: Any) -> type:
    """The type of a column, without None."""
    return next((kind for kind in get_args(hint) if kind is not NoneType), hint)


def _value(kind: type, text: str) -> Any:
    """Convert one cell.

    Raises ValueError for values that the store cannot hold: NaN, infinity, integers above 63 bits.
    """
    value = kind(text)
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    if kind is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"an integer of {len(text)} digits")
    return value


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return None
