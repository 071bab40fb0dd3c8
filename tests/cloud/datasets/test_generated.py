"""Generated data sets: the same bytes for the same seed, and held-out samples that share nothing with the others."""

from __future__ import annotations

import io
import json
import re
import sys
import sysconfig
import wave
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from cloud.datasets import glyphs, pages, photos, power, speech, stdlib
from cloud.datasets.in_order import in_order
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN

TONES = speech.Synthesiser(speech.TONES)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: glyphs.glyph_records(70, 20, seed=seed),
        lambda seed: photos.photo_records(3, 2, seed=seed),
        lambda seed: photos.photo_records(3, 2, seed=seed, sizes="imagenet"),
        lambda seed: speech.speech_records(20, 5, seed=seed, synthesiser=TONES),
        lambda seed: speech.speech_records(20, 5, seed=seed, synthesiser=TONES, sound="flac"),
        lambda seed: speech.speech_records(20, 5, seed=seed, synthesiser=TONES, sound="mp3"),
        lambda seed: power.power_records(3, 2, seed=seed),
    ],
    ids=["glyphs", "photos", "photos-imagenet", "speech", "speech-flac", "speech-mp3", "power"],
)
def test_the_same_seed_gives_the_same_samples_and_another_others(make):
    one, same, other = list(make(1)), list(make(1)), list(make(2))
    assert one == same
    assert [r.key for r in one] == [r.key for r in other]
    assert len({r.key for r in one}) == len(one)
    assert all(a.members != b.members for a, b in zip(one, other, strict=True))
    assert [r.split for r in one] == sorted((r.split for r in one), reverse=True)


def test_glyphs_are_grey_jpegs_of_all_classes_in_fonts_of_their_own():
    assert not set(glyphs.TRAIN_FONTS) & set(glyphs.HELDOUT_FONTS)
    made = list(glyphs.glyph_records(len(glyphs.CLASSES) * len(glyphs.TRAIN_FONTS), 62))
    for record in made[:50]:
        with Image.open(io.BytesIO(record.members["jpg"])) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "L", (64, 64))
    labels = np.bincount([int(r.members["cls"]) for r in made if r.split == TRAIN])
    assert labels.tolist() == [len(glyphs.TRAIN_FONTS)] * 62  # each character once in each font
    first = list(glyphs.glyph_records(5, 1))
    assert first[:5] == made[:5]  # a sample does not depend on how many there are


def test_photos_have_the_sizes_of_openimages():
    made = list(photos.photo_records(24, 8))
    sizes = np.array([len(r.members["jpg"]) for r in made])
    assert 120_000 < np.median(sizes) < 500_000
    assert 0.3 < np.log(sizes).std() < 1.1
    for record in made:
        with Image.open(io.BytesIO(record.members["jpg"])) as image:
            image.load()
            assert sorted(image.size) == [768, 1024]
            assert (image.size[0] < image.size[1]) == bool(int(record.members["cls"]) % 2)


def test_photos_can_have_the_sizes_of_imagenet():
    made = list(photos.photo_records(24, 8, sizes="imagenet"))
    sizes = np.array([len(r.members["jpg"]) for r in made])
    assert 60_000 < np.median(sizes) < 180_000
    assert 0.2 < np.log(sizes).std() < 0.8
    for record in made:
        with Image.open(io.BytesIO(record.members["jpg"])) as image:
            assert sorted(image.size) == [375, 500]
    assert photos.photos_made(1, 1, 0, "imagenet")["sizes"] == "imagenet"
    assert "sizes" not in photos.photos_made(1, 1, 0)  # a set that an older version began is the same set


@pytest.mark.skipif(
    not version("pillow").startswith("13.0"), reason="other versions of Pillow encode otherwise"
)
def test_photos_are_those_of_before_there_were_sizes():
    digest = sha256()
    for record in photos.photo_records(2, 1, seed=5):
        digest.update(record.members["jpg"])
    assert digest.hexdigest() == "62192da2fcd97328d7984fa3fbcadbf0e26972d52107f644fc3db39eab561c24"


def test_power_is_mains_with_one_appliance_switched_on():
    labels = set()
    for record in power.power_records(16, 1):
        signals = np.load(io.BytesIO(record.members["npy"]), allow_pickle=False)
        assert (signals.shape, signals.dtype) == ((2, 64_000), np.float64)
        volts, amperes = signals
        rms = np.sqrt((volts**2).mean())
        assert rms == pytest.approx(230, rel=0.06)
        assert np.abs(np.fft.rfft(volts)).argmax() / 10 == pytest.approx(50, abs=0.15)
        by_period = np.sqrt((amperes.reshape(500, 128) ** 2).mean(axis=1))
        before, after = by_period[:90].mean(), by_period[-90:].mean()
        assert after > before + 0.05
        active = (volts * amperes).reshape(500, 128).mean(axis=1)
        assert active[-90:].mean() > active[:90].mean() + 10
        labels.add(int(record.members["cls"]))
    assert labels == set(range(len(power.CLASSES)))


