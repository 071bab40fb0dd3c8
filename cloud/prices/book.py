"""A dated price book: the price of a VM-hour, of a transferred byte and of a stored byte, each with its source.

A book is a CSV file; docs/prices.md describes its format and the sources of its numbers. A price that a book does not
contain is unknown (None), never 0. Free monthly allowances are not in the books: a run cannot know how much of them the
account has used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cache, cached_property, reduce
from itertools import product as product_of
from pathlib import Path

from cloud.prices.classes import continent, egress_class, is_own, store_egress_class
from cloud.prices.ladder import UNIT_BYTES, Ladder, exact, tiered_usd
from cloud.prices.own import own_ladder, own_vm
from cloud.prices.rows import Price, PriceBookError, parse, to_text

__all__ = [
    "AUTO",
    "EMULATED_BOOK",
    "PRICED_AS",
    "UNIT_BYTES",
    "Ladder",
    "Price",
    "PriceBook",
    "PriceBookError",
    "book_names",
    "exact",
    "load",
    "load_for",
    "names_of",
    "newest",
    "tiered_usd",
]

AUTO = "auto"
"""As an experiment's `prices`: choose the book that fits the run, see `load_for`."""
EMULATED_BOOK = "study-2023-04"

_FOLDER = Path(__file__).parent
PRICED_AS = {"between_clouds": "internet", "same_zone_public": "inter_zone"}
"""Class whose price is used for a class without a price of its own."""

_Key = tuple[str, str, str, str, str]  # provider, product, from, to, item


