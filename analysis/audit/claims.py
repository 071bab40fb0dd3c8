"""A file of claimed throughputs: what a paper, a page or a colleague says that runs did."""

from __future__ import annotations

import csv
import io
import math

_COLUMNS = ("run", "sps")


# ClaimsError   the file of claims cannot be used (exit 2)
class ClaimsError(Exception):
    """The file of claims cannot be read; the message names file, line and column."""


def parse_claims(text: str, name: str) -> dict[str, float]:
    """Throughputs by run id or label, from CSV with at least the columns `run` and `sps`.

    Raises ClaimsError for a missing column, a run without a name or named twice, and a throughput that is no
    number above 0.
    """
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise ClaimsError(f"{name}:1: no column '{missing[0]}'; a file of claims has the columns run and sps")
    found: dict[str, float] = {}
    try:
        for row in reader:
            where = f"{name}:{reader.line_num}"
            run, value = (row["run"] or "").strip(), (row["sps"] or "").strip()
            if not run:
                raise ClaimsError(f"{where}: column 'run' is empty; give a run's id or label")
            if run in found:
                raise ClaimsError(f"{where}: column 'run' names {run} a second time; keep one line of it")
            try:
                sps = float(value)
            except ValueError:
                sps = math.nan
            if not (math.isfinite(sps) and sps > 0):
                raise ClaimsError(f"{where}: column 'sps' holds '{value}', not a number above 0")
            found[run] = sps
    except csv.Error as error:
        raise ClaimsError(f"{name}:{reader.line_num}: not CSV ({error})") from error
    return found