PAGES = ("base64", "calendar", "os", "queue", "winreg_is_not_here", "this")


def test_pages_are_those_of_modules_and_their_public_classes():
    made = {record.key: record for record in pages.page_records(modules=PAGES)}
    assert {key.partition("/")[0] for key in made} == {"base64", "calendar", "os", "queue", "this"}
    assert {key for key in made if key.startswith("queue")} == {
        *("queue", "queue/Full", "queue/LifoQueue", "queue/PriorityQueue", "queue/Queue"),
    }  # not Empty and SimpleQueue, which _queue defines
    assert "calendar/TextCalendar" in made
    for key, record in made.items():
        page = record.members["html"].decode("utf-8")
        assert page.startswith("<!DOCTYPE html>")
        assert page.rstrip().endswith("</html>")
        assert key.rpartition("/")[2] in page
    splits = {}
    for key, record in made.items():
        splits.setdefault(key.partition("/")[0], set()).add(record.split)
    assert all(len(found) == 1 for found in splits.values())


def test_pages_have_nothing_of_the_machine_or_its_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    pages.make_pages.cache_clear()
    found = b"".join(page for _, _, page in pages.make_pages(("os", "queue", "ctypes", "platform")))
    assert b"environ({" in found  # what would show the secret
    for secret in ("hunter2", "AWS_SECRET", sys.executable, sysconfig.get_path("stdlib"), str(Path.cwd())):
        assert secret.encode() not in found, secret
    assert re.findall(rb"(?:0x|handle )[0-9a-f]{6,}", found) == []
    pages.make_pages.cache_clear()
    assert b"".join(page for _, _, page in pages.make_pages(("os", "queue", "ctypes", "platform"))) == found


def test_the_seed_orders_the_pages_and_changes_none():
    one, same, other = (list(pages.page_records(seed=seed, modules=PAGES)) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one, key=lambda r: r.key) == sorted(other, key=lambda r: r.key)


def test_modules_whose_pages_would_do_or_show_something_have_none():
    names = set(pages.module_names())
    assert {"argparse", "asyncio", "asyncio.base_events"} <= names
    assert not names & {
        "antigravity",
        "this",
        "site",
        "sysconfig",
        "distutils.sysconfig",
        "tkinter",
        "turtle",
    }
    assert not [name for name in names if name.endswith(("__main__", "__init__"))]


def test_without_any_page_the_error_says_what_to_use():
    with pytest.raises(
        DataSourceError, match=r"ModuleNotFoundError.*use a Python that was installed with its"
    ):
        pages.make_pages(("there_is_no_such_module",))


def test_stdlib_chunks_are_the_files_and_whole_files_are_held_out(tmp_path: Path):
    (tmp_path / "pack" / "test").mkdir(parents=True)
    texts = {}
    for number in range(40):
        name = f"pack/m{number}.py"
        texts[name] = f"# {number} ü\n" + "x = 1\n" * (number * 9) + ("y" * 700 if number % 7 == 0 else "")
        (tmp_path / name).write_text(texts[name], encoding="utf-8")
    (tmp_path / "pack" / "old.py").write_bytes("# -*- coding: latin-1 -*-\r\n# é\r\n".encode("latin-1"))
    texts["pack/old.py"] = "# -*- coding: latin-1 -*-\n# é\n"
    (tmp_path / "pack" / "test" / "test_m.py").write_text("no")
    made = list(stdlib.stdlib_records(chunk_bytes=100, heldout=0.3, folder=tmp_path))
    found: dict[str, str] = {}
    splits: dict[str, set[str]] = {}
    for record in sorted(made, key=lambda r: r.key):
        name = record.key.rpartition("-")[0] + ".py"
        assert len(record.members["txt"]) <= 100
        found[name] = found.get(name, "") + record.members["txt"].decode()
        splits.setdefault(name, set()).add(record.split)
    assert found == texts
    assert {len(s) for s in splits.values()} == {1}
    assert 4 < sum(s == {HELDOUT} for s in splits.values()) < 22
    assert [r.key for r in made] != sorted(r.key for r in made)  # neighbours are of different files
    (tmp_path / "pack" / "bad.py").write_bytes(b"\xff\xfe")
    with pytest.raises(DataSourceError, match=r"bad\.py cannot be read as Python source"):
        list(stdlib.stdlib_records(folder=tmp_path))
    with pytest.raises(DataSourceError, match="has no sources"):
        stdlib.source_files(tmp_path / "none")


