"""Small checkpoints in stores: trained tasks, files that fit a manifest, clients that break off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from small_task import SmallTask

from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.state import copy_state, save_state
from experiments.checkpoints.store import CheckpointStore
from experiments.peer.optimizer.build import torch_optimizer_of

RUN = "run-1"
TO = "s3://bucket/some/checkpoints"
SETTINGS = {
    "adam": {"name": "adam", "lr": 0.01},
    "sgd": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "lamb": {"name": "lamb", "lr": 0.01, "weight_decay": 0.01},
}


def manifest(epoch: int, vm: str = "run-1-a-1", **changes) -> Manifest:
    about = Manifest(RUN, epoch, vm, "a", 1000.0 + epoch, 64 * epoch, "small", "f" * 64)
    return replace(about, **changes)


def trained(optimizer: str, steps: int, seed: int = 0):
    """A task and its optimizer after some steps, with parameters that are not the model's."""
    torch.manual_seed(seed)
    task = SmallTask({})
    ballast = {"0": torch.nn.Parameter(torch.zeros(7))}
    chosen = torch_optimizer_of(SETTINGS[optimizer])([*task.model.parameters(), *ballast.values()])
    for _ in range(steps):
        chosen.zero_grad()
        batch = {"images": torch.rand(8, 64), "labels": torch.arange(8), "more": []}
        (task.loss(batch) + 0.1 * (ballast["0"] - 1).square().sum()).backward()
        chosen.step()
    return task, chosen, ballast


def saved(folder: Path, optimizer: str = "adam", steps: int = 2, **about):
    """Write the files of a checkpoint; returns what was trained."""
    task, chosen, ballast = trained(optimizer, steps)
    save_state(folder, task, copy_state(task.model, chosen, ballast, about))
    return task, chosen, ballast


def plain_files(folder: Path, seed: int, large_bytes: int = 0) -> Path:
    """Files of a checkpoint without meaning; with `large_bytes` one is sent in parts."""
    for name, size in (("model/model.safetensors", 3000 + large_bytes), ("state/state.json", 700)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([seed % 256]) * size)
    return folder


class BrokenOff(Exception):
    """The process is killed."""


@contextlib.contextmanager
def broken_off(store: CheckpointStore, request: int | None) -> Iterator[list[str]]:
    """Let no request from this one on (0: the first) leave. Yields the list of operations that were tried."""
    seen: list[str] = []

    def before_send(event_name: str, **_: object) -> None:
        seen.append(event_name.rpartition(".")[2])
        if request is not None and len(seen) > request:
            raise BrokenOff

    events = store.client().meta.events
    events.register("before-send.s3.*", before_send)
    try:
        yield seen
    finally:
        events.unregister("before-send.s3.*", before_send)


def keys_of(store: CheckpointStore) -> set[str]:
    """Keys of all objects in the bucket."""
    found = store.client().list_objects_v2(Bucket=store.url.bucket)
    return {item["Key"] for item in found.get("Contents", ())}


def unfinished(store: CheckpointStore) -> list[str]:
    """Keys of multipart uploads that did not end."""
    found = store.client().list_multipart_uploads(Bucket=store.url.bucket)
    return [item["Key"] for item in found.get("Uploads", ())]


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.detach().numpy().tobytes() == (
        other.detach().numpy().tobytes()
    )


KEYS = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
