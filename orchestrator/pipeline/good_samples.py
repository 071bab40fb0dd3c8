"""Runs a pipeline on samples by hand, with the target's `data.bad_samples`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cloud.storage.samples import Sample
from experiments.peer.training.bad_samples import BadSamples, LeftOut
from experiments.pipeline.errors import BadSampleError
from orchestrator.pipeline.opened import OpenInput

_T = TypeVar("_T")


def bad_samples(opened: OpenInput, tell: Callable[[LeftOut], None] = lambda _: None) -> BadSamples:
    """A new counter with the target's policy; a pipeline without an experiment fails. `tell`: as in BadSamples."""
    return BadSamples("fail" if opened.spec is None else opened.spec.data.bad_samples, tell)


def of_good(samples: Iterable[Sample], run: Callable[[Sample], _T], bad: BadSamples) -> Iterator[_T]:
    """What `run` returns for each sample, without the bad ones, which `bad` counts.

    Raises what `bad` does, PipelineError if all are bad.
    """
    for sample in samples:
        try:
            found = run(sample)
        except BadSampleError as error:
            bad.bad(error)
            continue
        bad.good()
        yield found
    bad.check_any_good()
