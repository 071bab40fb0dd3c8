"""Rows of one's own price files on which nothing in a plan rests, for example because of a misspelt region. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cloud.prices.book import PriceBook, names_of
from cloud.prices.rows import Price
from experiments.averaging.records import region_of
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from metrics.readable import few

_SHOWN = 4


def unused_rows(spec: ExperimentSpec, book: PriceBook, planned: Iterable[Price]) -> list[str]:
    """Return a note on the rows of the files after the first of the experiment's `prices` that price nothing; [] if none.

    `planned`: the rows that price the plan's VMs and its traffic. A row counts as used if another tier or date of the same
    price is. Storage, what VMs send to the store, and their clouds' egress to the internet (to the user's machine) count too:
    the bill has them.
    """
    own = {Path(name).name for name in names_of(spec.prices)[1:]}
    places = [place.infra for slot in slots(spec) for place in slot.places]
    clouds = {place.partition("/")[0] for place in places}
    ladders = [book.storage_ladder(spec.data.location)]
    ladders += [book.upload_ladder(place, spec.data.location) for place in dict.fromkeys(places)]
    used = {row.key for row in planned} | {ladder.key for ladder in ladders if ladder is not None}
    used |= {
        row.key
        for row in book.prices()
        if (row.product, row.item) == ("egress", "internet") and row.provider in clouds
    }
    unused = [row for row in book.prices() if row.origin.rpartition(":")[0] in own and row.key not in used]
    if not unused:
        return []
    regions = ", ".join(sorted({region_of(place) for place in places}))
    return [f"no price of this plan comes from {few(_named(unused), _SHOWN)}; its places are in {regions}"]


def _named(rows: Sequence[Price]) -> list[str]:
    """The rows by their place in the file, one for each price."""
    by_key = {row.key: row for row in reversed(rows)}
    ordered = sorted(by_key.values(), key=lambda row: (row.origin.rpartition(":")[0], row.line))
    return [f"{row.origin} ({' '.join(part for part in row.key if part != '*')})" for row in ordered]
