"""Converts a VM's log and its synchronising steps into step rows, epoch records and spans of time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.importers.wandb.bee import Bee
from analysis.importers.wandb.sync import Boundary, Sync
from metrics.records import EpochRecord


@dataclass(frozen=True, slots=True)
class Span:
    """An interval (began_s, ended_s] of a VM's log in one phase of one epoch."""

    epoch: int
    phase: str  # joining, calc, comm, leaving
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Account:
    """The records of one VM: columns of `steps` (all but `vm`), its `epochs`, and spans that cover the whole log."""

    steps: dict[str, np.ndarray]
    epochs: tuple[EpochRecord, ...]
    spans: tuple[Span, ...]
    loads: tuple[
        tuple[float, float], ...
    ]  # (from, to) of optimizer steps that downloaded the state from other peers
    timed_s: float
    wall_s: float


def account(bee: Bee, sync: Sync, samples: np.ndarray, ran: str) -> Account:
    """Compute the records of one VM. `samples`: of each step.

    A synchronising optimizer step is the VM's usual local one plus the communication. The wall time of an epoch that
    no timer covers is divided evenly over its steps. The log's first step gets none, because its start is only known
    from its timers.
    """
    if not bee.steps:
        none: dict[str, np.ndarray] = {name: np.zeros(0) for name in _STEP_COLUMNS}
        return Account(none, (), (Span(0, "joining", bee.first_s - 1, bee.last_s),), (), 0.0, 0.0)
    ends = {b.step: b for b in sync.boundaries}
    local_steps = np.array([k not in ends for k in range(bee.steps)])
    usual = float(np.median(bee.opt[local_steps])) if local_steps.any() else 0.0
    shared = np.zeros(bee.steps)
    for k in ends:
        shared[k] = max(float(bee.opt[k]) - usual, 0.0)
    local = bee.opt - shared
    timed = bee.timed_s
    began = np.concatenate([[bee.end_s[0] - timed[0]], bee.end_s[:-1]])
    other, number = np.zeros(bee.steps), np.zeros(bee.steps, dtype=np.int64)
    epochs: list[EpochRecord] = []
    start_s = float(began[0])
    spans = [Span(0, "joining", bee.first_s - 1, start_s)]
    first = 0
    for boundary in (*sync.boundaries, None):
        last = boundary.step if boundary else bee.steps - 1
        own = slice(first, last + 1)
        if last < first:
            break
        number[own] = boundary.epoch if boundary else _after(sync.boundaries)
        ended_s = float(bee.end_s[last])
        untimed = max(ended_s - start_s - float(timed[own].sum()), 0.0)
        sharing = slice(max(first, 1), last + 1)
        other[sharing] = untimed / max(last + 1 - max(first, 1), 1)
        if boundary:
            spans += _spans(boundary, start_s, ended_s, float(shared[last]))
            if boundary.averaged:
                epochs.append(_record(bee, boundary, own, start_s, ended_s, local, shared, samples, ran))
            start_s = ended_s
        first = last + 1
    finished = sync.boundaries[-1].epoch if sync.boundaries else 0
    spans[0] = Span(sync.boundaries[0].epoch if finished else 0, "joining", bee.first_s - 1, spans[0].ended_s)
    spans.append(Span(finished, "leaving" if finished else "joining", start_s, bee.last_s + 1))
    wall = timed + other
    return Account(
        steps=_columns(bee, number, wall, local, shared, other, samples),
        epochs=tuple(epochs),
        spans=tuple(spans),
        loads=tuple(
            (float(bee.end_s[b.step] - bee.opt[b.step]), float(bee.end_s[b.step]))
            for b in sync.boundaries
            if not b.averaged and shared[b.step] >= 1
        ),
        timed_s=float(timed.sum()),
        wall_s=float(wall.sum()),
    )


def _after(boundaries: Sequence[Boundary]) -> int:
    return boundaries[-1].epoch + 1 if boundaries else 1


def _spans(boundary: Boundary, began_s: float, ended_s: float, comm_s: float) -> list[Span]:
    if not boundary.averaged:
        return [Span(boundary.epoch, "calc", began_s, ended_s)]
    middle = max(ended_s - comm_s, began_s)
    return [Span(boundary.epoch, "calc", began_s, middle), Span(boundary.epoch, "comm", middle, ended_s)]


def _record(
    bee: Bee,
    boundary: Boundary,
    own: slice,
    began_s: float,
    ended_s: float,
    local: np.ndarray,
    shared: np.ndarray,
    samples: np.ndarray,
    ran: str,
) -> EpochRecord:
    comm = float(shared[boundary.step])
    sums = {
        "load_s": float(bee.load[own].sum()),
        "move_s": float(bee.move[own].sum()),
        "forward_s": float(bee.forward[own].sum()),
        "backward_s": float(bee.backward[own].sum()),
        "optimizer_local_s": float(local[own].sum()),
        "optimizer_sync_s": comm,
    }
    losses = bee.loss[own]
    losses = losses[np.isfinite(losses)]
    peers = float(bee.peers[boundary.step])
    return EpochRecord(
        vm=bee.host,
        epoch=boundary.epoch,
        began_s=began_s,
        ended_s=ended_s,
        steps=own.stop - own.start,
        samples=int(samples[own].sum()),
        **sums,
        other_s=max(ended_s - began_s - sum(sums.values()), 0.0),
        calc_s=ended_s - began_s - comm,
        comm_s=comm,
        loss=float(losses.mean()) if len(losses) else None,
        group_size=int(peers) if np.isfinite(peers) else 0,
        dropped="",
        ran=ran,
    )


_STEP_COLUMNS = (
    "step", "epoch", "began_s", "wall_s", "load_s", "move_s", "forward_s", "backward_s",
    "optimizer_local_s", "optimizer_sync_s", "other_s", "samples",
)  # fmt: skip


def _columns(
    bee: Bee,
    number: np.ndarray,
    wall: np.ndarray,
    local: np.ndarray,
    shared: np.ndarray,
    other: np.ndarray,
    samples: np.ndarray,
) -> dict[str, np.ndarray]:
    began = bee.end_s[0] - wall[0] + np.concatenate([[0.0], np.cumsum(wall)[:-1]])
    values = (
        np.arange(1, bee.steps + 1), number, began, wall, bee.load, bee.move, bee.forward, bee.backward,
        local, shared, other, samples,
    )  # fmt: skip
    return dict(zip(_STEP_COLUMNS, values, strict=True))
