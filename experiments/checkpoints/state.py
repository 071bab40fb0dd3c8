"""The files of a checkpoint: the model, and what the optimizer knows; exact, bit for bit.

    model/...                     experiments/tasks/saving.py
    state/optimizer.safetensors   "<statistic>/<parameter>": a tensor of the optimizer, for example exp_avg/head.weight;
                                  "extra/<name>": parameters that are not part of the model (ballast of an emulated run)
    state/state.json              format, the optimizer's class, its groups, its numbers, and what the writer adds

A checkpoint is written in two steps: `copy_state` on the trainer's thread between two epochs, `save_state` in any thread
while training goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MODEL, STATE
from experiments.tasks import saving
from experiments.tasks.errors import TaskError
from experiments.tasks.protocol import Task

OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
_FORMAT = 1
_EXTRA = "extra"


@dataclass(frozen=True)
class StateCopy:
    """A copy in host memory of all that training has changed."""

    model: Mapping[str, torch.Tensor]  # by the names of model.state_dict()
    tensors: Mapping[str, torch.Tensor]  # by the names of optimizer.safetensors
    document: Mapping[str, Any] = field(default_factory=dict)  # of state.json

    @property
    def size_bytes(self) -> int:
        """Size of the copied tensors."""
        distinct = {tensor.data_ptr(): tensor for tensor in (*self.model.values(), *self.tensors.values())}
        return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def copy_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, torch.Tensor] | None = None,
    about: Mapping[str, Any] | None = None,
) -> StateCopy:
    """Copy model and optimizer into host memory (pinned, for tensors of a GPU). Call it between two steps.

    `optimizer`: the torch optimizer itself; of a hivemind.Optimizer, its `state_averager.optimizer`. `extra`: parameters
    that are trained or averaged but not part of the model, by name. `about`: plain JSON, returned by `load_state`.

    Raises CheckpointError if the optimizer has parameters without a name or state that cannot be stored.
    """
    copier = _Copier()
    extra = extra or {}
    named = _names(model, extra)
    tensors = {f"{_EXTRA}/{name}": copier.copy(tensor) for name, tensor in extra.items()}
    numbers: dict[str, dict[str, float | int | bool]] = {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        names: list[str] = []
        for parameter in group["params"]:
            name = _name_of(parameter, named)
            names.append(name)
            for statistic, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{statistic}/{name}"] = copier.copy(value)
                elif isinstance(value, bool | int | float):
                    numbers.setdefault(name, {})[statistic] = value
                elif value is not None:
                    raise CheckpointError(
                        "unwritable", f"the optimizer's {statistic} of {name} is a {type(value).__name__}"
                    )
        groups.append({"names": names, "settings": _settings(group)})
    copied = {name: copier.copy(tensor) for name, tensor in model.state_dict().items()}
    copier.wait()
    document = {
        "format": _FORMAT,
        "optimizer": type(optimizer).__name__,
        "groups": groups,
        "numbers": numbers,
        "about": dict(about or {}),
    }
    return StateCopy(copied, tensors, document)


def save_state(folder: Path, task: Task, copied: StateCopy, source: Mapping[str, Any] | None = None) -> None:
    """Write model/ and state/ below `folder`, which is created. `source`: as for `experiments.tasks.saving.save`.

    Raises TaskError, OSError.
    """
    from safetensors.torch import save_file

    saving.save(task, folder / MODEL, source=source, state=copied.model)
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in copied.tensors.items()}
    save_file(tensors, folder / STATE / OPTIMIZER_FILE, metadata={"format": "pt"})
    text = json.dumps(copied.document, indent=1) + "\n"
    (folder / STATE / STATE_FILE).write_text(text, encoding="utf-8")


def load_state(
    folder: Path,
    task: Task,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """Replace the model's tensors and the optimizer's state, in place, by those of a checkpoint's folder.

    Returns what was given to `copy_state` as `about`. Settings such as the learning rate stay those of `optimizer`;
    without one, only the model and `extra` are replaced. Nothing has changed if this raises CheckpointError: corrupt
    for files that cannot be read, foreign for a model or optimizer that they do not fit.
    """
    document = _read_document(folder / STATE / STATE_FILE)
    extra = extra or {}
    loaded = _Loaded(folder / STATE / OPTIMIZER_FILE)
    wanted = {f"{_EXTRA}/{name}": tensor for name, tensor in extra.items()}
    loaded.check(wanted)
    plan: list[tuple[torch.nn.Parameter, str]] = []
    if optimizer is not None:
        kind = type(optimizer).__name__
        if document["optimizer"] != kind:
            raise CheckpointError(
                "foreign", f"{folder} has the state of {document['optimizer']}, but the optimizer is {kind}"
            )
        named = _names(task.model, extra)
        plan = [(p, _name_of(p, named)) for group in optimizer.param_groups for p in group["params"]]
        stored = {name for group in document["groups"] for name in group["names"]}
        if {name for _, name in plan} != stored:
            differing = sorted({name for _, name in plan} ^ stored)
            raise CheckpointError(
                "foreign",
                f"{folder} has the state of other parameters than the model's: {', '.join(differing[:3])}",
            )
        for parameter, name in plan:
            loaded.check_statistics(parameter, name)
    try:
        saving.load_weights(task, folder / MODEL / saving.WEIGHTS_FILE)
    except TaskError as error:
        raise CheckpointError("foreign", str(error)) from error
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(loaded.tensors[name])
        for parameter, name in plan:
            assert optimizer is not None
            _replace(optimizer.state[parameter], parameter, loaded.statistics(name))
            for statistic, value in document["numbers"].get(name, {}).items():
                optimizer.state[parameter][statistic] = value
    return dict(document["about"])


class _Copier:
    """Copies tensors to the host; tensors that share memory are copied once."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.numel() == 0:
            return tensor.to("cpu").clone()
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._copies:
            if tensor.is_cuda:
                self._devices.add(tensor.device)
                held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._copies[key] = held.copy_(tensor, non_blocking=True)
            else:
                self._copies[key] = tensor.clone(memory_format=torch.contiguous_format)
        return self._copies[key]

    def wait(self) -> None:
        """Wait for the copies from GPUs."""
        for device in self._devices:
            torch.cuda.synchronize(device)


