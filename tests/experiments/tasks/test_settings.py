"""Settings of the built-in tasks: accepted, and refused in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.tasks.errors import TaskError
from experiments.tasks.models import MODELS, VISION
from experiments.tasks.settings import SETTINGS, CausalLm, ImageClassification, read_settings
from experiments.tasks.transformers_models import SMALL, build_from_config, read_config

SMALL_VIT = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def test_every_named_model_is_a_setting_and_can_be_built() -> None:
    named = [name for settings in SETTINGS.values() for name in settings.models]
    assert sorted(named) == sorted(["small-cnn", *SMALL, *MODELS])
    assert ImageClassification.models == ("small-cnn", *VISION)


def test_defaults() -> None:
    settings = read_settings("causal-lm", {"tokenizer": "t.json"})
    assert isinstance(settings, CausalLm)
    assert (settings.model_name, settings.sequence_length) == ("small-gpt2", 128)
    assert read_settings("causal-lm", {"tokenizer": "t.json", "config": "c.json"}).model_name == ""


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("image-classification", {"clases": 3}, "'clases' is not a setting; use model, config, weights,"),
        ("image-classification", {"classes": "3"}, "classes: '3' is refused: input should be a valid integer"),
        ("image-classification", {"classes": 1}, "classes: 1 is refused: input should be greater than or"),
        ("image-classification", {"model": "ResNet"}, "model: 'ResNet' is not one of small-cnn, ConvNextLarge,"),
        ("image-classification", {"model": "ResNet18", "config": "c"}, "model and config are both given"),
        ("causal-lm", {}, "'tokenizer' is missing: Path or s3:// URL of a tokenizer.json"),
        ("masked-lm", {"tokenizer": "t", "mask_fraction": 1.5}, "mask_fraction: 1.5 is refused"),
        ("speech-recognition", {"tokenizer": 3, "x": 1}, "tokenizer: 3 is refused: .*; 'x' is not a setting"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(task: str, config: dict, message: str) -> None:
    with pytest.raises(TaskError, match=f"^{message}") as caught:
        read_settings(task, config)
    assert "\n" not in str(caught.value)


def test_settings_are_checked_without_torch() -> None:
    code = (
        "import sys, experiments.tasks.settings as s;"
        "print(s.read_settings('causal-lm', {'tokenizer': 't'}).model_name, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["small-gpt2", "False"]


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("image-classification", {}, "config: it has no model_type; add one, for example resnet"),
        ("image-classification", {"model_type": "vitt"}, "config: model_type 'vitt' is not known to transformers 4"),
        ("image-classification", {"model_type": "bert"}, "config: a model of type bert cannot do image-class"),
        ("causal-lm", {"model_type": "vit"}, "config: a model of type vit cannot do causal-lm; use for example gpt2"),
        ("masked-lm", {"model_type": "bert", "hidden_sise": 3}, "config: 'hidden_sise' is not a key .* hidden_size"),
        ("causal-lm", {"model_type": "gpt2", "auto_map": {}}, "config: auto_map is not supported"),
        (
            "image-classification",
            {"model_type": "vit", "hidden_size": 30, "num_attention_heads": 7},
            r"config: transformers rejects it \(ValueError: The hidden size 30 is not a multiple",
        ),
    ],
)  # fmt: skip
def test_a_rejected_config_is_one_sentence(task: str, config: dict, message: str) -> None:
    with pytest.raises(TaskError, match=f"^{message}") as caught:
        build_from_config(task, config)
    assert "\n" not in str(caught.value)


@pytest.mark.slow  # transformers is imported
def test_a_config_file_is_built_in_float32_whatever_it_says(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "config.json"
    other = {"torch_dtype": "float16", "transformers_version": "4.0.0", "of_another_version": 1}
    path.write_text(json.dumps({**SMALL_VIT, **other}))
    model = build_from_config("image-classification", str(path), {"num_labels": 5})
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.num_labels == 5


def test_an_unreadable_config_file_is_named(tmp_path: Path) -> None:
    for content, message in (("{", "is not JSON"), ("[]", "is not a JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(TaskError, match=rf"config.json {message}"):
            read_config(str(tmp_path / "config.json"))
    with pytest.raises(TaskError, match=r"none\.json cannot be read"):
        read_config(str(tmp_path / "none.json"))
