"""HTML pages that pydoc makes of Python's standard library: one of each module, and one of each of its public classes."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from platform import python_version
from typing import Any

from cloud.datasets import stdlib
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import Record, fraction_of, safe_key, split_of

_CHILD = Path(__file__).with_name("pages_child.py")
_TIMEOUT_S = 900
_SKIPPED = frozenset(
    (
        *("antigravity", "this", "__hello__", "__phello__"),  # importing them does something
        *("ensurepip", "lib2to3", "msilib", "pydoc_data", "tkinter", "turtle", "turtledemo", "venv"),
        *(
            "site",
            "sitecustomize",
            "usercustomize",
            "sysconfig",
            "distutils.sysconfig",
        ),  # their pages have paths of the machine
    )
)


def module_names() -> tuple[str, ...]:
    """Return the modules whose pages are made, sorted: those of `stdlib.source_files` that can be imported safely."""
    found: list[str] = []
    for file, _ in stdlib.source_files():
        parts = file.removesuffix(".py").split("/")
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(parts)
        if parts and not _SKIPPED.intersection((parts[0], name)) and parts[-1] != "__main__":
            found.append(name)
    return tuple(sorted(found))


@cache
def make_pages(modules: tuple[str, ...]) -> tuple[tuple[str, str, bytes], ...]:
    """Return (module, name, page) of each module that can be imported, and of its public classes.

    The pages depend on Python's version and on which of its optional modules it was built with. The modules are imported
    in a process of its own, which sees none of this one's environment variables and no installed package. Raises
    DataSourceError.
    """
    # pydoc prints the values of modules: without this environment, those of os.environ would be among them.
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}
    command = [sys.executable, "-S", "-s", "-B", str(_CHILD), sysconfig.get_path("stdlib")]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                input="\n".join(modules).encode(),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=environment,
                cwd=folder,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataSourceError(
                f"pydoc's pages cannot be made with {sys.executable} ({error}); run the command again"
            ) from error
    pages = tuple(_read(done.stdout, modules))
    if done.returncode or not pages:
        message = done.stderr.decode(errors="replace").strip()[-300:]
        raise DataSourceError(
            f"pydoc's pages cannot be made with {sys.executable} ({message or f'exit code {done.returncode}'}); use a "
            "Python that was installed with its standard library"
        )
    return pages


def _read(data: bytes, modules: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    known = frozenset(modules)
    source = io.BytesIO(data)
    while line := source.readline():
        name = line[:-1].decode()
        page = source.read(int.from_bytes(source.read(4), "little"))
        yield name if name in known else name.rpartition(".")[0], name, page


def page_records(
    *, heldout: float = stdlib.HELD_OUT_SHARE, seed: int = 0, modules: Iterable[str] | None = None
) -> Iterator[Record]:
    """Yield the pages as samples with the member `html`, ordered by a hash of their keys and `seed`.

    A module is held out with all its classes or not at all, by the hash of its name. `modules`: default all. Raises
    DataSourceError.
    """
    pages = make_pages(module_names() if modules is None else tuple(modules))
    records = [
        Record(safe_key(name.replace(".", "/")), {"html": page}, split_of(module, heldout))
        for module, name, page in pages
    ]
    yield from sorted(records, key=lambda record: (fraction_of(record.key, seed), record.key))


def pages_made(heldout: float, vocabulary: int, seed: int) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on. The SHA-256 of all pages stands for how Python was built."""
    digest = hashlib.sha256()
    pages = make_pages(module_names())
    for _, name, page in pages:
        digest.update(f"{name}\n{len(page)}\n".encode() + page)
    return {
        "dataset": "pages",
        "generated_by": "pydoc",
        "pages": len(pages),
        "pages_sha256": digest.hexdigest(),
        "heldout": heldout,
        "vocabulary": vocabulary,
        "seed": seed,
        "python": python_version(),
    }
