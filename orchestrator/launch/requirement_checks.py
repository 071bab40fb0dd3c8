"""Checks of a task's `requirements`: against the packages that the peer pins, and against this environment."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from cloud.provider import InvalidRequestError
from experiments.schema.models import ExperimentSpec
from experiments.schema.requirements import parse_requirement
from orchestrator.launch.obstacles import Obstacle, ObstacleCode
from orchestrator.launch.task_code import local_wheels


def replaced_pins(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Requirements, and those of their local wheels, that exclude the version of a package that the peer needs."""
    if not spec.requirements:
        return
    pins = _pins()
    for line in spec.requirements:
        wanted = parse_requirement(line).wanted
        named = [] if wanted is None or not _applies(wanted) else [(line, wanted)]
        for wheel in _wheels_of(spec, line):
            named += [(f"{line} needs {each}", each) for each in requirements_of(wheel)]
        for text, each in named:
            pinned = pins.get(canonicalize_name(each.name))
            # A package from a URL may have any version.
            if pinned is not None and (each.url or not each.specifier.contains(pinned, prereleases=True)):
                yield Obstacle(
                    ObstacleCode.REQUIREMENTS,
                    f"requirements: {text}, but the peer itself needs {canonicalize_name(each.name)}=={pinned}, which is not "
                    "replaced; allow this version",
                )


def absent_requirements(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """Requirements that this environment, which the emulated peers share, does not satisfy."""
    absent: list[str] = []
    command: list[str] = []
    for line in spec.requirements:
        parsed = parse_requirement(line)
        wanted = parsed.wanted
        if wanted is None:
            command.insert(0, f"'{line}'" if " " in parsed.path else line)
            continue
        if not _applies(wanted):
            continue
        found = _installed(wanted.name)
        if found is not None and wanted.specifier.contains(found, prereleases=True):
            continue
        absent.append(f"{wanted.name} ({'not installed' if found is None else f'{found} is installed'})")
        command.append(f"'{line}'")
    if absent:
        yield Obstacle(
            ObstacleCode.TASK_PACKAGES,
            f"requirements: the emulated peers share this environment, which lacks {', '.join(absent)}; run "
            f"`{sys.executable} -m pip install {' '.join(command)}`",
        )


def _applies(wanted: Requirement) -> bool:
    """Whether the requirement's marker is true here, and so on the VMs, which have Linux too."""
    return wanted.marker is None or wanted.marker.evaluate()


def requirements_of(wheel: Path) -> list[Requirement]:
    """What a wheel requires on this platform, without extras; [] if it cannot be read (pip will say so)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (
                n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1
            )
            lines = HeaderParser().parsestr(archive.read(name).decode("utf-8")).get_all("Requires-Dist") or []
        found = [Requirement(line) for line in lines]
    except (OSError, ValueError, zipfile.BadZipFile, InvalidRequirement):
        return []
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def _wheels_of(spec: ExperimentSpec, line: str) -> list[Path]:
    """The local wheels that a line may install: the wheel itself, or those of its name in the folders."""
    parsed = parse_requirement(line)
    if parsed.wanted is None:
        return []
    if parsed.path:
        return [Path(parsed.path)]
    wheels = dict.fromkeys(wheel for other in spec.requirements for wheel in local_wheels(other))
    return [
        wheel
        for wheel in wheels
        if (found := _wheel(wheel)) is not None
        and found.name == parsed.name
        and parsed.wanted.specifier.contains(str(found.specifier).removeprefix("=="), prereleases=True)
    ]


def _wheel(wheel: Path) -> Requirement | None:
    """Canonical name and version of a wheel; None if its file name has none."""
    try:
        name, number, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        return None
    return Requirement(f"{name}=={number}")


def _pins() -> Mapping[str, str]:
    """The versions that a peer needs, by name; {} if this machine lacks its packages, which is reported elsewhere."""
    from cloud.sky.vm.wheel import requirements

    try:
        return dict(line.split("==") for line in requirements().splitlines())
    except InvalidRequestError:
        return {}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
