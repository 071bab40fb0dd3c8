"""The two-stage profile of SOPHON (Wang et al., HotStorage 2024): is the input I/O-bound, and what is each sample worth."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Literal, cast

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
from cloud.storage.link import Link
from cloud.storage.samples import Sample
from experiments.peer.training.bad_samples import LeftOut
from experiments.peer.training.decoding import Workers
from experiments.pipeline.stored import StoredCodec, storable
from metrics.stats import Estimate, ratio_interval
from orchestrator.first_steps.trial import is_emulated, torch_threads, train_steps
from orchestrator.pipeline.good_samples import bad_samples, of_good
from orchestrator.pipeline.offload.sample_steps import SampleSteps, places, steps_of
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.profiling import shards_with
from orchestrator.pipeline.strategy_runs import ProfileError, preprocess_rate, read_rate
from orchestrator.pipeline.target import Target


@dataclass(frozen=True, slots=True)
class OffloadWanted:
    """What to measure. `workers` 0: one a core. `trainer_sps`: given, so the trainer is not measured."""

    samples: int = 128
    batches: int = 50
    codecs: tuple[StoredCodec, ...] = ()
    streams: int = 1
    workers: int = 0
    kind: str = "thread"
    pass_number: int = 0
    link: Link | None = None
    trainer_sps: float | None = None


def offload_profile(
    target: Target,
    wanted: OffloadWanted,
    say: Callable[[str], None],
    step: Callable[[str], None],
) -> OffloadProfile:
    """Measure both stages; nothing is offloaded. `say` gets lines of text, `step` what is done now.

    Raises UsageError, ProfileError, InputError, PipelineError, BadSampleError, TaskError, WorkerEndedError, StorageError,
    DataSourceError, OSError.
    """
    began_s, measured_at = time.monotonic(), datetime.now(UTC)
    cores = len(os.sched_getaffinity(0))
    with open_input(target, samples=wanted.samples, progress=say) as opened:
        step("reading samples")
        shards, samples, _ = shards_with(opened, sorted(opened.shards), wanted.samples)
        if not samples:
            raise ProfileError(f"{opened.name}: its shards contain no samples; check data.shards")
        _check_keys(opened, samples)
        tell_first = _TellOnce(say)
        step(f"transforming {len(samples)} samples")
        where = places(opened.pipeline, wanted.codecs)
        rows, bad = _stage_2(opened, samples, wanted.pass_number, where, tell_first)
        stage_1 = _stage_1(opened, shards, samples, wanted, cores, step, tell_first)
        coded = [[row.coded[at] for row in rows] for at in range(len(where))]
        codecs = tuple(
            MeasuredCodec(
                CodecPlace(codec, ops, sum(not one.held for one in found)),
                np.array([float(one.size_bytes) for one in found]),
                np.array([one.write_s for one in found]),
                np.array([one.read_s for one in found]),
            )
            for (codec, ops), found in zip(where, coded, strict=True)
        )
        ops = tuple(op.name for op in opened.pipeline.ops)
        return OffloadProfile(
            Head(
                target=opened.name,
                pipeline=opened.pipeline.name,
                fingerprint=opened.pipeline.fingerprint(),
                ops=ops,
                storable=storable(opened.pipeline),
                codecs=tuple(one.place for one in codecs),
                samples=len(rows),
                bad_samples=bad,
                seed=opened.seed,
                pass_number=wanted.pass_number,
                machine=platform.node(),
                cores=cores,
                link_mbps=None if wanted.link is None else wanted.link.rate_mbps,
                link_rtt_ms=None if wanted.link is None else wanted.link.rtt_ms,
                generated=opened.generated,
                measured_at=measured_at.isoformat(timespec="seconds"),
                seconds=time.monotonic() - began_s,
                stage_1=stage_1,
            ),
            SampleProfile(
                [row.key for row in rows],
                ops,
                np.array([float(row.raw_bytes) for row in rows]),
                np.array([row.size_bytes for row in rows], dtype=float),
                np.array([row.op_s for row in rows]),
            ),
            codecs,
        )


def _stage_1(
    opened: OpenInput,
    shards: Sequence[str],
    samples: Sequence[Sample],
    wanted: OffloadWanted,
    cores: int,
    step: Callable[[str], None],
    tell: Callable[[LeftOut], None],
) -> Stage1:
    """Fetching, preprocessing and training, each alone."""
    batch = max(1, min(opened.batch_size, len(samples)))
    workers = Workers(cast(Literal["thread", "process"], wanted.kind), wanted.workers or cores)
    step(f"fetching {wanted.batches} batches")
    fetched = read_rate(opened, shards, batch, wanted.streams, wanted.batches, wanted.link, least_s=0.0)
    step(f"preprocessing {wanted.batches} batches")
    preprocessed = preprocess_rate(opened, shards, batch, workers, wanted.batches, tell)
    if wanted.trainer_sps is None:
        step(f"training {wanted.batches} batches")
        trained = _trainer_rate(opened, samples, wanted.batches)
    else:
        trained = exactly(wanted.trainer_sps)
    return Stage1(
        batches=wanted.batches,
        batch_size=batch,
        streams=wanted.streams,
        workers=workers.count,
        worker_kind=wanted.kind,
        fetch_sps=fetched,
        preprocess_sps=preprocessed,
        trainer_sps=trained,
        trainer_given=wanted.trainer_sps is not None,
    )


def _trainer_rate(opened: OpenInput, samples: Sequence[Sample], batches: int) -> Estimate | None:
    """Samples per second of training one batch again and again, which is in memory; None: nothing is trained here.

    The first step is not timed: it takes allocations.
    """
    import torch

    if opened.trained is None or opened.spec is None or is_emulated(opened.spec):
        return None
    config, runner = opened.trained.config, opened.trained.runner
    run = lambda sample: opened.pipeline.run(sample, opened.seed, 0)  # noqa: E731
    items = list(of_good(samples[: config.batch_size], run, bad_samples(opened)))
    with (
        redirect_stdout(sys.stderr),  # of a user's task
        torch_threads(config.threads),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(config.seed)
        _, seconds, _ = train_steps(config, runner, cycle(items), batches + 1, time.perf_counter)
    return ratio_interval([float(config.batch_size)] * batches, seconds[1:])


def _stage_2(
    opened: OpenInput,
    samples: Sequence[Sample],
    pass_number: int,
    where: Sequence[tuple[StoredCodec, int]],
    tell: Callable[[LeftOut], None],
) -> tuple[list[SampleSteps], int]:
    """Each good sample, one after the other in this thread, and the number of bad ones."""
    warm = False

    def steps(sample: Sample) -> SampleSteps:
        nonlocal warm
        if not warm:  # imports are not part of the first sample's time
            steps_of(opened.pipeline, sample, opened.seed, pass_number, where)
            warm = True
        return steps_of(opened.pipeline, sample, opened.seed, pass_number, where)

    bad = bad_samples(opened, tell)
    rows = list(of_good(samples, steps, bad))
    bad.report()
    return rows, bad.count


def _check_keys(opened: OpenInput, samples: Sequence[Sample]) -> None:
    """Raises ProfileError if two samples have one key."""
    key, count = Counter(sample["__key__"] for sample in samples).most_common(1)[0]
    if count > 1:
        raise ProfileError(
            f"{opened.name}: {count} samples have the key {key}, and offloading chooses samples by their keys; give each a "
            "key of its own"
        )


class _TellOnce:
    """Names the first bad sample, once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._told = say, False

    def __call__(self, left_out: LeftOut) -> None:
        if not self._told:
            self._told = True
            self._say(f"bad samples are left out; the first: {left_out.first.where}")
