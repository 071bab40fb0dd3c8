"""speech-mel: wave, spectrogram and mel bands against a naive calculation, and bad recordings."""

from __future__ import annotations

import cmath
import io
import math

import numpy as np
import pytest
import soundfile

from experiments.pipeline.builtin import speech, speech_mel
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.pipeline import apply
from experiments.pipeline.randomness import Randomness


def wave(samples=1000, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tone = 9000 * np.sin(2 * np.pi * 440 * np.arange(samples) / 16_000)
    return np.rint(tone + rng.normal(0, 300, samples)).astype(np.int16)


def encoded(samples: np.ndarray, kind: str, rate=16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


def a_sample(data: bytes, member="flac"):
    return {"__key__": "0007", "__url__": "s3://b/t.tar", member: data}


@pytest.mark.parametrize("kind", ["FLAC", "WAV"])
def test_a_wave_that_is_stored_without_loss_comes_back(kind):
    found = speech.decode_wave(encoded(wave(), kind))
    assert found.dtype == np.int16
    assert np.array_equal(found, wave())


def test_a_wave_at_full_scale_does_not_wrap_around():
    loud = np.array([-32768, 32767] * 400, np.int16)
    assert np.array_equal(speech.decode_wave(encoded(loud, "FLAC")), loud)
    square = np.where(np.arange(44_100) % 100 < 50, 32_767, -32_768).astype(np.int16)
    found = speech.decode_wave(encoded(square, "FLAC", 44_100))  # resampling overshoots
    middle = found[200:-200]
    assert np.abs(np.diff(np.sign(middle))).sum() == pytest.approx(
        2 * 2 * 441 * len(middle) / 16_000, rel=0.02
    )


def naive_power(samples: np.ndarray) -> list[list[float]]:
    """Each window times Hann, and a Fourier sum written out for each frequency."""
    frames = []
    for first in range(0, len(samples) - 320 + 1, 160):
        window = [
            samples[first + n] / 32768 * (0.5 - 0.5 * math.cos(2 * math.pi * n / 320)) for n in range(320)
        ]
        frames.append(
            [
                abs(sum(value * cmath.exp(-2j * math.pi * k * n / 320) for n, value in enumerate(window)))
                ** 2
                for k in range(161)
            ]
        )
    return frames


def naive_mel(frames: list[list[float]], bands: int) -> list[list[float]]:
    def to_mel(hertz):
        return 2595 * math.log10(1 + hertz / 700)

    def to_hertz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    corners = [to_hertz(to_mel(8000) * at / (bands + 1)) for at in range(bands + 2)]
    found = []
    for low, peak, high in zip(corners, corners[1:], corners[2:], strict=False):
        row = []
        for frame in frames:
            total = 0.0
            for k, power in enumerate(frame):
                hertz = k * 50.0
                if low < hertz <= peak:
                    total += power * (hertz - low) / (peak - low)
                elif peak < hertz < high:
                    total += power * (high - hertz) / (high - peak)
            row.append(math.log10(max(total, 1e-10)))
        found.append(row)
    return found


def test_spectrogram_and_mel_bands_are_those_of_a_naive_calculation():
    samples = wave(1000)
    expected = naive_power(samples)
    power = speech_mel.stft(samples)
    assert (power.shape, power.dtype) == ((5, 161), np.float32)
    np.testing.assert_allclose(power, expected, rtol=1e-5, atol=1e-9)
    for bands in (80, 7):
        found = speech_mel.mel(power, bands)
        assert (found.shape, found.dtype) == ((bands, 5), np.float32)
        np.testing.assert_allclose(found, naive_mel(expected, bands), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "member", "slack"), [("FLAC", "flac", 0), ("MP3", "mp3", 2000), ("OGG", "ogg", 2000)]
)
def test_shapes_and_types_after_each_operation(kind, member, slack):
    pipeline = speech_mel.pipeline()
    samples = 16_000
    item = pipeline.start(a_sample(encoded(wave(samples), kind), member))
    shapes = []
    for op in pipeline.ops:
        item["audio"] = apply(op, item["audio"], Randomness(0, 0, "k"))
        shapes.append((op.name, item["audio"].dtype.name, item["audio"].shape))
    (_, first, (length,)), (_, second, (frames, bins)), (_, third, (bands, same)) = shapes
    assert [name for name, *_ in shapes] == ["decode", "stft", "mel"]
    assert (first, second, third) == ("int16", "float32", "float32")
    assert abs(length - samples) <= slack
    assert (frames, bins, bands, same) == (1 + (length - 320) // 160, 161, 80, frames)
    peak = item["audio"].mean(axis=1).argmax()  # 440 Hz is 549.6 mel of 2840: band 81 * 549.6 / 2840 - 1
    assert peak == pytest.approx(14.7, abs=1)
    assert [op.codec for op in pipeline.ops] == ["npy"] * 3


def truncated_mp3() -> bytes:
    whole = encoded(wave(32_000), "MP3")
    assert len(speech.decode_wave(whole)) == 32_000
    return whole[: len(whole) // 2]


@pytest.mark.parametrize(
    ("data", "member", "sentence"),
    [
        (encoded(wave(16_000), "FLAC")[:9000], "flac", "operation decode: the audio cannot be decoded"),
        (encoded(wave(16_000), "FLAC")[:50], "flac", "operation decode: the audio cannot be decoded"),
        (truncated_mp3(), "mp3", r"operation decode: the audio lasts 0\.\d\d s, but its header says 2\.00 s: its end"),
        (b"", "flac", "operation decode: the audio"),
        (b"not a sound", "mp3", "operation decode: the audio cannot be decoded"),
        (encoded(wave(319), "FLAC"), "flac", "operation stft: the audio has 319 samples at 16 kHz, fewer than a window of 320"),
    ],
)  # fmt: skip
def test_a_bad_recording_names_shard_and_key(data, member, sentence):
    with pytest.raises(BadSampleError, match=f"^s3://b/t.tar: sample 0007, {sentence}.*; correct"):
        speech_mel.pipeline().run(a_sample(data, member), 0, 0)


def test_silence_is_the_floor():
    assert (speech_mel.mel(speech_mel.stft(np.zeros(400, np.int16)), 80) == -10).all()


@pytest.mark.parametrize("bands", [0, 161])
def test_settings_out_of_range_are_refused(bands):
    with pytest.raises(PipelineError, match=f"bands is {bands}; it must be 1 to 160"):
        speech_mel.pipeline(bands)
