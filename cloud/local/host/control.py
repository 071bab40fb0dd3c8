"""The host's end of its control socket: one JSON object per line in each direction."""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLIENT_S = 10.0  # a client that does not read its answer within this time is disconnected


class ControlServer:
    """Serves clients from a selector's loop; `answer` computes the reply to a line.

    The data of the selector's keys is the callback to call with the file object.
    """

    def __init__(self, selector: selectors.BaseSelector, answer: Callable[[bytes], dict[str, Any]]) -> None:
        self._selector, self._answer = selector, answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}

    def listen(self, path: Path) -> None:
        """Accept connections at `path`."""
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def descriptors(self) -> list[int]:
        """Descriptors that a forked program has to close."""
        return [self._listener.fileno(), *self._clients]

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        client.settimeout(_CLIENT_S)
        self._clients[client.fileno()] = (client, bytearray())
        self._selector.register(client, selectors.EVENT_READ, self._on_readable)

    def _on_readable(self, client: socket.socket) -> None:
        buffer = self._clients[client.fileno()][1]
        try:
            data = client.recv(1 << 20)
            buffer += data
            while data and b"\n" in buffer:
                line, _, rest = bytes(buffer).partition(b"\n")
                buffer[:] = rest
                client.sendall(json.dumps(self._answer(line)).encode() + b"\n")
        except OSError:
            data = b""  # the client disconnected
        if not data:
            self._selector.unregister(client)
            del self._clients[client.fileno()]
            client.close()
