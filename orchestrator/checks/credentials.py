"""Which clouds this user could rent from, by what lies on this machine: files, environment, packages. Offline.

That credentials are there does not say that they are valid: only `orch check --online` asks the clouds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cloud.vendors import CredentialFile, Vendor


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """What was found for one cloud."""

    cloud: str
    found: str  # where credentials lie; "" for none
    lacks: str  # what is missing, one phrase; "" for nothing
    next: str  # what to do about it


def cloud_access(vendor: Vendor, environ: Mapping[str, str]) -> CloudAccess:
    """Credentials and packages of one cloud. Only whether they are there: their values are neither kept nor shown."""
    found = _credentials(vendor, environ)
    if not found:
        return CloudAccess(vendor.name, "", "no credentials", vendor.sign_in)
    missing = [name for name in vendor.packages if not package_there(name)]
    if missing:
        return CloudAccess(
            vendor.name,
            found,
            f"package {', '.join(missing)} is not installed",
            f"`pip install 'skypilot[{vendor.name}]'`",
        )
    return CloudAccess(vendor.name, found, "", "")


def package_there(name: str) -> bool:
    """Whether a package can be imported, without importing it (its parent only)."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is not there
        return False


def _credentials(vendor: Vendor, environ: Mapping[str, str]) -> str:
    """Where the vendor's credentials are: variables, else the first of its files that counts; "" for nowhere."""
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
    """Whether the file has what it needs; one that cannot be read has nothing."""
    if not file.words:
        return path.is_file()
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return False
    return any(word in text for word in file.words)
