"""Training images whose only random step is a crop of the resized image, as PRESTO measures them.

Isenko et al. (SIGMOD 2022) call the steps decode, resize, pixel-center and random-crop. Everything before the crop can be
stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.pipeline.builtin.imagenet import FIELDS, LIBRARIES, decode_op, image_op
from experiments.pipeline.builtin.label import label_op
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from PIL.Image import Image


def pipeline(size: int = 224, resize: int = 256, classes: int | None = None) -> Pipeline:
    """Return the pipeline: decode, the shorter side to `resize`, centre, a random crop of `size` x `size`.

    Fields: image, float32[3, size, size] from -1 to 1; label, a number below `classes` (None: any). Raises PipelineError
    for settings out of range.
    """
    if not 1 <= size <= resize:
        raise PipelineError(
            f"pipeline imagenet-resize: size is {size} and resize {resize}; size must be 1 to resize"
        )
    call = f"{__name__}:"
    ops = (
        decode_op(3),
        image_op("resize", "resize", {"size": resize}),
        Op("center", f"{call}center", "image", "image", "array", libraries=LIBRARIES),
        Op(
            "crop",
            f"{call}random_crop",
            "image",
            "array",
            "array",
            {"size": size},
            True,
            libraries=("numpy",),
        ),
        label_op(classes),
    )
    return Pipeline("imagenet-resize", FIELDS, ops)


def center(image: Image) -> np.ndarray:
    """Convert an RGB image of 8 bits a channel to float32[3, height, width] from -1 to 1: level / 127.5 - 1."""
    levels = np.asarray(image).transpose(2, 0, 1)
    return np.ascontiguousarray(levels).astype(np.float32) / np.float32(127.5) - np.float32(1)


def random_crop(array: np.ndarray, rng: np.random.Generator, size: int) -> np.ndarray:
    """Cut `size` x `size` pixels out of [channels, height, width], each place equally likely. Raises BadValueError."""
    height, width = array.shape[1:]
    if min(height, width) < size:
        raise BadValueError(f"the image has {width} x {height} pixels, too few for a crop of {size} x {size}")
    top = int(rng.integers(0, height - size + 1))
    left = int(rng.integers(0, width - size + 1))
    return np.ascontiguousarray(array[:, top : top + size, left : left + size])
