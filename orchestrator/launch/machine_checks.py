"""Obstacles on this machine: values of secrets, packages, credentials. Offline, from the environment and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from analysis.export.trackers import tracker_lacks
from cloud.targets import TARGETS, skypilot_install
from cloud.vendors import RENTABLE
from experiments.schema.models import ExperimentSpec
from experiments.tasks.compiler import missing_compiler
from orchestrator.checks.credentials import cloud_access, missing_packages, package_there
from orchestrator.launch.obstacles import Obstacle, ObstacleCode
from orchestrator.launch.rent_checks import STORE_KEYS, clouds_of
from orchestrator.launch.requirement_checks import absent_requirements
from orchestrator.launch.secret_values import OWN_SECRET, missing_secrets


def machine_obstacles(spec: ExperimentSpec, on: str, environ: Mapping[str, str]) -> tuple[Obstacle, ...]:
    """What this machine lacks to launch the experiment. Whether credentials are accepted is not checked."""
    found: list[Obstacle] = []
    if missing := missing_secrets(spec, environ):
        found.append(Obstacle(ObstacleCode.SECRET_VALUES, missing))
    for tracker in spec.tracking.as_mapping() if spec.tracking is not None else ():
        if lacks := tracker_lacks(tracker):
            found.append(Obstacle(ObstacleCode.PACKAGES, f"tracking: {lacks}"))
    if TARGETS[on].rents:
        found += [*_own_keys(spec, environ), *_packages(spec), *_credentials(spec, environ)]
    else:
        found += absent_requirements(spec)
        if spec.swarm.compile and (lacks := missing_compiler("cpu", environ)):
            found.append(Obstacle(ObstacleCode.COMPILER, lacks))
    return tuple(found)


def _own_keys(spec: ExperimentSpec, environ: Mapping[str, str]) -> Iterator[Obstacle]:
    """AWS's keys would be passed to a store outside AWS: they may rent VMs, and SkyPilot uses them."""
    host = urlsplit(spec.data.endpoint).hostname or ""
    if not host or host.endswith(".amazonaws.com"):
        return
    named = [n for n in STORE_KEYS if n in spec.secrets and n in environ]
    bare = [n for n in named if not environ.get(OWN_SECRET + n)]
    if bare:
        yield Obstacle(
            ObstacleCode.CLOUD_KEYS,
            f"{' and '.join(bare)} in this environment are AWS's keys, and every VM would get them as the keys of "
            f"{host}; export the store's as {' and '.join(OWN_SECRET + n for n in bare)}",
        )


def _packages(spec: ExperimentSpec) -> Iterator[Obstacle]:
    """SkyPilot, or its packages for the clouds of the experiment: one command installs them all."""
    clouds = [cloud for cloud in clouds_of(spec) if cloud in RENTABLE]
    lacks = {cloud: missing_packages(RENTABLE[cloud]) for cloud in clouds}
    named = [f"{', '.join(names)} for {cloud}" for cloud, names in lacks.items() if names]
    if not package_there("sky"):
        named.insert(0, "SkyPilot")
    if named:
        yield Obstacle(
            ObstacleCode.PACKAGES,
            f"not installed: {', '.join(named)}; run `{skypilot_install(clouds)}` in a clone of orch",
        )


def _credentials(spec: ExperimentSpec, environ: Mapping[str, str]) -> Iterator[Obstacle]:
    for cloud in clouds_of(spec):
        access = cloud_access(RENTABLE[cloud], environ) if cloud in RENTABLE else None
        if access is not None and not access.found:
            yield Obstacle(
                ObstacleCode.CREDENTIALS, f"{cloud}: {access.lacks}; {access.next}, or remove its places"
            )
