"""ImageNet's usual pipelines, and their operations as torchvision defines them.

The definitions are those of torchvision 0.20 (torchvision.transforms: RandomResizedCrop, RandomHorizontalFlip, Resize,
CenterCrop, ToTensor, Normalize, applied to PIL images; https://pytorch.org/vision/0.20/transforms.html). The code is our
own, because torchvision cannot be installed beside every PyTorch, and because its transforms use a global generator.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.pipeline.builtin.label import label_op
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from PIL.Image import Image

FIELDS = {"image": ("jpg", "jpeg", "JPEG", "png", "webp"), "label": ("cls",)}
"""Fields of image pipelines, with the extensions of their members. ImageNet's own files end in .JPEG."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images by channel (RGB, pixels from 0 to 1)."""

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
LIBRARIES = ("pillow", "numpy")

_MODE = {1: "L", 3: "RGB"}  # by the number of channels
_ATTEMPTS = 10


def pipeline(
    size: int = 224,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    scale: Sequence[float] = SCALE,
    ratio: Sequence[float] = RATIO,
    classes: int | None = None,
) -> Pipeline:
    """Return the pipeline of training images: decode, RandomResizedCrop, horizontal flip, to_tensor, normalize.

    Fields: image, float32[3, size, size]; label, a number below `classes` (None: any). Raises PipelineError for settings
    out of range.
    """
    if not 0 < scale[0] <= scale[1] or not 0 < ratio[0] <= ratio[1]:
        raise PipelineError(f"pipeline imagenet: scale {scale} and ratio {ratio} must be ranges above 0")
    crop = {"size": size, "scale": list(scale), "ratio": list(ratio)}
    ops = (
        decode_op(3),
        image_op("crop", "random_resized_crop", crop, random=True),
        image_op("flip", "flip", {}, random=True),
        *tensor_ops("imagenet", size, 3, mean, std),
    )
    return Pipeline("imagenet", FIELDS, (*ops, label_op(classes)))


def heldout_pipeline(
    size: int = 224,
    resize: int | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    classes: int | None = None,
) -> Pipeline:
    """Return the pipeline of held-out images: the shorter side to `resize`, the centre of `size`, to_tensor, normalize.

    `resize` is size * 256 / 224 unless given. Fields as in `pipeline`. Raises PipelineError for settings out of range.
    """
    resize = round(size * 256 / 224) if resize is None else resize
    ops = (
        decode_op(3),
        image_op("resize", "resize", {"size": resize}),
        image_op("crop", "center_crop", {"size": size}),
        *tensor_ops("imagenet-heldout", min(size, resize), 3, mean, std),
    )
    return Pipeline("imagenet-heldout", FIELDS, (*ops, label_op(classes)))


def decode_op(channels: int) -> Op:
    """The operation `decode`: bytes to an image of 1 (L) or 3 channels (RGB). Raises PipelineError."""
    if channels not in _MODE:
        raise PipelineError(f"an image cannot have {channels} channels here; use 1 (grey levels) or 3 (RGB)")
    call, mode = f"{__name__}:decode", {"mode": _MODE[channels]}
    return Op("decode", call, "image", "bytes", "image", mode, libraries=LIBRARIES)


def image_op(name: str, function: str, parameters: dict[str, object], *, random: bool = False) -> Op:
    """An operation on field image, image to image, by a function of this module."""
    call = f"{__name__}:{function}"
    return Op(name, call, "image", "image", "image", parameters, random, libraries=LIBRARIES)


def tensor_ops(
    pipeline: str, size: int, channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Op, ...]:
    """The operations `to_tensor` and, with `mean` and `std`, `normalize`. Raises PipelineError for a wrong setting."""
    if size < 1:
        raise PipelineError(f"pipeline {pipeline}: size is {size}; it must be at least 1 pixel")
    to_array = Op("to_tensor", f"{__name__}:to_tensor", "image", "image", "array", libraries=LIBRARIES)
    if mean is None and std is None:
        return (to_array,)
    if mean is None or std is None or len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise PipelineError(
            f"pipeline {pipeline}: mean is {mean} and std is {std}; give {channels} numbers for each, std above 0"
        )
    call, parameters = f"{__name__}:normalize", {"mean": list(mean), "std": list(std)}
    return to_array, Op("normalize", call, "image", "array", "array", parameters, libraries=LIBRARIES)


