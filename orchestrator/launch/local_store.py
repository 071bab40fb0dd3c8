"""The object store of a run on the emulated cloud: its data set and its place in the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloud.networks.network import Network, NetworkError
from cloud.places import find as place_of
from cloud.places import places
from experiments.schema.models import DIGITS, ExperimentSpec
from experiments.schema.shards import shard_urls
from orchestrator.errors import UsageError

READABLE: Mapping[str, tuple[str, ...]] = {
    "image-classification": (DIGITS, "glyphs", "photos"),
    "masked-lm": ("stdlib",),
    "causal-lm": ("stdlib",),
    "speech-recognition": ("speech",),
}
"""The embedded store's data sets that have what a built-in task reads."""


def store_place(location: str, network: str) -> str:
    """Location of the store in the emulated network: its own place, or else the first measured one of its continent.

    The paper measured no path to its store. The store is billed at its own place in both cases.
    """
    measured = Network.load(network)
    own = place_of(location)
    continent, coast = own.continent, "-".join(own.region.split("-")[:2])  # "us-west" of us-west-004
    nearby = [p for p in places() if p.rents_vms and p.continent == continent]
    nearby.sort(key=lambda p: not p.region.startswith(coast))
    for candidate in (location, *(p.location for p in nearby)):
        try:
            measured.place(candidate)
        except NetworkError:
            continue
        return candidate
    raise UsageError(f"data.location '{location}': network '{network}' has no measured place in {continent}")


def dataset_of(spec: ExperimentSpec) -> tuple[str, dict[str, Any]]:
    """The program that makes the embedded store's data set, and its arguments: number of shards, prefix, seed.

    Raises UsageError if the shards do not have the embedded store's names.
    """
    urls = shard_urls(spec.data.shards)
    to_url, _, first = urls[0].rpartition("/")
    requested = [f"{to_url}/train-{n:06d}.tar" for n in range(len(urls))]
    if (
        list(urls) != requested
        or (spec.data.heldout or f"{to_url}/heldout-000000.tar") != f"{to_url}/heldout-000000.tar"
    ):
        raise UsageError(
            f"{spec.name}: data.shards: the embedded store contains s3://BUCKET/train-{{000000..N}}.tar and "
            f"heldout-000000.tar, not {first}; use these names, or set data.endpoint"
        )
    arguments = {"shards": len(urls), "to_url": to_url, "seed": spec.seed}
    if spec.data.dataset == DIGITS:
        return "cloud.local.host.store:make_digits", arguments
    return "cloud.local.host.store:make_generated", {"dataset": spec.data.dataset, **arguments}
