"""Known secret values, looked for while a run on rented VMs lives and after it; the search is tests/e2e/canaries.py."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from pathlib import Path

from canaries import in_bytes, in_command_lines, private_keys
from fate import instances, user_data


class CommandLines:
    """Looks, time and again, at what `ps` shows on this machine and on the VMs (a context manager).

    For `values`, and for every private key that a run has made below `home` by then: they join the values.
    """

    def __init__(self, values: Mapping[str, bytes], home: Path) -> None:
        self.looks = 0
        self.found: set[str] = set()
        self.values = dict(values)
        self.error: Exception | None = None
        self._home = home
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        try:
            while not self._over.wait(1.0):
                for folder in self._home.glob("runs/*/keys"):
                    self.values |= private_keys(folder)
                self.found.update(in_command_lines(self.values))
                self.looks += 1
        except Exception as error:  # noqa: BLE001 - raised again where the test sees it
            self.error = error

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.error is None, self.error


def in_launches(values: Mapping[str, bytes]) -> list[str]:
    """Which of them EC2 was told: user data, tags."""
    told = {f"{i}'s user data": base64.b64decode(text) for i, text in user_data().items()}
    told |= {f"{row['id']}'s tags": json.dumps(row).encode() for row in instances()}
    return [f"{name} in {where}" for where, text in told.items() for name in in_bytes(text, values)]
