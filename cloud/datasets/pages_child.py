"""Write pydoc's HTML pages of modules: `python pages_child.py LIBRARY < names`, one module's name a line.

Writes to stdout, for each page, its name, a line feed, its number of bytes (4, little-endian) and the page. A module that
cannot be imported has none. A process of its own, because it imports all these modules. LIBRARY, the folder of the standard
library, becomes `lib` in the pages, the path of this Python `python`, and addresses in memory 0.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pydoc
import re
import sys
from collections.abc import Iterator
from types import ModuleType

_ADDRESS = re.compile(r"\b(0x|handle )[0-9a-f]{6,}\b")  # ctypes' handles are addresses too


def main(library: str) -> int:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints when it is imported does not get between the pages
    html = pydoc.HTMLDoc()
    for name in sys.stdin.read().split():
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module for another system raises what it likes
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            continue
        for title, thing in _documented(name, module):
            page = html.page(title, html.document(thing, title))
            page = page.replace(library, "lib").replace(sys.executable, "python")
            data = _ADDRESS.sub(r"\g<1>0", page).encode("utf-8", "replace")
            out.write(title.encode() + b"\n" + len(data).to_bytes(4, "little") + data)
    out.close()
    return 0


def _documented(name: str, module: ModuleType) -> Iterator[tuple[str, object]]:
    """The module, and each public class that it defines."""
    yield name, module
    for attribute, value in sorted(vars(module).items()):
        is_own = inspect.isclass(value) and value.__module__ == name and value.__name__ == attribute
        if is_own and not attribute.startswith("_"):
            yield f"{name}.{attribute}", value


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
