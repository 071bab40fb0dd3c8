"""Cloudflare R2: a store only."""

from __future__ import annotations

from cloud.vendors.record import FocusNames, Vendor

R2 = Vendor(
    name="r2",
    title="Cloudflare R2",
    focus=FocusNames("Cloudflare", storage="R2"),
    bill_words=("cloudflare",),
)
