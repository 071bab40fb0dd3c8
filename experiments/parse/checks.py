"""Rules that involve two or more keys of an experiment. Each is checked if the parts that it needs are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from cloud.networks.network import Network, NetworkError
from cloud.networks.windows import kernel_bytes_scale
from cloud.places import PlaceError, expand, nearest
from experiments.averaging.powersgd import halves
from experiments.averaging.records import Setting
from experiments.catalog import Model, models, step_time, step_times
from experiments.emulation.accelerators import PADDED, resolved
from experiments.emulation.ballast import ballast, ballast_error
from experiments.emulation.windows import windows_of
from experiments.learning_rate import KINDS
from experiments.parse.document import Path
from experiments.schema import fields as f
from experiments.schema.checkpoint import Checkpoint
from experiments.schema.models import (
    DIGITS,
    Data,
    Emulation,
    ExperimentSpec,
    Measure,
    PeerGroup,
    Swarm,
    Task,
    timed_as,
)
from experiments.schema.train import Train
from experiments.schema.trained_model import known_model
from experiments.tasks.errors import TaskError
from experiments.tasks.settings import FIGURES, read_settings

_ADAPTIVE = ("adam", "adamw", "lamb")  # optimizers with running averages of gradients and their squares
_DIGITS_FIGURES = ("loss", "accuracy")  # of every 'model', which is trained on the digits
_DIGITS_NETWORK = ("digits", "digits-12m")  # models that are the small network for the digits
_NOT_IMAGES = ("language", "speech")  # kinds of models for which no data set is made
_PROTECTED = ("SECRET", "PASSWORD", "TOKEN", "ACCESS_KEY", "PRIVATE_KEY")
_SCALE_TOLERANCE = 0.02  # the kernel's windows are not more exact
# The target is not known here, and on rented VMs no network is emulated.
_RENTED = "or, to rent VMs there, set 'emulation: null' (or emulation.network to none)"


@dataclass(frozen=True)
class Parts:
    """Parts of an experiment that are valid on their own. None: not valid."""

    GIVEN: ClassVar = ("model", "task", "code", "requirements")

    model: str | None
    data: Data | None
    swarm: Swarm | None
    names: tuple[str | None, ...]  # of all groups, including those with other errors
    peers: tuple[PeerGroup | None, ...]
    emulation: Emulation | None  # None also for 'emulation: null'
    envs: tuple[str, ...]
    min_peers: int | None = None
    network_tuning: str | None = "default"
    bad: frozenset[Path] = frozenset()  # paths of invalid values; the parts above have their defaults
    task: Task | None = None
    measure: Measure | None = None
    train: Train | None = None
    given: frozenset[str] = frozenset()  # keys of GIVEN that have a value, valid or not
    checkpoint: Checkpoint | None = None

    @classmethod
    def of(cls, spec: ExperimentSpec) -> Parts:
        """Return all parts of a valid experiment."""
        names = tuple(group.name for group in spec.peers)
        return cls(
            spec.model, spec.data, spec.swarm, names, spec.peers, spec.emulation, tuple(spec.envs), spec.min_peers,
            spec.network_tuning, task=spec.task, measure=spec.measure, train=spec.train,
            given=frozenset(key for key in cls.GIVEN if getattr(spec, key)), checkpoint=spec.checkpoint,
        )  # fmt: skip

    @property
    def size(self) -> Model | None:
        """The model's size; None: unknown."""
        return known_model(self.model, self.task, self.data)


def cross_problems(parts: Parts) -> Iterator[tuple[Path, str]]:
    """Yield path and message for each violated rule."""
    yield from _trained(parts)
    yield from _evaluation(parts)
    yield from _groups(parts)
    yield from _batch(parts)
    yield from _averaging(parts)
    yield from _recalculated(parts)
    yield from _compiled(parts)
    yield from _timeouts(parts)
    yield from _optimizer(parts)
    yield from _schedule(parts)
    yield from _secrets(parts)
    if parts.emulation is not None:
        yield from _checkpoint(parts, parts.emulation)
        yield from _accelerators(parts, parts.emulation)
        yield from _size(parts, parts.emulation)
        yield from _network(parts, parts.emulation)
        yield from _windows(parts, parts.emulation)
        yield from _preempt(parts, parts.emulation)


