"""Pipeline of the handwritten digits that `orch data make digits` writes."""

from __future__ import annotations

import io

import numpy as np

from experiments.pipeline.builtin.label import label_op
from experiments.pipeline.errors import BadValueError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

SIDE = 8  # pixels
CLASSES = 10


def pipeline() -> Pipeline:
    """Fields: image, float32[64] pixels from 0 to 1, row by row; label, the digit."""
    image = Op("image", f"{__name__}:pixels", "image", "bytes", "array", libraries=("pillow", "numpy"))
    return Pipeline("digits", {"image": ("png",), "label": ("cls",)}, (image, label_op(CLASSES)))


def pixels(data: bytes) -> np.ndarray:
    """Decode a PNG of 8 x 8 grey levels to float32[64] from 0 to 1, row by row. Raises BadValueError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode != "L" or image.size != (SIDE, SIDE):
                raise BadValueError(
                    f"the png is not a digit's image: {image.mode} {image.size[0]} x {image.size[1]}, "
                    f"not L {SIDE} x {SIDE}"
                )
            return np.asarray(image, dtype=np.float32).reshape(SIDE * SIDE) / np.float32(255)
    except UnidentifiedImageError as error:
        raise BadValueError("the png is not a digit's image: it is no image at all") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise BadValueError(f"the png is not a digit's image ({error})") from error
