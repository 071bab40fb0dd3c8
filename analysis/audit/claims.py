"""Parses the `--claims` file: the throughput claimed for each run."""

from __future__ import annotations

import csv
import io
import math

_COLUMNS = ("run", "sps")


# ClaimsError   the claims file cannot be used (exit 2)
class ClaimsError(Exception):
    """The claims file cannot be read. The message gives file, line and column."""


def parse_claims(text: str, name: str) -> dict[str, float]:
    """Parse CSV with at least the columns `run` and `sps` into throughputs by run id or label.

    Raises ClaimsError for a missing column, an empty or repeated run, and a throughput that is not a number
    above 0.
    """
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise ClaimsError(f"{name}:1: no column '{missing[0]}'; a claims file needs the columns run and sps")
    found: dict[str, float] = {}
    try:
        for row in reader:
            where = f"{name}:{reader.line_num}"
            run, value = (row["run"] or "").strip(), (row["sps"] or "").strip()
            if not run:
                raise ClaimsError(f"{where}: column 'run' is empty; give a run's id or label")
            if run in found:
                raise ClaimsError(f"{where}: column 'run' contains {run} twice; keep one of the lines")
            try:
                sps = float(value)
            except ValueError:
                sps = math.nan
            if not (math.isfinite(sps) and sps > 0):
                raise ClaimsError(f"{where}: column 'sps' is '{value}', not a number above 0")
            found[run] = sps
    except csv.Error as error:
        raise ClaimsError(f"{name}:{reader.line_num}: not CSV ({error})") from error
    return found
