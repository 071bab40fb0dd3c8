"""The experiment file as frozen pydantic models: the keys, their limits, their defaults.

SkyPilot's key names where the meaning is equal. The descriptions are the reference: they end up in the JSON
Schema that editors show. Rules that join two keys are in `_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from experiments.averaging.fixed_width import FLOAT16
from experiments.averaging.flat import FLAT
from experiments.averaging.methods import EXCHANGES, OVERLAPS, method_of
from experiments.averaging.overlap import BLOCKING
from experiments.averaging.records import AveragingMethod
from experiments.averaging.single_peer import SINGLE_PEER
from experiments.schema import fields as f
from experiments.schema.limits import Limits


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


class Optimizer(_Section):
    """The optimizer each peer runs on the averaged gradients."""

    name: Literal["adam", "sgd", "lamb"] = Field(default="adam", description="adam, sgd or lamb.")
    lr: float = Field(default=0.001, gt=0, le=10, description="Learning rate.")
    momentum: float | None = Field(default=None, ge=0, lt=1, description="For sgd.")
    betas: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        default=None, description="For adam and lamb."
    )
    eps: float | None = Field(default=None, gt=0, le=1, description="For adam and lamb.")
    weight_decay: float | None = Field(
        default=None, ge=0, le=1, description="L2 penalty; none where it is left out."
    )

    def as_mapping(self) -> dict[str, Any]:
        """Name, lr and what else was set: the peer's config."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class Data(_Section):
    """Where the training data lie."""

    shards: f.ShardPattern = Field(description="Training shards: s3://bucket/train-{000000..000031}.tar.")
    heldout: f.ShardPattern | None = Field(
        default=None, description="Held-out shards; none: accuracy is not measured."
    )
    endpoint: f.Endpoint = Field(
        default="", description="http(s)://host:port of the store; '': the embedded store."
    )
    region: Annotated[str, f.word("[a-z0-9-]{1,40}", "a region of an object store")] = Field(
        default="us-east-1", description="The region requests are signed for."
    )
    location: f.StoreLocation = Field(
        default="b2/us-west-1", description="Where the store is on the map (for egress)."
    )
    private: bool = Field(
        default=False,
        description="true: only the VMs reach the store, so `orch launch --on sky` does not look at it.",
    )
    cache_gb: float = Field(
        default=1.0, ge=0, le=10_000, description="Disk a peer may use as cache, in 1e9 bytes."
    )
    dataset: Literal["digits"] = Field(
        default="digits", description="What `orch data make` makes for these shards."
    )


class Swarm(_Section):
    """What the peers agree on."""

    target_batch_size: int = Field(
        ge=1, le=2**24, description="Samples the peers gather before they average."
    )
    batch_size: int = Field(
        default=32, ge=1, le=65_536, description="Samples of one step of one accelerator."
    )
    compression: f.Compression = Field(default=FLOAT16.name, description=f.COMPRESSION_MEANING)
    optimizer: Optimizer = Field(
        default_factory=Optimizer, description="What each peer runs after averaging."
    )
    matchmaking_time_s: float = Field(
        default=5.0, ge=0.5, le=120, description="Time to find one's group, at least."
    )
    averaging_timeout_s: float = Field(
        default=300.0, ge=5, le=7200, description="A round that takes longer is given up."
    )
    averaging: f.Averaging = Field(default=FLAT.name, description=f.meanings(EXCHANGES))
    overlap: f.Overlap = Field(default=BLOCKING.name, description=f.meanings(OVERLAPS))
    plain: bool = Field(default=False, description=f.meanings((SINGLE_PEER,)))

    @property
    def method(self) -> AveragingMethod:
        """How gradients are averaged."""
        return method_of(
            averaging=self.averaging,
            compression=self.compression,
            overlap=self.overlap,
            plain=self.plain,
        )


