"""Where Hivemind puts its UNIX sockets: in the run's own temporary folder instead of /tmp.

Hivemind 1.1.12 hard-wires `/tmp/hivemind-*.sock`; a killed p2pd leaves them there for ever. Every
process that uses Hivemind calls `short_socket_folder()` first, after TMPDIR was set for it.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import os
import tempfile
from pathlib import Path

# sockaddr_un.sun_path holds 108 bytes with its NUL; Hivemind appends "hivemind-p2pclient-XXXXXXXXXXX.sock"
_PATH_LIMIT_BYTES = 107
_NAME_BYTES = len("/hivemind-p2pclient-") + 11 + len(".sock")


class SocketFolderError(Exception):
    """The temporary folder's name is too long to hold a UNIX socket."""


def short_socket_folder() -> Path:
    """Make Hivemind put its sockets into the temporary folder (TMPDIR) and return that folder.

    Raises SocketFolderError when the path would pass the kernel's 108 bytes.
    """
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir()).absolute()
    length = len(os.fsencode(folder)) + _NAME_BYTES
    if length > _PATH_LIMIT_BYTES:
        raise SocketFolderError(
            f"TMPDIR={folder}: {length} bytes with Hivemind's socket name, the kernel allows"
            f" {_PATH_LIMIT_BYTES}; set TMPDIR to a shorter path"
        )
    from hivemind.p2p import P2P  # slow to import, and only a process that runs Hivemind needs it

    P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"  # pyright: ignore
    return folder
