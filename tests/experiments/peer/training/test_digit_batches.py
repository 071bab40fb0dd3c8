"""The digits' shards and batches never change: hashes taken before peers ran declared pipelines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from cloud.storage.digits import write_shards  # noqa: E402 - after torch is known to exist
from cloud.storage.shares import shards_for  # noqa: E402
from experiments.peer.training.batches import Batches  # noqa: E402
from experiments.peer.training.task import build_runner  # noqa: E402
from experiments.peer.training.task_data import held_out, training_source  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

SHARDS_SHA = "08f4a35f907dd66367b3de67428dd17ac4528fa70bea9b3672c950b67cd30901"
ONE_SLOT_SHA = "0dbce7bca43f2da9b98c240bd4610bbe3ba44d4e7e741981a03f0f7aa0f4f89c"
TWO_SHARES_SHA = {
    "a": "0d3d7332b25191976b7c95e3448924e40dd50e72635214d25a18a03e1df8a081",
    "b": "c400261233e792498c734ba5a95701e9b9086d7479957b04c29fdf9474d0245b",
}
HELDOUT_SHA = "1bda635410d0475df83cf2dce326fc3965faa40105805c65ab996ad9b13e6ab5"
URLS = tuple(f"s3://bucket/train-{n:06d}.tar" for n in range(4))
HELDOUT = "s3://bucket/heldout-000000.tar"
BATCHES, SAMPLES = 40, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("digits")
    write_shards(made, 4, seed=0)
    return made


class Opener:
    """Opens s3://bucket/NAME as a file of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, url: str) -> Any:
        return (self.folder / url.rpartition("/")[2]).open("rb")


def source_of(folder: Path, slot: str) -> Any:
    config = config_of(slot, "", (*URLS, HELDOUT), seed=0)
    return training_source(config, cast(Any, Opener(folder)), build_runner(config), pytest.fail)


def sha_of(batches: Sequence[Any] | Iterator[Any]) -> str:
    digest = hashlib.sha256()
    for pixels, labels in batches:
        assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
        digest.update(pixels.contiguous().numpy().tobytes() + labels.numpy().tobytes())
    return digest.hexdigest()


def test_the_shards_of_seed_0_have_the_same_bytes(folder: Path) -> None:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.read_bytes())
    assert digest.hexdigest() == SHARDS_SHA


def test_the_first_batches_of_one_slot_are_the_same(folder: Path) -> None:
    batches = Batches(source_of(folder, "a"), SAMPLES)
    batches.share_among("a", ["a"], URLS)
    batches.start()
    try:
        assert sha_of([batches.next().batch for _ in range(BATCHES)]) == ONE_SLOT_SHA
    finally:
        batches.close()


def test_the_first_batches_of_two_shares_that_change_are_the_same(folder: Path) -> None:
    for slot, expected in TWO_SHARES_SHA.items():
        source = source_of(folder, slot)
        source.set_shards(shards_for(slot, ["a", "b"], URLS))
        found = [source.next_batch(SAMPLES).batch for _ in range(BATCHES // 2)]
        source.set_shards(shards_for(slot, ["a", "b", "c"], URLS))
        found += [source.next_batch(SAMPLES).batch for _ in range(BATCHES // 2)]
        source.close()
        assert sha_of(found) == expected, slot


def test_the_held_out_batches_are_the_same(folder: Path) -> None:
    config = config_of("a", "", (*URLS, HELDOUT))
    heldout = held_out(config, cast(Any, Opener(folder)), build_runner(config), pytest.fail)
    assert heldout is not None
    heldout.check()
    batches = list(heldout.batches())
    assert [len(labels) for _, labels in batches] == [64] * 5 + [heldout.samples - 320]
    assert sha_of([(torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))]) == HELDOUT_SHA
