"""The experiment file as frozen pydantic models: keys, limits and defaults.

Keys have SkyPilot's names where the meaning is equal. The descriptions are the reference: they appear in the JSON
Schema for editors and in docs/yaml.md. Rules that involve two keys are in `experiments.parse.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
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
from experiments.learning_rate import KINDS
from experiments.schema import fields as f
from experiments.schema.checkpoint import Checkpoint
from experiments.schema.limits import Limits
from experiments.schema.tracking import Tracking
from experiments.schema.train import Train
from experiments.tasks.settings import SETTINGS

DIGITS = "digits"
"""The data set of `data.dataset` that emulated models are trained on."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False)


class Optimizer(_Section):
    """The optimizer that each peer applies to the averaged gradients."""

    name: Literal["adam", "adamw", "sgd", "lamb"] = Field(
        default="adam", description="adam, adamw, sgd or lamb."
    )
    lr: float = Field(default=0.001, gt=0, le=10, description="Learning rate.")
    momentum: float | None = Field(default=None, ge=0, lt=1, description="Momentum, for sgd.")
    betas: Annotated[tuple[float, float], Field(strict=False)] | None = Field(
        default=None, description="Coefficients of the running averages, for all but sgd."
    )
    eps: float | None = Field(
        default=None, gt=0, le=1, description="Term for numerical stability, for all but sgd."
    )
    weight_decay: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="adam and sgd: L2 penalty, added to the gradient; adamw and lamb: decay of the weights, apart from the "
        "gradient. Default: 0.01 for adamw, as in torch, otherwise 0.",
    )

    def as_mapping(self) -> dict[str, Any]:
        """Return the keys that are set, for the peer's config."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class RateSchedule(_Section):
    """How the learning rate depends on the hivemind epoch, equally on all peers (docs/training.md)."""

    kind: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        description=f"After the warm-up, {'; '.join(f'{name}: {kind.meaning}' for name, kind in KINDS.items())}."
    )
    warmup_epochs: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Epochs in which the rate rises in equal parts to `optimizer.lr`.",
    )
    final: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="What linear and cosine fall towards until the end of the run, as a fraction of `optimizer.lr`. Default: 0.",
    )

    def as_mapping(self, epochs: int) -> dict[str, Any]:
        """Return the schedule of a run of so many epochs, for the peer's config."""
        settings = {"kind": self.kind, "epochs": epochs, "warmup_epochs": self.warmup_epochs}
        return settings if self.final is None else {**settings, "final": self.final}


class Workers(_Section):
    """What runs the input pipeline on each peer."""

    kind: Literal["thread", "process"] = Field(
        default="thread",
        description="thread: threads of the peer, for pipelines of NumPy and PIL; process: processes of their own, for "
        "pipelines that spend their time in Python.",
    )
    count: int = Field(default=1, ge=1, le=256, description="Number of threads or processes.")
    in_order: bool = Field(
        default=True, description="false: batches are made of the samples that are decoded first."
    )


_Shape = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
_ShapeCount = Annotated[tuple[_Shape, Annotated[int, Field(ge=1)]], Field(strict=False)]


class TaskFacts(_Section):
    """What orch found when it built the task. Written by orch into plans and runs; leave it out of your files."""

    sha256: Annotated[str, f.word("[0-9a-f]{64}", "a SHA-256 in hexadecimal")] = Field(
        description="SHA-256 of code, requirements and settings."
    )
    parameters: int = Field(ge=1, description="Number of parameters that are trained and averaged.")
    shapes: Annotated[tuple[_ShapeCount, ...], Field(strict=False)] = Field(
        default=(), description="Shapes of these parameters: [[sides], number of tensors]."
    )


