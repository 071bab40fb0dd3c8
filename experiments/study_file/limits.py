"""How far a run's figures may be from the published ones: a csv, one limit a row."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

FIGURES = ("sps", "calc_s", "comm_s", "epoch_s", "granularity", "egress_bytes_per_vm_epoch")
"""The figures of a run that are compared."""

_OF_STUDY = ("kendall_tau", "host_contended")
_COLUMNS = {"scope", "experiments", "figure", "limit", "around", "why"}


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a figure may be from the published one.

    `scope`: "each" run that fits `experiments` (the first limit that fits decides), the "median" of |difference| over
    them, or the "study" as a whole. `limit`: a share; of the study, kendall_tau at least, host_contended at most.
    `around`: "published", or "epochs": beyond the range that the published epochs span.
    """

    scope: str
    experiments: str
    figure: str
    limit: float
    around: str
    why: str


def read_limits(path: Path) -> list[Limit]:
    """The rows of a limits file, at least one. Raises ValueError that begins with the file (and its line)."""
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
            f"{path}:1: has no limit; write a row below scope,experiments,figure,limit,around,why"
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
