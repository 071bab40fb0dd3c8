"""What a plan of offloading takes from a two-stage profile, and what options put in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.pipeline.offload.io_bound import exactly
from analysis.pipeline.offload.offload_profile import OffloadProfile
from metrics.stats import Estimate


@dataclass(frozen=True, slots=True)
class OffloadSetting:
    """The machines of a pass over the profile's samples, and stage 1's rates in samples per second with them.

    `trainer_s` None: unknown, and so is `trainer_sps`.
    """

    bandwidth_mbps: float
    client_cores: float
    trainer_s: float | None
    fetch_sps: Estimate
    preprocess_sps: Estimate
    trainer_sps: Estimate | None


def offload_setting(
    profile: OffloadProfile,
    bandwidth_mbps: float | None,
    client_cores: float | None,
    trainer_s: float | None,
) -> OffloadSetting:
    """Take what is None from the profile: the payload's bandwidth, the cores that preprocessed, the trainer's pass.

    A rate that follows from a given value is exact, without an interval.
    """
    stage, samples = profile.head.stage_1, profile.head.samples
    fetch, preprocess, trainer = stage.fetch_sps, stage.preprocess_sps, stage.trainer_sps
    if bandwidth_mbps is not None:
        fetch = exactly(_per(bandwidth_mbps * 1e6, 8 * profile.mean_raw_bytes))
    if client_cores is not None:
        preprocess = exactly(_per(client_cores, profile.mean_cpu_s))
    if trainer_s is not None:
        trainer = exactly(_per(samples, trainer_s))
    elif trainer is not None:
        trainer_s = samples / trainer.value
    cores = min(stage.workers, profile.head.cores)
    return OffloadSetting(
        profile.payload_bps / 1e6 if bandwidth_mbps is None else bandwidth_mbps,
        cores if client_cores is None else client_cores,
        trainer_s,
        fetch,
        preprocess,
        trainer,
    )


def _per(amount: float, each: float) -> float:
    return amount / each if each > 0 else math.inf
