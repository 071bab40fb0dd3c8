"""Pipeline of speech: an audio file becomes Whisper's log-mel spectrogram, its transcript the labels."""

from __future__ import annotations

import io
import math
from functools import cache

import numpy as np

from experiments.pipeline.builtin.text import IGNORED, decode_op
from experiments.pipeline.builtin.tokens import special_id, tokenizer_at
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

FIELDS = {"audio": ("wav", "flac", "mp3", "ogg"), "text": ("txt",)}
RATE = 16_000
"""Samples per second that Whisper expects."""

# Samples: windows of 25 ms, 100 frames a second (Radford et al., arXiv:2212.04356, section 2.2).
_WINDOW, _HOP = 400, 160
_MP3_HEAD_BYTES = 4096
_MP3_LENGTHS = (
    b"Xing",
    b"Info",
)  # names of the header that has the length; without it libsndfile estimates one
_SLACK = RATE // 10  # samples of silence that encoders of mp3 and ogg may append


def pipeline(tokenizer: str, length: int, bins: int = 80, frames: int = 3000) -> Pipeline:
    """Return the pipeline of speech with transcripts.

    `tokenizer`: path of a tokenizer.json. `length`: most tokens of a transcript, its end token included. `bins`: mel
    bins. `frames`: frames of 10 ms; shorter audio is padded with silence. A longer transcript or audio is a bad sample:
    cut to fit, one would no longer say what the other does. Fields: audio, float32[bins, frames]; text, int64[length],
    the labels, -100 after the end token. Raises PipelineError.
    """
    if length < 2 or bins < 1 or frames < 1:
        raise PipelineError(
            f"pipeline speech: length is {length}, bins {bins}, frames {frames}; use at least 2, 1 and 1"
        )
    special_id(tokenizer, "eos")
    return Pipeline(
        "speech",
        FIELDS,
        (
            Op(
                "decode_audio",
                f"{__name__}:decode_audio",
                "audio",
                "bytes",
                "array",
                libraries=("soundfile", "scipy", "numpy"),
            ),
            Op(
                "log_mel",
                f"{__name__}:log_mel",
                "audio",
                "array",
                "array",
                {"bins": bins, "frames": frames},
                libraries=("transformers", "numpy"),
            ),
            decode_op(),
            Op(
                "tokenize",
                f"{__name__}:labels",
                "text",
                "text",
                "array",
                {"length": length},
                libraries=("tokenizers", "numpy"),
                files={"tokenizer": tokenizer},
            ),
        ),
    )


def decode_audio(data: bytes) -> np.ndarray:
    """Decode wav, flac, mp3 or ogg to float32[samples] at 16 kHz, channels averaged. Raises BadValueError, PipelineError.

    Other rates are resampled with a polyphase filter (scipy.signal.resample_poly). An mp3 whose end is missing, which
    libsndfile reads as a shorter sound, is refused if its header has its length.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its shared library is missing
        raise PipelineError(
            f"audio is decoded with soundfile, which cannot be imported ({error}); run `pip install soundfile`"
        ) from error
    from scipy.signal import resample_poly

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, promised = file.samplerate, file.frames
            channels = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise BadValueError(f"the audio cannot be decoded ({error.error_string})") from error
    audio = channels.mean(axis=1)
    if not len(audio):
        raise BadValueError("the audio is empty")
    if len(audio) < promised and any(name in data[:_MP3_HEAD_BYTES] for name in _MP3_LENGTHS):
        raise BadValueError(
            f"the audio lasts {len(audio) / rate:.2f} s, but its header says {promised / rate:.2f} s: its end is missing"
        )
    if not np.isfinite(audio).all():
        raise BadValueError("the audio has samples that are no finite numbers")
    if rate != RATE:
        common = math.gcd(rate, RATE)
        audio = resample_poly(audio, RATE // common, rate // common)
    return audio.astype(np.float32)


def decode_wave(data: bytes) -> np.ndarray:
    """Decode as `decode_audio`, to int16[samples] at 16 kHz. Raises BadValueError, PipelineError."""
    levels = np.rint(decode_audio(data).astype(np.float64) * 32768)
    return np.clip(levels, -32768, 32767).astype(np.int16)


def log_mel(audio: np.ndarray, bins: int, frames: int) -> np.ndarray:
    """Whisper's log-mel spectrogram of float32[samples] at 16 kHz: float32[bins, frames].

    As in github.com/openai/whisper (whisper/audio.py): reflected ends, periodic Hann windows, power, mel filters of
    Slaney, log10 clamped to 8 below its maximum, scaled by (x + 4) / 4. Raises BadValueError for audio that is longer by
    more than 0.1 s.
    """
    size = frames * _HOP
    if len(audio) > size + _SLACK:
        raise BadValueError(
            f"the audio lasts {len(audio) / RATE:.2f} s, longer than the {size / RATE:g} s that the model takes; "
            "cut it and its transcript into parts"
        )
    padded = np.zeros(size, dtype=np.float64)
    padded[: min(size, len(audio))] = audio[:size]
    padded = np.pad(padded, _WINDOW // 2, mode="reflect" if size > _WINDOW // 2 else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.abs(np.fft.rfft(windows * hann)) ** 2
    logarithm = np.log10(np.maximum(_mel_filters(bins) @ power.T, 1e-10))
    logarithm = np.maximum(logarithm, logarithm.max() - 8)
    return ((logarithm + 4) / 4).astype(np.float32)


@cache
def _mel_filters(bins: int) -> np.ndarray:
    """float64[bins, 201]: triangular filters on Slaney's mel scale from 0 to 8 kHz, of equal area."""
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(
        num_frequency_bins=_WINDOW // 2 + 1,
        num_mel_filters=bins,
        min_frequency=0.0,
        max_frequency=RATE / 2,
        sampling_rate=RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    return filters.T


def labels(text: str, tokenizer: str, length: int) -> np.ndarray:
    """Tokenize a transcript: int64[length], its tokens, the end token, then -100. Raises BadValueError if it is longer."""
    ids = tokenizer_at(tokenizer).encode(text.strip(), add_special_tokens=False).ids
    if len(ids) >= length:
        raise BadValueError(
            f"the transcript has {len(ids)} tokens, but at most {length - 1} fit before the end token; "
            "use a greater sequence length, or cut it and its audio into parts"
        )
    found = np.full(length, IGNORED, dtype=np.int64)
    found[: len(ids) + 1] = [*ids, special_id(tokenizer, "eos")]
    return found
