"""What a run has trained so far, for the goals that end it early (`orchestrator/core/until.py`)."""

from __future__ import annotations

import math
from decimal import Decimal
from statistics import median

from metrics.epochs.restarts import training
from metrics.epochs.scaling import full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.events.evaluation import evaluations_of, of_kept_epochs
from metrics.learning_curve import seconds_until
from metrics.records import EpochRecord, VmRecord
from metrics.run import terms_of
from metrics.store.database import RunStore
from orchestrator.core.until import Goals, Trained

_RECENT = 3  # epochs whose duration is expected of the next ones


def trained(
    store: RunStore, goals: Goals, now_s: float, spent_usd: Decimal | None, last_epoch: int
) -> Trained | None:
    """Return what was trained until the newest epoch that all of its peers reported. None: there is none yet.

    `spent_usd`: dollars so far, None if unknown. `last_epoch`: of the experiment; a VM that reports later ones lies.
    """
    meta = store.run_meta()
    terms, _ = terms_of(meta)
    epochs: list[EpochRecord] = [row for row in store.records("epochs") if row.epoch <= last_epoch]
    vms: list[VmRecord] = store.records("vms")
    raw = [epoch for epoch in swarm_epochs(epochs, meta.warmup_epochs, vms=vms) if epoch.complete]
    if not raw:
        return None
    full_scale = full_scale_epochs(raw, terms.scales, terms.raw_target)
    began_s = min(record.began_s for record in epochs)
    rows = [
        row
        for row in of_kept_epochs(meta.evaluations, training(epochs, vms).lost)
        if int(row["epoch"]) <= last_epoch
    ]
    recent = [epoch.duration_s for epoch in raw[-_RECENT:] if epoch.duration_s is not None]
    newest = raw[-1]
    return Trained(
        now_s=now_s,
        epoch=newest.epoch,
        ended_s=newest.ended_s,
        epoch_s=median(recent) if recent else None,
        samples=math.fsum(epoch.samples for epoch in full_scale),
        trained_s=seconds_until(raw, full_scale, began_s, terms.scales.time)[newest.epoch],
        spent_usd=spent_usd,
        evaluated=tuple(
            one.figures[goals.metric] for one in evaluations_of(rows) if goals.metric in one.figures
        ),
    )
