"""Prices of rented VMs, from SkyPilot's catalogs and the price books, offline."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.planning.plan import Quote, Quoter, book_quoter
from cloud.places import find
from cloud.prices.book import PriceBook
from cloud.sky.skypilot.catalog import here


def sky_quoter(book: PriceBook, environ: Mapping[str, str]) -> Quoter:
    """Quote the cheapest offer of each place (see `cloud.sky.skypilot.catalog`) without network access.

    Raises PriceBookError. The user's own machines are quoted from the price book, where they cost nothing.
    """
    catalogs = here(book, environ)

    def quote(location: str, accelerator: str, use_spot: bool) -> Quote:
        if find(location).own:
            return book_quoter(book)(location, accelerator, use_spot)
        found = catalogs.look(location, accelerator, use_spot)
        if not found.offers:
            return Quote("unknown", None, found.why, row_helps=found.row_helps)
        offer = found.offers[0]
        return Quote(
            offer.instance, offer.usd_per_h, offer.price_source, found.why, found.price, found.row_helps
        )

    return quote
