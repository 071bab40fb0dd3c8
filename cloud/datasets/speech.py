"""Spoken digits with transcripts, from eSpeak NG; without it, two tones for each digit."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN, Record

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN_VOICES = ("en-us", "en-us+f1", "en-us+f2", "en-us+f4", "en-us+m1", "en-us+m2", "en-us+m4", "en-us+m7")
HELDOUT_VOICES = ("en-us+f3", "en-us+m3")
"""Never used for training."""

TONES = "tones"
WAV = "wav"
SOUNDS = (WAV, "flac", "mp3")
"""Forms in which sounds can be stored."""

_SPEEDS = (130, 160, 190)  # words per minute
_MOST_WORDS = 5
_CHILD = Path(__file__).with_name("espeak_child.py")
_TIMEOUT_S = 120
# The tones of a telephone's keys, in Hz.
_LOW = (941, 697, 697, 697, 770, 770, 770, 852, 852, 852)
_HIGH = (1336, 1209, 1336, 1477, 1209, 1336, 1477, 1209, 1336, 1477)
_TONE_RATE = 16_000


@dataclass(frozen=True, slots=True)
class Synthesiser:
    """What speaks. `reason` says why it is not speech, if it is not."""

    name: str  # "espeak-ng", "espeakng-loader" or "tones"
    program: str = ""
    reason: str = ""


def find_synthesiser() -> Synthesiser:
    """Return the program espeak-ng or the package espeakng-loader if there is one of them, else tones."""
    program = shutil.which("espeak-ng")
    if program is not None:
        return Synthesiser("espeak-ng", program)
    if find_spec("espeakng_loader") is not None:
        return Synthesiser("espeakng-loader")
    return Synthesiser(
        TONES,
        reason="neither the program espeak-ng nor the package espeakng-loader is installed, so tones replace speech; "
        "run `apt-get install espeak-ng` or `pip install espeakng-loader` for spoken digits",
    )


def speech_records(
    train: int, heldout: int, *, seed: int = 0, synthesiser: Synthesiser | None = None, sound: str = WAV
) -> Iterator[Record]:
    """Yield `train` and then `heldout` samples with the members `wav` (16 bits, one channel) and `txt`.

    `sound`: one of SOUNDS, the form and extension of the first member. A transcript is one to five digits as words.
    Held-out samples have voices that training samples do not have. A sample depends on the seed, its split, its number,
    the synthesiser and the form only. Raises DataSourceError if the synthesiser fails, or if soundfile, which writes flac
    and mp3, cannot be imported.
    """
    if sound != WAV:
        _soundfile()
    chosen = synthesiser or find_synthesiser()
    for split, count, voices in ((TRAIN, train, TRAIN_VOICES), (HELDOUT, heldout, HELDOUT_VOICES)):
        if not count:
            continue
        rate, sounds = _inventory(chosen, voices)
        for number in range(count):
            yield _record(split, number, rate, sounds, seed, sound)


def speech_made(
    train: int, heldout: int, seed: int, synthesiser: Synthesiser, sound: str = WAV
) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on. Raises DataSourceError as `speech_records`."""
    # Sets of before there were other forms stay the same data set.
    form = {} if sound == WAV else {"sound": sound, "libsndfile": _soundfile().__libsndfile_version__}
    return {
        **form,
        "dataset": "speech",
        "train": train,
        "heldout": heldout,
        "seed": seed,
        "synthesiser": synthesiser.name,
        "heldout_voices": list(HELDOUT_VOICES),
    }


def _inventory(synthesiser: Synthesiser, voices: tuple[str, ...]) -> tuple[int, list[list[Any]]]:
    """Return the rate in Hz, and for each voice and speed the sounds (float32) of the ten words."""
    import numpy as np

    if synthesiser.name == TONES:
        sounds = [_tones(shift) for shift in np.linspace(0.97, 1.03, len(voices))]
        return _TONE_RATE, sounds
    found: list[list[Any]] = []
    rate = 0
    for voice in voices:
        for speed in _SPEEDS:
            rate, spoken = _speak(synthesiser, voice, speed)
            found.append(
                [_trimmed(np.frombuffer(sound, "<i2").astype(np.float32) / 32768) for sound in spoken]
            )
    return rate, found


