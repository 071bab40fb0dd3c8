"""Image classification: cross-entropy over classes; accuracy on held-out images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.pipeline.builtin import imagenet, images
from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.builtin import BuiltInTask, evaluating, logits_of, mean, seeded, stack
from experiments.tasks.errors import TaskError
from experiments.tasks.models import MODELS
from experiments.tasks.saving import load_weights
from experiments.tasks.settings import ImageClassification, read_settings
from experiments.tasks.small_cnn import SmallCnn
from experiments.tasks.transformers_models import (
    build_from_config,
    enable_gradient_checkpointing,
    read_config,
)

TASK = "image-classification"
_PAPER_CLASSES, _PAPER_SIZE, _SMALL_SIZE = 1000, 224, 64

Batch = dict[str, torch.Tensor]
"""images: float32 (n, 3, h, w), normalised; labels: int64 (n,)."""


class ImageClassificationTask(BuiltInTask):
    """Items have `image`, a float32 array (3, h, w), and `label`, an integer from 0 to `classes` - 1."""

    def __init__(
        self,
        settings: ImageClassification,
        model: nn.Module,
        pipelines: tuple[Pipeline, Pipeline],
        *,
        classes: int,
        size: int,
        resize: int,
    ) -> None:
        """`size`, `resize`: sides in pixels of the input, and of the shorter side of a held-out image before the cut."""
        super().__init__(TASK, settings, model, *pipelines)
        self.classes, self._size, self._resize = classes, size, resize

    def collate(self, items: Sequence[Item]) -> Batch:
        """Stack images and labels. Raises TaskError for a label that is no class."""
        labels = stack(TASK, items, "label", np.int64)
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise TaskError(
                f"label {int(wrong[0])} is out of range: with {self.classes} classes, labels are 0 to {self.classes - 1}; "
                "correct the data, or the setting 'classes'"
            )
        return {"images": stack(TASK, items, "image", np.float32), "labels": labels}

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy per image."""
        return functional.cross_entropy(logits_of(self.model(batch["images"])), batch["labels"])

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss (mean cross-entropy per image) and accuracy, 0 to 1. Raises TaskError without images."""
        loss, right, count = 0.0, 0, 0
        with evaluating(self.model):
            for batch in batches:
                logits, labels = logits_of(self.model(batch["images"])), batch["labels"]
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(dim=1) == labels).sum())
                count += len(labels)
        return {"loss": mean(loss, count, "images"), "accuracy": mean(right, count, "images")}

    def save_files(self, folder: Path) -> None:
        """Write preprocessor_config.json: what the held-out pipeline does, for transformers' AutoImageProcessor.

        Where an odd number of pixels is cut off, transformers' part lies a pixel further to the left or top.
        """
        document = {
            "image_processor_type": "CLIPImageProcessor",  # resizes the shorter side, then cuts out the centre
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": self._resize},
            "resample": 2,  # bilinear
            "do_center_crop": True,
            "crop_size": {"height": self._size, "width": self._size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(imagenet.MEAN),
            "image_std": list(imagenet.STD),
        }
        (folder / "preprocessor_config.json").write_text(
            json.dumps(document, indent=2) + "\n", encoding="utf-8"
        )


def build(config: Mapping[str, Any], seed: int) -> ImageClassificationTask:
    """Build the task from its settings (`settings.ImageClassification`). Raises TaskError, PipelineError."""
    settings = cast(ImageClassification, read_settings(TASK, config))
    given = read_config(settings.config) if settings.config is not None else {}
    classes, size = _classes(settings, given), _size(settings, given)
    with seeded(seed):
        model = _model(settings, classes, size)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(settings.model_name or "this type of model", model)
    augment = settings.augment or ("imagenet" if settings.model_name in MODELS else "none")
    if augment == "imagenet":
        resize = round(size * 256 / 224)
        pipelines = (
            imagenet.pipeline(size, classes=classes),
            imagenet.heldout_pipeline(size, resize, classes=classes),
        )
    else:
        resize = size
        scaling = {"classes": classes, "mean": imagenet.MEAN, "std": imagenet.STD}
        pipelines = (
            images.pipeline(size, augment=augment, **scaling),
            images.heldout_pipeline(size, **scaling),
        )
    task = ImageClassificationTask(settings, model, pipelines, classes=classes, size=size, resize=resize)
    if settings.weights:
        load_weights(task, Path(settings.weights))
    return task


def _classes(settings: ImageClassification, config: Mapping[str, Any]) -> int:
    """Number of classes by settings, config.json or the model's default. Raises TaskError."""
    named = config.get("id2label") or config.get("label2id")
    stated = len(named) if named else config.get("num_labels")
    if settings.classes is not None and stated is not None and settings.classes != stated:
        raise TaskError(
            f"classes: {settings.classes}, but config has {stated}; remove one of the two, or correct it"
        )
    found = stated if settings.classes is None else settings.classes
    if found is not None:
        return found
    if settings.model_name in MODELS:
        return _PAPER_CLASSES
    raise TaskError("'classes' is missing: say how many classes the labels have")


def _size(settings: ImageClassification, config: Mapping[str, Any]) -> int:
    """Side of the input in pixels by settings, config.json or the model's default. Raises TaskError."""
    stated = config.get("image_size")
    if settings.image_size is not None and stated is not None and settings.image_size != stated:
        raise TaskError(f"image_size: {settings.image_size}, but config has {stated}; remove one of the two")
    default = _SMALL_SIZE if settings.model_name == "small-cnn" else _PAPER_SIZE
    return settings.image_size or stated or default


def _model(settings: ImageClassification, classes: int, size: int) -> nn.Module:
    if settings.config is not None:
        defaults = {"num_labels": classes, "image_size": size}
        model = build_from_config(TASK, settings.config, defaults)
        channels = getattr(model.config, "num_channels", 3)
        if channels != 3:
            raise TaskError(
                f"config: num_channels is {channels}, but the pipeline's images have 3 (RGB); set it to 3"
            )
        return model
    return (
        SmallCnn(classes)
        if settings.model_name == "small-cnn"
        else MODELS[settings.model_name](classes=classes)
    )
