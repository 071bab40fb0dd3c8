"""Downloads of the state by VMs that joined a running swarm: seconds, bytes and dollars.

Seconds and bytes are at full scale. The dollars are the bytes at the price book's first tier, from the donor's location to
the joiner's. They are part of the egress in the bill, not in addition to it. None: unknown.
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
    """One VM that downloaded the state from another."""

    vm: str
    slot: str
    location: str
    at_s: float  # unix, as measured: when it began to train
    from_epoch: int
    donor: str | None  # slot; None: not reported
    donor_location: str | None
    seconds: float
    bytes: float | None
    resumed: int | None  # how often an interrupted download was resumed
    usd: Decimal | None


def join_costs(
    joins: Iterable[JoinRecord], vms: Iterable[VmRecord], scales: Scales, price: Price | None
) -> list[Join]:
    """Return the joins with a download, in the order of the first steps. `price`: None without a price book."""
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
