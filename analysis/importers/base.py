"""What every importer is: it recognises a folder and turns it into run folders with our own records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloud.prices.book import PriceBook


# ImportFailed   nothing of what was asked for can be computed (exit 2)
class ImportFailed(Exception):
    """Nothing could be imported; the message says what was looked at, why it failed and what to do."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import: a folder with `run.db` for each run, and a sentence for each thing left out."""

    folders: tuple[Path, ...]
    problems: tuple[str, ...]


class Importer(Protocol):
    """One kind of log or export."""

    name: str

    def recognises(self, folder: Path) -> bool:
        """Whether the folder looks like this kind. Reads names and first lines only; raises nothing."""
        ...

    def import_runs(
        self,
        folder: Path,
        into: Path,
        *,
        index: Path | None = None,
        only: Sequence[str] = (),
        book: PriceBook | None = None,
    ) -> Imported:
        """Write each run of `folder` as `into/<run id>/run.db`.

        `index`: a file that says which log is whose; `only`: these run ids and no others; `book`: prices of
        the VMs. Raises ImportFailed when not one run can be imported.
        """
        ...
