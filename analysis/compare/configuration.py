"""The configuration of a run as flat keys, and the keys in which runs differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metrics.provenance import RanOn
from metrics.store.meta import RunMeta

_HASH_WIDE = 12
_SHOWN_ELSEWHERE = ("name", "description")  # beside each run; differing always, and without effect


@dataclass(frozen=True)
class Configuration:
    """What a run was configured with. `values`: by flat key, such as `swarm.target_batch_size`; nulls included.

    `groups`: the peer groups in words by name; a group that a run does not have is one difference, not one per key.
    `whole`: False if the run stores no complete experiment, so that a key without a value is unknown, not absent.
    """

    values: Mapping[str, Any]
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    whole: bool = True


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """One key and its value in each run, in the order of the runs. `known`: False where a value is unknown."""

    key: str
    values: tuple[Any, ...]  # None: null, absent or unknown
    present: tuple[bool, ...]
    known: tuple[bool, ...]


def configuration(meta: RunMeta) -> Configuration:
    """Return the resolved experiment, what it ran on, the price book and the versions of the packages."""
    ran = RanOn.of(meta)
    around: dict[str, Any] = {"target": meta.target}
    around |= {f"scales.{name}": value for name, value in (ran.scales or {}).items()}
    if meta.price_book is not None:
        around["price_book"] = meta.price_book.name
        around["price_book.sha256"] = (meta.price_book.sha256 or "")[:_HASH_WIDE]
    around |= {f"versions.{name}": version for name, version in (meta.versions or {}).items()}
    document = meta.document
    if "swarm" not in document:  # an imported run, or one of a test: its meta knows two of the keys
        known = {
            "model": meta.model.name if meta.model else None,
            "swarm.target_batch_size": meta.target_batch_size,
        }
        return Configuration({k: v for k, v in (known | around).items() if v is not None}, whole=False)
    values = {key: value for key, value in flat(document).items() if key not in _SHOWN_ELSEWHERE}
    groups = {str(one.get("name")): _group(one) for one in document.get("peers", ())}
    return Configuration(values | around, groups)


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: `{"swarm": {"plain": False}}` is `{"swarm.plain": False}`.

    Items of a list of mappings are addressed by their name, otherwise by their position. Empty mappings and lists
    are left out.
    """
    found: dict[str, Any] = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and value and all(isinstance(v, Mapping) for v in value):
            for k, one in enumerate(value):
                place = one.get("name", k)
                found |= flat({k: v for k, v in one.items() if k != "name"}, f"{name}.{place}.")
        elif not (isinstance(value, (list, tuple)) and not value):
            found[name] = value
    return found


def differing(runs: Sequence[Configuration]) -> list[DifferingKey]:
    """Return the keys whose known values are not the same in all runs, in the order of the first run that has them."""
    partly = {
        name
        for name in _each(run.groups for run in runs if run.whole)
        if not all(name in run.groups for run in runs if run.whole)
    }
    hidden = tuple(f"peers.{name}." for name in partly)
    found: list[DifferingKey] = []
    for name in _each(run.groups for run in runs):
        if name in partly:
            found.append(_key(f"peers.{name}", [(run.groups, name, run.whole) for run in runs]))
    for key in _each(run.values for run in runs):
        if not key.startswith(hidden or ("\0",)):
            row = _key(key, [(run.values, key, run.whole) for run in runs])
            seen = {(p, _same(v)) for p, v, k in zip(row.present, row.values, row.known, strict=True) if k}
            if len(seen) > 1:
                found.append(row)
    return found


def same_keys(runs: Sequence[Configuration]) -> int:
    """Return how many keys are known in all runs, with one value."""
    keys = _each(run.values for run in runs)
    return sum(
        all(key in run.values for run in runs) and len({_same(run.values[key]) for run in runs}) == 1
        for key in keys
    )


def _key(name: str, where: Iterable[tuple[Mapping[str, Any], str, bool]]) -> DifferingKey:
    cells = [(values.get(key), key in values, key in values or whole) for values, key, whole in where]
    values, present, known = zip(*cells, strict=True)
    return DifferingKey(name, values, present, known)


def _same(value: Any) -> str:
    """Equal for equal values: 100 is 100.0, and true is not 1."""
    return repr(float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value)


def _each(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every key once, in order."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _group(group: Mapping[str, Any]) -> str:
    """`2 x T4:1 in gcp/us-central1/us-central1-a`."""
    places = group.get("any_of") or [group.get("resources") or {}]
    return f"{group.get('count', 1)} x " + " or ".join(
        f"{one.get('accelerators')} in {one.get('infra')}" for one in places
    )
