"""The interface of importers, which convert a folder of logs or exports into run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloud.prices.book import PriceBook


# ImportFailed   no requested run can be imported (exit 2)
class ImportFailed(Exception):
    """No run could be imported. The message names the input, the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: a folder with `run.db` per run, and a sentence for each problem."""

    folders: tuple[Path, ...]
    problems: tuple[str, ...]


class Importer(Protocol):
    """One kind of log or export."""

    name: str

    def recognises(self, folder: Path) -> bool:
        """Whether the folder looks like this kind. Reads file names and first lines only; never raises."""
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

        `index`: a file that assigns logs to runs; `only`: import only these run ids; `book`: prices of the VMs. Raises
        ImportFailed if no run can be imported.
        """
        ...
