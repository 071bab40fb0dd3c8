"""docs/pipelines.md: its example is run, its tables have every kind, codec, pipeline and setting."""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from cloud.datasets.stdlib import train_tokenizer
from experiments.pipeline.codecs import CODECS, DEFAULT_CODEC, KINDS
from experiments.pipeline.errors import BadSampleError
from experiments.pipeline.load import BUILT_IN, load_pipeline
from experiments.pipeline.op import import_from
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import storable

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")


def rows(columns: int) -> list[list[str]]:
    """Cells of the tables' rows with so many columns, without heads."""
    lines = (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `"))
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The pipeline of the page, found as the page's experiment names it."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [experiment] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    where = yaml.safe_load(experiment)["data"]["pipeline"]
    (tmp_path / where.split(":")[0]).write_text(code, encoding="utf-8")
    yield load_pipeline(where, folder=tmp_path)
    sys.modules.pop("my_pipeline", None)


def a_sample(**changed: bytes) -> dict:
    file = io.BytesIO()
    Image.linear_gradient("L").save(file, "png")
    members = {"png": file.getvalue(), "json": json.dumps({"area_cm2": 12.5}).encode(), **changed}
    return {"__key__": "0417", "__url__": "s3://leaves/train-000003.tar", **members}


def test_the_example_runs_and_is_random_by_pass_only(example: Pipeline):
    first, again, second = (example.run(a_sample(), seed=1, pass_number=n) for n in (0, 0, 1))
    assert first["area"] == 12.5
    assert (first["image"].shape, first["image"].dtype) == ((1, 32, 32), np.float32)
    assert 0 <= first["image"].min() < 0.2 < 0.7 < first["image"].max() <= 1
    assert np.array_equal(first["image"], again["image"])
    assert not np.array_equal(first["image"], second["image"])
    assert len({example.fingerprint(k) for k in range(5)}) == 5


def test_its_bad_samples_read_as_on_the_page(example: Pipeline):
    [shown] = re.findall(r"```\n(s3://.*?) \.\.\.\n```", PAGE)
    expected = re.escape(shown).replace("my_pipeline", ".*my_pipeline")
    with pytest.raises(BadSampleError, match=f"^{expected}"):
        example.run(a_sample(png=b"none"), 0, 0)
    with pytest.raises(
        BadSampleError, match=r"operation area: the area is 0\.0 cm2, but a leaf has one above 0; "
    ):
        example.run(a_sample(json=b'{"area_cm2": 0}'), 0, 0)


def test_the_table_has_every_kind_and_codec():
    shown = {kind.strip("`"): re.findall(r"`([^`]+)`", codecs) for kind, _, codecs in rows(3)}
    assert list(shown) == list(KINDS)
    for kind, codecs in shown.items():
        assert codecs[0] == DEFAULT_CODEC[kind]
        assert set(codecs) == {codec.name for codec in CODECS.values() if codec.kind == kind}


def test_the_table_has_every_built_in_pipeline_with_its_settings():
    shown = {name.strip("`"): re.findall(r"`([^`]+)`", settings) for name, settings, _, _ in rows(4)}
    assert list(shown) == list(BUILT_IN)
    for name, settings in shown.items():
        assert sorted(settings) == sorted(inspect.signature(import_from(BUILT_IN[name])).parameters), name


def test_the_operations_of_prestos_pipelines_are_those_on_the_page(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer(["a b"], 260))
    settings = {"text": {"tokenizer": str(tmp_path / "tokenizer.json")}}
    shown = {re.findall(r"`([^`]+)`", name)[0]: operations for name, operations in rows(2)}
    assert set(shown) == {"imagenet-resize", "text", "speech-mel", "power"}
    for name, operations in shown.items():
        written = [
            (part.partition(":")[0].removesuffix(" (random)"), "(random)" in part)
            for part in operations.split("; ")
        ]
        assert written == [(op.name, op.random) for op in load_pipeline(name, settings.get(name)).ops]


def test_the_page_says_how_much_may_be_stored():
    for name, most in (("imagenet", 1), ("imagenet-resize", 3)):
        assert storable(load_pipeline(name)) == most
    assert "1 of `imagenet` (decode), 3 of `imagenet-resize`" in PAGE
