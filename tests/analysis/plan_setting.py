"""Settings of a plan, with prices that make sums easy."""

from __future__ import annotations

from decimal import Decimal

from analysis.pipeline.options import PlanPeer, Setting
from cloud.prices.book import PriceBook

HEADER = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,valid_from,source"
IOWA, BELGIUM, B2 = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b", "b2/us-west-1"


def book(
    *, vm: str = "0.36", read: str = "0.01", upload: str = "0.1", kept: str = "0.0073", minimum_s: str = ""
) -> PriceBook:
    """Return a book: dollars of a VM-hour, of a GB from and to the store, and of a GB kept for a month."""
    rows = (
        HEADER,
        f"gcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,{vm},{minimum_s},2026-01-01,here",
        f"gcp,egress,*,*,internet,GB,0,{upload},,2026-01-01,here",
        f"b2,store_egress,*,*,*,GB,0,{read},,2026-01-01,here",
        f"b2,storage,*,*,*,GB-month,0,{kept},,2026-01-01,here",
    )
    return PriceBook.from_text("\n".join(rows) + "\n", "mine.csv")


def peer(
    slot: str = "us-0",
    *,
    trainer_sps: float = 50.0,
    stream_bps: float | None = None,
    usd_per_h: str | None = "0.36",
    location: str = IOWA,
) -> PlanPeer:
    """Return a peer."""
    usd = None if usd_per_h is None else Decimal(usd_per_h)
    return PlanPeer(slot, location, "n1-standard-8", "T4:1", True, usd, "here", trainer_sps, stream_bps)


def setting(
    *peers: PlanPeer,
    samples: int = 1_000_000,
    store: str = B2,
    prices: PriceBook | None = None,
    offline: bool = True,
) -> Setting:
    """Return a setting; the first operations run as on the first peer's VM."""
    used = peers or (peer(),)
    return Setting(used, store, samples, prices or book(), used[0] if offline else None)