class Task(_Section):
    """A model with its loss, evaluation and input pipeline (docs/tasks.md). A name alone means `{name: ...}`."""

    name: f.TaskName | None = Field(
        default=None, description=f"A built-in task: {', '.join(SETTINGS)}. Give either this or python."
    )
    python: f.TaskFunction | None = Field(
        default=None,
        description="file.py:function of your own task. The file is shipped to the peers. Relative paths start at this "
        "file's folder.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        alias="with",
        description="Settings of the task. Of a built-in one, `config`, `tokenizer` and `weights` may be files, which are "
        "shipped too.",
    )
    facts: TaskFacts | None = Field(
        default=None, description="Written by orch into plans and runs; leave it out."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Task:
        if (self.name is None) == (self.python is None):
            found = "neither 'name' nor 'python'" if self.name is None else "both 'name' and 'python'"
            raise f.complain(f"found {found}; give exactly one of them")
        return self

    @property
    def title(self) -> str:
        """Its name in plans and reports: "masked-lm", "my_task:build"."""
        if self.python is None:
            return str(self.name)
        path, _, function = self.python.rpartition(":")
        return f"{PurePath(path).stem}:{function}"


class Data(_Section):
    """Location of the training data."""

    shards: f.ShardPattern = Field(
        description="Training shards, for example s3://bucket/train-{000000..000031}.tar."
    )
    heldout: f.ShardPattern | None = Field(
        default=None, description="Held-out shards. Without them, accuracy is not measured."
    )
    evaluate_every_epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="After every so many hivemind epochs, one peer evaluates a copy of the model while all train on. Default: "
        "peers evaluate only when they end.",
    )
    endpoint: f.Endpoint = Field(
        default="", description="http(s)://host:port of the object store. Empty: the embedded store."
    )
    region: Annotated[str, f.word("[a-z0-9-]{1,40}", "a region of an object store")] = Field(
        default="us-east-1", description="Region for which requests to the store are signed."
    )
    location: f.StoreLocation = Field(
        default="b2/us-west-1", description="Location of the store, which determines the price of its egress."
    )
    private: bool = Field(
        default=False,
        description="true: only the VMs can reach the store, so `orch launch --on sky` does not check it.",
    )
    cache_gb: float = Field(
        default=1.0, ge=0, le=10_000, description="Disk space that a peer may use as a cache, in 1e9 bytes."
    )
    dataset: Literal["digits", "glyphs", "stdlib", "photos", "speech", "pages", "power"] = Field(
        default=DIGITS,
        description="Data set that the embedded store holds, one of those that `orch data make` creates. A task must be able "
        "to read it; a `model` is emulated with digits.",
    )
    pipeline: f.PipelineName | None = Field(
        default=None,
        description="file.py:NAME of a Pipeline that replaces the task's, also for held-out samples. The file is shipped with "
        "the task. Relative paths start at this file's folder.",
    )
    workers: Workers = Field(default_factory=Workers, description="What decodes samples on each peer.")
    streams: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Training shards that a peer downloads at once: the one being read and the next ones, each over a "
        "connection of its own (docs/data.md). Samples and their order do not depend on it.",
    )
    stored: bool = Field(
        default=False,
        description="true: `shards` hold the values after the first operations of the pipeline (docs/stored.md), so peers "
        "run only the others on training samples. Held-out shards are as before.",
    )
    bad_samples: Literal["fail", "skip"] = Field(
        default="fail",
        description="What happens to a sample that cannot be decoded. fail: it ends the run; skip: it is left out and counted.",
    )
    trace: Literal["off", "batches", "ops"] = Field(
        default="off",
        description="What each peer records of its input: batches: when they were fetched, collated and used; ops: also each "
        "operation on each sample. The trace is in the VM's folder (docs/trace.md).",
    )
    bytes_per_sample: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="Bytes of a sample in the shards, for the cost of reading them. Default: that of the model in "
        "experiments/models.csv; of a task, that of `dataset` in the embedded store, otherwise what `orch launch` finds in "
        "the first shard.",
    )


