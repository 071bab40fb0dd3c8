"""The price books of an experiment: CSV files are found beside the experiment's file and read once, to be checked."""

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
    value = joined_books(document.data.get(_KEY)) if isinstance(document.data, dict) else None
    if not isinstance(value, str):
        return
    given = any(path[:1] == (_KEY,) for path in document.overridden)
    found = absolute_books(value, Path() if given else Path(document.file).parent)
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


def absolute_books(value: Any, folder: Path) -> Any:
    """`prices` with the paths of its CSV files made absolute, from `folder` on; other values as they are."""
    joined = joined_books(value)
    if not isinstance(joined, str):
        return value
    names = names_of(joined)
    return ",".join(
        os.path.abspath(folder / Path(name).expanduser()) if name.endswith(".csv") else name for name in names
    )
