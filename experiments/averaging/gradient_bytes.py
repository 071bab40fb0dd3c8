"""How many bytes a model's gradients are on the wire, by compression. Pure."""

from __future__ import annotations

from functools import cache

from experiments.averaging.model_shapes import model_shapes
from experiments.catalog import models
from experiments.powersgd import Sent, power_sgd_rank, sent

_BYTES_PER_VALUE = {"none": 4, "float16": 2, "uniform8bit": 1, "blockwise8bit": 1}
_POWER_SGD_BYTES = 2  # factors, and what is sent whole, are float16


def bytes_per_value(compression: str) -> int:
    """Of each value that is sent."""
    return _POWER_SGD_BYTES if power_sgd_rank(compression) else _BYTES_PER_VALUE[compression]


@cache
def factors_of(model: str, rank: int) -> Sent:
    """What PowerSGD of that rank makes of the model's gradients. Raises KeyError for an unknown model."""
    return sent(model_shapes()[model], rank)


def sent_values(model: str, compression: str) -> int:
    """Values of one whole gradient as it is sent. Raises KeyError for an unknown model."""
    rank = power_sgd_rank(compression)
    return models()[model].parameters if rank is None else factors_of(model, rank).wire


def gradient_bytes(model: str, compression: str) -> int:
    """Bytes of one whole gradient as it is sent; in flat averaging each of n peers sends 2 (n - 1) / n of it.

    Scales and offsets of the 8-bit compressions are not counted. Raises KeyError for an unknown model.
    """
    return sent_values(model, compression) * bytes_per_value(compression)
