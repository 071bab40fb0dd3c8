"""A user's own files as records: what is recognised, what becomes of it, and what is refused by name."""

from __future__ import annotations

import csv
import io
import json
import sys
import types
import wave
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from cloud.datasets.sources import open_source, records_of
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN


def picture(kind: str = "jpeg", level: int = 9) -> bytes:
    target = io.BytesIO()
    Image.new("L", (8, 8), level).save(target, kind)
    return target.getvalue()


def sound() -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\x01\x02" * 100)
    return target.getvalue()


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def packed(path: Path, kind: str = "", *, skip: bool = False, **options):
    source = open_source(path, kind, **options)
    return {r.key: r for r in records_of(source, skip=skip)}, source


def test_class_folders(tmp_path):
    for name, kind in (("cat/a.v2.jpg", "jpeg"), ("cat/deep/b.JPEG", "jpeg"), ("dog/a.png", "png")):
        put(tmp_path / name, picture(kind))
    put(tmp_path / "cat" / "notes.md", "x")
    put(tmp_path / "cat" / ".hidden.jpg", "x")
    put(tmp_path / "loose.jpg", picture())
    found, source = packed(tmp_path)
    assert (source.kind, source.classes, source.ignored) == ("images", ["cat", "dog"], 2)
    assert {k: sorted(r.members) for k, r in found.items()} == {
        "cat/a_v2": ["cls", "jpg"], "cat/deep/b": ["cls", "jpg"], "dog/a": ["cls", "png"],
    }  # fmt: skip
    assert found["dog/a"].members == {"png": picture("png"), "cls": b"1"}
    assert {r.split for r in found.values()} == {""}


