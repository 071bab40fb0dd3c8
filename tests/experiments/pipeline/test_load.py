"""A pipeline is found by the name of a built-in one, by module and name, or by file and name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.pipeline.builtin import digits, images
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.load import BUILT_IN, load_pipeline, pipeline_at
from experiments.pipeline.op import import_from


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"users_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "from experiments.pipeline.builtin import digits\nMINE = digits.pipeline()\nOTHER = 3\n"
    )
    (tmp_path / f"{name}_broken.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_pipeline_is_found_by_its_path(module: str):
    assert pipeline_at(f"{module}:MINE") == digits.pipeline()
    assert load_pipeline(f"{module}:MINE") == digits.pipeline()


@pytest.mark.parametrize("load", [pipeline_at, load_pipeline])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{}:NONE", "defines no NONE"),
        ("{}:OTHER", "is a int, not a Pipeline"),
        ("{}_broken:MINE", r"_broken\.py:2: ZeroDivisionError: division by zero"),
        ("{}_absent:MINE", "No module named"),
    ],
)
def test_what_is_no_pipeline_is_refused(module: str, load, path: str, reason: str):
    with pytest.raises(PipelineError, match=reason):
        load(path.format(module))


def test_a_file_is_found_from_a_folder_and_its_operations_can_be_imported(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_pipeline.py").write_text(
        "from experiments.pipeline.op import Op\n"
        "from experiments.pipeline.pipeline import Pipeline\n"
        "def size(data):\n    return len(data)\n"
        "MINE = Pipeline('own', {'x': ('bin',)}, (Op('size', 'own_pipeline:size', 'x', 'bytes', 'number'),))\n"
    )
    pipeline = load_pipeline("own/own_pipeline.py:MINE", folder=tmp_path)
    assert pipeline.run({"__key__": "k", "__url__": "u", "bin": b"abc"}, 0, 0) == {"x": 3}
    assert load_pipeline(f"{tmp_path}/own/own_pipeline.py:MINE") is pipeline
    (tmp_path / "own_pipeline.py").write_text("MINE = 1\n")
    with pytest.raises(
        PipelineError, match=r"own_pipeline\.py has the name of the module .*own/own_pipeline\.py"
    ):
        load_pipeline("own_pipeline.py:MINE", folder=tmp_path)
    sys.modules.pop("own_pipeline")


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (
            "imagnet",
            "'imagnet' is no pipeline; use digits, imagenet, .*, or your own as file.py:NAME or module:NAME",
        ),
        (":NAME", "is no pipeline"),
        ("absent.py:NAME", r"absent\.py does not exist in /"),
        ("my-file.py:NAME", r"my-file is not a name in Python; rename the file"),
        ("json.py:NAME", r"json\.py has the name of the module .*json/__init__\.py, which is loaded"),
        ("sys.py:NAME", r"sys\.py has the name of the module sys, which is loaded"),
    ],
)
def test_what_names_no_pipeline_is_refused(tmp_path: Path, where: str, reason: str):
    for name in ("my-file.py", "json.py", "sys.py"):
        (tmp_path / name).touch()
    with pytest.raises(PipelineError, match=reason):
        load_pipeline(where, folder=tmp_path)


def test_a_built_in_one_gets_its_settings():
    assert load_pipeline("digits") == digits.pipeline()
    assert load_pipeline("images", {"size": 32, "augment": "crop"}) == images.pipeline(32, augment="crop")
    assert all(callable(import_from(path)) for path in BUILT_IN.values())


@pytest.mark.parametrize(
    ("where", "settings", "reason"),
    [
        (
            "images",
            {"sise": 3},
            "pipeline images: got an unexpected keyword argument 'sise'; its settings are size, channels",
        ),
        (
            "text-lm",
            {},
            "pipeline text-lm: missing a required argument: 'tokenizer'; its settings are tokenizer, length",
        ),
        ("digits", {"size": 3}, "pipeline digits: .*; its settings are none"),
        ("images", {"size": "big"}, r"pipeline images cannot be built from .*TypeError"),
        ("images", {"size": 0}, "size is 0"),
        ("m:NAME", {"size": 3}, "pipeline m:NAME takes no settings, but got size; remove them"),
    ],
)
def test_wrong_settings_are_refused(where: str, settings: dict, reason: str):
    with pytest.raises(PipelineError, match=reason):
        load_pipeline(where, settings)
