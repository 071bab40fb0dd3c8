"""Compares the prediction of an experiment with that of a changed one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.planning.advice import usd_of
from analysis.planning.places import first_places
from analysis.planning.prediction import Prediction, Value, predict
from cloud.places import continent
from cloud.prices.book import PriceBook
from experiments.schema.models import ExperimentSpec, PeerGroup, Resources
from experiments.schema.slots import slots

_PEERS = re.compile(r"(?P<change>[+-]\d{1,4})\s+(?P<group>\S+)")
_SHORT = {"tuning": "network_tuning", "compression": "swarm.compression", "averaging": "swarm.averaging",
          "overlap": "swarm.overlap"}  # fmt: skip


class ChangeError(Exception):
    """A change that cannot be read or applied; the message says what is possible."""


@dataclass(frozen=True, slots=True)
class Changed:
    """An experiment with one change. The figures are None if they are unknown, with the reasons."""

    change: str  # "" for the experiment as it is
    prediction: Prediction
    usd_per_h: Value | None
    usd_per_1m: Value | None
    unknown: tuple[str, ...]


def override_of(change: str, spec: ExperimentSpec) -> str:
    """Return a change as an argument of `--set`.

    `+2 eu` and `-1 us` change a group's number of peers; a group is named, or has all its places on the continent that is
    named. `tuning=wan`, `compression=none`, `averaging=...` and `overlap=...` are short for their keys; any other
    KEY=VALUE is one already. Raises ChangeError.
    """
    text = change.strip()
    peers = _PEERS.fullmatch(text)
    if peers is None:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ChangeError(
                f"'{text[:80]}' is not a change; write '+2 eu', '-1 us', 'tuning=wan' or KEY=VALUE"
            )
        return f"{_SHORT.get(key.strip(), key.strip())}={value.strip()}"
    group = _group(peers["group"], spec)
    count = group.count + int(peers["change"])
    if count < 1:
        raise ChangeError(
            f"'{text}' leaves no peer of the {group.count} in group {group.name}; keep at least one"
        )
    return f"peers.{group.name}.count={count}"


def compared(
    experiments: Mapping[str, tuple[ExperimentSpec, PriceBook]], *, rented: bool = False
) -> tuple[Changed, ...]:
    """Predict each experiment with its price book, by change ("" is the experiment as it is).

    VMs are in the places in which the plan requests them first, at the book's prices.
    """
    found: list[Changed] = []
    for change, (spec, book) in experiments.items():
        prices = {row: book.vm(*row) for row in {_kind(p) for slot in slots(spec) for p in slot.places}}
        usd_per_h = {row: None if price is None else price.usd for row, price in prices.items()}
        places = first_places(spec, lambda place, usd_per_h=usd_per_h: usd_per_h[_kind(place)])
        p = predict(spec, book, rented=rented, places=places)
        dollars: tuple[Value | None, Value | None] = (None, None)
        unknown = p.unknown
        if p.sps is not None:
            try:
                dollars = usd_of(spec, p, book, places)
            except ValueError as error:
                unknown = tuple(dict.fromkeys((*unknown, str(error))))
        found.append(Changed(change, p, *dollars, unknown))
    return tuple(found)


def _kind(place: Resources) -> tuple[str, str, bool]:
    return place.infra, place.accelerators, place.use_spot


def _group(name: str, spec: ExperimentSpec) -> PeerGroup:
    groups = {group.name: group for group in spec.peers}
    if name in groups:
        return groups[name]
    there: dict[str, set[str]] = {}
    for slot in slots(spec):
        there.setdefault(slot.group, set()).update(continent(place.infra) for place in slot.places)
    same = [group for group, continents in there.items() if continents == {name.upper()}]
    if len(same) == 1:
        return groups[same[0]]
    several = f"several groups are in {name}" if same else f"no group is called {name}"
    raise ChangeError(f"{several}; the groups of {spec.name} are {', '.join(groups)}")
