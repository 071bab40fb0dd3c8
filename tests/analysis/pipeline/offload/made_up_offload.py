"""A two-stage profile that is made up."""

from __future__ import annotations

import numpy as np

from analysis.pipeline.offload.io_bound import exactly
from analysis.pipeline.offload.offload_profile import (
    CodecPlace,
    Head,
    MeasuredCodec,
    OffloadProfile,
    Stage1,
)
from analysis.pipeline.offload.sample_profile import SampleProfile
from metrics.stats import Estimate

OPS = ("decode", "crop")


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 50)


def stage(
    fetch: Estimate | None = None,
    preprocess: Estimate | None = None,
    trainer: Estimate | None = None,
) -> Stage1:
    return Stage1(
        50,
        32,
        1,
        4,
        "thread",
        fetch or between(9, 11),
        preprocess or between(90, 110),
        trainer or exactly(50),
    )


def head(
    samples: int = 3,
    codecs: tuple[CodecPlace, ...] = (CodecPlace("webp", 2, 1),),
    stage_1: Stage1 | None = None,
    ops: tuple[str, ...] = OPS,
) -> Head:
    return Head(
        target="mine",
        pipeline="imagenet",
        fingerprint="f" * 64,
        ops=ops,
        storable=1,
        codecs=codecs,
        samples=samples,
        bad_samples=1,
        seed=7,
        pass_number=0,
        machine="here",
        cores=4,
        link_mbps=210.0,
        link_rtt_ms=103.0,
        generated=False,
        measured_at="2026-11-28T12:00:00+00:00",
        seconds=12.5,
        stage_1=stage_1 or stage(),
    )


def samples(keys: tuple[str, ...] = ("a", "b", "c")) -> SampleProfile:
    """Of three samples, the first and the last shrink to 150 kB after their second operation."""
    return SampleProfile(
        keys,
        OPS,
        np.array([300_000.0, 90_000.0, 500_000.0]),
        np.array([[2.4e6, 150_528.0]] * 3),
        np.array([[0.016, 0.002], [0.008, 0.002], [0.02, 0.002]]),
    )


def profile(stage_1: Stage1 | None = None) -> OffloadProfile:
    webp = MeasuredCodec(
        CodecPlace("webp", 2, 1),
        np.array([60_000.0, 150_528.0, 75_264.0]),
        np.array([0.003, 0.0, 0.004]),
        np.array([0.001, 0.0, 0.0015]),
    )
    return OffloadProfile(head(stage_1=stage_1), samples(), (webp,))