class Resources(_Section):
    """One kind of VM in one place."""

    infra: f.Location = Field(description="cloud/region/zone, or cloud/region for any of its zones.")
    accelerators: f.AcceleratorName = Field(
        default="T4:1", description="Name and count, such as T4:1; CPU:1 for none."
    )
    use_spot: bool = Field(
        default=False, description="Rent at the spot price; the cloud may take the VM back."
    )
    disk_size: int = Field(default=100, ge=10, le=65_536, description="GB.")
    image_id: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="The cloud's name of a machine image."
    )
    max_usd_per_h: f.Usd | None = Field(
        default=None, description="No dearer VM is taken there; a VM without a known price counts as this."
    )


class Replace(_Section):
    """What happens when a VM of the group is lost."""

    policy: Literal["same_place", "next_place", "cheapest_place", "wait", "never"] = Field(
        default="same_place",
        description="Where to look for the next VM; wait: here, however often it is refused.",
    )
    max_replacements: int = Field(default=10, ge=0, le=1000, description="Per slot.")
    backoff_s: f.Seconds = Field(
        default=10.0, description="Wait before the first retry; doubles up to five minutes."
    )


class PeerGroup(_Section):
    """Peers that are alike: one VM each."""

    name: f.GroupName = Field(description="Slots are called <name>-0, <name>-1, ...")
    count: int = Field(default=1, ge=1, le=f.MAX_PEERS, description="Number of peers.")
    resources: Resources | None = Field(default=None, description="The VM. Either this or any_of.")
    any_of: Annotated[tuple[Resources, ...], Field(strict=False, min_length=1, max_length=16)] | None = Field(
        default=None, description="Alternatives, the preferred first. Either this or resources."
    )
    replace: Replace = Field(default_factory=Replace, description="What happens when a VM is lost.")

    @model_validator(mode="after")
    def _one_of_both(self) -> PeerGroup:
        if (self.resources is None) == (self.any_of is None):
            found = "found neither" if self.resources is None else "found both"
            raise f.complain(f"{found} 'resources' and 'any_of'; write exactly one of them")
        return self

    @property
    def alternatives(self) -> tuple[Resources, ...]:
        """The VMs that would do, the preferred first."""
        return self.any_of or ((self.resources,) if self.resources else ())


class Measure(_Section):
    """How long to run, in hivemind epochs."""

    warmup_epochs: int = Field(default=1, ge=0, le=100, description="Left out of every mean, and shown.")
    epochs: int = Field(default=2, ge=1, le=10_000, description="Measured epochs.")


class Preempt(_Section):
    """Take VMs away on purpose (emulated cloud)."""

    rate_per_h: float | None = Field(
        default=None, gt=0, le=3600, description="Random preemptions per VM and hour."
    )
    at_s: f.Seconds | None = Field(default=None, description="One preemption, so long after training began.")
    slot: str | None = Field(default=None, description="Which slot; left out: each VM is as likely.")
    notice_s: float = Field(
        default=0.0, ge=0, le=600, description="Announced so long before; 0: without notice."
    )


class Emulation(_Section):
    """How the run is scaled on the emulated cloud; reports multiply back."""

    bytes_scale: f.ScaleOrAuto = Field(default="auto", description="Gradients and bandwidths shrink by it.")
    time_scale: f.ScaleOrAuto = Field(default="auto", description="Only 1 is proved; auto is 1.")
    samples_scale: f.ScaleOrAuto = Field(default="auto", description="The target batch size shrinks by it.")
    network: f.NetworkName = Field(
        default="study-2023-04", description="RTT and bandwidth of each pair; none: rented VMs only."
    )
    path_model: Literal["none", "study", "study-calm"] = Field(
        default="study",
        description="What several streams carry between two places, and slow spells, as in the study's transatlantic "
        "runs; study-calm: the same without the spells; none: each stream the network file's rate, whatever else goes on.",
    )
    boot_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=0.0, description="How long a VM takes to boot."
    )
    capacity: Annotated[dict[f.Location, Annotated[int, Field(ge=0, le=1000)]], Field(max_length=100)] = (
        Field(default_factory=dict, description="VMs a place has at most; places not named have enough.")
    )
    windows: Literal["auto", "paced", "kernel"] = Field(
        default="auto",
        description="What limits a stream. paced: the switch, at the network file's rate; kernel: real TCP windows, "
        "while the switch only delays; auto: kernel with network_tuning wan, else paced.",
    )
    preempt: Preempt | None = Field(default=None, description="Preemptions on purpose.")
    parts: f.PartsOrAuto = Field(default="auto", description="Parts a peer sends each other peer in a round.")


