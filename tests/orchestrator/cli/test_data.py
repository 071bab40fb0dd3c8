"""`orch data make`, `pack` and `check` from the command line, against a store in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moto import mock_aws
from PIL import Image

from cloud.storage.client import make_client
from orchestrator.cli.app import run


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with mock_aws():
        yield make_client()


@pytest.fixture
def orch(capsys):
    """Run a command: exit code, stdout (parsed where it is JSON) and stderr."""

    def call(*arguments):
        code = run(["data", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


def images(folder: Path, count: int = 20) -> Path:
    for n in range(count):
        path = folder / f"c{n % 2}" / f"{n:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), n).save(path, "jpeg")
    return folder


def test_make_then_check_what_a_pass_costs(store, orch):
    code, made, err = orch(
        "make", "glyphs", "--to", "s3://data/g", "--shards", 3, "--samples-per-shard", 16, "-o", "json"
    )
    assert code == 0, err
    assert [s["shards"] for s in made["splits"]] == [
        "s3://data/g/train-{000000..000002}.tar",
        "s3://data/g/heldout-000000.tar",
    ]
    assert [(s["samples"], s["count"]) for s in made["splits"]] == [(48, 3), (6, 1)]
    code, again, err = orch(
        "make", "glyphs", "--to", "s3://data/g", "--shards", 3, "--samples-per-shard", 16, "-o", "json"
    )
    assert (code, again) == (0, made)
    assert "stored 0 objects (0.0 MB), 4 were there" in err
    code, found, err = orch("check", "s3://data/g", "--for", "geo-b2", "-o", "json")
    assert code == 0, err
    assert (found["ok"], found["problems"]) == (True, [])
    train = found["splits"][0]
    assert train["bytes"] == made["splits"][0]["bytes"]
    assert train["bytes_per_sample"] == train["bytes"] / 48
    assert len(found["passes"]) == 2
    assert sum(row["bytes"] for row in found["passes"]) == train["bytes"]
    assert all(0 < row["usd"] < row["usd_alone"] for row in found["passes"])
    code, text, _ = orch("check", "s3://data/g/train-{000000..000001}.tar")
    assert code == 0
    assert "train  32" in text


def test_check_says_what_is_wrong_and_fails(store, orch):
    orch("make", "speech", "--to", "s3://data/s", "--shards", 2, "--samples-per-shard", 4)
    store.put_object(Bucket="data", Key="s/train-000001.tar", Body=b"x" * 2000)
    code, text, err = orch("check", "s3://data/s")
    assert code == 1
    assert "s3://data/s/train-000001.tar" in text
    assert "not a tar header" in text
    assert "unknown" in text  # the bytes of the split
    assert "problems; create the shards" in err


def test_stdlib_with_its_tokenizer(store, orch, tmp_path, monkeypatch):
    from cloud.datasets import stdlib

    sources = stdlib.source_files()[:120]
    monkeypatch.setattr(stdlib, "source_files", lambda folder=None: sources)
    command = ("make", "stdlib", "--to", "s3://data", "--vocabulary", 600, "-o", "json")
    code, made, err = orch(*command)
    assert code == 0, err
    assert [s["split"] for s in made["splits"]] == ["train", "heldout"]
    tokenizer = (tmp_path / "tokenizer.json").read_bytes()
    assert store.get_object(Bucket="data", Key="tokenizer.json")["Body"].read() == tokenizer
    assert orch("check", "s3://data")[0] == 0
    assert orch(*command)[:2] == (0, made)
    (tmp_path / "tokenizer.json").write_text("{}")
    code, _, err = orch(*command)
    assert code == 2
    assert "is another tokenizer; move it, or name another file with --tokenizer-file" in err


def test_pages_with_a_tokenizer_of_their_text(store, orch, tmp_path, monkeypatch):
    from tokenizers import Tokenizer

    from cloud.datasets import pages

    monkeypatch.setattr(pages, "module_names", lambda: ("argparse", "base64", "queue", "textwrap"))
    command = (
        "make",
        "pages",
        "--to",
        "s3://data",
        "--vocabulary",
        600,
        "--samples-per-shard",
        9,
        "-o",
        "json",
    )
    code, made, err = orch(*command)
    assert code == 0, err
    assert "making pydoc's pages" in err
    assert made["splits"][0]["count"] > 1
    index = json.loads(store.get_object(Bucket="data", Key="index.json")["Body"].read())
    assert (index["made"]["dataset"], index["made"]["generated_by"]) == ("pages", "pydoc")
    assert [file["name"] for file in index["files"]] == ["tokenizer.json"]
    content = (tmp_path / "tokenizer.json").read_text()
    assert "<a href" not in content
    assert Tokenizer.from_str(content).get_vocab_size() == 600
    assert orch("check", "s3://data")[0] == 0
    code, again, err = orch(*command)
    assert (code, again) == (0, made)
    assert "stored 0 objects" in err


@pytest.mark.parametrize("sound", ["flac", "mp3"])
def test_speech_in_other_forms(store, orch, sound):
    command = ("make", "speech", "--to", "s3://data", "--shards", 1, "--samples-per-shard", 2)
    code, _, err = orch(*command, "--sound", sound)
    assert code == 0, err
    index = json.loads(store.get_object(Bucket="data", Key="index.json")["Body"].read())
    assert set(index["splits"]["train"]["shards"][0]["members"]) == {sound, "txt"}
    assert orch("check", "s3://data")[0] == 0
    code, _, err = orch(*command)
    assert code == 2
    assert "has another data set" in err


def test_power_and_photos_of_another_size(store, orch):
    small = ("--shards", 1, "--samples-per-shard", 1)
    assert orch("make", "power", "--to", "s3://data/p", *small)[0] == 0
    assert orch("check", "s3://data/p")[0] == 0
    assert orch("make", "photos", "--to", "s3://data/i", "--sizes", "imagenet", *small)[0] == 0
    index = json.loads(store.get_object(Bucket="data", Key="i/index.json")["Body"].read())
    assert index["made"]["sizes"] == "imagenet"


def test_pack_a_folder(store, orch, tmp_path):
    folder = images(tmp_path / "pictures")
    code, made, err = orch(
        "pack", folder, "s3://data/p", "--shard-size", "20kB", "--heldout", "0.3", "-o", "json"
    )
    assert code == 0, err
    assert sum(s["samples"] for s in made["splits"]) == 20
    assert made["splits"][0]["count"] > 1
    index = json.loads(store.get_object(Bucket="data", Key="p/index.json")["Body"].read())
    assert index["made"]["classes"] == ["c0", "c1"]
    assert orch("check", "s3://data/p")[0] == 0
    (folder / "c0" / "bad.jpg").write_bytes(b"no")
    again = ("pack", folder, "s3://data/p", "--shard-size", "20kB", "--heldout", "0.3")
    assert "has another data set (content" in orch(*again)[2]
    code, _, err = orch(*again, "--replace")
    assert code == 2
    assert "bad.jpg: the jpg cannot be decoded" in err
    code, _, err = orch("pack", folder, "s3://data/p", "--bad-samples", "skip", "--replace")
    assert code == 0
    assert "1 samples were left out" in err
    assert orch("check", "s3://data/p")[0] == 0


def test_texts_are_packed_into_samples_of_about_one_size(store, orch, tmp_path):
    table = tmp_path / "texts.csv"
    table.write_text("text\n" + "".join(f"text number {n}\n" for n in range(100)))
    pack = ("pack", table, "s3://data/t", "--heldout", "0.2", "-o", "json")
    made = orch(*pack)[1]
    assert sum(split["samples"] for split in made["splits"]) == 100
    assert "has another data set (text_bytes" in orch(*pack, "--text-bytes", "200B")[2]
    code, made, err = orch(*pack, "--text-bytes", "200B", "--replace")
    assert code == 0, err
    assert sum(split["samples"] for split in made["splits"]) == 9
    assert orch("check", "s3://data/t")[0] == 0
    assert "is not a size of at least 16 bytes" in orch(*pack, "--text-bytes", "few")[2]


def test_ctrl_c_leaves_a_data_set_that_is_incomplete_and_goes_on(store, orch, tmp_path, monkeypatch):
    from cloud.datasets import glyphs

    real = glyphs._record

    def interrupted(split, number, *rest):
        if number == 20:
            raise KeyboardInterrupt
        return real(split, number, *rest)

    command = ("make", "glyphs", "--to", "s3://data", "--shards", 4, "--samples-per-shard", 8)
    with monkeypatch.context() as patch:
        patch.setattr(glyphs, "_record", interrupted)
        code, out, err = orch(*command)
    assert (code, out) == (130, "")
    assert "run the same command again to go on" in err
    code, text, _ = orch("check", "s3://data")
    assert code == 1
    assert "the upload was not finished" in text
    assert orch(*command)[0] == 0
    assert orch("check", "s3://data")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["make", "glyphs", "--to", "data"], "is not a URL of an object store"),
        (["make", "glyphs", "--to", "s3://data", "--vocabulary", "600"], "only for stdlib"),
        (["make", "pages", "--to", "s3://data", "--chunk-bytes", "60"], "only for stdlib, not for pages"),
        (
            ["make", "power", "--to", "s3://data", "--vocabulary", "600"],
            "only for stdlib and pages, not for power",
        ),
        (["make", "glyphs", "--to", "s3://data", "--sizes", "imagenet"], "only for photos, not for glyphs"),
        (["make", "photos", "--to", "s3://data", "--sound", "mp3"], "only for speech, not for photos"),
        (
            ["make", "speech", "--to", "s3://data", "--sound", "ogg"],
            "'ogg' is not one of 'wav', 'flac', 'mp3'",
        ),
        (["make", "stdlib", "--to", "s3://data", "--shards", "3"], "use --samples-per-shard"),
        (["make", "pages", "--to", "s3://data", "--shards", "3"], "not for pages, whose text fills as many"),
        (["pack", "none", "s3://data"], "none does not exist"),
        (["pack", "none", "data"], "is not a URL"),
        (["pack", "none", "s3://data", "--shard-size", "big"], "is not a size"),
        (["pack", "none", "s3://data", "--column", "txt"], "is not EXTENSION=COLUMN"),
        (["check", "s3://data/x"], "has no bucket 'data'"),
        (["check", "s3://data/x", "-o", "csv"], "is not table or json"),
        (["check", "s3://data/x-{3..1}.tar"], "the range is reversed"),
    ],
)
def test_wrong_commands(store, orch, arguments, sentence):
    code, out, err = orch(*arguments)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


def test_a_prefix_without_shards(store, orch):
    store.create_bucket(Bucket="data")
    code, _, err = orch("check", "s3://data/x")
    assert code == 2
    assert "s3://data/x has no shards" in err


def test_help_explains(orch):
    for command in ("make", "pack", "check"):
        code, text, _ = orch(command, "--help")
        assert code == 0
        assert "JSON:" in text
