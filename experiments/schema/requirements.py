"""One line of `requirements`: a package with its versions, the path of a wheel, or a folder with wheels. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

FIND_LINKS = "--find-links"


class RequirementError(ValueError):
    """The line has none of the allowed forms."""


@dataclass(frozen=True, slots=True)
class ParsedRequirement:
    """A parsed line. `wanted` is None for a folder, `path` is "" for a package from an index."""

    wanted: Requirement | None  # the package with its allowed versions
    path: str = ""  # of the wheel or of the folder, as written

    @property
    def name(self) -> str:
        """Canonical name of the package, "my-package"; "" for a folder."""
        return canonicalize_name(self.wanted.name) if self.wanted else ""


def parse_requirement(line: str) -> ParsedRequirement:
    """Parse a line. Raises RequirementError."""
    text = line.strip()
    if not text.isprintable():
        raise RequirementError("a requirement has a control character; write one package on each line")
    if text.startswith("-"):
        option, _, folder = text.replace("=", " ", 1).partition(" ")
        if option not in (FIND_LINKS, "-f") or not folder.strip() or "://" in folder:
            raise RequirementError(
                f"'{text[:80]}' is not an allowed option; the only one is '{FIND_LINKS} FOLDER' with a folder of wheels"
            )
        return ParsedRequirement(None, folder.strip())
    if text.endswith(".whl") and "://" not in text:
        return _wheel(text)
    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        raise RequirementError(
            f"'{text[:80]}' is not a requirement; use a form such as name==1.2, the path of a wheel, or {FIND_LINKS} FOLDER"
        ) from error
    place = urlsplit(wanted.url or "")
    if place.scheme == "file":
        raise RequirementError(
            f"{wanted.name} is a file of this machine; give the path of its wheel instead of a URL"
        )
    if "@" in place.netloc:  # plans and reports show the line
        raise RequirementError(
            f"the URL of {wanted.name} has a user or password; download the wheel and give its path"
        )
    return ParsedRequirement(wanted)


def _wheel(path: str) -> ParsedRequirement:
    try:
        name, version, _, _ = parse_wheel_filename(PurePath(path).name)
    except InvalidWheelFilename as error:
        raise RequirementError(
            f"'{PurePath(path).name[:80]}' is not a wheel's file name, such as name-1.2-py3-none-any.whl; keep the name that "
            "the build gave it"
        ) from error
    return ParsedRequirement(Requirement(f"{name}=={version}"), path)
