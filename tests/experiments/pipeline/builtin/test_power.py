"""power: features against a naive loop, and what is refused."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from experiments.pipeline.builtin import power
from experiments.pipeline.errors import BadSampleError


def npy(array, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def a_sample(data: bytes):
    return {"__key__": "0007", "__url__": "s3://b/t.tar", "npy": data}


def signals(seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (2, 64_000))


def naive(signals: np.ndarray) -> list[list[float]]:
    active, rms, total = [], [], []
    for first in range(0, 64_000, 128):
        watts = squares = 0.0
        for at in range(first, first + 128):
            watts += signals[0, at] * signals[1, at]
            squares += signals[1, at] ** 2
        active.append(watts / 128)
        rms.append(math.sqrt(squares / 128))
        total.append((total[-1] if total else 0.0) + rms[-1])
    return [active, rms, total]


def test_features_are_those_of_a_naive_loop():
    given = signals()
    before = given.copy()
    found = power.features(given, 128)
    assert (found.shape, found.dtype) == ((3, 500), np.float64)
    np.testing.assert_allclose(found, naive(given), rtol=1e-12, atol=1e-12)
    assert np.array_equal(given, before)


def test_a_heater_by_hand():
    """230 V and 10 A in phase: 2300 W, 10 A in each period."""
    phase = 2 * np.pi * 50 * np.arange(64_000) / 6400
    item = power.pipeline().run(
        a_sample(npy(np.sqrt(2) * np.stack([230 * np.sin(phase), 10 * np.sin(phase)]))), 0, 0
    )
    np.testing.assert_allclose(item["power"][0], 2300, rtol=1e-9)
    np.testing.assert_allclose(item["power"][1], 10, rtol=1e-9)
    np.testing.assert_allclose(item["power"][2], 10 * np.arange(1, 501), rtol=1e-9)


def test_kinds_of_its_operations():
    pipeline = power.pipeline()
    assert [(op.name, op.takes, op.gives, op.codec, op.random) for op in pipeline.ops] == [
        ("decode", "bytes", "array", "npy", False),
        ("features", "array", "array", "npy", False),
    ]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            npy(signals()[:, :-1]),
            r"the npy holds float64\[2, 63999\], not float64\[2, 64000\], volts and amperes",
        ),
        (npy(signals().T), r"the npy holds float64\[64000, 2\], not"),
        (npy(signals().astype(np.float32)), r"the npy holds float32\[2, 64000\], not"),
        (npy(np.full((2, 64_000), np.nan)), "the npy has values that are no finite numbers"),
        (
            npy(signals())[:-8],
            "the npy cannot be decoded: it has 1023992 bytes of values, and its header says 1024000",
        ),
        (npy(np.array([{}], object), allow_pickle=True), "cannot be decoded: it holds Python objects"),
        (b"PK", "cannot be decoded: it does not begin as a .npy file"),
    ],
)
def test_a_bad_recording_names_shard_and_key(data, sentence):
    with pytest.raises(
        BadSampleError,
        match=f"^s3://b/t.tar: sample 0007, operation decode: (the npy )?{sentence}.*; correct",
    ):
        power.pipeline().run(a_sample(data), 0, 0)
