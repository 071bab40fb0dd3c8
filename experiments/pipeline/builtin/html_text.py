"""The text of an HTML page, without tags, scripts and styles."""

from __future__ import annotations

import codecs
import re
from html.parser import HTMLParser

from experiments.pipeline.errors import BadValueError

_HIDDEN = frozenset(("script", "style", "template", "noscript", "title"))
_BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option",
    "p", "pre", "section", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
))  # fmt: skip
"""Elements before and after which a line ends."""

_CHARSET = re.compile(rb"""<meta[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_HEAD_BYTES = 1024  # where the HTML standard looks for the encoding
_BLANKS = re.compile(r"\s+")


def text_of_html(data: bytes) -> str:
    """Return the visible text of a page, one line a block, blanks joined. Raises BadValueError.

    The encoding is that of its byte order mark or its meta element, else UTF-8. Broken markup is read as browsers do it,
    as far as Python's html.parser goes.
    """
    parser = _Text()
    parser.feed(_decoded(data))
    parser.close()
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(parser.parts).split("\n"))
    text = "\n".join(line for line in lines if line)
    if not text:
        raise BadValueError("the page has no text")
    return text


class _Text(HTMLParser):
    """Collects the visible text, with a line break at both ends of a block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = ""  # the hidden element that is open
        self._depth = 0  # how many of its kind are open in it

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._depth -= tag == self._hidden
            if not self._depth:
                self._hidden = ""
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._hidden and tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(_BLANKS.sub(" ", data))


def _decoded(data: bytes) -> str:
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            encoding = name
            break
    else:
        declared = _CHARSET.search(data[:_HEAD_BYTES])
        encoding = declared[1].decode("ascii", "replace") if declared else "utf-8"
    try:
        if not codecs.lookup(encoding)._is_text_encoding:  # such as base64, which decodes to bytes
            raise LookupError
        return data.decode(encoding)
    except LookupError as error:
        raise BadValueError(
            f"the page is in the encoding {encoding!r}, which Python does not know"
        ) from error
    except UnicodeDecodeError as error:
        raise BadValueError(f"the page is not in {encoding}: {error.reason} at byte {error.start}") from error
