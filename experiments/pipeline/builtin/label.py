"""The label of a sample: the number of its class, stored as text."""

from __future__ import annotations

from experiments.pipeline.errors import BadValueError
from experiments.pipeline.op import Op

_SHOWN_BYTES = 20


def class_number(data: bytes, classes: int | None = None) -> int:
    """Return the whole number that the text `data` holds.

    With `classes`, a number outside 0 to classes - 1 is refused. Raises BadValueError.
    """
    try:
        number = int(data)
    except ValueError as error:
        shown = f"{data[:_SHOWN_BYTES]!r}{'...' if len(data) > _SHOWN_BYTES else ''}"
        raise BadValueError(f"the label {shown} is not a whole number") from error
    if number < 0 or (classes is not None and number >= classes):
        allowed = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise BadValueError(f"the label {number} is out of range; it must be {allowed}")
    return number


def label_op(classes: int | None = None) -> Op:
    """The operation `label`: field label, bytes to number, of `classes` classes (None: any number from 0)."""
    return Op("label", f"{__name__}:class_number", "label", "bytes", "number", {"classes": classes})
