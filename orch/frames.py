"""Convert a run's numbers to DataFrames with the columns of `orch.columns`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cloud.prices.book import exact
from metrics import tables
from metrics.cost.ledger import Ledger
from metrics.epochs.throughput import measured
from metrics.events.evaluation import LOWER_IS_BETTER
from orch.columns import FRAMES

if TYPE_CHECKING:
    import pandas as pd

    from metrics.run import RunNumbers


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the frame `name` of FRAMES from rows; None becomes the missing value of the column type."""
    found = list(rows)
    return frame_of_columns(name, {c.name: [row[c.name] for row in found] for c in FRAMES[name]})


def frame_of_columns(name: str, values: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Build the frame `name` of FRAMES from whole columns."""
    import pandas as pd

    return pd.DataFrame({c.name: pd.Series(values[c.name], dtype=c.dtype) for c in FRAMES[name]})  # pyright: ignore[reportArgumentType, reportCallIssue]


def peer_epoch_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per peer and epoch, at full scale."""
    counted = {e.epoch for e in measured(run.study)}
    return [
        {
            "vm": p.vm,
            "slot": run.slot(p.vm),
            "epoch": e.epoch,
            "warmup": e.warmup,
            "measured": e.epoch in counted,
            "samples": p.samples,
            "calc_s": p.calc_s,
            "comm_s": p.comm_s,
            "overlapped_s": p.overlapped_s,
            "granularity": p.granularity,
            "load_s": p.load_s,
            "timed_s": p.timed_s,
        }
        for e in run.study
        for p in e.peers
    ]


def peer_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per VM: its machine, work in the measured epochs, traffic and cost."""
    epochs: dict[str, list[Any]] = {row.vm: [] for row in run.vms}
    for epoch in measured(run.study):
        for p in epoch.peers:
            epochs.setdefault(p.vm, []).append(p)
    sent: dict[str, float] = {}
    for cell in run.matrix:
        sent[cell.src] = sent.get(cell.src, 0.0) + cell.bytes
    rows: list[dict[str, Any]] = []
    for vm in run.vms:
        mine = epochs[vm.vm]
        read = run.ingress.get(vm.vm)
        rows.append(
            {
                "vm": vm.vm,
                "slot": vm.slot,
                "generation": vm.generation,
                "location": vm.location,
                "accelerator": vm.accelerator,
                "instance": vm.instance,
                "use_spot": vm.use_spot,
                "usd_per_h": None if vm.usd_per_h is None else float(vm.usd_per_h),
                "requested_s": vm.requested_s,
                "ready_s": vm.ready_s,
                "ended_s": vm.ended_s,
                "end_cause": vm.end_cause,
                "epochs": len(mine),
                "samples": math.fsum(p.samples for p in mine) if mine else None,
                "calc_s": _mean(p.calc_s for p in mine),
                "comm_s": _mean(p.comm_s for p in mine),
                "granularity": _mean(g for p in mine if (g := p.granularity) is not None),
                "egress_bytes": round(sent[vm.vm]) if vm.vm in sent else None,
                "ingress_bytes": None if read is None else round(read),
                "vm_usd": _dollars(run, "vm", vm.vm),
                "egress_usd": _dollars(run, "egress", vm.vm),
                "data_usd": _dollars(run, "data", vm.vm),
                "estimated_usd": _estimated(run, vm.vm),
            }
        )
    return rows


def evaluation_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per evaluated epoch and figure on held-out data."""
    return [
        row
        | {
            "heldout_samples": row["samples"],
            "figure": name,
            "value": value,
            "lower_is_better": LOWER_IS_BETTER.get(name),
        }
        for row in tables.evaluations(run)
        for name, value in row["figures"].items()
    ]


def traffic_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per directed pair of slots; bytes are rounded."""
    return [row | {"bytes": round(row["bytes"])} for row in tables.traffic(run)]


def cost_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per line of the bill, with its quantity in the column of its unit."""
    return [
        row | {f"billed_{unit}": row["quantity"] if row["unit"] == unit else None for unit in ("s", "bytes")}
        for row in tables.cost_lines(run)
    ]


def preemption_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """One row per preempted VM."""
    return [
        row | {"slowed_epochs": None if (slow := row["slowed_epochs"]) is None else ", ".join(map(str, slow))}
        for row in tables.preemptions(run)
    ]


def _estimated(run: RunNumbers, vm: str) -> float | None:
    """Cost of the traffic that a lost VM is estimated to have sent after its last record."""
    usd = Ledger(tuple(line for line in run.bill.lines if line.estimated and line.src == vm)).sum()
    return None if usd is None else float(usd)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None


def _dollars(run: RunNumbers, kind: str, vm: str) -> float | None:
    """A VM's cost of one kind: traffic to the VM for data, from it otherwise. None if any line is unknown.

    Items without a line in the bill cost nothing; uncounted bytes have a line with an unknown price.
    """
    end = 1 if kind == "data" else 0
    mine = [usd for link, usd in run.bill.by_link(kind).items() if link[end] == vm]
    known = [usd for usd in mine if usd is not None]
    if len(known) < len(mine):
        return None
    with exact():
        return float(sum(known, Decimal(0)))
