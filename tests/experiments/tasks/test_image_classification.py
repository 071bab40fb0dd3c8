"""Image classification on drawn images: through the pipeline, trained, evaluated, saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from task_rig import SMALL_RESNET, SMALL_VIT, batches_of, digest, image_samples, losses_of
from torch.nn import functional

from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.errors import TaskError
from experiments.tasks.image_classification import build as build_classifier

CALL = BUILT_IN["image-classification"]


@pytest.mark.slow  # torch and transformers are imported
@pytest.mark.parametrize(
    ("settings", "lr"),
    [
        ({"classes": 4, "image_size": 32}, 3e-3),
        ({"classes": 4, "image_size": 32, "augment": "crop"}, 3e-3),
        ({"classes": 4, "image_size": 32, "config": SMALL_RESNET}, 1e-2),
        ({"classes": 4, "config": SMALL_VIT}, 3e-3),
        ({"classes": 4, "config": SMALL_VIT, "gradient_checkpointing": True}, 3e-3),
    ],
)
def test_it_learns_and_equal_seeds_give_equal_weights(settings: dict, lr: float) -> None:
    task, same, other = (build(CALL, settings, seed) for seed in (5, 5, 6))
    assert digest(task) == digest(same) != digest(other)
    found = image_samples(64)
    made = batches_of(task, found, 16)
    losses = losses_of(task, made, 20, lr)
    losses_of(same, made, 20, lr)
    assert np.mean(losses[-4:]) < 0.75 * np.mean(losses[:4])
    assert digest(task) == digest(same)
    before = digest(task)
    figures = task.evaluate(batches_of(task, found, 16, heldout=True))
    assert set(figures) == {"loss", "accuracy"}
    assert digest(task) == before
    assert task.model.training


def test_the_small_default_is_small() -> None:
    task = build(CALL, {"classes": 62}, 0)
    assert 100_000 < sum(p.numel() for p in task.model.parameters()) < 300_000
    assert not dict(task.model.named_buffers())


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build_classifier({"classes": 4}, 7)
    assert torch.equal(torch.rand(1), expected)


def test_evaluation_weighs_images_not_batches() -> None:
    task = build_classifier({"classes": 4, "image_size": 32}, 0)
    found = image_samples(21)
    [whole] = batches_of(task, found, 21, heldout=True)
    with torch.no_grad():
        logits = task.model(whole["images"])
    expected = {
        "loss": float(functional.cross_entropy(logits, whole["labels"])),
        "accuracy": float((logits.argmax(1) == whole["labels"]).float().mean()),
    }
    assert task.evaluate(batches_of(task, found, 8, heldout=True)) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(TaskError, match=r"no images to evaluate; add samples to data.heldout"):
        task.evaluate([])


@pytest.mark.slow  # a model of 11 million parameters
def test_the_papers_models_take_other_classes() -> None:
    task = build_classifier({"model": "ResNet18", "classes": 4}, 0)
    assert task.model(torch.zeros(1, 3, 64, 64)).logits.shape == (1, 4)
    assert [op.name for op in task.pipeline.ops][:3] == ["decode", "crop", "flip"]
    assert build_classifier({"model": "ResNet18"}, 0).model.config.num_labels == 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "'classes' is missing: say how many classes the labels have"),
        ({"classes": 4, "config": {"model_type": "vit", "num_labels": 5}}, "classes: 4, but config has 5"),
        ({"image_size": 64, "config": {**SMALL_VIT, "num_labels": 5}}, "image_size: 64, but config has 32"),
        ({"classes": 4, "gradient_checkpointing": True}, "gradient_checkpointing: small-cnn does not support it"),
        ({"classes": 4, "config": {**SMALL_VIT, "num_channels": 1}}, "config: num_channels is 1"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        build_classifier(settings, 0)


def test_items_that_do_not_fit_are_refused() -> None:
    task = build_classifier({"classes": 4}, 0)
    image = np.zeros((3, 64, 64), np.float32)
    for items, message in (
        ([{"image": image, "label": 4}], "label 4 is out of range: with 4 classes, labels are 0 to 3"),
        ([{"image": image}], "image-classification needs a field 'label', but the pipeline gives only image"),
        (
            [{"image": image, "label": 0}, {"image": image[:, 1:], "label": 0}],
            r"field 'image': samples of the shapes \(3, 63, 64\) and \(3, 64, 64\) cannot form a batch",
        ),
    ):
        with pytest.raises(TaskError, match=message):
            task.collate(items)