@dataclass(frozen=True)
class PriceBook:
    """Prices by key and date; the tiers of each key and date ascend from 0."""

    name: str
    sha256: str
    text: str
    tiers: Mapping[tuple[_Key, date], tuple[Price, ...]]

    @classmethod
    def from_text(cls, text: str, name: str) -> PriceBook:
        """Parse a book's CSV text. Raises PriceBookError with `name:line`."""
        return cls._of(parse(text, name), text, name)

    @classmethod
    def _of(cls, prices: Iterable[Price], text: str, name: str) -> PriceBook:
        tiers: dict[tuple[_Key, date], list[Price]] = {}
        for price in prices:
            tiers.setdefault((price.key, price.valid_from), []).append(price)
        for rows in tiers.values():
            rows.sort(key=lambda price: price.tier_start)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(name, digest, text, {key: tuple(rows) for key, rows in tiers.items()})

    def under(self, own: PriceBook) -> PriceBook:
        """Return this book with the rows of `own` on top.

        A row of this book is left out, whatever its date, if `own` has one for the same (the first five columns) or for
        a wider place.
        """
        priced = {key for key, _ in own.tiers}
        kept = [price for price in self.prices() if priced.isdisjoint(_as_wide(price.key))]
        rows = [*kept, *own.prices()]
        name, text = f"{self.name}+{own.name}", to_text(rows)
        written = zip(parse(text, name), rows, strict=True)
        return self._of((replace(new, origin=row.origin) for new, row in written), text, name)

    def vm(self, location: str, accelerator: str, use_spot: bool, on: date | None = None) -> Price | None:
        """Return the price of a VM-hour at a location `cloud/region[/zone]`; None: unknown.

        `accelerator` is `T4` or `T4:1`. A region's own price takes precedence over the provider's `*`; of several
        instances with the accelerator the cheapest counts. `on`: prices as of that day (default: the newest). The
        user's own machines cost nothing in any book.
        """
        asked = (location, accelerator, use_spot, on)
        if asked not in self._vm_prices:  # the budget check asks for every VM of the run every five seconds
            self._vm_prices[asked] = self._vm(location, accelerator, use_spot, on)
        return self._vm_prices[asked]

    @cached_property
    def _vm_prices(self) -> dict[tuple[str, str, bool, date | None], Price | None]:
        """Cached results of `vm`."""
        return {}

    def _vm(self, location: str, accelerator: str, use_spot: bool, on: date | None) -> Price | None:
        if is_own(location):
            return own_vm(accelerator)
        provider, _, rest = location.partition("/")
        region = rest.partition("/")[0]
        wanted = accelerator if ":" in accelerator else f"{accelerator}:1"
        market = "spot" if use_spot else "on_demand"
        for place in dict.fromkeys((region, "*")):
            found = [self._tiers(key, on) for key in self._vms.get((provider, place, wanted, market), ())]
            rows = [tier[0] for tier in found if tier]
            if rows:
                return min(rows, key=lambda price: (price.usd, price.item))
        return None

    @cached_property
    def _vms(self) -> Mapping[tuple[str, str, str, str], Sequence[_Key]]:
        """Keys of VM prices by provider, region or "*", accelerator and market."""
        found: dict[tuple[str, str, str, str], list[_Key]] = {}
        for key in self._dates:
            provider, product, place, _, item = key
            if product == "vm":
                accelerator, _, market = item.split("/")[:3]
                found.setdefault((provider, place, accelerator, market), []).append(key)
        return found

    def ladder(self, src: str, dst: str, on: date | None = None, *, public: bool = False) -> Ladder | None:
        """Return the price tiers of a byte sent from one location to another; None: unknown.

        `public`: the byte is sent to a public address. Between clouds, the source's `between_clouds` price counts, or
        else its internet price, which is what the public clouds bill. To a public address in the same zone,
        `same_zone_public` counts, or else `inter_zone`. Traffic from the user's own machines is free.
        """
        kind = egress_class(src, dst, public=public)
        if kind is None:
            return None
        if is_own(src):
            return own_ladder()
        for name in dict.fromkeys((kind, PRICED_AS.get(kind, kind))):
            found = self._most_specific(src.split("/")[0], "egress", src, dst, name, on)
            if found:
                return found
        return None

    def upload_ladder(self, src: str, store: str, on: date | None = None) -> Ladder | None:
        """Return the price tiers of a byte that a VM at `src` sends to the object store at `store`; None: unknown.

        Inside the store's region it is the price at which the store sends there: clouds bill neither way. A book without
        that price, and all other ways, as `ladder`.
        """
        if store_egress_class(store, src) == "same_region":
            inside = self._most_specific(store.split("/")[0], "store_egress", store, src, "same_region", on)
            if inside:
                return inside
        return self.ladder(src, store, on)

    def store_ladder(self, store: str, dst: str, on: date | None = None) -> Ladder | None:
        """Return the price tiers of a byte sent by the object store at location `store` to `dst`; None: unknown.

        Rows of the byte's class take precedence over rows of any class ("*"). To another cloud, the price to
        the internet applies where the store has no `between_clouds` price.
        """
        kind = store_egress_class(store, dst) or "*"
        for name in dict.fromkeys((kind, PRICED_AS.get(kind, "*"), "*")):
            found = self._most_specific(store.split("/")[0], "store_egress", store, dst, name, on)
            if found:
                return found
        return None

    def storage_ladder(self, store: str, on: date | None = None) -> Ladder | None:
        """Return the price tiers of a byte stored for a month at location `store`; None: unknown."""
        return self._most_specific(store.split("/")[0], "storage", store, "", "*", on)

    def egress(
        self,
        src: str,
        dst: str,
        sent_bytes: int,
        already_bytes: int = 0,
        on: date | None = None,
        *,
        public: bool = False,
    ) -> Decimal | None:
        """Dollars for bytes sent from one location to another; None: unknown. `public`: to a public address.

        `already_bytes` have been sent on the same ladder earlier this month; they determine the first tier.
        """
        ladder = self.ladder(src, dst, on, public=public)
        return tiered_usd(ladder, sent_bytes, already_bytes) if ladder else None

    def upload(self, src: str, store: str, sent_bytes: int) -> Decimal | None:
        """Dollars for bytes that a VM sends to the object store at location `store`; None: unknown."""
        ladder = self.upload_ladder(src, store)
        return tiered_usd(ladder, sent_bytes) if ladder else None

    def store_egress(
        self, store: str, dst: str, read_bytes: int, already_bytes: int = 0, on: date | None = None
    ) -> Decimal | None:
        """Dollars that the object store at location `store` bills for bytes read from `dst`; None: unknown."""
        ladder = self.store_ladder(store, dst, on)
        return tiered_usd(ladder, read_bytes, already_bytes) if ladder else None

    def store_providers(self) -> tuple[str, ...]:
        """Providers whose store egress is priced in this book."""
        return tuple(sorted({key[0] for key in self._dates if key[1] == "store_egress"}))

    def prices(self, on: date | None = None) -> tuple[Price, ...]:
        """All prices in the book's order; with `on`, only those that apply on that day."""
        if on is None:
            found = [price for tiers in self.tiers.values() for price in tiers]
        else:
            found = [price for key in self._dates for price in self._tiers(key, on)]
        return tuple(sorted(found, key=lambda price: price.line))

    def tier(self, key: _Key, start: Decimal, on: date | None = None) -> Price | None:
        """Return the price of a row's `key` from `start` on, in bytes (VMs: hours); None: unknown.

        Falls back to the nearest wider name of either end, and for a store's egress from a class to "*".
        """
        for wider in _as_wide(key):
            tiers = self._tiers(wider, on)
            if tiers:
                begun = [t for t in tiers if t.tier_start * UNIT_BYTES.get(t.unit, 1) <= start]
                return begun[-1]
        return None

    def _most_specific(
        self, provider: str, product: str, src: str, dst: str, item: str, on: date | None
    ) -> Ladder | None:
        """Return the ladder with the most specific ends: region before continent before anywhere."""
        for here, there in product_of(_ends(src), _ends(dst)):
            key = (provider, product, here, there, item)
            tiers = self._tiers(key, on)
            if tiers:
                return Ladder(key, UNIT_BYTES[tiers[0].unit], tiers)
        return None

    def _tiers(self, key: _Key, on: date | None) -> tuple[Price, ...]:
        dates = [day for day in self._dates.get(key, ()) if on is None or day <= on]
        return self.tiers[key, max(dates)] if dates else ()

    @property
    def newest_date(self) -> date | None:
        """The date from which its newest price applies; None: the book has no prices."""
        return max((day for _, day in self.tiers), default=None)

    @cached_property
    def _dates(self) -> dict[_Key, list[date]]:
        """The dates from which each price applies."""
        dates: dict[_Key, list[date]] = {}
        for key, day in self.tiers:
            dates.setdefault(key, []).append(day)
        return dates