class _Loaded:
    """The tensors of optimizer.safetensors."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self._path = path
        try:
            self.tensors: dict[str, torch.Tensor] = load_file(path)
        except (OSError, SafetensorError, KeyError) as error:  # KeyError: a type of number that torch lacks
            raise CheckpointError("corrupt", f"{path} cannot be read ({error})") from error
        self._of: dict[str, dict[str, torch.Tensor]] = {}
        for key, tensor in self.tensors.items():
            statistic, _, name = key.partition("/")
            if statistic != _EXTRA:
                self._of.setdefault(name, {})[statistic] = tensor

    def statistics(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that belong to a parameter."""
        return self._of.get(name, {})

    def check(self, wanted: Mapping[str, torch.Tensor]) -> None:
        """Check that the tensors are there, with these shapes."""
        for name, tensor in wanted.items():
            held = self.tensors.get(name)
            if held is None or held.shape != tensor.shape:
                shape = "missing" if held is None else f"of shape {list(held.shape)}"
                raise CheckpointError(
                    "foreign", f"{self._path}: {name} is {shape}, but must be of shape {list(tensor.shape)}"
                )

    def check_statistics(self, parameter: torch.Tensor, name: str) -> None:
        """Check that a parameter's statistics have its shape, or are single numbers."""
        for statistic, tensor in self.statistics(name).items():
            if tensor.dim() and tensor.shape != parameter.shape:
                raise CheckpointError(
                    "foreign",
                    f"{self._path}: {statistic}/{name} is of shape {list(tensor.shape)}, but the parameter is of shape "
                    f"{list(parameter.shape)}",
                )


def _replace(state: dict[str, Any], parameter: torch.Tensor, stored: Mapping[str, torch.Tensor]) -> None:
    """Replace a parameter's statistics, in place where it has them: Hivemind holds references to these tensors."""
    for statistic in [key for key, value in state.items() if isinstance(value, torch.Tensor)]:
        if statistic not in stored:
            del state[statistic]
    for statistic, tensor in stored.items():
        present = state.get(statistic)
        if isinstance(present, torch.Tensor) and (present.shape, present.dtype) == (
            tensor.shape,
            tensor.dtype,
        ):
            present.copy_(tensor)
        else:
            device = present.device if isinstance(present, torch.Tensor) else parameter.device
            # Counters of steps stay on the CPU, as torch.optim creates them.
            state[statistic] = tensor.clone() if tensor.dim() == 0 else tensor.to(device, copy=True)


def _names(model: nn.Module, extra: Mapping[str, torch.Tensor]) -> dict[int, str]:
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    return named | {id(tensor): f"{_EXTRA}:{name}" for name, tensor in extra.items()}


def _name_of(parameter: torch.Tensor, named: Mapping[int, str]) -> str:
    try:
        return named[id(parameter)]
    except KeyError:
        raise CheckpointError(
            "unwritable",
            f"the optimizer has a parameter of shape {list(parameter.shape)} that is not the model's; name it in `extra`",
        ) from None


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a parameter group, for people who load the state with plain torch."""
    kept = (str, bool, int, float, type(None))
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}
    return {
        key: value
        for key, value in listed.items()
        if key != "params" and (isinstance(value, kept) or _is_numbers(value))
    }


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int | float) for one in value)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] > _FORMAT:
            raise CheckpointError(
                "newer_format",
                f"{path} has format {document['format']}, and this version of orch reads format {_FORMAT}; use the "
                "version that wrote it, or a newer one",
            )
        missing = {"optimizer", "groups", "numbers", "about"} - set(document)
        if missing:
            raise ValueError(f"without {', '.join(sorted(missing))}")
        _check_document(document)
        return document
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError("corrupt", f"{path} cannot be read ({error})") from error


def _check_document(document: Mapping[str, Any]) -> None:
    """Check the kinds of values, as far as they are used. Raises ValueError."""
    groups, numbers = document["groups"], document["numbers"]
    names = [group.get("names") if isinstance(group, dict) else None for group in _of(groups, list, "groups")]
    for name in [name for of_group in names for name in _of(of_group, list, "names of a group")]:
        _of(name, str, "a name of a group")
    for name, statistics in _of(numbers, dict, "numbers").items():
        for statistic, value in _of(statistics, dict, f"numbers of {name}").items():
            _of(value, (bool, int, float), f"{statistic} of {name}")
    _of(document["about"], dict, "about")


def _of(value: Any, kinds: type | tuple[type, ...], what: str) -> Any:
    if not isinstance(value, kinds):
        raise ValueError(f"{what} is {value!r:.60}")
    return value
