"""A model on disk: safetensors in the layout of transformers, and what is needed to build its task again.

A folder holds `model.safetensors` and `task.json`; for a model of transformers also its `config.json`, so that plain
`from_pretrained(folder)` loads it; and what the task's `save_files` writes, such as `tokenizer.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.errors import TaskError
from experiments.tasks.protocol import Task
from experiments.tasks.settings import FILE_SETTINGS

WEIGHTS_FILE = "model.safetensors"
TASK_FILE = "task.json"
_FORMAT = 1


def save(
    task: Task,
    folder: Path,
    *,
    source: Mapping[str, Any] | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write the task's model and what belongs to it into a folder, which is created.

    `source` says how the task was built, {"call": "module:function", "with": {...}}; a built-in task knows it itself.
    `state` are tensors by the names of `model.state_dict()` to write instead of the model's present ones, for example a
    copy in host memory. Raises TaskError if one is missing, OSError.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model, values = task.model, task.model.state_dict() if state is None else state
    tensors: dict[str, torch.Tensor] = {}
    for names in _shared_names(model):
        if names[0] not in values:
            raise TaskError(f"the model cannot be saved: the given state has no tensor {names[0]}")
        tensors[names[0]] = values[names[0]].detach().to("cpu").contiguous()
    if _is_of_transformers(model):
        save_pretrained: Any = model.save_pretrained
        save_pretrained(folder, state_dict=tensors, max_shard_size="1TB")
    else:
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    document = {"format": _FORMAT, **_described(task, source)}
    (folder / TASK_FILE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_files = getattr(task, "save_files", None)
    if save_files is not None:
        save_files(folder)


def load(folder: Path) -> Task:
    """Build the task of a folder that `save` wrote, with its weights. The user's own module must be importable.

    This calls the function that the folder names: use it for folders of your own only, and `load_into` for what others
    may have written. Raises TaskError for a folder that is incomplete, of a newer format, or does not say how the task is built.
    """
    document = _read_document(folder)
    call, settings = document.get("call"), document.get("with")
    if not isinstance(call, str) or not isinstance(settings, dict):
        raise TaskError(
            f"{folder / TASK_FILE} does not say how the task is built; load {WEIGHTS_FILE} with its own code"
        )
    if call in BUILT_IN.values():
        inside = {name for name in FILE_SETTINGS if isinstance(settings.get(name), str) and settings[name]}
        settings = {**settings, **{name: str(folder / settings[name]) for name in inside}}
    task = build(call, settings, 0)
    load_weights(task, folder / WEIGHTS_FILE)
    return task


def load_into(task: Task, folder: Path, *, source: Mapping[str, Any] | None = None) -> None:
    """Replace the weights of a task, built with `source` (as for `save`), by those of a folder that `save` wrote.

    No code that the folder names is called. Raises TaskError, also for a folder of a task that is built in another way.
    """
    document, expected = _read_document(folder), json.loads(json.dumps(_described(task, source)))
    for key in ("call", "with"):
        if document.get(key) != expected.get(key):
            raise TaskError(
                f"{folder / TASK_FILE} is of another task: its {key!r} is {document.get(key)!r:.200}, but must be "
                f"{expected.get(key)!r:.200}; use the folder of this task"
            )
    load_weights(task, folder / WEIGHTS_FILE)


def load_weights(task: Task, file: Path) -> None:
    """Replace the model's parameters and buffers by those of a safetensors file. Other formats are refused.

    Tensors of the file that the model does not have are ignored, as by transformers. Raises TaskError for a file that
    cannot be read, a missing tensor, and a tensor of another shape; the model is unchanged then.
    """
    from safetensors import SafetensorError, safe_open

    own = task.model.state_dict()
    prefix = f"{getattr(task.model, 'base_model_prefix', '')}."
    try:
        with safe_open(file, "pt") as stored:
            held = set(stored.keys())
            found: dict[str, str] = {}
            for names in _shared_names(task.model):
                # Files of a model without head, such as GPT-2's, omit the prefix.
                options = [*names, *(name.removeprefix(prefix) for name in names)]
                match = next((option for option in options if option in held), None)
                if match is None:
                    raise TaskError(
                        f"{file} has no tensor {names[0]}, which the model has; use the weights of this model"
                    )
                shape, wanted = stored.get_slice(match).get_shape(), list(own[names[0]].shape)
                if shape != wanted:
                    raise TaskError(
                        f"{file}: tensor {match} has the shape {shape}, but the model's has {wanted}; use the weights "
                        "of this model, or its settings"
                    )
                found[names[0]] = match
            with torch.no_grad():
                for name, match in found.items():
                    own[name].copy_(stored.get_tensor(match))
    except OSError as error:
        reason = error.strerror or "it does not exist"
        raise TaskError(f"{file} cannot be read ({reason}); correct the path") from error
    except SafetensorError as error:
        raise TaskError(
            f"{file} is not a whole safetensors file ({error}); pickled weights are refused, because loading them can run "
            "code: convert them with safetensors.torch.save_file"
        ) from error


def _described(task: Task, source: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How the task is built: what a built-in one says itself, or else `source`; only its call and settings."""
    own = getattr(task, "source", None)
    described = own if isinstance(own, Mapping) and "call" in own else source or {}
    return {key: described[key] for key in ("call", "with") if key in described}


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / TASK_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read ({error}); use a folder of a saved model") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise TaskError(
            f"{path} has another format than {_FORMAT}; use the version of orch that wrote it, or a newer one"
        )
    return document


def _is_of_transformers(model: nn.Module) -> bool:
    """Whether transformers can write and load the model."""
    return hasattr(model, "save_pretrained") and hasattr(model, "config")


def _shared_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Names of the model's tensors; tied ones, which share memory, together: first the one to store."""
    tied = [re.compile(pattern) for pattern in getattr(model, "_tied_weights_keys", None) or ()]
    groups: dict[Any, list[str]] = {}
    for name, tensor in model.state_dict().items():
        alone = tensor.numel() == 0 or tensor.device.type == "meta"
        place = name if alone else (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        groups.setdefault(place, []).append(name)
    return [
        tuple(sorted(names, key=lambda name: any(pattern.search(name) for pattern in tied)))
        for names in groups.values()
    ]
