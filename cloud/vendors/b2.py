"""Backblaze B2: object storage only."""

from __future__ import annotations

from cloud.vendors.record import FocusNames, Vendor

B2 = Vendor(
    name="b2",
    title="Backblaze B2",
    focus=FocusNames("Backblaze", storage="B2 Cloud Storage"),
    bill_words=("backblaze",),
)