def _trained(parts: Parts) -> Iterator[tuple[Path, str]]:
    """Rules about `model` and `task`."""
    if not parts.given & {"model", "task"}:
        if not parts.bad & {("model",), ("task",)}:
            yield ("model",), "is missing; add the key 'model', or 'task'"
        return
    if {"model", "task"} <= parts.given:
        yield ("task",), "found both 'model' and 'task'; give exactly one of them"
        return
    if "task" not in parts.given:
        keys: list[Path] = [(key,) for key in ("code", "requirements") if key in parts.given]
        if parts.data is not None and parts.data.pipeline is not None:
            keys.append(("data", "pipeline"))
        if parts.data is not None and parts.data.stored:
            keys.append(("data", "stored"))
        for path in keys:
            yield path, "belongs to a 'task'; give one instead of 'model', or remove the key"
        if parts.data is not None and parts.data.dataset != DIGITS:
            yield (
                ("data", "dataset"),
                f"found {parts.data.dataset}, but a 'model' is trained on {DIGITS}; give a 'task' instead of 'model', or "
                "remove the key",
            )
    if parts.data is not None and parts.data.stored and not parts.data.endpoint:
        yield ("data", "stored"), "the embedded store holds no stored values; add the key 'endpoint'"
    if parts.task is not None and parts.task.name is not None:
        try:
            read_settings(parts.task.name, parts.task.settings)
        except TaskError as error:
            yield ("task", "with"), str(error)


def _evaluation(parts: Parts) -> Iterator[tuple[Path, str]]:
    data, train = parts.data, parts.train
    if data is not None and train is not None and train.until is not None and train.until.metric is not None:
        missing = _not_evaluated(data, parts.bad)
        if missing:
            yield ("train", "until", "metric"), missing
        known, name = _figures(parts), train.until.metric.name
        if known and name not in known:
            near = nearest(name, known)
            yield (
                ("train", "until", "metric", "name"),
                f"found '{name}', which {_trains(parts)} does not evaluate; use one of {', '.join(known)}{near}",
            )
    if data is None or data.evaluate_every_epochs is None or ("data", "heldout") in parts.bad:
        return
    if data.heldout is None:
        yield ("data", "evaluate_every_epochs"), "there are no held-out samples; add the key 'heldout'"


def _figures(parts: Parts) -> tuple[str, ...]:
    """The figures that the evaluation gives; none: unknown, as of a task of one's own."""
    if parts.model is not None:
        return _DIGITS_FIGURES
    return () if parts.task is None or parts.task.name is None else FIGURES[parts.task.name]


def _trains(parts: Parts) -> str:
    return str(parts.model if parts.task is None else parts.task.name)


def _not_evaluated(data: Data, bad: frozenset[Path]) -> str:
    """Why no held-out figure is known during training; "" if one is, or if a key is invalid."""
    if data.heldout is None:
        return (
            "" if ("data", "heldout") in bad else "there are no held-out samples; add the key 'data.heldout'"
        )
    if data.evaluate_every_epochs is None and ("data", "evaluate_every_epochs") not in bad:
        return "peers evaluate only when they end; add the key 'data.evaluate_every_epochs'"
    return ""


def _groups(parts: Parts) -> Iterator[tuple[Path, str]]:
    first: dict[str, int] = {}
    for i, name in enumerate(parts.names):
        if name is None:
            continue
        if name in first:
            yield (
                ("peers", i, "name"),
                f"'{name}' is already the name of peers[{first[name]}]; choose another",
            )
        first.setdefault(name, i)
    total = sum(group.count for group in parts.peers if group)
    if total > f.MAX_PEERS:
        yield ("peers",), f"found {total} peers in all; must be at most {f.MAX_PEERS}"
    if parts.min_peers is not None and _counts_known(parts) and parts.min_peers > total:
        yield (
            ("min_peers",),
            f"found {parts.min_peers}; must be at most {total}, the peers of all groups",
        )


