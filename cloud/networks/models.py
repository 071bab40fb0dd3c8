"""Models that extend a network's single-stream figures: several streams on one path, and what one VM can process.

Both are data files of this package. Each figure has its source and the runs of the paper it was calibrated on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources

from cloud.networks.network import Network, NetworkError, Path

# A path is taken as limited by the window if its iperf figure x round trip is at least this share of the window: a test
# of ten seconds loses about seven round trips to slow start, 19 % at 270 ms. Other paths (a slower link, a larger
# window) keep their figure.
_OF_WINDOW = 0.75


@dataclass(frozen=True)
class PathModel:
    """What averaging streams carry between two places, beyond the network file's single stream. Unscaled seconds."""

    name: str
    window_bytes: float  # in flight on one long-running stream; 0: derived from the network file's figure
    hold_s: float  # by which each further stream of a VM delays the return of a stream's window
    spell_rate_per_s: float  # slow spells that start per pair of VMs and second
    spell_factor: float  # rate of a pair in a slow spell, as a share of its normal rate
    spell_mean_s: float  # mean duration of a slow spell
    window_factor: float = 1.0  # of tuned kernels: by which `window_bytes` is exceeded

    def stream_bps(self, path: Path, streams: int = 1) -> float:
        """Payload bits/s of one of a VM's `streams` streams: window / (RTT + hold x (streams - 1)).

        If the window does not explain the network file's figure, that figure is an upper bound of its own, for tuned
        kernels too.
        """
        limited = _OF_WINDOW * self.window_bytes <= path.window_bytes <= self.window_bytes
        most_bps = float("inf") if limited else path.stream_bps
        own_bytes = self.window_bytes * self.window_factor
        window_bytes = own_bytes if limited else max(own_bytes, path.window_bytes)
        return min(most_bps, window_bytes * 8 / (path.rtt_s + self.hold_s * max(0, streams - 1)))

    def carried_bps(self, network: Network, location_a: str, location_b: str, streams: int = 1) -> float:
        """`stream_bps` between two locations; two locations in one place keep the network file's figure.

        Raises NetworkError if the network has no such path.
        """
        path = network.path(location_a, location_b)
        if network.place(location_a) == network.place(location_b):
            return path.stream_bps
        return self.stream_bps(path, streams)


NO_PATH_MODEL = PathModel("none", 0.0, 0.0, 0.0, 1.0, 0.0)
_CALM = "-calm"  # suffix: the same model without slow spells, so that two runs do not differ by the spells they met


@dataclass(frozen=True)
class VmModel:
    """How a VM's own processing limits averaging."""

    name: str
    processing_bps: float  # bits/s that Hivemind achieves on it, counted in whole packets
    sync_work_base_s: float
    sync_work_s_per_parameter: float
    step_spread_of_vms: float  # relative standard deviation of the VMs' mean step times
    step_spread_of_epochs: float  # of one VM's mean step times in different epochs

    def sync_work_s(self, parameters: int) -> float:
        """Seconds of the VM's own work around a round: gradient copies, the offloaded optimizer."""
        return self.sync_work_base_s + self.sync_work_s_per_parameter * parameters


def path_model(name: str) -> PathModel:
    """Load "none", a model of path_models.csv, or "NAME-calm" (that model without slow spells). Raises NetworkError."""
    if name == NO_PATH_MODEL.name:
        return NO_PATH_MODEL
    if name.endswith(_CALM):
        return replace(path_model(name.removesuffix(_CALM)), name=name, spell_rate_per_s=0.0)
    found = _values("path_models.csv", name)
    return PathModel(name, **found)


def path_model_names() -> list[str]:
    """Names that `path_model` accepts."""
    known = sorted({row["name"] for _, row in _rows("path_models.csv")})
    return [NO_PATH_MODEL.name, *known, *(f"{name}{_CALM}" for name in known)]


def vm_model(name: str = "gc-n1-standard-8-t4") -> VmModel:
    """Load a model of vm_models.csv. Raises NetworkError."""
    found = _values("vm_models.csv", name)
    return VmModel(
        name,
        processing_bps=found["processing_bps"],
        sync_work_base_s=found["sync_work_base_s"],
        sync_work_s_per_parameter=found["sync_work_s_per_1e9_parameters"] / 1e9,
        step_spread_of_vms=found["step_spread_of_vms"],
        step_spread_of_epochs=found["step_spread_of_epochs"],
    )


def vm_limit() -> float:
    """Bits/s that the paper's VMs can send, limited by their own processing. Raises NetworkError."""
    return vm_model().processing_bps


def path_bounds(name: str) -> dict[str, tuple[float, float]]:
    """Return the 90 % interval of each figure of a path model that has one. "NAME-calm" has those of NAME."""
    return _bounds("path_models.csv", name.removesuffix(_CALM))


def vm_bounds(name: str = "gc-n1-standard-8-t4") -> dict[str, tuple[float, float]]:
    """Return the lowest and highest value of each figure of a VM model that has both."""
    return _bounds("vm_models.csv", name)


def _bounds(file: str, name: str) -> dict[str, tuple[float, float]]:
    return {
        row["key"]: (float(row["low"]), float(row["high"]))
        for _, row in _rows(file)
        if row["name"] == name and row["low"] and row["high"]
    }


def _values(file: str, name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line, row in _rows(file):
        if row["name"] == name:
            try:
                found[row["key"]] = float(row["value"])
            except ValueError as error:
                raise NetworkError(f"{file}:{line}: {error}; give a number") from error
    if not found:
        raise NetworkError(f"{file} has no model named '{name}'")
    return found


def _rows(file: str) -> Iterator[tuple[int, dict[str, str]]]:
    with (resources.files("cloud.networks") / file).open(encoding="utf-8") as text:
        yield from enumerate(csv.DictReader(text), start=2)
