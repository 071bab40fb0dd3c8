"""Options of an emulated cloud: written once to cloud/options.json and read by its host process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cloud.local.windows import Windows
from cloud.networks.tuning import NetworkTuning

Mode = Literal["auto", "namespaces", "loopback"]


@dataclass(frozen=True)
class PreemptOptions:
    """When the emulated provider preempts VMs. All times in real seconds of this machine."""

    rate_per_h: float = 0.0  # per VM; exponentially distributed, drawn from the seed and the VM's name
    at_s: tuple[float, ...] = ()  # after the first of its VMs trains; the victim is drawn from the seed
    notice_s: float | None = None  # time between notice and preemption; None: no notice
    slot: str = ""  # "<run id>-<slot>": preempt only VMs of this slot; "": any
    seed: int = 0


@dataclass(frozen=True)
class StoreOptions:
    """Options of the object store's node."""

    kind: Literal["none", "swift", "forward"] = "none"
    location: str | None = None
    port: int = 8080
    url: str = ""  # forward: the user's own http endpoint
    folder: str = ""  # swift: folder of its objects; "": the run's cloud/swift
    # swift: its virtual environment; "": created at start (outside, where the network is available)
    swift_environment: str = ""
    # swift: "module:function", called with its arguments (plus endpoint and keys) and a progress callback
    dataset: str = ""
    dataset_arguments: Mapping[str, Any] = field(default_factory=dict)
    # swift: likewise, called after `dataset`; "": nothing else is stored
    restore: str = ""
    restore_arguments: Mapping[str, Any] = field(default_factory=dict)
    # swift: likewise, called when the cloud is closed, before the objects are removed; "": nothing is kept
    keep: str = ""
    keep_arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalOptions:
    """Options of one run's emulated cloud."""

    network: str = "study-2023-04"
    bytes_scale: float = 100.0
    time_scale: float = 1.0
    mode: Mode = "auto"
    link: Literal["auto", "tun", "veth"] = "auto"
    vm_limit_bps: float | None = None  # bits/s that a VM's processing allows; None: from vm_models.csv
    path_model: str = "none"  # of streams between two places: a name of path_models.csv
    seed: str = ""  # of the model's slow spells
    run_id: str = ""  # prefix of the VMs' names, which is ignored when spells are drawn
    windows: Windows = "paced"  # what limits a stream: the switch, or the VMs' own TCP windows
    network_tuning: NetworkTuning = "default"  # of the VMs' kernels, with windows "kernel"
    boot_s: float = 0.0
    # Maximum number of VMs alive at once, by location; absent: no limit.
    capacity: Mapping[str, int] = field(default_factory=dict)
    preempt: PreemptOptions = PreemptOptions()
    store: StoreOptions = StoreOptions()
    preload: tuple[str, ...] = ("torch", "hivemind")  # imported once, before the VMs' programs are forked
    expected_peers: int = 0  # their memory is checked before anything starts
    peer_memory_bytes: int = 700_000_000
    lease_s: float = 600.0  # the cloud ends after this long without contact by a client
    environment: Mapping[str, str] = field(default_factory=dict)  # of every VM's program

    def save(self, path: Path) -> None:
        """Write as JSON, readable by the user only."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> LocalOptions:
        """Read what `save` wrote."""
        raw = json.loads(path.read_text())
        raw["preempt"] = PreemptOptions(**{**raw["preempt"], "at_s": tuple(raw["preempt"]["at_s"])})
        raw["store"] = StoreOptions(**raw["store"])
        raw["preload"] = tuple(raw["preload"])
        return cls(**raw)