def _speak(synthesiser: Synthesiser, voice: str, speed: int) -> tuple[int, list[bytes]]:
    if synthesiser.program:
        spoken: list[bytes] = []
        rate = 0
        for word in WORDS:
            data = _run([synthesiser.program, "-v", voice, "-s", str(speed), "--stdout", word])
            head = data.find(b"data")
            rate = int.from_bytes(data[24:28], "little")
            spoken.append(data[head + 8 :][: len(data[head + 8 :]) // 2 * 2])
        return rate, spoken
    import espeakng_loader  # pyright: ignore[reportMissingImports]

    library, folder = espeakng_loader.get_library_path(), espeakng_loader.get_data_path()
    data = _run([sys.executable, str(_CHILD), library, folder, voice, str(speed), *WORDS])
    source = io.BytesIO(data)
    rate = int.from_bytes(source.read(4), "little")
    return rate, [source.read(int.from_bytes(source.read(4), "little")) for _ in WORDS]


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataSourceError(
            f"the synthesiser {command[0]} does not work ({error}); install it again"
        ) from error
    if done.returncode or not done.stdout:
        message = done.stderr.decode(errors="replace").strip()[-300:]
        raise DataSourceError(
            f"the synthesiser {command[0]} failed ({message or f'exit code {done.returncode}'}); install it again"
        )
    return done.stdout


def _trimmed(sound: Any) -> Any:
    """Cut the silence before and after a word."""
    import numpy as np

    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return sound[loud[0] : loud[-1] + 1] if len(loud) else sound


def _tones(shift: float) -> list[Any]:
    import numpy as np

    seconds = np.arange(int(0.25 * _TONE_RATE)) / _TONE_RATE
    envelope = np.minimum(1, np.minimum(seconds, seconds[::-1]) / 0.02)
    return [
        (0.3 * envelope * sum(np.sin(2 * np.pi * hz * shift * seconds) for hz in pair)).astype(np.float32)
        for pair in zip(_LOW, _HIGH, strict=True)
    ]


def _record(split: str, number: int, rate: int, sounds: list[list[Any]], seed: int, form: str) -> Record:
    import numpy as np

    rng = np.random.default_rng((seed, 0 if split == TRAIN else 1, number))
    spoken = sounds[int(rng.integers(len(sounds)))]
    digits = [int(digit) for digit in rng.integers(0, 10, int(rng.integers(1, _MOST_WORDS + 1)))]
    pieces: list[Any] = []
    for digit in digits:
        pieces += [np.zeros(int(rng.uniform(0.05, 0.25) * rate), np.float32), spoken[digit]]
    pieces.append(np.zeros(int(0.1 * rate), np.float32))
    sound = np.concatenate(pieces) * rng.uniform(0.4, 1.0)
    sound = sound + rng.normal(0, 10 ** rng.uniform(-4, -2), len(sound))
    data = _encoded(np.rint(np.clip(sound, -1, 1) * 32767).astype("<i2"), rate, form)
    key = f"{number:08d}" if split == TRAIN else f"heldout-{number:08d}"
    text = " ".join(WORDS[digit] for digit in digits)
    return Record(key, {form: data, "txt": text.encode()}, split)


def _encoded(samples: Any, rate: int, form: str) -> bytes:
    target = io.BytesIO()
    if form == WAV:
        with wave.open(target, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
    else:
        _soundfile().write(target, samples, rate, format=form.upper())
    return target.getvalue()


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its shared library is missing
        raise DataSourceError(
            f"flac and mp3 are written with soundfile, which cannot be imported ({error}); run `pip install soundfile`"
        ) from error
    return soundfile
