"""A profile of a pipeline's strategies, as `orch pipeline profile` wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.errors import sentences

if TYPE_CHECKING:
    import pandas as pd

    from analysis.pipeline.profile_records import Measurement
    from analysis.pipeline.profile_records import Profile as Records

_HOST = (
    "cpu_share",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
    "context_switches_per_s",
)


class Profile:
    """What the strategies of a pipeline took. Created by `orch.profile`. `records`: as in profile.json."""

    def __init__(self, records: Records) -> None:
        """Private: use `orch.profile`."""
        self.records = records

    def strategies(self) -> pd.DataFrame:
        """One row per strategy, in the order in which they were measured."""
        from orch.frames import frame

        return frame("strategies", map(_row, self.records.measurements))


def profile(folder: str | Path) -> Profile:
    """Read the profile.json in `folder`, or that file. Raises OrchError."""
    with sentences():
        from orchestrator.pipeline.find_profile import FILE, read_profile

        path = Path(folder)
        return Profile(read_profile(path / FILE if path.is_dir() else path))


def _row(one: Measurement) -> dict[str, Any]:
    strategy, rate = one.strategy, one.delivered_sps
    return {
        "label": strategy.label,
        "split": strategy.split,
        "after": one.after,
        "codec": strategy.codec,
        "streams": strategy.streams,
        "workers": strategy.workers,
        "worker_kind": strategy.worker_kind,
        "cache": strategy.cache,
        "samples": one.samples,
        "bad_samples": one.bad_samples,
        "stored_bytes": one.stored_bytes,
        "wire_bytes": one.wire_bytes,
        "later_wire_bytes": one.later_wire_bytes,
        "cached_bytes": one.cached_bytes,
        "offline_s": one.offline_s,
        "offline_cpu_s": one.offline_cpu_s,
        "save_s": one.save_s,
        "read_sps": one.read_sps.value,
        "write_sps": None if one.write_sps is None else one.write_sps.value,
        "stored_read_sps": None if one.stored_read_sps is None else one.stored_read_sps.value,
        "sps": rate.value,
        "sps_low": rate.low,
        "sps_high": rate.high,
        "cpu_s": one.cpu_s.value,
        **{f"host_{name}": getattr(one.host, name, None) for name in _HOST},
    }
