"""Several runs side by side, for example imported from logs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orch.errors import OrchError, sentences
from orch.runs import STUDY_BOOK, Run

if TYPE_CHECKING:
    import pandas as pd


class _Folder:
    """The temporary folder of imported runs, removed with the last study or run that uses it, or at exit."""

    def __init__(self, stack: ExitStack) -> None:
        self._close = weakref.finalize(self, stack.close)

    def check(self) -> None:
        """Raise OrchError if the folder has been removed."""
        if not self._close.alive:
            raise OrchError("this study is closed; read the data before closing it, or replay the logs again")

    def close(self) -> None:
        self._close()


class Study:
    """Runs side by side: a sequence of Run, a table, and the problems of the import. Created by `orch.replay`.

    Runs are accessed by index, id or label: `study[0]`, `study["hivemind-79"]`, `study["CV A-8"]`. The imported
    records are in a temporary folder, which is removed by `close`, at the end of a `with` block, or when
    neither the study nor any of its runs is referenced any more.
    """

    def __init__(
        self, runs: Sequence[Run], rows: Sequence[dict[str, Any]], problems: Sequence[str], folder: _Folder
    ) -> None:
        """Private: use `orch.replay`."""
        self._runs = tuple(runs)
        self._folder = folder
        self.rows = list(rows)  # one dict per run, as printed by `orch replay -o json`
        self.problems = tuple(problems)

    def table(self) -> pd.DataFrame:
        """One row per run, in the order of the runs."""
        from orch.frames import frame

        return frame("study", self.rows)

    def report(self, to: str | Path = "report.html", paper: bool = False, prices: str = STUDY_BOOK) -> Path:
        """Write the study report to the page `to`, with the files of its figures next to it; return its path.

        `paper`: draw the paper's own comparisons. `prices`: price book for figures that are only known from print.
        """
        from analysis.report.study.build import build, load
        from cloud.prices.book import load as load_book

        self._folder.check()
        with sentences():
            book = load_book(prices)
            runs, problems = load([run.folder for run in self._runs], book)
            return build(runs, Path(to), book, paper=paper, problems=[*self.problems, *problems])

    def close(self) -> None:
        """Remove the temporary folder; data that was read stays available."""
        self._folder.close()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, which: int | str) -> Run:
        if not isinstance(which, str):
            return self._runs[which]
        found = [run for run in self._runs if which in (run.run_id, run.label)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(run.run_id for run in found)
            raise OrchError(f"{which!r}: {len(found)} runs have this label; use one of their ids: {ids}")
        known = ", ".join(run.label or run.run_id for run in self._runs)
        raise OrchError(f"{which!r}: no such run in the study; its runs: {known}")

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<orch.Study of {len(self)} runs, {len(self.problems)} problems>"

    def _repr_html_(self) -> str:
        from orch.html import study_html

        emulated = [run.label or run.run_id for run in self._runs if run.emulated]
        return study_html(self.rows, emulated, self.problems)


def replay(
    folder: str | Path | Sequence[str | Path],
    index: str | Path | None = None,
    runs: Sequence[str] = (),
    prices: str = STUDY_BOOK,
) -> Study:
    """Read folders of W&B logs, of exported runs or of runs as a study.

    `index`: CSV file with the runs, roles and hosts of the logs; by default the folder's INDEX.csv, and without
    that, they are derived from the file names. `runs`: only these run ids. `prices`: price book (a name or a CSV
    file) for logs; orch's own runs keep theirs. Items that cannot be read are listed in `problems`. Raises OrchError
    if nothing can be read.
    """
    from analysis.replay import read_folder, replay_rows
    from analysis.sources import opened
    from cloud.prices.book import load

    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    only = [runs] if isinstance(runs, str) else list(runs)
    with ExitStack() as stack:
        with sentences():
            found = stack.enter_context(
                opened(
                    [Path(f) for f in folders],
                    index=None if index is None else Path(index),
                    only=only,
                    book=load(prices),
                )
            )
        keep = _Folder(stack.pop_all())
        read: list[Run] = []
        rows: list[Any] = []
        problems = list(found.problems)
        for source in found.runs:
            try:
                with sentences():
                    rows.append(read_folder(source.folder).row)
                    read.append(Run(source.folder, keep))
            except OrchError as error:
                problems.append(f"{source.run_id}: {error}")
    if not read:
        keep.close()
        raise OrchError(" ".join(problems))
    return Study(read, replay_rows(rows), problems, keep)