def _batch(parts: Parts) -> Iterator[tuple[Path, str]]:
    if parts.swarm is None or ("swarm", "batch_size") in parts.bad:
        return
    target, batch = parts.swarm.target_batch_size, parts.swarm.batch_size
    at: Path = ("swarm", "target_batch_size")
    if target % batch:
        low, high = target // batch * batch, (target // batch + 1) * batch
        close = f"{low} or {high}" if low else str(high)
        yield at, f"found {target}; must be a multiple of swarm.batch_size ({batch}), such as {close}"
    if _counts_known(parts):
        peers = sum(group.count for group in parts.peers if group)
        if target < peers * batch:
            yield (
                at,
                f"found {target}; must be at least peers x batch_size = {peers} x {batch} = {peers * batch}, "
                "or some peers would average without a step of their own",
            )


def _averaging(parts: Parts) -> Iterator[tuple[Path, str]]:
    if parts.swarm is None:
        return
    method = parts.swarm.method
    peers = sum(group.count for group in parts.peers if group) if _counts_known(parts) else None
    samples_scale = 1 if parts.emulation is None else parts.emulation.samples_scale
    size = parts.size
    yield from method.problems(Setting(size and size.averaged_as, peers, samples_scale))
    rank, scale = method.compression.rank, _required_scale(parts)
    if parts.model is None or rank is None or scale is None or not halves(parts.model, rank):
        return
    if ballast(parts.model, method.compression, scale) is None:
        yield ("emulation", "bytes_scale"), ballast_error(parts.model, method.compression, scale)


def _recalculated(parts: Parts) -> Iterator[tuple[Path, str]]:
    if parts.swarm is None or not parts.swarm.gradient_checkpointing:
        return
    if parts.model is None or "task" in parts.given:  # of a task's model it is known once it is built
        return
    padded = parts.emulation is not None and resolved(parts.emulation, None) == PADDED
    if padded or parts.model in _DIGITS_NETWORK:
        trained = f"the small network that is trained as {parts.model}"
    elif models()[parts.model].kind not in _NOT_IMAGES:
        trained = parts.model
    else:
        return
    yield (
        ("swarm", "gradient_checkpointing"),
        f"{trained} has no gradient checkpointing; remove the key, or give a 'task' instead of 'model'",
    )


def _compiled(parts: Parts) -> Iterator[tuple[Path, str]]:
    if parts.swarm is None or not parts.swarm.compile or parts.emulation is None:
        return
    if "task" in parts.given and parts.task is None:  # it has a problem of its own
        return
    if resolved(parts.emulation, parts.task) == PADDED:
        yield (
            ("swarm", "compile"),
            "the steps of padded accelerators take as long as those measured, which were not compiled; remove the key, or "
            "set emulation.accelerators: host",
        )


def _required_scale(parts: Parts) -> float | None:
    """Return the bytes_scale that is given or required by the windows. None: it will be chosen."""
    emulation = parts.emulation
    if emulation is None or parts.network_tuning is None or ("emulation", "bytes_scale") in parts.bad:
        return None
    if emulation.bytes_scale != "auto":
        return emulation.bytes_scale
    kernel = windows_of(emulation, parts.network_tuning) == "kernel" and emulation.network != f.NO_NETWORK
    return kernel_bytes_scale() if kernel else None


def _timeouts(parts: Parts) -> Iterator[tuple[Path, str]]:
    swarm = parts.swarm
    if ("swarm", "matchmaking_time_s") in parts.bad:
        return
    if swarm and swarm.averaging_timeout_s <= swarm.matchmaking_time_s:
        yield (
            ("swarm", "averaging_timeout_s"),
            f"found {swarm.averaging_timeout_s:g}; must be above swarm.matchmaking_time_s "
            f"({swarm.matchmaking_time_s:g}): the round's time counts from matchmaking",
        )


