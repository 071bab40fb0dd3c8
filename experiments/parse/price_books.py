"""The price books of an experiment: CSV files are found relative to the experiment's file, and read once to check them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cloud.prices.book import PriceBookError, load, names_of
from experiments.parse.document import Document
from experiments.schema.fields import joined_books

_KEY = "prices"


def find_price_books(document: Document) -> None:
    """Make the paths in `prices` absolute, and add to the problems of the document what is wrong with the files.

    A path is relative to the experiment's file, or to the working directory if it is from `--set`.
    """
    written = document.data.get(_KEY) if isinstance(document.data, dict) else None
    value = joined_books(written)
    if not isinstance(value, str):
        return
    parts = written if isinstance(written, list) else [written]
    folder = Path(document.file).parent
    try:
        found = ",".join(
            absolute_books(part, Path() if _from_options(document, n) else folder)
            for n, part in enumerate(parts)
        )
    except PriceBookError as error:
        document.problems.append(document.problem((_KEY,), str(error)))
        return
    document.data[_KEY] = found
    if len(names_of(found)) != len(names_of(value)):
        message = f"the folder of a price book must have no comma in its path, which separates books: {found}"
        document.problems.append(document.problem((_KEY,), message))
        return
    for name in names_of(found):
        if not name.endswith(".csv"):
            continue
        try:
            load(name)
        except PriceBookError as error:
            document.problems.append(document.problem((_KEY,), str(error)))


def _from_options(document: Document, index: int) -> bool:
    """Whether a `--set` wrote this element of `prices`, or all of it."""
    return (_KEY,) in document.overridden or (_KEY, index) in document.overridden


def absolute_books(value: Any, folder: Path) -> Any:
    """`prices` with the paths of its CSV files made absolute, from `folder` on; other values as they are.

    Raises PriceBookError for the home folder of a user who does not exist.
    """
    joined = joined_books(value)
    if not isinstance(joined, str):
        return value
    return ",".join(_absolute(name, folder) if name.endswith(".csv") else name for name in names_of(joined))


def _absolute(name: str, folder: Path) -> str:
    try:
        return os.path.abspath(folder / Path(name).expanduser())
    except RuntimeError as error:
        raise PriceBookError(
            f"{name}: the home folder of this user is unknown; write the whole path"
        ) from error
