"""The peer's JSON config, written by the controller and read by the peer. The two share nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


class PeerConfigError(Exception):
    """The config is invalid or unreadable."""


@dataclass(frozen=True)
class PeerConfig:
    """Settings of one peer. Times are wall-clock seconds of this machine; all times and sizes are already scaled.

    Paths are relative to the config's folder, where the peer also writes status.json, steps.csv,
    utilisation.csv, coverage.csv and peer.log.
    """

    run_id: str
    vm: str
    slot: str
    generation: int
    # swarm
    listen_address: str  # IP to listen on; "": the address of the VM's default route
    listen_port: int
    # Multiaddrs of running peers; empty for the first peer. "env:NAME": read from that variable, which may hold "alone".
    initial_peers: tuple[str, ...]
    expected_peers: int  # training starts once this many are ready, or the swarm is already training
    barrier_timeout_s: float
    target_batch_size: int
    batch_size: int  # samples per accelerator step
    coalesce: int  # accelerator steps per reported optimizer step (about one progress report a second)
    max_epochs: int  # stop after this hivemind epoch
    compression: str  # "none" | "float16" | "uniform8bit" | "blockwise8bit" | "powersgd:<rank>"
    optimizer: Mapping[str, Any]  # {"name": "adam"|"adamw"|"sgd"|"lamb", "lr": ..., ...}
    matchmaking_time_s: float
    averaging_timeout_s: float
    next_chunk_timeout_s: float
    request_timeout_s: float
    dht_timeout_s: float
    part_size_bytes: int
    # model
    model: str  # name in experiments/models.csv
    emulated: bool  # True: small real network + ballast + padding; False: the actual model
    parameters: int  # emulated: total parameters to average (network + ballast), after bytes_scale
    forward_s: float  # emulated: wall seconds the accelerator's forward takes (0: no padding)
    backward_s: float
    sync_work_s: float  # emulated: the real VM's own work around a round (gradient copies, optimizer)
    seed: int
    # data
    endpoint: str  # "": boto3's default endpoint resolution
    region: str
    shards: tuple[str, ...]  # all shards, s3://bucket/key; each slot reads its own share
    heldout_shards: tuple[str, ...]
    cache_bytes: int
    samples_limit: int | None = None
    # emulated: rows and columns of the ballast's matrices; the rest of the ballast consists of vectors
    matrices: tuple[tuple[int, int], ...] = ()
    averaging: str = "flat"  # "flat" | "hierarchical"
    averaging_region: str = ""  # hierarchical: peers of the same region average among themselves first
    overlap: str = "none"  # "none" | "delayed": a round overlaps with the next epoch's calculation
    plain: bool = False  # a plain torch loop without averaging; this is the only peer
    # {"kind": ..., "epochs": ..., ...} of experiments.learning_rate.RateSchedule; empty: the rate stays
    schedule: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"  # "fp32" | "bf16" | "fp16"
    gradient_checkpointing: bool = False  # activations are calculated again in the backward pass
    compile: bool = False  # torch.compile of the task's model, before this peer is announced
    clip_norm: float | None = None  # maximum L2 norm of the averaged gradient
    # the user's own task; None: what `model` names
    task: Mapping[str, Any] | None = None  # {"call": "module:function", "with": {...}, "sha256": ...}
    code_folder: str = ""  # the user's files, relative to this config's folder; first on sys.path. "": none
    pipeline: str = ""  # "module:NAME" of a Pipeline that replaces the task's; "": the task's
    workers: Mapping[str, Any] = field(
        default_factory=lambda: {"kind": "thread", "count": 1, "in_order": True}
    )
    bad_samples: str = "fail"  # "fail" | "skip"
    stored: bool = False  # the training shards hold the values after the pipeline's first operations
    streams: int = 1  # training shards that are downloaded at once
    trace: str = (
        "off"  # of the input pipeline: "off" | "batches" | "ops", in the folder `trace` next to this config
    )
    data_position: Mapping[str, Any] | None = (
        None  # of the slot's last peer (experiments/wire/data_position.py)
    )
    # of the slot's peers at the ends of epochs (experiments/wire/epoch_positions.py)
    epoch_positions: Mapping[str, Any] | None = None
    # Accelerators of this VM that train together, a process for each (training/ranks.py). `batch_size` is that of each.
    ranks: int = 1
    evaluate_every_epochs: int = (
        0  # hivemind epochs between two evaluations during training; 0: only at the end
    )
    threads: int = 0  # of torch on the CPU; 0: torch's choice
    # {"prefix": "s3://bucket/prefix/<run id>", "every_epochs": int | None, "every_s": float | None, "keep": int,
    #  "writers": [slots, the one with the cheapest path to the store first],
    #  "start": {"prefix": of another run, "name": of its checkpoint} | None}; None: no checkpoints
    checkpoint: Mapping[str, Any] | None = None
    # False: VMs share this machine, so that CPU and memory are those of the peer's processes (reporting/utilisation.py)
    own_machine: bool = True
    own_network: bool = (
        True  # False: VMs share its network interface, so that what goes through it is unknown
    )
    # closed swarm (experiments/wire/orders.py)
    orders_public_key: str = ""  # OpenSSH text of the run's key; "" = open swarm
    orders: str = ""  # the first orders, base64
    # source of preemption notices (experiments/peer/shutdown/preemption_notices.py)
    notice_url: str = ""  # aws, gcp, azure, http(s)://... or file://...; "": none
    # IP at which others reach this VM if it differs from the listen address; "env:NAME": that variable's value
    announce_address: str = ""
    # files in the config's folder
    identity_file: str = "identity.key"  # libp2p private key (PEM as Hivemind writes it)
    record_key_file: str = "record.key"  # RSA key (PEM) that signs what this peer publishes
    # the store's AWS_* variables: secret
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def samples_per_step(self) -> int:
        """Samples of one reported optimizer step, of all accelerators."""
        return self.batch_size * self.coalesce * self.ranks

    @classmethod
    def load(cls, path: Path) -> PeerConfig:
        """Read a config. Raises PeerConfigError with the file and the problem."""
        try:
            raw = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise PeerConfigError(f"{path}: cannot read the peer's config: {error}") from error
        if not isinstance(raw, dict):
            raise PeerConfigError(f"{path}: the peer's config is not a JSON object")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise PeerConfigError(
                f"{path}: unknown keys {', '.join(unknown)}: controller and peer have different versions"
            )
        for name in ("initial_peers", "shards", "heldout_shards"):
            raw[name] = tuple(raw.get(name, ()))
        try:
            raw["matrices"] = tuple((rows, columns) for rows, columns in raw.get("matrices", ()))
            return cls(**raw)
        except (TypeError, ValueError) as error:
            raise PeerConfigError(f"{path}: {error}") from error
