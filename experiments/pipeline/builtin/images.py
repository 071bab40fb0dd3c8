"""Pipelines of labelled images of any size, such as drawn characters of 64 x 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from experiments.pipeline.builtin.imagenet import FIELDS, LIBRARIES, decode_op, image_op, tensor_ops
from experiments.pipeline.builtin.label import label_op
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from PIL.Image import Image

Augment = Literal["none", "flip", "crop"]


def pipeline(
    size: int = 64,
    channels: int = 3,
    augment: Augment = "none",
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Pipeline:
    """Return the pipeline of training images: the shorter side to `size`, the centre, then the augmentation.

    `augment`: flip mirrors half of the images; crop moves each by up to an eighth of `size`. With `mean` and `std`, one
    number a channel, pixels are normalized; otherwise they are from 0 to 1. Fields: image, float32[channels, size, size];
    label, a number below `classes` (None: any). Raises PipelineError for settings out of range.
    """
    if augment not in get_args(Augment):
        raise PipelineError(f"pipeline images: augment is {augment!r}; use none, flip or crop")
    ops: tuple[Op, ...] = ()
    if augment == "flip":
        ops = (image_op("flip", "flip", {}, random=True),)
    elif augment == "crop":
        call, parameters = f"{__name__}:shifted", {"most": max(1, size // 8)}
        ops = (Op("shift", call, "image", "image", "image", parameters, True, libraries=LIBRARIES),)
    return _images("images", size, channels, ops, classes, mean, std)


def heldout_pipeline(
    size: int = 64,
    channels: int = 3,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Pipeline:
    """Return the pipeline of held-out images: as `pipeline` without augmentation. Raises PipelineError."""
    return _images("images-heldout", size, channels, (), classes, mean, std)


def _images(
    name: str,
    size: int,
    channels: int,
    augmentation: tuple[Op, ...],
    classes: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Pipeline:
    ops = (
        decode_op(channels),
        image_op("resize", "resize", {"size": size}),
        image_op("crop", "center_crop", {"size": size}),
        *augmentation,
        *tensor_ops(name, size, channels, mean, std),
        label_op(classes),
    )
    return Pipeline(name, FIELDS, ops)


def shifted(image: Image, rng: np.random.Generator, most: int) -> Image:
    """Move the image by up to `most` pixels in each direction, uniformly; its edge fills what becomes free.

    It is torchvision's RandomCrop(size, padding=most, padding_mode="edge"), the augmentation of He et al.
    (arXiv:1512.03385, section 4.2) with edge pixels instead of 0, since many backgrounds are white.
    """
    from PIL import Image as pil

    levels = np.asarray(image)
    height, width = levels.shape[:2]
    top, left = (int(offset) for offset in rng.integers(0, 2 * most + 1, 2))
    padding = [(most, most), (most, most), (0, 0)][: levels.ndim]
    padded = np.pad(levels, padding, mode="edge")
    return pil.fromarray(np.ascontiguousarray(padded[top : top + height, left : left + width]))