class Swarm(_Section):
    """Training settings that are the same for all peers."""

    target_batch_size: int = Field(
        ge=1,
        le=2**24,
        description="Samples that the peers accumulate together before they average gradients.",
    )
    batch_size: int = Field(
        default=32, ge=1, le=65_536, description="Samples of one step on one accelerator."
    )
    compression: f.Compression = Field(default=FLOAT16.name, description=f.COMPRESSION_MEANING)
    optimizer: Optimizer = Field(
        default_factory=Optimizer, description="Optimizer that each peer runs after averaging."
    )
    schedule: RateSchedule | None = Field(
        default=None, description="How the learning rate changes. Default: it stays. See the section below."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="Precision in which models calculate their loss and its gradients (torch.autocast). Weights, averaged "
        "gradients and the optimizer stay in fp32. fp16 has a loss scale.",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="true: the activations of a model's blocks are calculated again in the backward pass instead of being kept, "
        "which takes less memory and more time. For tasks whose model is one of transformers.",
    )
    compile: bool = Field(
        default=False,
        description="true: the task's model is compiled (torch.compile) before a peer trains, which takes up to minutes. Needs a "
        "C++ compiler on VMs without a GPU, triton and a C compiler on others.",
    )
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Maximum L2 norm of the averaged gradient, over all parameters. A longer one is shortened to it before the "
        "optimizer's step.",
    )
    matchmaking_time_s: float = Field(
        default=5.0, ge=0.5, le=120, description="Minimum time for finding an averaging group."
    )
    averaging_timeout_s: float = Field(
        default=300.0, ge=5, le=7200, description="Timeout of an averaging round."
    )
    averaging: f.Averaging = Field(default=FLAT.name, description=f.meanings(EXCHANGES))
    overlap: f.Overlap = Field(default=BLOCKING.name, description=f.meanings(OVERLAPS))
    plain: bool = Field(default=False, description=f.meanings((SINGLE_PEER,)))

    @property
    def method(self) -> AveragingMethod:
        """The averaging method that these keys select."""
        return method_of(
            averaging=self.averaging,
            compression=self.compression,
            overlap=self.overlap,
            plain=self.plain,
        )


class Resources(_Section):
    """One kind of VM at one place."""

    infra: f.Location = Field(description="cloud/region/zone, or cloud/region for any of its zones.")
    accelerators: f.AcceleratorName = Field(
        default="T4:1",
        description="Name and count, such as T4:1. With several, the VM's peer trains on all of them, a process and a batch of "
        "swarm.batch_size for each. CPU:1: no accelerator; CPU:2: two processes without one.",
    )
    use_spot: bool = Field(default=False, description="Rent at the spot price. The cloud may preempt the VM.")
    disk_size: int = Field(default=100, ge=10, le=65_536, description="Size of the disk in GB.")
    image_id: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="Machine image, by the cloud's own name."
    )
    max_usd_per_h: f.Usd | None = Field(
        default=None,
        description="Maximum price of a VM here. A VM without a known price is assumed to cost this much.",
    )


class Replace(_Section):
    """How a lost VM of the group is replaced."""

    policy: Literal["same_place", "next_place", "cheapest_place", "any_place_up", "wait", "never"] = Field(
        default="same_place",
        description="Where to request the replacement. any_place_up: at the place of any_of with the fewest recent refusals "
        "and preemptions, however often requests fail, and at once after a preemption. wait: at the same place, however "
        "often the request fails.",
    )
    max_replacements: int = Field(
        default=10, ge=0, le=1000, description="Maximum number of replacements per slot."
    )
    backoff_s: f.Seconds = Field(
        default=10.0,
        description="Delay before the first retry. It doubles with each retry, up to five minutes.",
    )


class PeerGroup(_Section):
    """Peers with the same settings, on one VM each."""

    name: f.GroupName = Field(description="Name of the group. Its slots are called <name>-0, <name>-1, ...")
    count: int = Field(default=1, ge=1, le=f.MAX_PEERS, description="Number of peers.")
    resources: Resources | None = Field(
        default=None, description="The VM of each peer. Give either this or any_of."
    )
    any_of: Annotated[tuple[Resources, ...], Field(strict=False, min_length=1, max_length=16)] | None = Field(
        default=None, description="Alternative VMs, the preferred one first. Give either this or resources."
    )
    replace: Replace = Field(default_factory=Replace, description="How a lost VM is replaced.")

    @model_validator(mode="after")
    def _one_of_both(self) -> PeerGroup:
        if (self.resources is None) == (self.any_of is None):
            both = "both 'resources' and 'any_of'"
            found = "neither 'resources' nor 'any_of'" if self.resources is None else both
            raise f.complain(f"found {found}; give exactly one of them")
        return self

    @property
    def alternatives(self) -> tuple[Resources, ...]:
        """The possible VMs, the preferred one first."""
        return self.any_of or ((self.resources,) if self.resources else ())


class Measure(_Section):
    """Duration of the run, in hivemind epochs."""

    warmup_epochs: int = Field(
        default=1, ge=0, le=100, description="Epochs at the start that are shown but excluded from all means."
    )
    epochs: int = Field(default=2, ge=1, le=10_000, description="Measured epochs, after the warm-up.")

    @property
    def all_epochs(self) -> int:
        """Epochs of the whole run."""
        return self.warmup_epochs + self.epochs

    def after(self, epoch: int) -> tuple[int, int]:
        """The last epoch of the warm-up, and the number of measured ones, of a run that begins after `epoch`."""
        last = self.all_epochs
        warmup = min(epoch + self.warmup_epochs, last)
        return warmup, last - warmup