def decode(data: bytes, mode: str) -> Image:
    """Decode an image file and convert it to `mode` ("RGB" or "L"), as torchvision.datasets.folder.pil_loader does.

    An orientation in the Exif data is ignored, also as there. Raises BadValueError.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise BadValueError("the image is empty")
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert(mode)
    except UnidentifiedImageError as error:
        raise BadValueError("the image is in no format that Pillow knows") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise many types
        raise BadValueError(f"the image cannot be decoded ({error})") from error


def random_resized_crop(
    image: Image, rng: np.random.Generator, size: int, scale: Sequence[float], ratio: Sequence[float]
) -> Image:
    """Cut out a random part and resize it to `size` x `size` pixels (bilinear).

    The part has a share of the area that is uniform in `scale` and a ratio of width to height that is log-uniform in
    `ratio`. After ten attempts that do not fit into the image, the largest central part whose ratio is in `ratio`.
    """
    left, top, width, height = _random_part(*image.size, rng, scale, ratio)
    return _resized(image.crop((left, top, left + width, top + height)), size, size)


def _random_part(
    width: int, height: int, rng: np.random.Generator, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the part, in pixels (torchvision: RandomResizedCrop.get_params)."""
    area = width * height
    for _ in range(_ATTEMPTS):
        target = area * rng.uniform(scale[0], scale[1])
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        part_width = round(math.sqrt(target * aspect))
        part_height = round(math.sqrt(target / aspect))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int(rng.integers(0, height - part_height + 1))
            left = int(rng.integers(0, width - part_width + 1))
            return left, top, part_width, part_height
    part_width, part_height = width, height
    if width / height < ratio[0]:
        part_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        part_width = round(height * ratio[1])
    return (width - part_width) // 2, (height - part_height) // 2, part_width, part_height


def flip(image: Image, rng: np.random.Generator, probability: float = 0.5) -> Image:
    """Mirror left and right with a probability (torchvision: RandomHorizontalFlip)."""
    from PIL import Image as pil

    return image.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if rng.random() < probability else image


def resize(image: Image, size: int) -> Image:
    """Resize so that the shorter side is `size` pixels (bilinear; torchvision: Resize with one number)."""
    width, height = image.size
    longer = int(size * max(width, height) / min(width, height))
    return _resized(image, *((size, longer) if width <= height else (longer, size)))


def _resized(image: Image, width: int, height: int) -> Image:
    from PIL import Image as pil

    # Pillow's filter grows with the reduction: what torchvision calls antialias.
    return image if image.size == (width, height) else image.resize((width, height), pil.Resampling.BILINEAR)


def center_crop(image: Image, size: int) -> Image:
    """Cut out the central `size` x `size` pixels; a smaller image is padded with 0 (torchvision: CenterCrop)."""
    left, top = (round((side - size) / 2) if side >= size else -((size - side) // 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def to_tensor(image: Image) -> np.ndarray:
    """Convert an image of 8 bits a channel to float32[channels, height, width] from 0 to 1 (torchvision: ToTensor)."""
    levels = np.asarray(image)
    levels = levels[:, :, None] if levels.ndim == 2 else levels
    return np.ascontiguousarray(levels.transpose(2, 0, 1)).astype(np.float32) / np.float32(255)


def normalize(array: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Return (array - mean) / std by channel in float32, of float32[channels, height, width] (torchvision: Normalize)."""
    by_channel = [np.asarray(values, dtype=np.float32)[:, None, None] for values in (mean, std)]
    return (array - by_channel[0]) / by_channel[1]
