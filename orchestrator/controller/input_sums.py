"""Stores the sums of the peers' input traces (`data.trace`) when the run ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from analysis.pipeline.sums import sums_of, trace_files
from metrics.readable import few
from metrics.records import EpochRecord
from metrics.store.database import RunStore

_log = logging.getLogger("orchestrator.controller")


def store_input_sums(store: RunStore, folders: Mapping[str, Path]) -> list[str]:
    """Add up the traces in the VMs' folders, and return warnings: what could not be read, and which VMs have no trace.

    Raises StoreError only.
    """
    traced = (store.run_meta().document.get("data") or {}).get("trace", "off") != "off"
    epochs: dict[str, list[EpochRecord]] = {}
    for record in store.records("epochs"):
        epochs.setdefault(record.vm, []).append(record)
    warnings, silent = list[str](), list[str]()
    for vm, folder in folders.items():
        try:
            files = trace_files(folder / "trace")
            if not files:
                silent += [vm] if vm in epochs else []
                continue
            found = sums_of(files, vm, epochs.get(vm, ()))
        except Exception as error:  # noqa: BLE001 - logged; a VM wrote these files, and the run is still closed
            _log.exception("the trace of %s", vm)
            warnings.append(f"The input trace of {vm} cannot be read and is skipped: {error!r}"[:500])
            continue
        with store.transaction():
            store.append("input_ops", found.ops)
            store.append("input_batches", found.batches)
            store.append("input_traces", [found.trace])
        if found.problems:
            _log.warning("the trace of %s: %s", vm, "; ".join(found.problems))
            warnings.append(_incomplete(vm, found.trace.damaged, found.trace.files, found.problems))
        if found.trace.dropped:
            warnings.append(
                f"The input trace of {vm} lacks {found.trace.dropped:,} events, which full buffers did not hold: its input "
                "times are those of the recorded part."
            )
    if traced and silent:
        warnings.append(
            f"Without trace files, the input times of {few(silent)} are unknown (traces of rented VMs are not copied)."
        )
    return warnings


def _incomplete(vm: str, damaged: int, files: int, problems: tuple[str, ...]) -> str:
    return f"The input trace of {vm} is incomplete, {damaged} of {files} files are damaged: {few(problems)}."
