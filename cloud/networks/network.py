"""Measured networks: what one TCP stream carries between two places, and the round-trip time between them."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import resources
from importlib.resources.abc import Traversable

_NOT_NETWORKS = {"places", "path_models", "vm_models"}


class NetworkError(Exception):
    """The network file does not exist or has no figures for a pair of places."""


@dataclass(frozen=True)
class Path:
    """One direction between two places."""

    rtt_s: float
    stream_bps: float  # payload bits/s that one TCP stream carries (iperf's figure)
    source: str
    assumed: bool = False  # not measured: `source` says what the figure is based on

    @property
    def window_bytes(self) -> float:
        """Bandwidth x round trip: the TCP window that explains `stream_bps`."""
        return self.stream_bps / 8 * self.rtt_s


@dataclass(frozen=True)
class Network:
    """A matrix of paths between groups of locations. Locations are `cloud/region/zone` (the zone may be missing)."""

    name: str
    paths: Mapping[tuple[str, str], Path]
    places: tuple[tuple[str, str], ...]  # (location pattern, place); the first match wins
    incomplete: Mapping[tuple[str, str], str]  # pairs whose row lacks a figure, with the row's source

    @classmethod
    def load(cls, name: str) -> Network:
        """Load the network file `name` of this package. Raises NetworkError naming the file and the problem."""
        if name not in network_names():
            near = difflib.get_close_matches(name, network_names(), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"available: {', '.join(network_names())}"
            raise NetworkError(f"network '{name}' is unknown; {hint}")
        paths: dict[tuple[str, str], Path] = {}
        incomplete: dict[tuple[str, str], str] = {}
        for line, row in _rows(f"{name}.csv"):
            pair = (row["from"], row["to"])
            if not row["rtt_ms"] or not row["stream_mbps"]:
                incomplete[pair] = row["source"]
                continue
            try:
                path = Path(
                    float(row["rtt_ms"]) / 1e3,
                    float(row["stream_mbps"]) * 1e6,
                    row["source"],
                    row.get("basis") == "assumed",
                )
            except ValueError as error:
                raise NetworkError(
                    f"{name}.csv:{line}: {error}; give rtt_ms and stream_mbps as numbers"
                ) from error
            if path.rtt_s <= 0 or path.stream_bps <= 0:
                raise NetworkError(f"{name}.csv:{line}: rtt_ms and stream_mbps must be above 0")
            paths[pair] = path
        places = tuple((row["location"], row["place"]) for _, row in _rows("places.csv"))
        return cls(name, paths, places, incomplete)

    def place(self, location: str) -> str:
        """Return the network's name of the place that a location belongs to. Raises NetworkError."""
        for pattern, place in self.places:
            if fnmatch("/".join(location.split("/")[:2]), pattern):
                return place
        raise NetworkError(
            f"network '{self.name}' has no measurement at '{location}'; "
            f"it knows locations like {', '.join(pattern for pattern, _ in self.places)}"
        )

    def path(self, location_a: str, location_b: str) -> Path:
        """Return the path from `location_a` to `location_b`.

        Two locations of one region use the file's figures within the place. Two regions of one place (us-central1 and
        us-west1, for example) were not measured and are refused. Raises NetworkError.
        """
        pair = (self.place(location_a), self.place(location_b))
        same_region = location_a.split("/")[:2] == location_b.split("/")[:2]
        unmeasured = pair[0] == pair[1] and not same_region
        if pair in self.paths and not unmeasured:
            return self.paths[pair]
        why = self.incomplete.get(pair, "no such row")
        if unmeasured:
            why = f"the row {pair[0]},{pair[1]} describes two VMs in one region"
        raise NetworkError(
            f"network '{self.name}' has no figures from '{location_a}' to '{location_b}' ({why}); "
            "choose other locations or add a row with its source"
        )

    def window_bytes(self) -> float:
        """The largest bandwidth x round trip of all pairs: the TCP window of the measured hosts."""
        return max(path.window_bytes for path in self.paths.values())


def network_names() -> list[str]:
    """Names that `Network.load` accepts."""
    names = (f.name.removesuffix(".csv") for f in _folder().iterdir() if f.name.endswith(".csv"))
    return sorted(name for name in names if name not in _NOT_NETWORKS)


def _folder() -> Traversable:
    return resources.files("cloud.networks")


def _rows(file: str) -> Iterable[tuple[int, dict[str, str]]]:
    with (_folder() / file).open(encoding="utf-8") as text:
        yield from enumerate(csv.DictReader(text), start=2)
