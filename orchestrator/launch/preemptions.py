"""Preemptions that an experiment plans."""

from __future__ import annotations

from cloud.local.options import PreemptOptions
from experiments.schema.models import ExperimentSpec


def preempt_options(spec: ExperimentSpec, run_id: str) -> PreemptOptions:
    """When VMs of the run are taken away on purpose (`emulation.preempt`); by default never."""
    requested = None if spec.emulation is None else spec.emulation.preempt
    if requested is None:
        return PreemptOptions(seed=spec.seed)
    return PreemptOptions(
        rate_per_h=requested.rate_per_h or 0.0,
        at_s=() if requested.at_s is None else (requested.at_s,),
        notice_s=requested.notice_s or None,
        slot=f"{run_id}-{requested.slot}" if requested.slot else "",
        seed=spec.seed,
    )
