"""Generated recordings of a household's mains: voltage and current, in which one appliance is switched on.

Nothing here was measured: voltage and currents are formulas with random parameters, which look like those of appliances.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from cloud.datasets.in_order import in_order
from cloud.storage.shards import HELDOUT, TRAIN, Record

RATE = 6400
SECONDS = 10
MAINS_HZ = 50
MAINS_V = 230.0
"""Europe's mains. A period has 128 samples."""

CLASSES = ("resistive", "motor", "power supply", "dimmed")
"""Kinds of appliances by their current: in phase; lagging, with inrush; in short pulses; from a phase angle on."""

_POWER_W = ((400.0, 2400.0), (80.0, 900.0), (20.0, 250.0), (40.0, 400.0))  # least and most, by class
_MOST_BEFORE = 3  # appliances that run all the time


def power_records(train: int, heldout: int, *, seed: int = 0) -> Iterator[Record]:
    """Yield `train` and then `heldout` samples with the members `npy` and `cls`.

    `npy` holds float64[2, 64000], 10 s of volts and amperes at 6.4 kHz; `cls` is the kind of the appliance that is
    switched on (CLASSES). A sample depends on the seed, its split and its number only.
    """
    for split, count in ((TRAIN, train), (HELDOUT, heldout)):
        yield from in_order(lambda number, split=split: _record(split, number, seed), range(count))


def power_made(train: int, heldout: int, seed: int) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on."""
    return {
        "dataset": "power",
        "generated_by": "formulas",
        "train": train,
        "heldout": heldout,
        "seed": seed,
        "classes": list(CLASSES),
        "numpy": version("numpy"),
    }


def _record(split: str, number: int, seed: int) -> Record:
    import numpy as np

    rng = np.random.default_rng((seed, 0 if split == TRAIN else 1, number))
    seconds = np.arange(RATE * SECONDS) / RATE
    phase = 2 * np.pi * MAINS_HZ * rng.uniform(0.9995, 1.0005) * seconds + rng.uniform(0, 2 * np.pi)
    peak = np.sqrt(2) * MAINS_V * rng.uniform(0.96, 1.04)
    volts = peak * (
        np.sin(phase) + rng.uniform(0, 0.02) * np.sin(3 * phase) + rng.uniform(0, 0.02) * np.sin(5 * phase)
    )
    label = int(rng.integers(len(CLASSES)))
    amperes = np.zeros_like(seconds)
    for _ in range(int(rng.integers(0, _MOST_BEFORE + 1))):
        amperes += _current(rng, int(rng.integers(len(CLASSES))), phase, np.full_like(seconds, np.inf))
    amperes += _current(rng, label, phase, seconds - rng.uniform(0.2, 0.8) * SECONDS)
    signals = np.stack(
        [volts + rng.normal(0, 0.3, len(seconds)), amperes + rng.normal(0, 0.01, len(seconds))]
    )
    target = io.BytesIO()
    np.save(target, signals, allow_pickle=False)
    key = f"{number:08d}" if split == TRAIN else f"heldout-{number:08d}"
    return Record(key, {"npy": target.getvalue(), "cls": str(label).encode()}, split)


def _current(rng: Any, kind: int, phase: Any, on_s: Any) -> Any:
    """Amperes of an appliance by the phase of the voltage and the seconds since it was switched on (before: negative)."""
    import numpy as np

    watts = rng.uniform(*_POWER_W[kind])
    amplitude = np.sqrt(2) * watts / MAINS_V
    since = np.maximum(on_s, 0)
    match CLASSES[kind]:
        case "resistive":
            current = np.sin(phase)
        case "motor":
            inrush = 1 + rng.uniform(2, 6) * np.exp(-since / rng.uniform(0.1, 0.5))
            current = inrush * np.sin(phase - rng.uniform(0.3, 0.9))
        case "power supply":  # a rectifier that charges near the peaks of the voltage
            current = 3 * np.sin(phase) * (np.abs(np.sin(phase)) > rng.uniform(0.85, 0.95))
        case _:
            current = np.sin(phase) * (np.mod(phase, np.pi) > rng.uniform(0.2, 0.7) * np.pi)
    return amplitude * current * (on_s >= 0)
