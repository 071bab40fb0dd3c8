"""Saved models: loaded by the task and by plain transformers, alike; files that do not fit are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from task_rig import (
    SENTENCES,
    SMALL_BERT,
    SMALL_LLAMA,
    SMALL_RESNET,
    SMALL_VIT,
    TINY_WHISPER,
    batches_of,
    digest,
    image_samples,
    losses_of,
    sample,
    sound_samples,
    text_samples,
)  # fmt: skip

from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.errors import TaskError
from experiments.tasks.saving import TASK_FILE, WEIGHTS_FILE, load, load_into, load_weights, save
from experiments.tasks.speech_recognition import build as build_speech

TEXT = {"sequence_length": 32}
CASES = [
    ("image-classification", {"classes": 4, "image_size": 32}),
    ("image-classification", {"classes": 4, "image_size": 32, "config": SMALL_RESNET}),
    ("image-classification", {"classes": 4, "config": SMALL_VIT}),
    ("causal-lm", TEXT),
    ("causal-lm", {**TEXT, "config": {**SMALL_LLAMA, "tie_word_embeddings": True}}),
    ("causal-lm", {**TEXT, "config": SMALL_LLAMA}),
    ("masked-lm", TEXT),
    ("masked-lm", {**TEXT, "config": SMALL_BERT}),
    ("speech-recognition", {"sequence_length": 16, "config": TINY_WHISPER}),
]
AUTO = {
    "image-classification": "AutoModelForImageClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "speech-recognition": "AutoModelForSpeechSeq2Seq",
}
TIED = {"causal-lm": 1, "masked-lm": 2, "speech-recognition": 1}  # names of a tied tensor or bias left out


def trained(kind: str, settings: dict, tokenizer: str):
    """A task after three steps, and held-out batches."""
    settings = settings if kind == "image-classification" else {"tokenizer": tokenizer, **settings}
    task = build(BUILT_IN[kind], settings, 1)
    make = {"image-classification": image_samples, "speech-recognition": sound_samples}.get(
        kind, text_samples
    )
    found = make(6)
    losses_of(task, batches_of(task, found, 3), 3)
    return task, batches_of(task, found, 3, heldout=True)


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_saved_model_evaluates_alike(kind: str, settings: dict, tokenizer: str, tmp_path: Path) -> None:
    task, heldout = trained(kind, settings, tokenizer)
    save(task, tmp_path / "m")
    moved = (tmp_path / "m").rename(tmp_path / "moved")
    same = load(moved)
    assert digest(same) == digest(task)
    assert same.evaluate(heldout) == pytest.approx(task.evaluate(heldout), abs=1e-6)
    save(same, tmp_path / "again")
    assert {p.name: p.read_bytes() for p in moved.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(
    ("kind", "settings"), [case for case in CASES if case[1].get("image_size") is None or "config" in case[1]]
)
def test_plain_transformers_loads_it(kind: str, settings: dict, tokenizer: str, tmp_path: Path) -> None:
    import transformers

    task, heldout = trained(kind, settings, tokenizer)
    expected = task.evaluate(heldout)
    save(task, tmp_path)
    auto = getattr(transformers, AUTO[kind])
    model, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    task.model = model
    assert task.evaluate(heldout) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(("kind", "settings"), [case for case in CASES if case[1] is TEXT])
def test_tied_weights_are_stored_once_and_stay_tied(
    kind: str, settings: dict, tokenizer: str, tmp_path: Path
) -> None:
    task, _ = trained(kind, settings, tokenizer)
    save(task, tmp_path)
    with safe_open(tmp_path / WEIGHTS_FILE, "pt") as file:
        names = set(file.keys())
        assert file.metadata()["format"] == "pt"
    assert len(task.model.state_dict()) - len(names) == TIED[kind]
    again = load(tmp_path).model
    assert again.get_input_embeddings().weight is again.get_output_embeddings().weight


@pytest.mark.slow  # transformers is imported
def test_transformers_tokenizer_is_the_pipelines(tokenizer: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    task, _ = trained("masked-lm", TEXT, tokenizer)
    save(task, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    own = task.tokenizer.tokenizer
    for text in SENTENCES:
        assert loaded.encode(text, add_special_tokens=False) == own.encode(text, add_special_tokens=False).ids
    assert (loaded.pad_token, loaded.mask_token, loaded.eos_token) == ("<pad>", "<mask>", "</s>")
    assert loaded.model_max_length == 32


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize("augment", ["none", "imagenet"])
def test_transformers_image_processor_does_what_the_heldout_pipeline_does(
    augment: str, tmp_path: Path
) -> None:
    from transformers import AutoImageProcessor

    settings = {"classes": 4, "image_size": 32, "augment": augment, "config": SMALL_RESNET}
    task = build(BUILT_IN["image-classification"], settings, 0)
    save(task, tmp_path)
    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 255, (50, 50, 3), dtype=np.uint8))
    file = io.BytesIO()
    picture.save(file, "png")
    item = task.heldout_pipeline.run(sample(0, png=file.getvalue(), cls=b"1"), seed=0, pass_number=0)
    processor = AutoImageProcessor.from_pretrained(tmp_path, use_fast=False)
    made = processor(picture, return_tensors="np")["pixel_values"][0]
    assert made.shape == item["image"].shape == (3, 32, 32)
    assert np.abs(made - item["image"]).mean() < 0.01


@pytest.mark.slow  # transformers is imported
def test_transformers_feature_extractor_has_the_pipelines_shape(tokenizer: str, tmp_path: Path) -> None:
    from transformers import AutoFeatureExtractor

    task, heldout = trained("speech-recognition", CASES[-1][1], tokenizer)
    save(task, tmp_path)
    extractor = AutoFeatureExtractor.from_pretrained(tmp_path)
    made = extractor(np.zeros(16000), sampling_rate=16000, return_tensors="pt")["input_features"]
    assert made.shape[1:] == heldout[0]["audio"].shape[1:]


def test_a_copy_of_the_state_is_saved_in_place_of_the_present_one(tmp_path: Path) -> None:
    task = build(BUILT_IN["image-classification"], {"classes": 4}, 0)
    copy = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    before = digest(task)
    with torch.no_grad():
        next(task.model.parameters()).add_(1)
    save(task, tmp_path, state=copy)
    assert digest(load(tmp_path)) == before
    copy.pop("head.bias")
    with pytest.raises(TaskError, match=r"the given state has no tensor head.bias"):
        save(task, tmp_path, state=copy)


@pytest.mark.slow  # transformers is imported
def test_weights_are_a_setting(tokenizer: str, tmp_path: Path) -> None:
    task, _ = trained("causal-lm", TEXT, tokenizer)
    save(task, tmp_path)
    settings = {"tokenizer": tokenizer, **TEXT}
    tuned = build(BUILT_IN["causal-lm"], {**settings, "weights": str(tmp_path / WEIGHTS_FILE)}, 9)
    assert digest(tuned) == digest(task) != digest(build(BUILT_IN["causal-lm"], settings, 9))
    stored = load_file(tmp_path / WEIGHTS_FILE)
    short = {
        name.removeprefix("transformer."): tensor for name, tensor in stored.items()
    }  # as in GPT-2's own file
    assert short.keys() != stored.keys()
    save_file({**short, "h.0.attn.bias": torch.zeros(1)}, tmp_path / "short.safetensors")
    tuned = build(BUILT_IN["causal-lm"], {**settings, "weights": str(tmp_path / "short.safetensors")}, 9)
    assert digest(tuned) == digest(task)


def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    task = build(BUILT_IN["image-classification"], {"classes": 4}, 0)
    before = digest(task)
    other = build(BUILT_IN["image-classification"], {"classes": 5}, 1)
    save(other, tmp_path)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    save_file({n: t for n, t in stored.items() if n != "head.bias"}, tmp_path / "part.safetensors")
    whole = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    torch.save(stored, tmp_path / "pytorch_model.bin")
    for name, message in (
        (WEIGHTS_FILE, r"tensor head.weight has the shape \[5, 512\], but the model's has \[4, 512\]"),
        ("part.safetensors", "has no tensor head.bias, which the model has"),
        ("cut.safetensors", "is not a whole safetensors file"),
        ("pytorch_model.bin", "is not a whole safetensors file .* pickled weights are refused"),
        ("none.safetensors", "cannot be read"),
    ):
        if name == "part.safetensors":
            fitting = build(BUILT_IN["image-classification"], {"classes": 5}, 0)
            with pytest.raises(TaskError, match=message):
                load_weights(fitting, tmp_path / name)
            continue
        with pytest.raises(TaskError, match=message) as caught:
            load_weights(task, tmp_path / name)
        assert "\n" not in str(caught.value)
        assert digest(task) == before


def test_a_folder_is_loaded_into_the_task_that_it_is_of(tmp_path: Path) -> None:
    task = build(BUILT_IN["image-classification"], {"classes": 4}, 0)
    save(task, tmp_path)
    same = build(BUILT_IN["image-classification"], {"classes": 4, "model": ""}, 1)
    load_into(same, tmp_path)
    assert digest(same) == digest(task)
    other = build(BUILT_IN["image-classification"], {"classes": 4, "augment": "flip"}, 1)
    before = digest(other)
    with pytest.raises(TaskError, match=r"task.json is of another task: its 'with' is \{'classes': 4\}"):
        load_into(other, tmp_path)
    assert digest(other) == before


def test_folders_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task.json cannot be read"):
        load(tmp_path)
    save(SimpleNamespace(model=torch.nn.Linear(2, 1)), tmp_path)  # type: ignore[arg-type]
    assert load_file(tmp_path / WEIGHTS_FILE).keys() == {"weight", "bias"}
    with pytest.raises(TaskError, match=r"task.json does not say how the task is built"):
        load(tmp_path)
    (tmp_path / TASK_FILE).write_text(json.dumps({"format": 2}))
    with pytest.raises(TaskError, match=r"has another format than 1"):
        load(tmp_path)


@pytest.mark.slow  # transformers is imported
def test_transformers_decodes_as_the_task_does(tokenizer: str, tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    task = build_speech({"tokenizer": tokenizer, "sequence_length": 16, "config": TINY_WHISPER}, 3)
    found = sound_samples(3)
    losses_of(task, batches_of(task, found, 3), 40, lr=5e-3)
    [batch] = batches_of(task, found, 3)
    task.model.eval()
    expected = task.decode(batch["audio"])
    assert any(expected)
    save(task, tmp_path)
    plain = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    tokens = plain.generate(batch["audio"], max_new_tokens=16)
    assert task.tokenizer.tokenizer.decode_batch(tokens.tolist(), skip_special_tokens=True) == expected
