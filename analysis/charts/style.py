"""The style of figures: a colour-blind-safe palette, and text in the page's colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, without black and yellow, which are invisible on one of the two page colours.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#7B6FBF")
INK = "#59636e"  # text and axes in files; replaced by the page's text colour in inline SVG


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply Matplotlib settings for our figures: deterministic SVG, text as text, transparent background."""
    import matplotlib

    matplotlib.use("agg")
    from cycler import cycler

    settings: dict[Any, Any] = {
        "svg.hashsalt": "orch",
        "svg.fonttype": "none",
        "text.parse_math": False,  # a run's name may hold dollar signs
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": INK,
        "grid.alpha": 0.2,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "axes.prop_cycle": cycler(color=list(PALETTE)),
        "figure.constrained_layout.use": True,
    }
    with matplotlib.rc_context(settings):
        yield


def svg_file(figure: Figure) -> str:
    """Return the figure as an SVG document; equal figures give equal bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def svg_inline(svg: str, name: str, title: str) -> str:
    """Convert an SVG document to an element of a page: unique ids, the page's text colour, a title for screen readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    body = body.replace(INK, "currentColor")
    body = re.sub(r"<svg ([^>]*)>", rf'<svg role="img" aria-label="{title}" \1>', body, count=1)
    return re.sub(
        r'(<svg [^>]*?)width="[^"]*"',
        r"\1",
        re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", body, count=1),
        count=1,
    )


def png_bytes(figure: Figure, dpi: int = 150) -> bytes:
    """Return the figure as PNG on a white background, for slides and terminals."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return out.getvalue()
