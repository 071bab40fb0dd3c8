"""Characters in the fonts that matplotlib installs, distorted: 64 x 64 grey JPEGs of 62 classes."""

from __future__ import annotations

import io
import string
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, TRAIN, Record

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

SIDE = 64  # pixels
CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The character of each class number."""

TRAIN_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBolIta",
    "STIXGeneralItalic",
    "cmb10",
    "cmr10",
    "cmti10",
    "cmtt10",
)
HELDOUT_FONTS = (
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif-Italic",
    "STIXGeneralBol",
    "cmss10",
)
"""Never used for training: a model has to recognise characters in styles that it has not seen."""

_FINER = 2  # drawn at this multiple of the size
_FONT_PIXELS = 46
_JPEG_QUALITY = 85


def glyph_records(train: int, heldout: int, *, seed: int = 0) -> Iterator[Record]:
    """Yield `train` samples of the training fonts, then `heldout` samples of the held-out fonts, keys 00000000 ...

    Members: `jpg` (one channel) and `cls` (index in `CLASSES`). All combinations of class and font occur equally often,
    in a new order each time. A sample depends on the seed, its split and its number only. Raises DataSourceError if
    matplotlib lacks a font.
    """
    for split, count, names in ((TRAIN, train, TRAIN_FONTS), (HELDOUT, heldout, HELDOUT_FONTS)):
        fonts = [_font(name) for name in names]
        # Not in threads: they would be no faster, and FreeType's fonts are not made for them.
        yield from (_record(split, number, fonts, seed) for number in range(count))


def glyphs_made(train: int, heldout: int, seed: int) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on."""
    return {
        "dataset": "glyphs",
        "train": train,
        "heldout": heldout,
        "seed": seed,
        "classes": CLASSES,
        "heldout_fonts": list(HELDOUT_FONTS),
        "matplotlib": version("matplotlib"),
        "pillow": version("pillow"),
    }


def _font(name: str) -> FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    try:
        return ImageFont.truetype(str(path), _FONT_PIXELS * _FINER, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise DataSourceError(
            f"matplotlib's font {path} cannot be read ({error}); install matplotlib again"
        ) from error


def _record(split: str, number: int, fonts: list[FreeTypeFont], seed: int) -> Record:
    import numpy as np

    kind = 0 if split == TRAIN else 1
    combinations = len(CLASSES) * len(fonts)
    turn, at = divmod(number, combinations)
    chosen = int(np.random.default_rng((seed, kind, 0, turn)).permutation(combinations)[at])
    label, font = divmod(chosen, len(fonts))
    rng = np.random.default_rng((seed, kind, 1, number))
    jpeg = _draw(CLASSES[label], fonts[font], rng)
    return Record(
        f"{number:08d}" if split == TRAIN else f"heldout-{number:08d}",
        {"jpg": jpeg, "cls": str(label).encode()},
        split,
    )


def _draw(character: str, font: FreeTypeFont, rng: Any) -> bytes:
    """Draw dark on light, rotated by up to 15 degrees, sheared, scaled, moved, blurred, with noise."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFilter

    wide = SIDE * _FINER
    image = Image.new("L", (wide, wide), 0)
    # At one baseline: it tells p from P and o from O.
    ImageDraw.Draw(image).text((wide / 2, wide * 0.7), character, fill=255, font=font, anchor="ms")
    angle, shear_x, shear_y = (
        np.radians(rng.uniform(-15, 15)),
        rng.uniform(-0.25, 0.25),
        rng.uniform(-0.1, 0.1),
    )
    scale_x, scale_y = rng.uniform(0.8, 1.15, 2)
    move = rng.uniform(-4, 4, 2) * _FINER
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turned @ np.array([[1, shear_x], [shear_y, 1]]) @ np.diag([1 / scale_x, 1 / scale_y])
    centre = np.full(2, wide / 2)
    offset = centre - matrix @ (centre + move)
    values = (*matrix[0], offset[0], *matrix[1], offset[1])
    image = image.transform((wide, wide), Image.Transform.AFFINE, values, Image.Resampling.BILINEAR)
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.5) * _FINER / 2))
    image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    paper, ink = rng.uniform(0.7, 1), rng.uniform(0, 0.3)
    pixels = np.asarray(image, dtype=np.float32) / 255
    pixels = paper + (ink - paper) * pixels + rng.normal(0, rng.uniform(0.01, 0.1), (SIDE, SIDE))
    target = io.BytesIO()
    Image.fromarray(np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)).save(
        target, "jpeg", quality=_JPEG_QUALITY
    )
    return target.getvalue()