def _auto(value: Any) -> Any:
    return {} if value == "auto" else value


class _OrAutoInSchema:
    """Lets the JSON Schema say that the word auto stands for the section's defaults."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"const": "auto"}]}


_EmulationOrAuto = Annotated[Emulation, BeforeValidator(_auto), _OrAutoInSchema()]


class ExperimentSpec(_Section):
    """One experiment: a model, a data set, a target batch size, peers by location."""

    name: Annotated[
        str, f.word("[a-z0-9][a-z0-9-]{0,39}", "an experiment's name: a-z, 0-9 and '-', at most 40")
    ] = Field(description="Run ids begin with it.")
    description: f.Text = Field(default="", description="One sentence for `orch experiments`.")
    model: f.ModelName = Field(description="A name of experiments/models.csv.")
    data: Data
    swarm: Swarm
    peers: Annotated[tuple[PeerGroup, ...], Field(strict=False, min_length=1, max_length=f.MAX_PEERS)] = (
        Field(description="Groups of peers.")
    )
    measure: Measure = Field(default_factory=Measure)
    budget_usd: f.Usd | None = Field(default=None, description="Spending stops before it would be passed.")
    max_usd_per_h: f.Usd | None = Field(
        default=None, description="No VM is requested that would make all of them together dearer."
    )
    max_wall_time_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = Field(
        default=None, description="The run stops so long after its launch."
    )
    min_peers: int = Field(
        default=1,
        ge=1,
        le=f.MAX_PEERS,
        description="With fewer peers that can train, the run pauses; where so many can never train again, it ends.",
    )
    lease_s: float = Field(
        default=600.0,
        ge=30,
        le=86_400,
        description="A peer that has not heard of the controller for so long ends itself.",
    )
    limits: Limits = Field(default_factory=Limits, description="How fast VMs are requested.")
    prices: f.PriceBook = Field(
        default="auto",
        description="The price book: a name, a CSV file, or several, whose rows each replace those of the ones before "
        "it ([auto, mine.csv]); auto: the study's for emulated runs, the newest for rented VMs.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="Of weights, order of samples and emulated faults."
    )
    envs: Annotated[dict[f.EnvironmentName, str], Field(max_length=100)] = Field(
        default_factory=dict, description="Environment variables of the peers."
    )
    secrets: Annotated[dict[f.EnvironmentName, None], Field(max_length=100)] = Field(
        default_factory=dict, description="NAME: null. The value comes from the environment of `orch`."
    )
    setup: Annotated[str, Field(max_length=100_000)] = Field(
        default="", description="Shell commands before the peer (VMs only)."
    )
    file_mounts: Annotated[dict[str, str], Field(max_length=100)] = Field(
        default_factory=dict, description="Path on the VM: local path or bucket (VMs only)."
    )
    network_tuning: Literal["default", "wan"] = Field(
        default="default",
        description="wan: TCP windows for long round trips (64 MiB buffers, BBR where the kernel has it), set before "
        "`setup`; emulated with windows: kernel.",
    )
    emulation: _EmulationOrAuto | None = Field(
        default_factory=Emulation, description="auto, or settings; null: real VMs only."
    )

    @property
    def peer_count(self) -> int:
        """Peers of all groups."""
        return sum(group.count for group in self.peers)


def keys_of(section: type[Any]) -> Mapping[str, FieldInfo]:
    """The keys of a section, which is a model or a dataclass."""
    if issubclass(section, BaseModel):
        return section.model_fields
    kinds = get_type_hints(section)
    return {key.name: FieldInfo.from_annotated_attribute(kinds[key.name], key) for key in fields(section)}