def test_this_python_has_sources_without_tests():
    names = [name for name, _ in stdlib.source_files()]
    assert {"argparse.py", "asyncio/base_events.py"} <= set(names)
    assert not [
        n for n in names if "test" in n.split("/")[:-1] or n.startswith(("idlelib/", "site-packages/"))
    ]


def test_the_tokenizer_is_the_same_each_time_and_keeps_every_byte():
    from tokenizers import Tokenizer

    records = stdlib.TrainTexts(stdlib.stdlib_records())
    made = list(records)
    assert len(records.texts) == sum(r.split == TRAIN for r in made)
    content = stdlib.train_tokenizer(records.texts[:4000], 1024)
    assert content == stdlib.train_tokenizer(records.texts[:4000], 1024)
    tokenizer = Tokenizer.from_str(content.decode())
    assert tokenizer.get_vocab_size() == 1024
    assert [tokenizer.token_to_id(t) for t in stdlib.SPECIAL_TOKENS] == [0, 1, 2, 3]
    for text in [*[r.members["txt"].decode() for r in made if r.split == HELDOUT][:50], "\t€ 😀\r\n  x"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    with pytest.raises(DataSourceError, match="gives a vocabulary of"):
        stdlib.train_tokenizer(["a b"], 1024)


def test_speech_has_transcripts_and_voices_of_its_own():
    assert not set(speech.TRAIN_VOICES) & set(speech.HELDOUT_VOICES)
    plain = list(speech.speech_records(10, 5, synthesiser=TONES))
    for sound in ("flac", "mp3"):
        for record, same in zip(
            speech.speech_records(10, 5, synthesiser=TONES, sound=sound), plain, strict=True
        ):
            assert set(record.members) == {sound, "txt"}
            assert record.members["txt"] == same.members["txt"]
            samples, rate = soundfile.read(io.BytesIO(record.members[sound]), dtype="int16")
            expected, _ = soundfile.read(io.BytesIO(same.members["wav"]), dtype="int16")
            assert (len(samples), rate) == (len(expected), 16_000)
            assert sound == "mp3" or np.array_equal(samples, expected)
    for record in plain:
        with wave.open(io.BytesIO(record.members["wav"])) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
            words = record.members["txt"].decode().split()
            assert 1 <= len(words) <= 5
            assert set(words) <= set(speech.WORDS)
            assert file.getnframes() / 16_000 > 0.3 * len(words)


def test_without_a_synthesiser_tones_replace_speech_and_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(speech.shutil, "which", lambda name: None)
    monkeypatch.setattr(speech, "find_spec", lambda name: None)
    found = speech.find_synthesiser()
    assert found.name == "tones"
    assert "pip install espeakng-loader" in found.reason


def test_without_soundfile_there_is_no_flac_or_mp3(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert list(speech.speech_records(1, 0, synthesiser=TONES))
    for make in (
        lambda: list(speech.speech_records(1, 0, synthesiser=TONES, sound="mp3")),
        lambda: speech.speech_made(1, 0, 0, TONES, "flac"),
    ):
        with pytest.raises(DataSourceError, match="run `pip install soundfile`"):
            make()


def test_a_program_that_speaks(tmp_path: Path):
    program = tmp_path / "espeak-ng"
    sound = tmp_path / "sound.wav"
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22_050)
        file.writeframes(b"\x00\x20" * 5000)
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\ncat {sound}\n')
    program.chmod(0o755)
    made = list(speech.speech_records(2, 0, synthesiser=speech.Synthesiser("espeak-ng", str(program))))
    with wave.open(io.BytesIO(made[0].members["wav"])) as file:
        assert file.getframerate() == 22_050
    assert "-v en-us -s 130 --stdout zero" in (tmp_path / "called").read_text()
    program.write_text("#!/bin/sh\necho no voice >&2; exit 1\n")
    with pytest.raises(DataSourceError, match="no voice"):
        list(speech.speech_records(2, 0, synthesiser=speech.Synthesiser("espeak-ng", str(program))))


def test_results_come_in_order_and_errors_where_they_belong():
    assert list(in_order(lambda n: n * n, range(300), threads=4, ahead=7)) == [n * n for n in range(300)]
    seen = []
    with pytest.raises(ZeroDivisionError):
        seen.extend(in_order(lambda n: 1 // (n - 5) or n, range(10), threads=3))


def test_what_made_them_is_json():
    for made in (
        glyphs.glyphs_made(1, 1, 0),
        stdlib.stdlib_made(512, 0.1, 2048, 0),
        photos.photos_made(1, 1, 0),
        photos.photos_made(1, 1, 0, "imagenet"),
        speech.speech_made(1, 1, 0, TONES),
        speech.speech_made(1, 1, 0, TONES, "mp3"),
        power.power_made(1, 1, 0),
    ):
        assert json.loads(json.dumps(made)) == made
