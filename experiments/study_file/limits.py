"""Accepted differences between a run's figures and the published ones: a CSV file with one limit per row."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

FIGURES = ("sps", "calc_s", "comm_s", "epoch_s", "granularity", "egress_bytes_per_vm_epoch")
"""Figures of a run that are compared."""

_OF_STUDY = ("kendall_tau", "host_contended")
_COLUMNS = {"scope", "experiments", "figure", "limit", "around", "why"}


@dataclass(frozen=True, slots=True)
class Limit:
    """Accepted difference of a figure from the published one.

    `scope`: "each" run that matches the pattern `experiments` (the first matching limit applies), the "median" of
    |difference| over them, or the whole "study". `limit`: a fraction; for the study, the minimum of kendall_tau or the
    maximum of host_contended. `around`: "published", or "epochs" for the distance from the range of the published epochs.
    """

    scope: str
    experiments: str
    figure: str
    limit: float
    around: str
    why: str


def read_limits(path: Path) -> list[Limit]:
    """Read a limits file, which has at least one row. Raises ValueError; its message begins with the file and line."""
    found: list[Limit] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                found.append(_limit(row, f"{path}:{number}"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start}); name a csv file") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not found:
        raise ValueError(
            f"{path}:1: has no limit; add a row below the header scope,experiments,figure,limit,around,why"
        )
    return found


def _limit(row: dict[str, str], where: str) -> Limit:
    known = row["scope"] in ("each", "median", "study") if row.keys() >= _COLUMNS else False
    figures = _OF_STUDY if row.get("scope") == "study" else FIGURES
    if not known or row["figure"] not in figures or row["around"] not in ("", "published", "epochs"):
        raise ValueError(
            f"{where}: a row needs scope (each, median, study), experiments (a pattern), figure "
            f"({', '.join(figures)}), limit, around (published, epochs) and why"
        )
    try:
        limit = float(row["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise ValueError(f"{where}: limit '{row['limit']}' is not a number")
    return Limit(row["scope"], row["experiments"], row["figure"], limit, row["around"], row["why"])
