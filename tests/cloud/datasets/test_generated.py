"""Generated data sets: the same bytes for the same seed, and held-out samples that share nothing with the others."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cloud.datasets import glyphs, photos, speech, stdlib
from cloud.datasets.in_order import in_order
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN

TONES = speech.Synthesiser(speech.TONES)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: glyphs.glyph_records(70, 20, seed=seed),
        lambda seed: photos.photo_records(3, 2, seed=seed),
        lambda seed: speech.speech_records(20, 5, seed=seed, synthesiser=TONES),
    ],
    ids=["glyphs", "photos", "speech"],
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
    for record in speech.speech_records(10, 5, synthesiser=TONES):
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
        speech.speech_made(1, 1, 0, TONES),
    ):
        assert json.loads(json.dumps(made)) == made
