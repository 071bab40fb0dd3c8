"""Manifests and names: any manifest survives its JSON; what is not one is refused by name."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
from checkpoint_rig import manifest
from hypothesis import given
from hypothesis import strategies as st

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import checkpoint_name, parse_key, parse_name, run_prefix
from experiments.checkpoints.listing import Listed, examine, newest_first, older_than, removable
from experiments.checkpoints.manifest import Manifest, StoredFile

VMS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
EPOCHS = st.integers(0, 10**12)
TEXT = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20)
FILES = st.dictionaries(
    st.builds(
        "{}/{}".format,
        st.sampled_from(["model", "state"]),
        st.from_regex(r"[a-z][a-z0-9._é ]*", fullmatch=True),
    ),
    st.builds(StoredFile, st.integers(0, 2**50), st.text("0123456789abcdef", min_size=64, max_size=64)),
)
MANIFESTS = st.builds(
    Manifest,
    run_id=TEXT,
    epoch=EPOCHS,
    vm=VMS,
    slot=TEXT,
    made_at_s=st.floats(0, 1e11),
    samples=st.none() | st.integers(0, 10**18),
    ran=TEXT,
    task_sha256=st.text(string.hexdigits, max_size=64),
    parent=st.none() | TEXT,
    trained_with=st.none() | st.just({"optimizer": {"name": "adam"}, "schedule": {}, "target_batch_size": 64}),
    files=FILES,
)  # fmt: skip


def files_of(*names: str) -> dict:
    return {"files": {name: {"bytes": 1, "sha256": "0" * 64} for name in names}}


@given(MANIFESTS)
def test_a_manifest_survives_its_json(made):
    assert Manifest.from_json(made.to_json(), "here") == made


@given(MANIFESTS, st.data())
def test_a_manifest_that_lacks_a_key_is_refused(made, data):
    document = json.loads(made.to_json())
    del document["trained_with"]  # those of earlier versions lack it
    assert Manifest.from_json(json.dumps(document), "here") == replace(made, trained_with=None)
    del document[data.draw(st.sampled_from(sorted(document)))]
    with pytest.raises(CheckpointError, match="here is not the manifest of a checkpoint") as raised:
        Manifest.from_json(json.dumps(document), "here")
    assert raised.value.code == "corrupt"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"format": 2}, "newer_format", "here has format 2, and this version of orch reads format 1"),
        ({"format": 0}, "corrupt", "format 0"),
        ({"format": True}, "corrupt", "format is True"),
        ({"name": "epoch-00000004-run-1-a-1"}, "corrupt", "is not that of epoch 3"),
        ({"epoch": "3"}, "corrupt", "epoch is '3'"),
        ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "corrupt", "'../x' is not a file"),
        ({"files": {"model/../../x": {"bytes": 1, "sha256": "0" * 64}}}, "corrupt", "is not a file"),
        ({"files": {"model/x": {"bytes": -1, "sha256": "0" * 64}}}, "corrupt", "-1 bytes"),
        ({"files": {"model/x": {"bytes": 1, "sha256": "no"}}}, "corrupt", "SHA-256 'no'"),
        ({"made_at_s": float("nan")}, "corrupt", "made_at_s"),
        ({"made_at_s": -1e308}, "corrupt", "made_at_s"),
        ({"made_at_s": 10**400}, "corrupt", "too large"),
        ({"samples": 10**19}, "corrupt", "samples is not a number from 0"),
        ({"slot": "\ud800"}, "corrupt", r"slot is '\\ud800', not printable"),
        ({"ran": "\x1b[31m"}, "corrupt", "ran is .*, not printable"),
        ({"parent": "x" * 501}, "corrupt", "at most 500 characters"),
        ({"trained_with": []}, "corrupt", "trained_with is not an object"),
        ({"trained_with": {"optimizer": "adam"}}, "corrupt", "trained_with is not an object"),
        ({"trained_with": {"optimizer": {"name": "x" * 10_000}}}, "corrupt", "more than 10000 characters"),
        (files_of("model/" + "é" * 128), "corrupt", "is not a file of"),
        (files_of("model/\ud800"), "corrupt", "is not a file of"),
        (files_of("model/a", "model/a/b"), "corrupt", "model/a is a file, and the folder"),
    ],
)
def test_other_manifests_are_refused_by_name(changes, code, message):
    document = {**json.loads(manifest(3).to_json()), **changes}
    with pytest.raises(CheckpointError, match=message) as raised:
        Manifest.from_json(json.dumps(document), "here")
    assert raised.value.code == code


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\ufffd", "[" * 200_000])
def test_other_files_are_no_manifests(text):
    with pytest.raises(CheckpointError) as raised:
        Manifest.from_json(text, "here")
    assert raised.value.code == "corrupt"


@given(EPOCHS, VMS)
def test_names_are_parsed_to_what_they_were_made_of(epoch, vm):
    assert parse_name(checkpoint_name(epoch, vm)) == (epoch, vm)


def test_names_of_others_are_not_parsed():
    assert checkpoint_name(12, "r-a-1") == "epoch-00000012-r-a-1"
    assert run_prefix("s3://b/p/", "r") == run_prefix("s3://b/p", "r") == "s3://b/p/r"
    assert parse_name(f"epoch-00000012-{'a' * 226}") is None
    for name in ("epoch-12-a", "epoch-00000012", "epoch-00000012-", "epoch-000000012-a", "xepoch-00000012-a"):
        assert parse_name(name) is None
    name = "epoch-00000012-a"
    assert parse_key(f"{name}/model/sub/x.json") == (name, "model/sub/x.json")
    for key in (
        name,
        f"{name}/",
        f"{name}/notes.txt",
        f"{name}/model/",
        f"{name}/model/../x",
        f"x/{name}/manifest.json",
    ):
        assert parse_key(key) is None
    with pytest.raises(ValueError, match="not a checkpoint's name"):
        checkpoint_name(1, "a/b")


def listed(epoch: int, vm: str, code=None, made_at_s: float = 0.0) -> Listed:
    about = manifest(epoch, vm, made_at_s=made_at_s)
    problem = CheckpointError(code, "a problem") if code else None
    return Listed(about.name, epoch, vm, None if code == "incomplete" else about, problem, 1)


def test_newest_is_of_the_greatest_epoch_then_of_the_latest_time():
    found = newest_first([listed(9, "b", made_at_s=5), listed(10, "a"), listed(9, "a", made_at_s=7)])
    assert [(one.epoch, one.vm) for one in found] == [(10, "a"), (9, "a"), (9, "b")]


def test_the_older_one_that_is_offered_is_complete():
    found = [listed(9, "a"), listed(8, "a", "corrupt"), listed(7, "a")]
    assert older_than(found[0].name, found) == found[2].name
    assert older_than(checkpoint_name(8, "zz"), found) == found[2].name
    assert older_than(found[2].name, found) is None


def test_retention_keeps_the_newest_and_all_that_is_not_surely_over():
    found = newest_first(
        [
            listed(12, "b", "incomplete"),  # may be going on
            listed(12, "a"),
            listed(11, "x", "newer_format"),
            listed(11, "y", "foreign"),
            listed(11, "z", "incomplete"),
            listed(10, "a"),
            listed(9, "a"),
            listed(8, "a", "corrupt"),
        ]
    )
    removed = [name.removeprefix("epoch-000000") for name in removable(found, 2)]
    assert removed == ["11-z", "09-a", "08-a"]
    assert [name.removeprefix("epoch-000000") for name in removable(found, 0)] == [
        "11-z",
        "10-a",
        "09-a",
        "08-a",
    ]
    assert removable([listed(1, "a", "incomplete")], 1) == ()


def test_retention_keeps_what_was_just_stored_after_a_greater_epoch_could_not_be_used():
    unusable, older = listed(30, "a", made_at_s=3), listed(20, "a", made_at_s=2)
    first, second = listed(22, "b", made_at_s=4), listed(24, "b", made_at_s=5)
    going_on = listed(23, "c", "incomplete")
    assert removable([unusable, first, older], 1, first.name) == (older.name,)
    assert removable([unusable, first, older], 2, first.name) == ()
    assert removable([unusable, going_on, first, older], 2, first.name) == ()
    assert removable([unusable, second, going_on, first, older], 2, second.name) == (
        going_on.name,
        older.name,
    )
    other = listed(21, "c", made_at_s=6)  # by another writer, since
    assert removable([second, other], 1, second.name) == ()


def test_a_checkpoint_is_examined_by_its_manifest_and_sizes():
    about = manifest(3, files={"model/x": StoredFile(5, "0" * 64), "state/y": StoredFile(2, "0" * 64)})
    sizes = {"model/x": 5, "state/y": 2, "manifest.json": 1}

    def problem(sizes: dict[str, int], run_id: str = "run-1", text: str | None = about.to_json()):
        one = examine(about.name, "s3://here", run_id, sizes, text)
        return None if one.problem is None else (one.problem.code, str(one.problem))

    assert problem(sizes) is None
    listed = [examine(about.name, "s3://here", "run-1", sizes, text) for text in (about.to_json(), None)]
    assert [one.bytes for one in listed] == [7, 8]
    assert problem(sizes, text=None) == (
        "incomplete",
        "s3://here has no manifest.json: its upload did not finish, or is going on",
    )
    of_other = "s3://here has the manifest of {} of run run-1, not its own"
    assert problem(sizes, run_id="other") == ("foreign", of_other.format(about.name))
    assert problem(sizes, text=manifest(3, "b").to_json()) == ("foreign", of_other.format("epoch-00000003-b"))
    large = f"s3://here/manifest.json is not the manifest of a checkpoint (it has {10**9} bytes, more than 16000000)"
    assert problem({**sizes, "manifest.json": 10**9}) == ("corrupt", large)
    cut = {**sizes, "model/x": 4}
    assert problem(cut) == ("corrupt", "s3://here/model/x is cut: it has 4 of 5 bytes")
    del sizes["state/y"]
    assert problem(sizes) == ("incomplete", "s3://here lacks its file state/y")
