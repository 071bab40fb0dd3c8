"""What the figures of a study's options are called."""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS = {
    "sps": "samples/s",
    "granularity": "granularity",
    "usd_per_1m": "$/1M samples",
    "intercontinental_bytes": "intercontinental GB an epoch",
    "loss": "training loss",
    "heldout_loss": "held-out loss",
}
