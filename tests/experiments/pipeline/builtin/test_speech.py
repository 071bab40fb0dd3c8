"""The speech pipeline: decoding, resampling, Whisper's spectrogram, transcripts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.pipeline.builtin import speech
from experiments.pipeline.errors import BadSampleError, BadValueError, PipelineError

TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {"<unk>": 0, "</s>": 1, "one": 2, "two": 3},
        "unk_token": "<unk>",
    },
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return str(tmp_path / "tokenizer.json")


def tone(rate: int, seconds: float, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def encoded(audio: np.ndarray, rate: int, kind: str) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
def test_audio_of_each_format_is_mono_at_16_khz(kind: str):
    stereo = np.stack([tone(44_100, 0.5), tone(44_100, 0.5)], axis=1)
    audio = speech.decode_audio(encoded(stereo, 44_100, kind))
    assert (audio.dtype, audio.ndim) == (np.float32, 1)
    assert len(audio) == pytest.approx(8000, abs=1200)  # encoders of mp3 pad
    spectrum = np.abs(np.fft.rfft(audio))
    assert spectrum.argmax() * 16_000 / len(audio) == pytest.approx(440, abs=4)


def test_audio_that_is_none_is_a_bad_value():
    with pytest.raises(BadValueError, match="cannot be decoded"):
        speech.decode_audio(b"not audio")
    with pytest.raises(BadValueError, match="is empty"):
        speech.decode_audio(encoded(np.zeros(0, np.float32), 16_000, "WAV"))


@pytest.mark.parametrize(("seconds", "chunk_s", "bins"), [(1.3, 2, 80), (2.05, 2, 128), (0.2, 30, 80)])
def test_the_spectrogram_is_that_of_transformers(seconds: float, chunk_s: int, bins: int):
    from transformers import WhisperFeatureExtractor

    rng = np.random.default_rng(0)
    audio = tone(16_000, seconds) + rng.normal(0, 0.01, int(16_000 * seconds)).astype(np.float32)
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=chunk_s)
    expected = extractor(audio, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    found = speech.log_mel(audio, bins, 100 * chunk_s)
    assert (found.shape, found.dtype) == ((bins, 100 * chunk_s), np.float32)
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_silence_has_a_spectrogram():
    assert np.isfinite(speech.log_mel(np.zeros(100, np.float32), 80, 50)).all()


def test_a_transcript_ends_with_its_end_token(tokenizer: str):
    assert speech.labels(" one two\n", tokenizer, 5).tolist() == [2, 3, 1, -100, -100]
    assert speech.labels("one two", tokenizer, 3).tolist() == [2, 3, 1]
    assert speech.labels("", tokenizer, 3).tolist() == [1, -100, -100]


def test_audio_and_transcript_are_never_cut_apart(tokenizer: str):
    with pytest.raises(BadValueError, match="has 3 tokens, but at most 2 fit before the end token"):
        speech.labels("one two one", tokenizer, 3)
    most = np.zeros(16_000 + 1600, np.float32)
    assert speech.log_mel(most, 80, 100).shape == (80, 100)
    with pytest.raises(BadValueError, match=r"lasts 1\.10 s, longer than the 1 s that the model takes"):
        speech.log_mel(np.append(most, np.float32(0)), 80, 100)


def test_a_bad_recording_names_the_sample(tokenizer: str):
    sample = {
        "__key__": "a",
        "__url__": "s3://b/x.tar",
        "wav": encoded(np.full(800, np.nan, np.float32), 16_000, "WAV"),
        "txt": b"two",
    }
    with pytest.raises(
        BadSampleError, match=r"x\.tar: sample a, operation decode_audio: the audio cannot be"
    ):
        speech.pipeline(tokenizer, 4).run({**sample, "wav": b"RIFF"}, 0, 0)
    with pytest.raises(BadSampleError, match="operation tokenize: the transcript has 4 tokens"):
        speech.pipeline(tokenizer, 4).run(
            {**sample, "wav": encoded(tone(16_000, 0.1), 16_000, "WAV"), "txt": b"one two one two"}, 0, 0
        )


def test_audio_with_nan_is_refused():
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, np.full(800, np.nan, np.float32), 16_000, format="WAV", subtype="FLOAT")
    with pytest.raises(BadValueError, match="no finite numbers"):
        speech.decode_audio(file.getvalue())


def test_without_soundfile_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(PipelineError, match="run `pip install soundfile`"):
        speech.decode_audio(b"")


def test_the_pipeline_delivers_spectrogram_and_labels(tokenizer: str):
    pipeline = speech.pipeline(tokenizer, 4, bins=80, frames=100)
    sample = {
        "__key__": "a",
        "__url__": "s3://b/x.tar",
        "wav": encoded(tone(16_000, 0.5), 16_000, "WAV"),
        "txt": b"two",
    }
    item = pipeline.run(sample, 0, 0)
    assert item["audio"].shape == (80, 100)
    assert item["text"].tolist() == [3, 1, -100, -100]


def test_settings_out_of_range_are_refused(tokenizer: str):
    with pytest.raises(PipelineError, match="use at least 2, 1 and 1"):
        speech.pipeline(tokenizer, 1)
