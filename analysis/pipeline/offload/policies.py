"""The paper's policy and its baselines: each chooses the samples to offload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.pipeline.offload.choices import Choice, Choices
from analysis.pipeline.offload.pass_time import Assignment, Machines, pass_time


def none(choices: Choices) -> Assignment:
    """No-Off: all samples are sent as they are stored."""
    return np.zeros(choices.samples, dtype=np.intp)


def prefix(choices: Choices, ops: int) -> Assignment:
    """The first `ops` operations of every sample; 2 is Resize-Off of an image pipeline. Raises ValueError for too many."""
    return np.full(choices.samples, choices.index(Choice(ops)), dtype=np.intp)


def everything(choices: Choices) -> Assignment:
    """All-Off: every operation of every sample."""
    return prefix(choices, max(choice.ops for choice in choices.names))


def fastflow(choices: Choices, machines: Machines) -> Assignment:
    """All or nothing, whichever pass is predicted shorter from the mean sample (Um et al., VLDB 2023); nothing if equal."""
    nothing, all_of_it = none(choices), everything(choices)
    faster = pass_time(choices, all_of_it, machines).seconds < pass_time(choices, nothing, machines).seconds
    return all_of_it if faster else nothing


def greedy(choices: Choices, machines: Machines, keys: Sequence[str]) -> Assignment:
    """SOPHON (Wang et al., HotStorage 2024, section 3.3): the bytes saved by CPU second decide.

    Each sample's candidate is the first of its smallest choices. In descending order of saved bytes by server second
    (ties: by key), one sample after the other is offloaded while the network takes longer than each of the other three.
    """
    rows = np.arange(choices.samples)
    smallest = np.argmin(choices.sent_bytes, axis=1)
    saved = choices.sent_bytes[:, 0] - choices.sent_bytes[rows, smallest]
    cost_s = choices.server_s[rows, smallest]
    free = (saved > 0) & (cost_s == 0)
    by_second = np.divide(saved, cost_s, out=np.where(free, np.inf, 0.0), where=cost_s > 0)
    candidates = [i for i in range(choices.samples) if by_second[i] > 0]
    candidates.sort(key=lambda i: (-by_second[i], keys[i]))
    chosen = none(choices)
    if not machines.storage_cores or not candidates:
        return chosen
    order = np.array(candidates)
    before = np.zeros(1)
    net_s = np.sum(choices.sent_bytes[:, 0]) - np.concatenate([before, np.cumsum(saved[order])])
    net_s *= 8 / machines.bandwidth_bps
    server_s = np.concatenate([before, np.cumsum(cost_s[order])]) / machines.storage_cores
    less_s = choices.client_s[order, 0] - choices.client_s[order, smallest[order]]
    client_s = np.sum(choices.client_s[:, 0]) - np.concatenate([before, np.cumsum(less_s)])
    others = np.maximum(np.maximum(server_s, client_s / machines.client_cores), machines.trainer_s)
    stops = np.flatnonzero(net_s <= others)
    moved = order[: int(stops[0]) if len(stops) else len(order)]
    chosen[moved] = smallest[moved]
    return chosen
