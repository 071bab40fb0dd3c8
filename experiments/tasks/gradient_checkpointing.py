"""Whether a model can calculate activations again in the backward pass, as `swarm.gradient_checkpointing` orders."""

from __future__ import annotations


def offers_gradient_checkpointing(model: object) -> bool:
    """Whether the model has transformers' `gradient_checkpointing_enable` and supports it."""
    enable = getattr(model, "gradient_checkpointing_enable", None)
    return enable is not None and bool(getattr(model, "supports_gradient_checkpointing", True))


def no_gradient_checkpointing(model: str) -> str:
    """Why a model of this class is refused, and what to do."""
    return (
        f"its model, a {model}, has no gradient checkpointing (gradient_checkpointing_enable, as models of transformers "
        "have); remove swarm.gradient_checkpointing"
    )
