"""Where `swarm.compression: powersgd:<rank>` cannot be used; a part of `_checks`."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.averaging.gradient_bytes import sent_values
from experiments.catalog import models
from experiments.emulation.ballast import ballast, shapes_lost
from experiments.parse.document import Path
from experiments.powersgd import power_sgd_rank
from experiments.schema.models import Swarm

_AT: Path = ("swarm", "compression")


def power_sgd_problems(
    model: str | None, swarm: Swarm | None, scale: float | None
) -> Iterator[tuple[Path, str]]:
    """Where and what. `scale`: the bytes_scale that the experiment asks for; None: it is chosen, or nothing is scaled."""
    rank = None if swarm is None else power_sgd_rank(swarm.compression)
    if swarm is None or rank is None:
        return
    if swarm.averaging != "flat":
        yield (
            _AT,
            f"'{swarm.compression}' is averaged in two rounds that need the whole group, which averaging "
            f"{swarm.averaging} does not have; write float16, or averaging: flat",
        )
    if model is None:
        return
    total, sends = models()[model].parameters, sent_values(model, swarm.compression)
    if 2 * sends > total:
        yield (
            _AT,
            f"'{swarm.compression}' sends {sends} of {model}'s {total} values: its matrices are too small for that rank; "
            "take a lower one, or float16",
        )
    elif scale is not None and ballast(model, swarm.compression, scale) is None:
        yield ("emulation", "bytes_scale"), shapes_lost(model, swarm.compression, scale)
