"""What of the published study a run of an experiment may be held against: the same experiment, not the same name.

The library's experiment of a name is the study's. Model, target batch size, batch size, plain or averaged, and peers
(places, accelerators, counts) make it; with another of these nothing is published. What the study had not but does not make
it another experiment (compression, network tuning, another emulation) is an option: its figures may lie beside
the published ones, to show what it gains, and say nothing of how true the emulation is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from experiments.catalog import Published, published
from experiments.parse.load import load
from experiments.schema.models import ExperimentSpec, PeerGroup

_MAKES_IT = ("target_batch_size", "batch_size", "plain")
_FREE = (
    "averaging_timeout_s",
    "optimizer",
)  # of no weight for seconds and bytes, but for the optimizer's name
_EMULATED = ("network", "path_model", "windows", "preempt")


@dataclass(frozen=True, slots=True)
class Basis:
    """`published`: the study's figures, None with `why` there are none. `options`: what the study had not, in words."""

    published: Published | None
    why: str = ""
    options: tuple[str, ...] = ()


def study_basis(spec: ExperimentSpec) -> Basis:
    """What of the study an experiment, as resolved, may be held against."""
    known = published(spec.name)
    if known is None:
        return Basis(None, f"the study published nothing of the name '{spec.name}'")
    theirs = _shipped(spec.name)
    other = [
        f"{name} {ours} instead of {study}" for name, ours, study in _makes_it(spec, theirs) if ours != study
    ]
    if other:
        return Basis(None, f"not the study's experiment: {'; '.join(other)}")
    options = [(name, ours) for name, ours, study in _options(spec, theirs) if ours != study]
    notes = {f"swarm.{record.key}": record.paper_note for record in spec.swarm.method.records}
    words = (
        name if isinstance(ours, BaseModel) else f"{name} {str(ours).lower()}{notes.get(name, '')}"
        for name, ours in options
    )
    return Basis(known, options=tuple(words))


@cache
def _shipped(name: str) -> ExperimentSpec:
    return load(name, shipped=True)


def _makes_it(ours: ExperimentSpec, theirs: ExperimentSpec) -> list[tuple[str, Any, Any]]:
    pairs = [("model", ours.model, theirs.model)]
    pairs += [(f"swarm.{k}", getattr(ours.swarm, k), getattr(theirs.swarm, k)) for k in _MAKES_IT]
    return [*pairs, ("peers", _peers(ours), _peers(theirs))]


def _options(ours: ExperimentSpec, theirs: ExperimentSpec) -> list[tuple[str, Any, Any]]:
    keys = [k for k in type(ours.swarm).model_fields if k not in (*_MAKES_IT, *_FREE)]
    pairs = [("network_tuning", ours.network_tuning, theirs.network_tuning)]
    pairs += [(f"swarm.{k}", getattr(ours.swarm, k), getattr(theirs.swarm, k)) for k in keys]
    pairs.append(("swarm.optimizer", ours.swarm.optimizer.name, theirs.swarm.optimizer.name))
    if ours.emulation is not None and theirs.emulation is not None:
        pairs += [
            (f"emulation.{k}", getattr(ours.emulation, k), getattr(theirs.emulation, k)) for k in _EMULATED
        ]
    return pairs


def _peers(spec: ExperimentSpec) -> str:
    """`4 x T4:1 in gcp/us-central1/us-central1-a`, places in their order; what groups are called does not matter."""
    count: Counter[str] = Counter()
    for group in spec.peers:
        count[_vm(group)] += group.count
    return " + ".join(f"{n} x {words}" for words, n in sorted(count.items()))


def _vm(group: PeerGroup) -> str:
    return " or ".join(f"{one.accelerators} in {one.infra}" for one in group.alternatives)
