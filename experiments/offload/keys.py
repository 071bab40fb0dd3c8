"""The folder of a server's certificate, its key, and the slots' tokens; what is made there is removed again."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from experiments.offload.certificate import Certificate
from experiments.offload.errors import PlanError

_TOKENS = "tokens.json"
_TOKEN_BYTES = 32


class Keys:
    """Certificate, key and tokens in `folder`: those that are there, or new ones for `slots`, which are removed on exit.

    Raises PlanError if there are some and `slots`, or neither, and if they cannot be read; OSError.
    """

    def __init__(self, folder: Path, slots: tuple[str, ...] = ()) -> None:
        self.paths = folder / "certificate.pem", folder / "key.pem"
        self.tokens: dict[str, str] = {}
        self._folder = folder
        self._slots = slots

    def __enter__(self) -> Keys:
        file = self._folder / _TOKENS
        if self._slots:
            if present := [path.name for path in (*self.paths, file) if path.exists()]:
                raise PlanError(
                    f"{self._folder} has {present[0]} already; leave out --slot to use it, or name another folder"
                )
            self._make(file)
            return self
        try:
            self.tokens = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"{file} cannot be read ({error}); make tokens with --slot NAME") from error
        if not isinstance(self.tokens, dict) or not all(isinstance(one, str) for one in self.tokens.values()):
            raise PlanError(f'{file} is not an object of tokens by slot; write {{"SLOT": "TOKEN"}}')
        return self

    def __exit__(self, *_: object) -> None:
        if self._slots:
            self._remove()

    def _make(self, file: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.tokens = {slot: secrets.token_urlsafe(_TOKEN_BYTES) for slot in self._slots}
        try:
            Certificate.make().write(self._folder)
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as tokens:
                json.dump(self.tokens, tokens)
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        for path in (*self.paths, self._folder / _TOKENS):
            path.unlink(missing_ok=True)
