"""What the figures of a study's options are called, and in what unit they are shown."""

from __future__ import annotations

WORDS = {
    "sps": "samples/s",
    "granularity": "granularity",
    "comm_s": "communication, s",
    "usd_per_1m": "$/1M samples",
    "egress_bytes_per_vm_epoch": "egress GB a VM and epoch",
    "intercontinental_bytes": "intercontinental GB an epoch",
    "loss": "training loss",
    "heldout_loss": "held-out loss",
}


def shown_factor(figure: str) -> float:
    """By what a figure is multiplied for the unit of its words."""
    return 1e-9 if figure in ("intercontinental_bytes", "egress_bytes_per_vm_epoch") else 1.0