def _ends(location: str) -> tuple[str, ...]:
    """Names that a book may use for one end of a path, most specific first: region, continent, anywhere."""
    parts = location.split("/")
    known = continent(location)
    return (parts[1], known, "*") if known and len(parts) > 1 else ("*",)


def _wider(provider: str, name: str) -> tuple[str, ...]:
    """The name of one end of a row, followed by its wider names: the region's continent, then anywhere."""
    return tuple(dict.fromkeys((name, *_ends(f"{provider}/{name}"))))


def _as_wide(key: _Key) -> Iterator[_Key]:
    """The key, followed by the keys of wider rows that hold for it too."""
    provider, product, src, dst, item = key
    names = dict.fromkeys((item, "*") if product == "store_egress" else (item,))
    for name, here, there in product_of(names, _wider(provider, src), _wider(provider, dst)):
        yield provider, product, here, there, name


def book_names() -> list[str]:
    """Names of the books that come with orch."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


def names_of(prices: str) -> list[str]:
    """Split `list-2026-11,mine.csv` into the names of its books, the one at the bottom first."""
    return [name.strip() for name in prices.split(",")]


def load(name: str) -> PriceBook:
    """Load a book by name (see `book_names`) or by the path of a CSV file; several, joined by commas, as one book.

    The rows of each book count before those of the books to the left of it, see `PriceBook.under`. Raises
    PriceBookError.
    """
    first, *more = [_read(Path(one)) if one.endswith(".csv") else _shipped(one) for one in names_of(name)]
    return reduce(PriceBook.under, more, first)


@cache
def _shipped(name: str) -> PriceBook:
    if name not in book_names():
        raise PriceBookError(_no_book(name))
    return _read(_FOLDER / f"{name}.csv")


def _no_book(name: str) -> str:
    return (
        f"{name}: there is no such price book; the books are {', '.join(book_names())}, or give the path of a CSV file, "
        "whose name ends in .csv"
    )


def _read(path: Path) -> PriceBook:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would block
            raise PriceBookError(f"{path}: not a regular file; a price book is a CSV file")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise PriceBookError(_no_book(str(path))) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PriceBookError(
            f"{path}:{line}: not text in UTF-8 ({error.reason}); a price book is a CSV file"
        ) from error
    except OSError as error:
        raise PriceBookError(f"{path}: cannot read the price book: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the path
        raise PriceBookError(f"{str(path)!r}: not the path of a file ({error})") from error
    return PriceBook.from_text(text, path.name)


def newest() -> PriceBook:
    """Load the book with the newest price of those that come with orch."""
    books = [load(name) for name in book_names()]
    return max(books, key=lambda book: (book.newest_date or date.min, book.name))


def load_for(prices: str, *, rented: bool) -> PriceBook:
    """Load the book that an experiment's `prices` names, or several as one (see `load`). Raises PriceBookError.

    "auto", which can only be the first of them, means the newest book for rented VMs, and the paper's book for
    emulated ones, so that their costs can be compared with the paper.
    """
    first, *own = names_of(prices)
    book = load(first) if first != AUTO else newest() if rented else load(EMULATED_BOOK)
    return reduce(PriceBook.under, map(load, own), book)
