"""What each VM that joined a training swarm downloaded, how long that took, and what those bytes cost.

Seconds and bytes are at the study's scale. The dollars are the price book's first tier for the bytes, from the donor's
location to the joiner's: they are a part of the egress that the bill has, never an addition to it. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal

from metrics.epochs.scaling import Scales
from metrics.records import JoinRecord, VmRecord

Price = Callable[[str, str, int], Decimal | None]  # (from location, to location, bytes) -> dollars


@dataclass(frozen=True)
class Join:
    """One VM that took over the state of others."""

    vm: str
    slot: str
    location: str
    at_s: float  # unix, as measured: when it began to train
    from_epoch: int
    donor: str | None  # slot; None: not said
    donor_location: str | None
    seconds: float
    bytes: float | None
    resumed: int | None  # how often a cut download went on where it was
    usd: Decimal | None


def join_costs(
    joins: Iterable[JoinRecord], vms: Iterable[VmRecord], scales: Scales, price: Price | None
) -> list[Join]:
    """The joins with a download, in the order of their first steps. `price` None: there is no price book."""
    rows = {row.vm: row for row in vms}
    found: list[Join] = []
    for record in sorted(joins, key=lambda join: (join.at_s, join.vm)):
        row = rows.get(record.vm)
        if row is None or (record.state_s == 0.0 and not record.state_bytes):
            continue
        donor = rows.get(record.donor or "")
        size = None if record.state_bytes is None else record.state_bytes * scales.bytes
        usd = (
            None
            if donor is None or size is None or price is None
            else price(donor.location, row.location, round(size))
        )
        found.append(
            Join(
                vm=row.vm,
                slot=row.slot,
                location=row.location,
                at_s=record.at_s,
                from_epoch=record.from_epoch,
                donor=None if donor is None else donor.slot,
                donor_location=None if donor is None else donor.location,
                seconds=record.state_s * scales.time,
                bytes=size,
                resumed=record.resumed,
                usd=usd,
            )
        )
    return found
