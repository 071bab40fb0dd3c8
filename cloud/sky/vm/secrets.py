"""A VM's secrets in transit: sealed in a file, with the key in SkyPilot's secrets.

SkyPilot stores `secrets=` in plain text in its requests.db, and passes short job scripts on ssh's command line. Therefore
only a one-time key is passed that way. The secrets themselves are in a file, encrypted (Fernet: AES and HMAC), which is
removed on this machine as soon as the VM has it. This module also runs on the VM.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEY_VARIABLE = "ORCH_SEAL_KEY"


def seal(environment: Mapping[str, str], files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Encrypt the content; returns a new key and the encrypted content."""
    from cryptography.fernet import Fernet

    key = Fernet.generate_key()
    content = {
        "environment": dict(environment),
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }
    return key.decode(), Fernet(key).encrypt(json.dumps(content).encode())


def open_sealed(sealed: Path, key: str, config: Path) -> None:
    """Write the files (0600) next to `config` and add the environment to it. Raises InvalidToken, OSError."""
    from cryptography.fernet import Fernet

    content: dict[str, Any] = json.loads(Fernet(key.encode()).decrypt(sealed.read_bytes()))
    for name, data in content["files"].items():
        _write(config.with_name(name), base64.b64decode(data))
    plain = json.loads(config.read_bytes())
    if content["environment"]:
        plain["environment"] = content["environment"]
    _write(config, json.dumps(plain).encode())


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


# On the VM: python -m cloud.sky.vm.secrets SEALED CONFIG, with the key in the environment.
if __name__ == "__main__":
    open_sealed(Path(sys.argv[1]), os.environ[KEY_VARIABLE], Path(sys.argv[2]))
