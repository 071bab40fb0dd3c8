"""Profiles by sample: made-up ones, and the times that go with the published sizes."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from analysis.pipeline.offload.choices import Choices, Codec, choices_of
from analysis.pipeline.offload.pass_time import Machines
from analysis.pipeline.offload.sample_profile import SampleProfile

OPS = ("decode", "crop", "to_tensor")


def write_times(sizes: Path, times: Path) -> None:
    """Seconds by operation: 16 ms for 786,432 pixels to decode; 2, 0.1, 0.4, 0.3 ms."""
    with gzip.open(sizes, "rt") as source, times.open("w") as made:
        rows = csv.reader(source, delimiter=";")
        print(";".join(next(rows)), file=made)
        for row in rows:
            height, width = map(int, row[3].strip("()").split(","))
            print(
                row[0],
                0,
                16e-3 * height * width / 786_432,
                row[3],
                2e-3,
                1e-4,
                4e-4,
                3e-4,
                "",
                sep=";",
                file=made,
            )


def problems(most: int = 10) -> st.SearchStrategy[tuple[Choices, Machines, list[str]]]:
    """Choices of up to `most` samples with up to two codecs, machines, and keys."""
    return samples(most).map(lambda drawn: (drawn[1], drawn[2], list(drawn[0].keys)))


@st.composite
def samples(draw: st.DrawFn, most: int = 10) -> tuple[SampleProfile, Choices, Machines]:
    """Up to `most` samples, their choices with up to two codecs, and machines."""
    n, m = draw(st.integers(1, most)), len(OPS)

    def table(shape: tuple[int, ...], high: float) -> np.ndarray:
        count = int(np.prod(shape))
        # few different values, so that there are ties
        values = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
        return np.array(values, dtype=float).reshape(shape) * high / 12

    profile = SampleProfile(
        [f"k{i}" for i in draw(st.permutations(range(n)))],
        OPS,
        table((n,), 1e6),
        table((n, m), 1e6),
        table((n, m), 0.02),
    )
    codecs = [
        Codec(name, draw(st.integers(1, m)), ratio, draw(st.sampled_from([0.0, 0.002, 0.05])), 0.001)
        for name, ratio in draw(st.sampled_from([(), (("webp", 0.4),), (("webp", 0.4), ("zlib", 0.7))]))
    ]
    machines = Machines(
        draw(st.sampled_from([0.0, 0.05, 0.3])),
        draw(st.sampled_from([1e7, 1e8, 1e9])),
        draw(st.sampled_from([1, 4])),
        draw(st.sampled_from([0, 0.5, 1, 4])),
    )
    return profile, choices_of(profile, codecs, draw(st.sampled_from([1.0, 0.5, 2.0]))), machines


def many_samples(seed: int, n: int) -> SampleProfile:
    """Samples of random sizes and times, of which half shrink."""
    random = np.random.default_rng(seed)
    raw = random.uniform(1e5, 6e5, n)
    sizes = np.column_stack([raw * 8, np.full(n, 150_528.0), np.full(n, 602_112.0)])
    times = np.column_stack([raw / 2e7, random.uniform(1e-3, 3e-3, n), np.full(n, 4e-4)])
    return SampleProfile([str(i) for i in range(n)], OPS, raw, sizes, times)


def many(seed: int, n: int) -> Choices:
    """The choices of `many_samples`."""
    return choices_of(many_samples(seed, n))
