"""The two keys of each VM, and the run's key that signs the orders to its peers (`experiments/wire/orders.py`).

A VM's keys are created before its request and stored, so that a repeated request is identical.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from experiments.wire.orders import generate_run_key
from experiments.wire.record_keys import generate_identity, generate_record_key

_FORGOTTEN = "removed at the run's end"


class VmKeys:
    """`identity` and `record` are secret (files of the VM's folder); the others are published in the roster."""

    def __init__(self, identity: bytes, peer_id: str, record: bytes, record_public: str) -> None:
        self.identity, self.peer_id = identity, peer_id
        self.record, self.record_public = record, record_public

    def __repr__(self) -> str:  # keeps keys out of logs
        return "VmKeys(...)"


def vm_keys(run_folder: Path, vm: str) -> VmKeys:
    """The keys of a VM in `keys/<vm>/` (readable by the user only), created on the first call."""
    folder = run_folder / "keys" / vm
    if not (folder / "record.pub").is_file():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity, peer_id = generate_identity()
        record, public = generate_record_key()
        _write(folder / "identity.key", identity)
        _write(folder / "peer.id", peer_id.encode())
        _write(folder / "record.key", record)
        _write(
            folder / "record.pub", public.encode()
        )  # written last: its presence means that all are complete
    return VmKeys(
        (folder / "identity.key").read_bytes(),
        (folder / "peer.id").read_text(),
        (folder / "record.key").read_bytes(),
        (folder / "record.pub").read_text(),
    )


def run_key(run_folder: Path) -> tuple[bytes, str]:
    """The run's key, created on the first call: (PEM of the private key, OpenSSH text of the public key).

    Raises FileNotFoundError once the run has ended and its keys are removed.
    """
    folder = run_folder / "keys"
    if not (folder / "run.pub").is_file():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret, public = generate_run_key()
        _write(folder / "run.key", secret)
        _write(folder / "run.pub", public.encode())
    return (folder / "run.key").read_bytes(), (folder / "run.pub").read_text()


def forget_keys(run_folder: Path) -> None:
    """Remove all secrets from the folder of a run that has ended.

    These are the private keys (the run's and the copies for the VMs) and the values of the environment in the
    VMs' configs, which include the object store's secret key. The names of the variables stay.
    """
    for folder in ("keys", "vms", "monitor"):
        for path in (run_folder / folder).rglob("*.key"):
            path.unlink(missing_ok=True)
    for path in (run_folder / "vms").glob("*/config.json"):
        try:
            config = json.loads(path.read_bytes())
            names = sorted(config["environment"])
        except (ValueError, KeyError, TypeError):
            path.unlink()  # unreadable, but it may contain a secret
            continue
        _write(path, json.dumps({**config, "environment": dict.fromkeys(names, _FORGOTTEN)}).encode())


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(path.suffix + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