def _optimizer(parts: Parts) -> Iterator[tuple[Path, str]]:
    if parts.swarm is None or ("swarm", "optimizer", "name") in parts.bad:
        return
    optimizer = parts.swarm.optimizer
    for key, users in (("momentum", ("sgd",)), ("betas", _ADAPTIVE), ("eps", _ADAPTIVE)):
        if getattr(optimizer, key) is not None and optimizer.name not in users:
            yield (
                ("swarm", "optimizer", key),
                f"{optimizer.name} has no '{key}' (only {', '.join(users)}); remove the key",
            )
    for i, beta in enumerate(optimizer.betas or ()):
        if not 0 <= beta < 1:
            yield ("swarm", "optimizer", "betas", i), f"found {beta:g}; must be at least 0 and below 1"


def _schedule(parts: Parts) -> Iterator[tuple[Path, str]]:
    schedule = None if parts.swarm is None else parts.swarm.schedule
    if schedule is None or any(path[:2] == ("swarm", "schedule") for path in parts.bad):
        return
    if schedule.final is not None and not KINDS[schedule.kind].has_final:
        falling = " and ".join(name for name, kind in KINDS.items() if kind.has_final)
        yield (
            ("swarm", "schedule", "final"),
            f"{schedule.kind} has no 'final' (only {falling}); remove the key",
        )
    if parts.measure is not None and schedule.warmup_epochs >= parts.measure.all_epochs:
        yield (
            ("swarm", "schedule", "warmup_epochs"),
            f"found {schedule.warmup_epochs}; must be below measure.warmup_epochs + measure.epochs = "
            f"{parts.measure.all_epochs}, or the rate never gets beyond its warm-up",
        )


def _secrets(parts: Parts) -> Iterator[tuple[Path, str]]:
    for name in parts.envs:
        if any(word in name.upper() for word in _PROTECTED):
            yield ("envs", name), f"'{name}' looks like a secret; write it under secrets as '{name}: null'"