class Preempt(_Section):
    """Deliberate preemptions (emulated cloud)."""

    rate_per_h: float | None = Field(
        default=None, gt=0, le=3600, description="Rate of random preemptions per VM and hour."
    )
    at_s: f.Seconds | None = Field(
        default=None, description="Preempt one VM this many seconds after training began."
    )
    slot: str | None = Field(
        default=None, description="Slot whose VM is preempted. Default: each VM is equally likely."
    )
    notice_s: float = Field(
        default=0.0, ge=0, le=600, description="Seconds of notice before a preemption. 0: without notice."
    )


class Emulation(_Section):
    """How the run is scaled down on the emulated cloud. Reports convert the figures to full scale."""

    accelerators: Literal["auto", "padded", "host"] = Field(
        default="auto",
        description="How long a step takes. padded: as long as on the accelerator, by experiments/accelerators.csv; host: as "
        "long as the machine itself needs, and nothing is scaled down; auto: padded for `model`, host for `task`.",
    )
    bytes_scale: f.ScaleOrAuto = Field(
        default="auto", description="Factor by which gradients and bandwidths are reduced."
    )
    time_scale: f.ScaleOrAuto = Field(
        default="auto", description="Factor by which times are reduced. Only 1 is validated; auto is 1."
    )
    samples_scale: f.ScaleOrAuto = Field(
        default="auto", description="Factor by which the target batch size is reduced."
    )
    network: f.NetworkName = Field(
        default="study-2023-04",
        description="Network file with round-trip time and bandwidth of each pair. none: for rented VMs only.",
    )
    path_model: Literal["none", "study", "study-calm"] = Field(
        default="study",
        description="Bandwidth between two places. study: several streams share it, and there are slow periods, as in "
        "the paper's transatlantic runs; study-calm: the same without slow periods; none: each stream gets the network "
        "file's rate, regardless of other streams.",
    )
    boot_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=0.0, description="Seconds that a VM takes to boot."
    )
    capacity: Annotated[dict[f.Location, Annotated[int, Field(ge=0, le=1000)]], Field(max_length=100)] = (
        Field(
            default_factory=dict,
            description="Maximum number of VMs at each place. Other places have unlimited capacity.",
        )
    )
    windows: Literal["auto", "paced", "kernel"] = Field(
        default="auto",
        description="What limits a stream. paced: the switch, at the network file's rate; kernel: real TCP windows, "
        "while the switch only adds delay; auto: kernel with network_tuning wan, otherwise paced.",
    )
    preempt: Preempt | None = Field(default=None, description="Deliberate preemptions.")
    parts: f.PartsOrAuto = Field(
        default="auto", description="Number of parts that a peer sends to each other peer in a round."
    )


def _auto(value: Any) -> Any:
    return {} if value == "auto" else value


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class _OrNameInSchema:
    """Add to the JSON Schema that a built-in task's name stands for the section with this name."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"enum": list(SETTINGS)}]}


class _OrAutoInSchema:
    """Add to the JSON Schema that the word auto stands for the section's defaults."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"const": "auto"}]}


_EmulationOrAuto = Annotated[Emulation, BeforeValidator(_auto), _OrAutoInSchema()]
_TaskOrName = Annotated[Task, BeforeValidator(_named), _OrNameInSchema()]


