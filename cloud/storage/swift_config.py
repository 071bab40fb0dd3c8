"""Configuration files and credentials of the embedded store."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud.storage.errors import EmbeddedStoreError

INNER_SERVERS = ("account", "container", "object")
REGION = "us-east-1"
_CREDENTIALS_FILE = "credentials.json"


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """Credentials of an embedded store; the repr contains no secret."""

    access_key: str
    secret_key: str = field(repr=False)

    def environment(self) -> dict[str, str]:
        """The AWS_* variables that boto3's credential chain reads."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    temporary.rename(path)


def load_or_make_credentials(folder: Path) -> StoreCredentials:
    """Load the folder's random credentials, creating them on first use; a restarted store keeps them.

    Raises EmbeddedStoreError if the file exists but cannot be read.
    """
    path = folder / _CREDENTIALS_FILE
    if not path.exists():
        made = {"access_key": "orch:admin", "secret_key": secrets.token_hex(20)}
        made |= {"hash_prefix": secrets.token_hex(8), "hash_suffix": secrets.token_hex(8)}
        write_private(path, json.dumps(made))
    raw = _read(path)
    return StoreCredentials(raw["access_key"], raw["secret_key"])


def write_swift(folder: Path, bind_ip: str, port: int, inner: Mapping[str, int]) -> None:
    """Write swift.conf and the configurations of the four servers to `folder` (absolute); data goes to folder/data."""
    raw = _read(folder / _CREDENTIALS_FILE)
    swift_conf = (
        f"[swift-hash]\nswift_hash_path_prefix = {raw['hash_prefix']}\n"
        f"swift_hash_path_suffix = {raw['hash_suffix']}\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n[swift-constraints]\n"
    )
    write_private(folder / "swift.conf", swift_conf)
    for name in INNER_SERVERS:
        conf = (
            f"{_common(folder, '127.0.0.1', inner[name])}"
            f"[pipeline:main]\npipeline = healthcheck {name}-server\n"
            "[filter:healthcheck]\nuse = egg:swift#healthcheck\n"
            f"[app:{name}-server]\nuse = egg:swift#{name}\n"
        )
        write_private(folder / f"{name}-server.conf", conf)
    write_private(folder / "proxy-server.conf", _proxy(folder, bind_ip, port, raw["secret_key"]))


def _common(folder: Path, ip: str, port: int) -> str:
    return (
        f"[DEFAULT]\nbind_ip = {ip}\nbind_port = {port}\nswift_dir = {folder}\ndevices = {folder / 'data'}\n"
        "mount_check = false\ndisable_fallocate = true\nfallocate_reserve = 0\nworkers = 0\n"
        f"log_level = WARNING\nrecon_cache_path = {folder / 'recon'}\n"
    )


def _proxy(folder: Path, ip: str, port: int, secret: str) -> str:
    # No memcache: Swift would connect to port 11211 of this machine, where another program may listen.
    # No error limiting: with a single replica, a restarted server would cause 503 for 60 s.
    pipeline = "catch_errors gatekeeper healthcheck listing_formats s3api tempauth copy slo dlo proxy-server"
    plain = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "copy", "slo", "dlo")
    filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in plain)
    return (
        f"{_common(folder, ip, port)}"
        f"[pipeline:main]\npipeline = {pipeline}\n{filters}"
        f"[filter:s3api]\nuse = egg:swift#s3api\nlocation = {REGION}\ns3_acl = false\n"
        "check_bucket_owner = false\n"
        f"[filter:tempauth]\nuse = egg:swift#tempauth\n"
        f"user_orch_admin = {secret} .admin .reseller_admin\n"
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
        "error_suppression_interval = 0\nerror_suppression_limit = 1000000000\nconn_timeout = 2\n"
    )


def _read(path: Path) -> dict[str, str]:
    try:
        raw = json.loads(path.read_text())
        return {key: str(raw[key]) for key in ("access_key", "secret_key", "hash_prefix", "hash_suffix")}
    except (OSError, ValueError, KeyError) as error:
        raise EmbeddedStoreError(
            f"{path}: cannot read the store's credentials ({type(error).__name__}); "
            "use another folder, or remove this one and create the data again"
        ) from error
