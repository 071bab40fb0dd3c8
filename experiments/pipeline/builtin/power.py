"""Pipeline `power`: voltage and current of a household become the features of an event detector, as in PRESTO.

Isenko et al. (SIGMOD 2022) take 10 s at 6.4 kHz: 128 samples are one period of mains at 50 Hz.
"""

from __future__ import annotations

import numpy as np

from cloud.storage.npy import read_npy
from experiments.pipeline.errors import BadValueError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

FIELDS = {"power": ("npy",)}
RATE = 6400
SECONDS = 10
SAMPLES = RATE * SECONDS
PERIOD = 128


def pipeline() -> Pipeline:
    """Return the pipeline: decode, features. Field power: float64[3, 500]."""
    call = f"{__name__}:"
    ops = (
        Op("decode", f"{call}decode", "power", "bytes", "array", libraries=("numpy",)),
        Op(
            "features", f"{call}features", "power", "array", "array", {"period": PERIOD}, libraries=("numpy",)
        ),
    )
    return Pipeline("power", FIELDS, ops)


def decode(data: bytes) -> np.ndarray:
    """Decode a .npy to float64[2, 64000], volts and amperes. Raises BadValueError for any other array."""
    try:
        found = read_npy(data)
    except ValueError as error:
        raise BadValueError(f"the npy cannot be decoded: {error}") from error
    if found.dtype != np.float64 or found.shape != (2, SAMPLES):
        raise BadValueError(
            f"the npy holds {found.dtype}{list(found.shape)}, not float64[2, {SAMPLES}], volts and amperes of "
            f"{SECONDS} s at {RATE / 1000:g} kHz"
        )
    if not np.isfinite(found).all():
        raise BadValueError("the npy has values that are no finite numbers")
    return found


def features(signals: np.ndarray, period: int) -> np.ndarray:
    """Return by period of `period` samples: float64[3, periods].

    The rows are active power (the mean of volts x amperes, in watts), RMS current (amperes) and the cumulative sum of the
    RMS current up to and with the period.
    """
    volts, amperes = signals.reshape(2, -1, period)
    active = (volts * amperes).mean(axis=1)
    rms = np.sqrt((amperes * amperes).mean(axis=1))
    return np.stack([active, rms, np.cumsum(rms)])