def test_the_order_is_a_mixture_that_depends_on_the_seed_only(tmp_path):
    for n in range(60):
        put(tmp_path / f"c{n // 30}" / f"{n:02d}.jpg", picture())
    orders = [list(packed(tmp_path, seed=seed)[0]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert 5 < sum(key.startswith("c0") for key in orders[0][:30]) < 25


@pytest.mark.parametrize("held", ["val", "test", "heldout"])
def test_the_splits_of_the_source_are_kept(tmp_path, held):
    for name in ("train/cat/a.jpg", f"{held}/cat/a.jpg", f"{held}/dog/b.jpg"):
        put(tmp_path / name, picture())
    found, source = packed(tmp_path)
    assert source.has_splits
    assert source.classes == ["cat", "dog"]
    assert {k: r.split for k, r in found.items()} == {
        "train/cat/a": TRAIN, "heldout/cat/a": HELDOUT, "heldout/dog/b": HELDOUT,
    }  # fmt: skip


def test_a_broken_image_is_named_or_left_out(tmp_path):
    put(tmp_path / "cat" / "good.jpg", picture())
    bad = put(tmp_path / "cat" / "bad.jpg", picture()[:-40])
    put(tmp_path / "cat" / "empty.jpg", b"")
    with pytest.raises(DataSourceError, match=r"(bad|empty)\.jpg: the jpg .*--bad-samples skip"):
        packed(tmp_path)
    found, source = packed(tmp_path, skip=True)
    assert list(found) == ["cat/good"]
    assert len(source.bad) == 2
    assert any(str(bad) in sentence and "cannot be decoded" in sentence for sentence in source.bad)


def test_tables_of_all_formats_give_the_same_samples(tmp_path):
    rows = [{"id": f"r.{n}", "text": f"ein\n„Text“ {n}", "label": n % 3} for n in range(9)]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "text", "label"])
        writer.writeheader()
        writer.writerows(rows)
    put(tmp_path / "t.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    made = [packed(tmp_path / f"t.{kind}", key="id")[0] for kind in ("csv", "jsonl", "parquet")]
    assert made[0] == made[1] == made[2]
    assert made[0]["r_4"].members == {"txt": "ein\n„Text“ 4".encode(), "cls": b"1"}
    assert sorted(packed(tmp_path / "t.csv")[0]) == [f"{n:08d}" for n in range(9)]


def test_columns_files_and_names_of_labels(tmp_path):
    put(tmp_path / "img" / "1.png", picture("png"))
    put(
        tmp_path / "t.jsonl",
        '{"p": "img/1.png", "kind": "owl", "box": [1, 2]}\n{"p": "img/1.png", "kind": "ant", "box": {}}',
    )
    columns = {"cls": "kind", "json": "box"}
    found, source = packed(tmp_path / "t.jsonl", columns=columns, files={"png": "p"})
    assert source.classes == ["ant", "owl"]
    assert found["00000000"].members == {"png": picture("png"), "cls": b"1", "json": b"[1, 2]"}


def test_encoded_images_in_parquet_get_the_extension_of_what_they_are(tmp_path):
    rows = [{"image": {"bytes": picture("png"), "path": None}, "label": 3}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train-00000.parquet")
    found, _ = packed(tmp_path)
    assert found["00000000"].members == {"png": picture("png"), "cls": b"3"}


def test_a_folder_of_tables_with_splits(tmp_path):
    put(tmp_path / "train.csv", "text\na\nb\n")
    put(tmp_path / "validation.csv", "text\nc\n")
    found, _ = packed(tmp_path)
    assert {r.members["txt"]: r.split for r in found.values()} == {b"a": TRAIN, b"b": TRAIN, b"c": HELDOUT}


def test_sounds_with_transcripts(tmp_path):
    put(tmp_path / "a.wav", sound())
    put(tmp_path / "a.txt", "\ufeff hello \n")
    put(tmp_path / "19" / "b.wav", sound())
    put(tmp_path / "19" / "19.trans.txt", "b TWO WORDS\nc THREE\n")
    found, source = packed(tmp_path)
    assert source.kind == "audio"
    assert {k: r.members["txt"] for k, r in found.items()} == {"a": b"hello", "19/b": b"TWO WORDS"}
    put(tmp_path / "lonely.wav", sound())
    with pytest.raises(
        DataSourceError, match=r"lonely\.wav: its transcript lonely\.txt does not exist in the same folder"
    ):
        packed(tmp_path)
    put(tmp_path / "lonely.txt", " \n")
    with pytest.raises(DataSourceError, match="its transcript is empty"):
        packed(tmp_path)
    put(tmp_path / "lonely.txt", "x")
    put(tmp_path / "lonely.wav", sound()[:100])
    with pytest.raises(DataSourceError, match=r"lonely\.wav: the wav cannot be decoded"):
        packed(tmp_path)


class ClassLabel:
    names = ("no", "yes")


class Image_:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class Rows(list):
    """What the code uses of a datasets.Dataset."""

    def __init__(self, rows, features):
        super().__init__(rows)
        self.features = features
        self.column_names = list(features)

    def cast_column(self, column, feature):
        assert not feature.decode
        return self


def test_saved_datasets(tmp_path, monkeypatch):
    put(tmp_path / "d" / "dataset_info.json", "{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataSourceError, match="pip install datasets"):
        packed(tmp_path / "d")
    features = {"image": Image_(), "label": ClassLabel()}
    splits = {
        "train": Rows([{"image": {"bytes": picture(), "path": None}, "label": 1}], features),
        "test": Rows([{"image": {"bytes": picture("png"), "path": None}, "label": 0}], features),
    }
    module = types.SimpleNamespace(
        Dataset=Rows, ClassLabel=ClassLabel, Image=Image_, Audio=bytes, load_from_disk=lambda path: splits
    )
    monkeypatch.setitem(sys.modules, "datasets", module)
    found, source = packed(tmp_path / "d")
    assert source.classes == ["no", "yes"]
    assert {k: (r.split, dict(r.members)) for k, r in found.items()} == {
        "train/00000000": (TRAIN, {"jpg": picture(), "cls": b"1"}),
        "heldout/00000001": (HELDOUT, {"png": picture("png"), "cls": b"0"}),
    }


@pytest.mark.parametrize(
    ("name", "content", "options", "sentence"),
    [
        ("none", None, {}, "does not exist"),
        ("t.doc", "x", {}, r"is not a table \(\.csv"),
        ("t.csv", "", {}, "has the columns none"),
        ("t.csv", "text\n", {}, "has no samples"),
        ("t.csv", "a,b\n1,2\n", {}, "has the columns a, b, and none is known.*--column txt=COLUMN"),
        ("t.csv", "text\na\n", {"columns": {"txt": "words"}}, "no column 'words'; its columns are text"),
        ("t.csv", "text,x\na\n", {}, "line 2: it has another number of fields"),
        ("t.csv", "text\na\n", {"key": "id"}, "no column 'id'"),
        ("t.csv", "id,text\n1,a\n1,b\n", {"key": "id"}, r"occur twice, such as 1 .*row 1 and .*row 2"),
        ("t.csv", "id,text\n,a\n", {"key": "id"}, "row 1: the key column 'id' is empty"),
        ("t.csv", "id,text\n1,\n", {}, "row 1: column 'text' is empty"),
        ("t.csv", b"text\n\xff\n", {}, "is not UTF-8"),
        ("t.jsonl", "{}\nno\n", {}, "line 2: not JSON"),
        ("t.jsonl", "[]\n", {}, "line 1: not an object"),
        ("t.parquet", "no", {}, "is not a readable Parquet file"),
        ("t.csv", "p\nnone.jpg\n", {"files": {"jpg": "p"}}, "row 1: No such file"),
        ("t.csv", "image\nx.jpg\n", {}, "for paths use --file jpg=image"),
        ("t.csv", "text\na\n", {"columns": {"txt": "text"}, "files": {"txt": "text"}}, "--column and with --file"),
        ("d/x.bin", "x", {}, "has no images"),
        ("d/x.jpg", picture(), {}, "has no class folders"),
        ("d/c/x.jpg", picture(), {"key": "id"}, "which has no columns"),
    ],
)  # fmt: skip
def test_bad_sources_say_what_to_do(tmp_path, name, content, options, sentence):
    path = tmp_path / name
    if content is not None:
        put(path, content)
    if name.startswith("d/"):
        path = tmp_path / "d"
    with pytest.raises(DataSourceError, match=sentence):
        packed(path, **options)


def test_another_source_of_the_same_name_is_another_data_set(tmp_path):
    for language, words in (("en", "one\ntwo\n"), ("de", "eins\nzwei\n")):
        put(tmp_path / language / "train.csv", f"text\n{words}")
    english, german = (packed(tmp_path / language / "train.csv")[1].content for language in ("en", "de"))
    assert english != german
    assert packed(tmp_path / "en" / "train.csv")[1].content == english


def test_hidden_folders_are_left_out(tmp_path):
    for name in ("cat/a.jpg", "cat/.thumbnails/a.jpg", ".ipynb_checkpoints/x.jpg"):
        put(tmp_path / name, picture())
    found, source = packed(tmp_path)
    assert (list(found), source.classes) == (["cat/a"], ["cat"])


def test_a_training_folder_alone_is_the_source(tmp_path):
    for name in ("train/cat/a.jpg", "train/dog/b.jpg"):
        put(tmp_path / name, picture())
    found, source = packed(tmp_path)
    assert (sorted(found), source.classes) == (["cat/a", "dog/b"], ["cat", "dog"])
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(
        DataSourceError, match="folders training, which are splits and no classes; name them train"
    ):
        packed(tmp_path)


def test_labels_with_a_point_are_whole_numbers(tmp_path):
    put(tmp_path / "t.csv", "text,label\na,0.0\nb,10.0\nc,2\n")
    found, source = packed(tmp_path / "t.csv")
    assert source.classes is None
    assert sorted(r.members["cls"] for r in found.values()) == [b"0", b"10", b"2"]
    put(tmp_path / "t.csv", "text,label\na,0.5\nb,1\n")
    with pytest.raises(DataSourceError, match=r"has the label 0\.5, and labels are whole numbers or names"):
        packed(tmp_path / "t.csv")


def test_of_several_held_out_tables_one_is_used(tmp_path):
    for name in ("train", "validation", "test"):
        put(tmp_path / f"{name}.csv", f"text\n{name}\n")
    found, _ = packed(tmp_path)
    assert {r.members["txt"] for r in found.values()} == {b"train", b"validation"}
    put(tmp_path / "extra.csv", "text\nx\n")
    with pytest.raises(
        DataSourceError, match=r"with and without the name of a split: extra\.csv \(no split\)"
    ):
        packed(tmp_path)


def test_rows_without_key_and_texts_that_cannot_be_stored(tmp_path):
    put(tmp_path / "t.jsonl", '{"id": 1, "text": "a"}\n{"text": "b"}\n')
    with pytest.raises(DataSourceError, match="row 2: the key column 'id' is empty"):
        packed(tmp_path / "t.jsonl", key="id")
    put(tmp_path / "t.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n')
    found, source = packed(tmp_path / "t.jsonl", skip=True)
    assert len(found) == len(source.bad) == 1
