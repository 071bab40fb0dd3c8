"""`orch prices`: print a price book, the prices of a day, or the differences between two books."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.render.output import Format, rows_text

if TYPE_CHECKING:
    from cloud.prices.book import Price, PriceBook

DEFAULT_BOOK = "study-2023-04"  # also the default of emulated experiments; checked by a test

_WHAT = ("provider", "product", "from", "to", "item")
_TABLE = (*_WHAT, "unit", "tier_start", "usd", "minimum_s", "increment_s", "valid_from", "line")
_CSV = (*_TABLE, "source")
_BOOKS = ("book", "prices", "first_date", "last_date", "providers", "default", "sha256")
_DIFF = (*_WHAT, "tier_start", "usd", "unit", "other_usd", "other_unit", "change")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("prices")(_prices)


def _prices(
    book: Annotated[
        str,
        typer.Option(
            "--book",
            metavar="NAME|FILE.csv",
            help="Price book: a name (--books lists them), a CSV file, or several, as list-2026-11,mine.csv.",
        ),
    ] = DEFAULT_BOOK,
    prices: Annotated[
        str,
        typer.Option(
            "--prices",
            metavar="FILE.csv",
            help="Your own price book, in place of --book; all its errors are reported.",
        ),
    ] = "",
    books: Annotated[bool, typer.Option("--books", help="List the price books shipped with orch.")] = False,
    at: Annotated[
        str,
        typer.Option("--at", metavar="DATE", help="Only prices valid on this day, for example 2026-11-21."),
    ] = "",
    diff: Annotated[
        str,
        typer.Option("--diff", metavar="NAME|FILE.csv", help="Show where this other book's prices differ."),
    ] = "",
    provider: Annotated[str, typer.Option("--provider", help="Only gcp, aws, azure, lambda, b2 or r2.")] = "",
    product: Annotated[str, typer.Option("--product", help="Only vm, egress, store_egress or storage.")] = "",
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Print a price book, or compare two price books.

    Each price has a date and a source. Products: vm (an hour of a VM), egress (bytes that a VM sends), store_egress
    (bytes that an object store sends), storage (bytes kept for a month). usd is dollars per hour (vm), per GB of
    10^9 bytes or per GiB of 2^30 bytes; it applies from tier_start units per month. VMs are billed in increments of
    increment_s, at least minimum_s. docs/prices.md describes the books, and how to write rows of your own.

    Emulated runs are priced by study-2023-04, the paper's prices. Rented VMs are priced by SkyPilot's catalog if it is
    on this machine, otherwise, as their traffic always is, by the newest book (list-2026-11).

    Exit: 0 printed, 2 invalid book or option.

    \b
    JSON: {"schema_version", "prices": [{"provider", "product", "from", "to", "item", "unit", "tier_start",
      "usd", "minimum_s" (or null), "increment_s" (vm only, else null), "valid_from", "line", "source"}]}
    --diff: {"schema_version", "differences": [{"provider", "product", "from", "to", "item", "tier_start",
      "usd", "unit", "other_usd", "other_unit", "change": (other - this) / this}]}; null if a book has
      no price. If the other book has no row for a region, its more general row is used.
    --books: {"schema_version", "books": [{"book", "prices", "first_date", "last_date", "providers",
      "default", "sha256"}]}
    The table omits the source; use csv or json to see it.
    """
    from cloud.prices.book import load

    if books:
        typer.echo(rows_text("books", _book_rows(), _BOOKS, output), nl=False)
        return
    if prices and book != DEFAULT_BOOK:
        raise typer.BadParameter("--book and --prices both select the price book; give only one of them")
    day = _day(at)
    this = load(prices or book)
    if diff:
        other = load(diff)
        rows = [row for row in _diff_rows(this, other, day) if _chosen(row, provider, product)]
        if not rows and output is Format.table:
            typer.echo(f"no differences between {this.name} and {other.name} for this selection")
            return
        if output is Format.table:
            _show_differences(rows, other)
        else:
            typer.echo(rows_text("differences", rows, _DIFF, output), nl=False)
        return
    rows = [_row(price) for price in this.prices(day)]
    rows = [row for row in rows if _chosen(row, provider, product)]
    if not rows:
        raise typer.BadParameter(_nothing(this, at, provider, product))
    if output is not Format.table:
        typer.echo(rows_text("prices", rows, _CSV, output), nl=False)
        return
    # None means not applicable here, not unknown.
    rows = [{column: "" if cell is None else cell for column, cell in row.items()} for row in rows]
    typer.echo(rows_text("prices", rows, _TABLE, output), nl=False)
    typer.echo(f"{this.name}, sha256 {this.sha256}", err=True)


def _show_differences(rows: Sequence[dict[str, Any]], other: PriceBook) -> None:
    """Print the table of what this book has; prices that only the other one has are counted."""
    changed = [
        {**row, "change": None if row["change"] is None else f"{row['change']:+.1%}"}
        for row in rows
        if row["usd"] is not None
    ]
    if changed:
        typer.echo(rows_text("differences", changed, _DIFF, Format.table), nl=False)
    if len(changed) < len(rows):
        typer.echo(
            f"{len(rows) - len(changed)} more prices are in {other.name} only: `-o csv` lists them", err=True
        )


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(f"--at '{text}' is not a date like 2026-11-21") from error


def _chosen(row: dict[str, Any], provider: str, product: str) -> bool:
    return provider in ("", row["provider"]) and product in ("", row["product"])


def _nothing(book: PriceBook, at: str, provider: str, product: str) -> str:
    selection = " ".join(part for part in (provider, product, "price", f"on {at}" if at else "") if part)
    everything = book.prices()
    if not everything:
        return f"{book.name} has no prices"
    providers = ", ".join(sorted({price.provider for price in everything}))
    first = min(price.valid_from for price in everything)
    return f"{book.name} has no {selection}; it has prices of {providers} from {first} on"


def _row(price: Price) -> dict[str, Any]:
    return {
        **dict(zip(_WHAT, price.key, strict=True)),
        "unit": price.unit,
        "tier_start": price.tier_start,
        "usd": price.usd,
        "minimum_s": price.minimum_s,
        "increment_s": price.increment_s if price.product == "vm" else None,
        "valid_from": price.valid_from.isoformat(),
        "line": price.line,
        "source": price.source,
    }


def _book_rows() -> list[dict[str, Any]]:
    from cloud.prices.book import book_names, load

    rows: list[dict[str, Any]] = []
    for name in book_names():
        book = load(name)
        found: Sequence[Price] = book.prices()
        rows.append(
            {
                "book": name,
                "prices": len(found),
                "first_date": min(price.valid_from for price in found).isoformat(),
                "last_date": max(price.valid_from for price in found).isoformat(),
                "providers": sorted({price.provider for price in found}),
                "default": name == DEFAULT_BOOK,
                "sha256": book.sha256,
            }
        )
    return rows


def _diff_rows(this: PriceBook, other: PriceBook, on: date | None) -> list[dict[str, Any]]:
    from cloud.prices.compare import differences

    return [
        {
            **dict(zip(_WHAT, row.key, strict=True)),
            "tier_start": row.tier_start,
            "usd": row.usd,
            "unit": row.unit,
            "other_usd": row.other_usd,
            "other_unit": row.other_unit,
            "change": None if row.change is None else float(row.change),
        }
        for row in differences(this, other, on)
    ]
