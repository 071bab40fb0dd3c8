"""Programs run as an ordinary user of the machine (uid 65534, no capability), wherever the checkout and its Python are."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_USER = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs"


def as_ordinary_user(command: Sequence[str | Path], scratch: Path) -> list[str]:
    """The command line that runs `command` as that user; to be run as root. `scratch`: an empty folder.

    Folders that others may not pass (/root) are replaced, in a mount namespace of the program's own, by empty ones that
    hold nothing but what is needed of them.
    """
    prefix = Path(sys.prefix)
    needed = (prefix, prefix.resolve(), Path(sys.executable).resolve(), Path(__file__).parents[1])
    steps: list[str] = []
    moves: list[str] = []
    hidden = sorted(set(_behind_closed(needed)))
    for number, (closed, child) in enumerate(hidden):
        kept = shlex.quote(str(scratch / f"kept-{number}"))
        steps.append(f"mkdir {kept} && mount --bind {shlex.quote(str(closed / child))} {kept}")
        there = shlex.quote(str(closed / child))
        moves.append(f"mkdir {there} && mount --move {kept} {there}")
    for closed in sorted({closed for closed, _ in hidden}):
        steps.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}")
    script = " && ".join([*steps, *moves, f'exec {_USER} "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]


def _behind_closed(paths: Iterable[Path]) -> Iterable[tuple[Path, str]]:
    """Of each path the first folder on the way that others may not pass, and the name below it."""
    for path in paths:
        for folder in reversed(path.parents):
            if not folder.stat().st_mode & 0o001:
                yield folder, path.relative_to(folder).parts[0]
                break
