"""Which clouds this user could rent from, by what lies on this machine: files, environment, packages. Offline.

That credentials are there does not say that they are valid: only `orch check --online` asks the clouds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CLOUDS = ("aws", "gcp", "azure", "lambda")

_PACKAGES = {"aws": ("boto3",), "gcp": ("googleapiclient",), "azure": ("azure.identity",), "lambda": ()}
_NEXT = {
    "aws": "run `aws configure`, or export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gcp": "run `gcloud auth application-default login`",
    "azure": "run `az login`",
    "lambda": "write `api_key = YOUR_KEY` into ~/.lambda_cloud/lambda_keys (mode 600)",
}


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """What was found for one cloud."""

    cloud: str
    found: str  # where credentials lie; "" for none
    lacks: str  # what is missing, one phrase; "" for nothing
    next: str  # what to do about it


def cloud_access(cloud: str, environ: Mapping[str, str]) -> CloudAccess:
    """Credentials and packages of one cloud. Only whether they are there: their values are neither kept nor shown."""
    home = Path(environ.get("HOME") or "~").expanduser()
    found = {"aws": _aws, "gcp": _gcp, "azure": _azure, "lambda": _lambda}[cloud](home, environ)
    if not found:
        return CloudAccess(cloud, "", "no credentials", _NEXT[cloud])
    missing = [name for name in _PACKAGES[cloud] if not package_there(name)]
    if missing:
        return CloudAccess(
            cloud,
            found,
            f"package {', '.join(missing)} is not installed",
            f"`pip install 'skypilot[{cloud}]'`",
        )
    return CloudAccess(cloud, found, "", "")


def package_there(name: str) -> bool:
    """Whether a package can be imported, without importing it (its parent only)."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is not there
        return False


def _aws(home: Path, environ: Mapping[str, str]) -> str:
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return "AWS_ACCESS_KEY_ID in the environment"
    shared = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    config = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    if _has(shared, "aws_access_key_id", "credential_process"):
        return str(shared)
    return str(config) if _has(config, "aws_access_key_id", "sso_", "role_arn", "credential_process") else ""


def _gcp(home: Path, environ: Mapping[str, str]) -> str:
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    folder = Path(environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    path = Path(named) if named else folder / "application_default_credentials.json"
    return str(path) if path.is_file() else ""


def _azure(home: Path, environ: Mapping[str, str]) -> str:
    folder = Path(environ.get("AZURE_CONFIG_DIR") or home / ".azure")
    path = folder / "azureProfile.json"
    return str(path) if _has(path, '"subscriptions": [{', '"subscriptions":[{') else ""


def _lambda(home: Path, environ: Mapping[str, str]) -> str:
    path = home / ".lambda_cloud" / "lambda_keys"
    return str(path) if _has(path, "api_key") else ""


def _has(path: Path, *words: str) -> bool:
    """Whether a file has one of the words; a file that cannot be read has none."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return False
    return any(word in text for word in words)
