"""Bad samples that the peers left out (`data.bad_samples: skip`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from metrics.readable import few

Counts = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What one VM's peer left out. A sample that is read in several passes counts each time."""

    vm: str
    slot: str
    training: int
    heldout: int  # in its last evaluation
    first: str  # the first bad sample and what is wrong with it; "": none


@dataclass(frozen=True, slots=True)
class BadSamples:
    """What a run's peers left out, one entry per VM that reported."""

    vms: tuple[LeftOut, ...]

    @property
    def training(self) -> int:
        """Training samples that were left out, of all peers."""
        return sum(one.training for one in self.vms)

    @property
    def heldout(self) -> int:
        """Held-out samples that were left out of an evaluation. Each peer reads the same ones."""
        return max((one.heldout for one in self.vms), default=0)

    @property
    def first(self) -> str:
        """A bad sample and what is wrong with it; "" if there is none."""
        return next((one.first for one in self.vms if one.first), "")

    @property
    def sentence(self) -> str:
        """The warning; "" if no sample was left out."""
        if not self.training and not self.heldout:
            return ""
        slots: dict[str, int] = {}
        for one in self.vms:
            if one.training:
                slots[one.slot] = slots.get(one.slot, 0) + one.training
        by_slot = few([f"{slot} {count:,}" for slot, count in sorted(slots.items())], between=", ")
        parts = [
            *([f"{self.training:,} bad training {_samples(self.training)} ({by_slot})"] if slots else []),
            *([f"{self.heldout:,} bad held-out {_samples(self.heldout)}"] if self.heldout else []),
        ]
        were = "was" if self.training + self.heldout == 1 else "were"
        return f"{' and '.join(parts)} {were} left out (data.bad_samples: skip); the first: {self.first}."

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> BadSamples:
        """Read what `to_json` returned; None has no VM."""
        return cls(tuple(LeftOut(**row) for row in (document or {}).get("vms", ())))

    def to_json(self) -> dict[str, Any]:
        """Return it as in `orch report -o json`."""
        return {
            "training": self.training,
            "heldout": self.heldout,
            "first": self.first or None,
            "vms": [asdict(one) for one in self.vms],
        }


def bad_samples_of(counts: Counts | None, slot_of: Callable[[str], str], slot: str = "") -> BadSamples | None:
    """Read meta's `bad_samples`. `slot`: of this slot's VMs only. None: unknown, as in runs of before these counts."""
    if not counts:
        return None
    return BadSamples(
        tuple(
            LeftOut(
                vm,
                slot_of(vm),
                int(of["training"]["count"]),
                int(of["heldout"]["count"]),
                str(of["training"]["first"] or of["heldout"]["first"]),
            )
            for vm, of in sorted(counts.items())
            if not slot or slot_of(vm) == slot
        )
    )


def _samples(count: int) -> str:
    return "sample" if count == 1 else "samples"
