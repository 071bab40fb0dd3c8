"""Writes the files of a report: each figure as PNG, SVG and CSV, atomically."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.charts.style import png_bytes, svg_file, svg_inline
from analysis.report.page import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureFolder:
    """The folder of a page's figures. `prefix`: of their links on the page; `newline`: line ending of the CSV files."""

    path: Path
    prefix: str
    dpi: int
    newline: str

    def section(
        self,
        name: str,
        heading: str,
        lead: str,
        rows: Sequence[Mapping[str, Any]],
        figure: Figure,
        html: str = "",
        label: str = "",
    ) -> Section:
        """Write the figure's three files and return its section. `label`: for screen readers, by default the heading."""
        svg = svg_file(figure)
        write(self.path / f"{name}.svg", svg.encode())
        write(self.path / f"{name}.png", png_bytes(figure, self.dpi))
        self.table(name, rows)
        files = tuple(f"{self.prefix}{name}.{kind}" for kind in ("png", "svg", "csv"))
        return Section(
            heading, lead, svg_inline(svg, name, escape(label or heading, quote=True)), files, html
        )

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as `NAME.csv`."""
        write(self.path / f"{name}.csv", csv_text(rows, self.newline).encode())


def csv_text(rows: Sequence[Mapping[str, Any]], newline: str = "\n") -> str:
    """Format rows as CSV with the union of their columns; unknown is empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator=newline)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, 0o644)
    os.replace(name, path)
