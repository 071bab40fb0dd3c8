"""Decide whether an experiment may be compared with the paper: it must be the same experiment, not only the same name.

The library's experiment with a name is the paper's. It is identified by its model, target batch size, batch size, plain
or averaged training, and peers (places, accelerators, counts). If one of these differs, there are no published figures.
Other differences (compression, network tuning, emulation settings) are options: the figures may be compared with the
published ones to show what the option gains, but they say nothing about the accuracy of the emulation.
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

_IDENTITY = ("target_batch_size", "batch_size", "plain")
# Keys that do not affect seconds and bytes. Of the optimizer, only the name is compared.
_IGNORED = ("averaging_timeout_s", "optimizer")
_EMULATED = ("network", "path_model", "windows", "preempt")


@dataclass(frozen=True, slots=True)
class Basis:
    """What an experiment may be compared with."""

    published: Published | None  # the paper's figures
    why: str = ""  # why there are none
    options: tuple[str, ...] = ()  # settings that differ from the paper's, as phrases


def paper_basis(spec: ExperimentSpec) -> Basis:
    """Return the published figures that a resolved experiment may be compared with."""
    known = published(spec.name)
    if known is None:
        return Basis(None, f"the paper has no experiment named '{spec.name}'")
    theirs = _shipped(spec.name)
    other = [
        f"{name} {ours} instead of {paper}" for name, ours, paper in _identity(spec, theirs) if ours != paper
    ]
    if other:
        return Basis(None, f"not the paper's experiment: {'; '.join(other)}")
    options = [(name, ours) for name, ours, paper in _options(spec, theirs) if ours != paper]
    notes = {f"swarm.{record.key}": record.paper_note for record in spec.swarm.method.records}
    words = (
        name if isinstance(ours, BaseModel) else f"{name} {str(ours).lower()}{notes.get(name, '')}"
        for name, ours in options
    )
    return Basis(known, options=tuple(words))


@cache
def _shipped(name: str) -> ExperimentSpec:
    return load(name, shipped=True)


def _identity(ours: ExperimentSpec, theirs: ExperimentSpec) -> list[tuple[str, Any, Any]]:
    pairs = [("model", ours.trains, theirs.trains)]
    pairs += [(f"swarm.{k}", getattr(ours.swarm, k), getattr(theirs.swarm, k)) for k in _IDENTITY]
    return [*pairs, ("peers", _peers(ours), _peers(theirs))]


def _options(ours: ExperimentSpec, theirs: ExperimentSpec) -> list[tuple[str, Any, Any]]:
    keys = [k for k in type(ours.swarm).model_fields if k not in (*_IDENTITY, *_IGNORED)]
    pairs = [("network_tuning", ours.network_tuning, theirs.network_tuning)]
    pairs += [(f"swarm.{k}", getattr(ours.swarm, k), getattr(theirs.swarm, k)) for k in keys]
    pairs.append(("swarm.optimizer", ours.swarm.optimizer.name, theirs.swarm.optimizer.name))
    if ours.emulation is not None and theirs.emulation is not None:
        pairs += [
            (f"emulation.{k}", getattr(ours.emulation, k), getattr(theirs.emulation, k)) for k in _EMULATED
        ]
    return pairs


def _peers(spec: ExperimentSpec) -> str:
    """Describe the peers, for example `4 x T4:1 in gcp/us-central1/us-central1-a`, without the names of the groups."""
    count: Counter[str] = Counter()
    for group in spec.peers:
        count[_vm(group)] += group.count
    return " + ".join(f"{n} x {words}" for words, n in sorted(count.items()))


def _vm(group: PeerGroup) -> str:
    return " or ".join(f"{one.accelerators} in {one.infra}" for one in group.alternatives)
