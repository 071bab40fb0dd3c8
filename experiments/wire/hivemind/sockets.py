"""Location of Hivemind's UNIX sockets: the run's own temporary folder instead of /tmp.

Hivemind 1.1.12 hard-codes `/tmp/hivemind-*.sock`, and a killed p2pd leaves them there. Every process that uses Hivemind
calls `short_socket_folder()` first, after its TMPDIR is set.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import os
import tempfile
from pathlib import Path

# sockaddr_un.sun_path has 108 bytes including the NUL; Hivemind appends "hivemind-p2pclient-XXXXXXXXXXX.sock"
_PATH_LIMIT_BYTES = 107
_NAME_BYTES = len("/hivemind-p2pclient-") + 11 + len(".sock")


class SocketFolderError(Exception):
    """The path of the temporary folder is too long for a UNIX socket."""


def short_socket_folder() -> Path:
    """Make Hivemind create its sockets in the temporary folder (TMPDIR), and return that folder.

    Raises SocketFolderError if the path would exceed the kernel's 108 bytes.
    """
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir()).absolute()
    length = len(os.fsencode(folder)) + _NAME_BYTES
    if length > _PATH_LIMIT_BYTES:
        raise SocketFolderError(
            f"TMPDIR={folder}: {length} bytes with the name of Hivemind's socket, but the kernel allows only"
            f" {_PATH_LIMIT_BYTES}; set TMPDIR to a shorter path"
        )
    from hivemind.p2p import P2P  # slow to import, and only a process that runs Hivemind needs it

    P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"  # pyright: ignore
    return folder
