"""Where the slots of an earlier run were in the data, for a run that begins with a checkpoint of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from experiments.schema.slots import slots
from experiments.wire.epoch_positions import EpochPositions
from metrics.store.database import RunStore, StoreError
from orchestrator.home import run_folder


def earlier_positions(
    home: Path, run_id: str, epoch: int, spec: ExperimentSpec
) -> tuple[Mapping[str, Any], str]:
    """Return meta's `epoch_positions` of the earlier run, or nothing and why the data starts from the beginning.

    They are positions in the same data only if shards, store, seed and slots are the same in both runs. `epoch`: of the
    checkpoint, at whose end, or before it, the position of each slot must be known.
    """
    file = run_folder(home, run_id) / "run.db"
    if not file.is_file():
        return {}, f"where {run_id} was in it is not known on this machine"
    try:
        with RunStore.open_reader(file) as store:
            document, known = store.run_meta().document, dict(store.meta("epoch_positions") or {})
        before = from_document(document)
    except (StoreError, SpecError) as error:
        return {}, f"the database of {run_id} cannot be read ({error})"
    if sorted(set(shard_urls(before.data.shards))) != sorted(set(shard_urls(spec.data.shards))):
        return {}, f"its shards are not those of {run_id}"
    if _store(before) != _store(spec):
        return {}, f"its store or data set is not that of {run_id}"
    if before.seed != spec.seed:
        return {}, f"its seed is not that of {run_id}"
    if {slot.name for slot in slots(before)} != {slot.name for slot in slots(spec)}:
        return {}, f"its peers are not those of {run_id}"
    lacking = [slot.name for slot in slots(spec) if not _is_known(known.get(slot.name), epoch)]
    if lacking:
        return {}, f"{run_id} reported no position of {', '.join(lacking)} up to epoch {epoch}"
    return known, ""


def _is_known(entry: Any, epoch: int) -> bool:
    if not isinstance(entry, Mapping):
        return False
    positions = EpochPositions.from_json({name: entry.get(name) for name in ("since", "at")})
    return positions is not None and positions.upto(epoch) is not None


def _store(spec: ExperimentSpec) -> str:
    """What decides, with their URLs, which shards are read: the endpoint, or the data set in the embedded store."""
    return spec.data.endpoint.rstrip("/") or spec.data.dataset