class ExperimentSpec(_Section):
    """One experiment: a model, a data set, a target batch size and peers by location."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["task"]}]})

    name: f.ExperimentName = Field(description="Name of the experiment. Run ids begin with it.")
    description: f.Text = Field(default="", description="One sentence, shown by `orch experiments`.")
    model: f.ModelName | None = Field(
        default=None,
        description="Name of a model in experiments/models.csv. Give either this or task.",
    )
    task: _TaskOrName | None = Field(
        default=None, description="What is trained: a built-in task or your own. Give either this or model."
    )
    code: Annotated[tuple[f.FilePath, ...], Field(strict=False, max_length=1000)] = Field(
        default=(),
        description="Files and folders that the task needs besides its own file, at most 50 MB in all. Each is copied under "
        "its own name into the folder from which the peers import. Relative paths start at this file's folder.",
    )
    requirements: Annotated[tuple[f.Requirement, ...], Field(strict=False, max_length=100)] = Field(
        default=(),
        description="Python packages that the task needs, as in pip's requirements.txt: `name==1.2`, the path of a wheel, or "
        "`--find-links FOLDER` with wheels, which are shipped. VMs install them; on this machine they must be installed. "
        "They cannot replace the packages that the peer needs.",
    )
    data: Data
    swarm: Swarm
    peers: Annotated[tuple[PeerGroup, ...], Field(strict=False, min_length=1, max_length=f.MAX_PEERS)] = (
        Field(description="Groups of peers.")
    )
    measure: Measure = Field(default_factory=Measure)
    train: Train | None = Field(
        default=None, description="When the training ends, besides after the epochs of `measure`."
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="When and where checkpoints are stored. null: never. Without the key, rented VMs that train the model "
        "itself store one every 3600 s, with required: false, and other runs none.",
    )
    tracking: Tracking | None = Field(
        default=None, description="Experiment trackers that are written while the run goes on."
    )
    budget_usd: f.Usd | None = Field(
        default=None, description="Budget of the run in dollars. Spending stops before it would be exceeded."
    )
    max_usd_per_h: f.Usd | None = Field(
        default=None,
        description="Maximum price of all VMs together, per hour. No VM is requested that would exceed it.",
    )
    max_wall_time_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = Field(
        default=None, description="Maximum duration. The run stops this many seconds after its launch."
    )
    min_peers: int = Field(
        default=1,
        ge=1,
        le=f.MAX_PEERS,
        description="The run pauses while fewer peers than this can train. It ends if that many can never train again.",
    )
    lease_s: float = Field(
        default=600.0,
        ge=30,
        le=86_400,
        description="Peers exit after this many seconds without contact with the controller.",
    )
    limits: Limits = Field(default_factory=Limits, description="Rate limits on requesting VMs.")
    prices: f.PriceBook = Field(
        default="auto",
        description="Price book: a name, a CSV file, or a list in which the rows of a later book replace those of earlier "
        "ones ([auto, mine.csv]). auto: the paper's for emulated runs, the newest for rented VMs.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**32 - 1,
        description="Seed of the weights, the order of samples and emulated faults.",
    )
    envs: Annotated[dict[f.EnvironmentName, str], Field(max_length=100)] = Field(
        default_factory=dict, description="Environment variables of the peers."
    )
    secrets: Annotated[dict[f.EnvironmentName, None], Field(max_length=100)] = Field(
        default_factory=dict, description="NAME: null. The value is read from the environment of `orch`."
    )
    setup: Annotated[str, Field(max_length=100_000)] = Field(
        default="", description="Shell commands that run before the peer starts (rented VMs only)."
    )
    file_mounts: Annotated[dict[str, str], Field(max_length=100)] = Field(
        default_factory=dict,
        description="Path on the VM: local path or bucket to copy there (rented VMs only).",
    )
    network_tuning: Literal["default", "wan"] = Field(
        default="default",
        description="wan: TCP windows for long round trips (64 MiB buffers, BBR if the kernel has it), set before "
        "`setup`. It is emulated with windows: kernel.",
    )
    emulation: _EmulationOrAuto | None = Field(
        default_factory=Emulation, description="auto, or settings. null: rented VMs only."
    )

    @property
    def peer_count(self) -> int:
        """Number of peers in all groups."""
        return sum(group.count for group in self.peers)

    @property
    def trains(self) -> str:
        """Name of what is trained: of the model or of the task."""
        return str(self.model) if self.task is None else self.task.title

    @property
    def timed_as(self) -> str:
        """Name under which experiments/accelerators.csv has the step times, if it has them."""
        return timed_as(self.model, self.task) or self.trains


def timed_as(model: str | None, task: Task | None) -> str | None:
    """Name under which step times are listed: the model, or the setting `model` of a built-in task. None: there is none."""
    if task is None:
        return model
    named = task.settings.get("model") if task.name else None
    return named if isinstance(named, str) else None


def keys_of(section: type[Any]) -> Mapping[str, FieldInfo]:
    """The keys of a section, which is a model or a dataclass."""
    if issubclass(section, BaseModel):
        return {info.alias or name: info for name, info in section.model_fields.items()}
    kinds = get_type_hints(section)
    return {key.name: FieldInfo.from_annotated_attribute(kinds[key.name], key) for key in fields(section)}
