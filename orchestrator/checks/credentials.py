"""Find cloud credentials and packages on this machine. Offline.

Whether the credentials are valid is only checked by `orch check --online`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cloud.targets import skypilot_install
from cloud.vendors import CredentialFile, Vendor


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """Credentials and packages found for a cloud."""

    cloud: str
    found: str  # where the credentials are; "" for none
    lacks: str  # what is missing; "" for nothing
    next: str  # what to do about it


def cloud_access(vendor: Vendor, environ: Mapping[str, str]) -> CloudAccess:
    """Check whether a cloud's credentials and packages are present; values are neither kept nor shown."""
    found = _credentials(vendor, environ)
    if not found:
        return CloudAccess(vendor.name, "", "no credentials", vendor.sign_in)
    missing = missing_packages(vendor)
    if missing:
        return CloudAccess(
            vendor.name,
            found,
            f"package {', '.join(missing)} is not installed",
            f"`{skypilot_install([vendor.name])}` in a clone of orch",
        )
    return CloudAccess(vendor.name, found, "", "")


def missing_packages(vendor: Vendor) -> tuple[str, ...]:
    """Packages that SkyPilot needs for this cloud and that are not installed."""
    return tuple(name for name in vendor.packages if not package_there(name))


def package_there(name: str) -> bool:
    """Whether a package is installed; only its parent package is imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # no parent package
        return False


def _credentials(vendor: Vendor, environ: Mapping[str, str]) -> str:
    """Where the credentials are: environment variables, else the first usable file; "" for nowhere."""
    variables = vendor.credential_variables
    if variables and all(environ.get(name) for name in variables):
        return f"{variables[0]} in the environment"
    home = Path(environ.get("HOME") or "~").expanduser()
    paths = ((file, _path(file, home, environ)) for file in vendor.credential_files)
    return next((str(path) for file, path in paths if _counts(file, path)), "")


def _path(file: CredentialFile, home: Path, environ: Mapping[str, str]) -> Path:
    default = home / file.path
    folder = Path(environ.get(file.folder_variable) or default.parent)
    return Path(environ.get(file.variable) or folder / default.name)


def _counts(file: CredentialFile, path: Path) -> bool:
    """Whether the file contains credentials; an unreadable file does not count."""
    if not file.words:
        return path.is_file()
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return False
    return any(word in text for word in file.words)
