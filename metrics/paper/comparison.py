"""Comparison of a run with the paper's figures of the same experiment, each computed as in the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.epochs.throughput import SwarmEpoch
from metrics.figures import FIGURES, PAPER
from metrics.stats import Estimate
from metrics.traffic import Traffic


def peer_egress_gb_per_epoch(
    matrix: Sequence[Traffic], epochs: Sequence[SwarmEpoch], vms: Sequence[str]
) -> float | None:
    """Return the GB (10^9 bytes) that a VM sends to its peers per epoch, mean over all epochs. None without epochs."""
    peers = set(vms)
    turns = sum(len(e.peers) for e in epochs)
    sent = math.fsum(row.bytes for row in matrix if row.dst in peers)
    return sent / turns / 1e9 if turns else None


def compare(
    published: Mapping[str, Any] | None,
    epochs: Sequence[SwarmEpoch],
    matrix: Sequence[Traffic],
    vms: Sequence[str],
    epoch_mean: Estimate | None,
) -> dict[str, Any] | None:
    """Return the paper's figures, ours and the relative differences, (ours - paper) / paper. None without `published`.

    `epochs` and `matrix` are at full scale. The paper's throughput is the mean of its epochs' rates, so it is compared
    with `sps_epoch_mean` (`epoch_mean`). Its granularity by phase timers is left out. The result is
    `{"figures": the paper's row, "compared": {name: {"study", "ours", "difference"}}}`.
    """
    if not published:
        return None
    of_epochs = (FIGURES[key] for key in PAPER if key not in ("sps_epoch_mean", "granularity_phase_timed"))
    ours = {"sps": _value(epoch_mean)}
    ours |= {f.paper_column: _value(f.of_epochs(epochs)) for f in of_epochs if f.of_epochs}
    ours["egress_gb_per_vm_epoch"] = peer_egress_gb_per_epoch(matrix, epochs, vms)
    compared: dict[str, dict[str, float | None]] = {}
    for name, value in ours.items():
        paper = _number(published.get(name))
        if paper is not None:
            difference = None if value is None or paper == 0 else (value - paper) / paper
            compared[name] = {"study": paper, "ours": value, "difference": difference}
    return {"figures": dict(published), "compared": compared}


def _value(estimate: Any) -> float | None:
    return None if estimate is None else float(estimate.value)


def _number(value: Any) -> float | None:
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError):
        return None
