"""Renders a report as one HTML page without external resources, in light and dark mode. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Card:
    """One headline number."""

    name: str
    value: str
    more: str  # interval and n, or the reason why it is unknown


@dataclass(frozen=True)
class Section:
    """A heading, a figure (inline SVG), a few sentences after it, and further HTML. Without a figure they come first."""

    title: str
    lead: str
    svg: str = ""
    files: tuple[str, ...] = ()  # the figure's own files, relative to the page
    html: str = ""


_CUE = "Scroll the figure sideways to see all of it \u2192"
_SHORT = 24  # letters of a cell that does not wrap


def table(rows: Sequence[Mapping[str, Any]], caption: str, text: Sequence[str] = ()) -> str:
    """Format rows as an HTML table. Columns in `text` are left-aligned; None is shown as `unknown`."""
    if not rows:
        return f'<p class="soft">{escape(caption)}: none.</p>'
    columns = list(rows[0])
    css = {c: ' class="text"' if c in text else "" for c in columns}

    def cell(column: str, value: Any) -> str:
        shown = "unknown" if value is None else str(value)
        wraps = column in text and len(shown) > _SHORT
        kind = ' class="text long"' if wraps else css[column]
        return f"<td{kind}>{escape(shown)}</td>"

    head = "".join(f'<th scope="col"{css[c]}>{escape(c)}</th>' for c in columns)
    body = "".join("<tr>" + "".join(cell(c, row[c]) for c in columns) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def render(
    title: str,
    lead: str,
    basis: str,
    warnings: Sequence[str],
    cards: Sequence[Card],
    sections: Sequence[Section],
    terms: Sequence[tuple[str, str]] = (),
) -> str:
    """Render the whole page.

    `basis` is its first line: what was measured or emulated, and at which scales. `terms`: words of the page and what
    they mean, before the first figure.
    """
    css = resources.files("analysis.report").joinpath("report.css").read_text(encoding="utf-8")
    warned = ""
    if warnings:
        items = "".join(f"<li>{escape(w)}</li>" for w in warnings)
        warned = f'<div class="note warn" role="note" aria-label="Warnings"><strong>Read this first</strong><ul>{items}</ul></div>'
    shown = "".join(
        f'<div class="card"><div class="name">{escape(c.name)}</div><div class="value">{escape(c.value)}</div>'
        f'<div class="more">{escape(c.more)}</div></div>'
        for c in cards
    )
    meant = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in terms)
    legend = f"<section><h2>Words on this page</h2><dl>{meant}</dl></section>\n" if terms else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body>\n"
        '<a class="skip" href="#main">Skip to the figures</a>\n'
        f'<header><p class="note">{escape(basis)}</p><h1>{escape(title)}</h1><p class="soft">{escape(lead)}</p></header>\n'
        f'<main id="main" tabindex="-1">{warned}<div class="cards">{shown}</div>\n{legend}'
        + "\n".join(_section(s) for s in sections)
        + "</main></body></html>\n"
    )


def _section(section: Section) -> str:
    figure = ""
    if section.svg:
        links = ", ".join(
            f'<a href="{escape(f)}">{escape(f.rsplit(".", 1)[-1].upper())}</a>' for f in section.files
        )
        figure = (
            f'<figure><p class="cue" aria-hidden="true">{_CUE}</p><div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(section.title)}">{section.svg}</div>'
        )
        figure += f"<figcaption>The figure and its numbers as files: {links}.</figcaption></figure>"
    return f"<section><h2>{escape(section.title)}</h2>{figure}<p>{escape(section.lead)}</p>{section.html}</section>"