def _checkpoint(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    known = parts.model is not None or parts.task is not None
    if parts.checkpoint is not None and known and resolved(emulation, parts.task) == PADDED:
        yield (
            ("checkpoint",),
            "a padded accelerator trains a small network with ballast in place of the model, which is no model to keep; set "
            "emulation.accelerators: host, 'emulation: null' for rented VMs, or remove the section",
        )


def _accelerators(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    if parts.model is None and parts.task is None:
        return
    at: Path = ("emulation", "accelerators")
    if resolved(emulation, parts.task) == PADDED:
        yield from _step_times(parts, timed_as(parts.model, parts.task))
        return
    kind = None if parts.model is None else models()[parts.model].kind
    if kind in _NOT_IMAGES:
        yield (
            at,
            f"'host' trains {parts.model} itself, for which this version has no data; use padded, or a 'task'",
        )
    for key in ("bytes_scale", "time_scale", "samples_scale"):
        if getattr(emulation, key) not in ("auto", 1):
            yield (
                ("emulation", key),
                f"found {getattr(emulation, key):g}; nothing is scaled down where steps take as long as the machine needs "
                "(emulation.accelerators: host); remove the key",
            )


def _step_times(parts: Parts, name: str | None) -> Iterator[tuple[Path, str]]:
    if name is None:
        yield (
            ("emulation", "accelerators"),
            "'padded' needs a step time, and none is known of this task; use host",
        )
        return
    known = sorted(accelerator for model, accelerator in step_times() if model == name)
    for path, _, accelerator in _resources(parts):
        if step_time(name, accelerator) is None:
            allowed = f"known for it: {', '.join(known)}" if known else "none is known for this model"
            yield (
                (*path, "accelerators"),
                f"no step time is known for {name} on {accelerator} ({allowed}); "
                "it cannot be emulated: choose another pair, or set 'emulation: null'",
            )


def _size(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    at: Path = ("emulation", "bytes_scale")
    if (
        parts.task is not None
        and resolved(emulation, parts.task) == PADDED
        and emulation.bytes_scale not in ("auto", 1)
    ):
        yield (
            at,
            f"found {emulation.bytes_scale:g}; a task's own model is trained, which cannot be reduced: remove the key",
        )
    if parts.model is None or emulation.bytes_scale == "auto":
        return
    total, least = models()[parts.model].parameters, models()["digits"].parameters
    if total / emulation.bytes_scale < least:
        yield (
            ("emulation", "bytes_scale"),
            f"found {emulation.bytes_scale:g}; must be at most {total // least}, or {parts.model}'s {total} "
            f"parameters are scaled below the {least} of the network that is actually trained",
        )


def _network(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    if emulation.network == f.NO_NETWORK:
        return
    try:
        network = Network.load(emulation.network)
    except NetworkError as error:
        yield ("emulation", "network"), str(error)
        return
    regions: dict[str, Path] = {}
    several: set[str] = set()  # regions with several peers, which also need a path within the region
    for path, infra, _ in _resources(parts):
        region = "/".join(infra.split("/")[:2])
        group = parts.peers[int(path[1])]
        if region in regions or (group and group.count > 1):
            several.add(region)
        try:
            network.place(region)
        except NetworkError as error:
            yield (*path, "infra"), f"{error}; {_RENTED}"
            continue
        regions.setdefault(region, path)
    reported: set[frozenset[str]] = set()
    for (a, _), (b, at) in product(regions.items(), repeat=2):
        if frozenset((a, b)) in reported or (a == b and a not in several):
            continue
        try:
            network.path(a, b)
        except NetworkError as error:
            reported.add(frozenset((a, b)))
            yield (*at, "infra"), f"{error}; {_RENTED}"


def _windows(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    at: Path = ("emulation", "windows")
    if parts.network_tuning == "wan" and emulation.windows == "paced":
        yield (
            at,
            "'paced' cannot show the effect of 'network_tuning: wan', because the switch sets the rate of each stream; "
            "use kernel, or remove the key",
        )
    elif parts.network_tuning is not None and windows_of(emulation, parts.network_tuning) == "kernel":
        yield from _kernel_scale(parts, emulation, at)


def _kernel_scale(parts: Parts, emulation: Emulation, at: Path) -> Iterator[tuple[Path, str]]:
    if emulation.network == f.NO_NETWORK:
        return
    scale, given = kernel_bytes_scale(), emulation.bytes_scale
    if parts.task is not None or resolved(emulation, parts.task) != PADDED:
        yield (
            at,
            f"kernel windows need bytes_scale {scale:.1f}, but the model that is trained here is not scaled down; use paced",
        )
    elif given != "auto" and abs(given / scale - 1) > _SCALE_TOLERANCE:
        yield (
            ("emulation", "bytes_scale"),
            f"found {given:g}; kernel windows have a fixed size, which corresponds to the paper's at {scale:.1f}: remove the key",
        )
    elif parts.model is not None and models()[parts.model].parameters / scale < models()["digits"].parameters:
        yield (
            at,
            f"kernel windows need bytes_scale {scale:.1f}, for which {parts.model} is too small; use paced",
        )


def _preempt(parts: Parts, emulation: Emulation) -> Iterator[tuple[Path, str]]:
    preempt = emulation.preempt
    if preempt is None:
        return
    at: Path = ("emulation", "preempt")
    if preempt.rate_per_h is None and preempt.at_s is None:
        yield at, "has neither 'rate_per_h' nor 'at_s'; set at least one, or remove the section"
    if preempt.slot is not None and _counts_known(parts):
        names = [f"{group.name}-{i}" for group in parts.peers if group for i in range(group.count)]
        if preempt.slot not in names:
            near = nearest(preempt.slot[:40], names)
            some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            yield (*at, "slot"), f"'{preempt.slot[:40]}' is not a slot (there are {some}){near}"


def _counts_known(parts: Parts) -> bool:
    return all(parts.peers) and not any(("peers", i, "count") in parts.bad for i in range(len(parts.peers)))


def _resources(parts: Parts) -> Iterator[tuple[Path, str, str]]:
    """Yield path, infra and accelerators of every alternative VM."""
    for i, group in enumerate(parts.peers):
        if group is None:
            continue
        for k, resources in enumerate(group.alternatives):
            path: Path = ("peers", i, "any_of", k) if group.any_of else ("peers", i, "resources")
            try:
                expand(resources.infra)
            except PlaceError:
                continue  # reported by the field's own check
            yield path, resources.infra, resources.accelerators
