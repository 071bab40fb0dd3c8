"""Pipeline `speech-mel`: compressed sound becomes a wave of 16 bits, a spectrogram and 80 mel bands, as in PRESTO.

Unlike `speech`, which feeds Whisper, it has no transcript, no fixed length and no padding (Isenko et al., SIGMOD 2022).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from experiments.pipeline.builtin import speech
from experiments.pipeline.builtin.speech import RATE
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

FIELDS = {"audio": ("flac", "mp3", "wav", "ogg")}
WINDOW, STRIDE = 320, 160
"""Samples at 16 kHz: windows of 20 ms, one every 10 ms."""

BANDS = 80
_FLOOR = 1e-10


def pipeline(bands: int = BANDS) -> Pipeline:
    """Return the pipeline: decode, stft, mel. Field audio: float32[bands, frames]. Raises PipelineError.

    A sound of n samples at 16 kHz has 1 + (n - 320) // 160 frames.
    """
    if not 1 <= bands <= WINDOW // 2:
        raise PipelineError(f"pipeline speech-mel: bands is {bands}; it must be 1 to {WINDOW // 2}")
    call = f"{__name__}:"
    libraries = ("soundfile", "scipy", "numpy")
    ops = (
        Op("decode", f"{speech.__name__}:decode_wave", "audio", "bytes", "array", libraries=libraries),
        Op("stft", f"{call}stft", "audio", "array", "array", libraries=("numpy",)),
        Op("mel", f"{call}mel", "audio", "array", "array", {"bands": bands}, libraries=("numpy",)),
    )
    return Pipeline("speech-mel", FIELDS, ops)


def stft(wave: np.ndarray) -> np.ndarray:
    """Return the power spectrum of int16[samples]: float32[frames, 161], windows of 20 ms (Hann), one every 10 ms.

    A full scale wave has the amplitude 1. Frames lie inside the sound: its ends are not padded. Raises BadValueError.
    """
    if len(wave) < WINDOW:
        raise BadValueError(
            f"the audio has {len(wave)} samples at {RATE / 1000:g} kHz, fewer than a window of {WINDOW}"
        )
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::STRIDE].astype(np.float64) / 32768
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    spectrum = np.fft.rfft(windows * hann)
    return (spectrum.real**2 + spectrum.imag**2).astype(np.float32)


def mel(power: np.ndarray, bands: int) -> np.ndarray:
    """Sum float32[frames, 161] over mel bands and take log10: float32[bands, frames], no less than -10."""
    energies = _filters(bands) @ power.T.astype(np.float64)
    return np.log10(np.maximum(energies, _FLOOR)).astype(np.float32)


@cache
def _filters(bands: int) -> np.ndarray:
    """float64[bands, 161]: triangles of height 1 that are evenly spaced from 0 to 8 kHz in mel = 2595 log10(1 + f / 700).

    Where a triangle is narrower than the distance of two frequencies, it may have none.
    """
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
    low, peak, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    return np.maximum(0, np.minimum(rising, falling))
