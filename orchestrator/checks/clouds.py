"""Offline checks of the clouds: credential files and SkyPilot's catalogs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloud.sky.skypilot.catalog_files import catalog_folder, read_catalog
from cloud.vendors import RENTABLE
from orchestrator.checks.credentials import cloud_access
from orchestrator.checks.findings import Finding
from orchestrator.errors import UsageError
from orchestrator.home import stored_owner

_OLD_DAYS = 14


def credentials(
    environ: Mapping[str, str], names: Iterable[str] = RENTABLE, *, wanted: bool, each: bool = False
) -> list[Finding]:
    """One finding per cloud of `names`.

    `wanted`: a run on rented VMs is requested, so at least one of the clouds must be usable, or with `each` all.
    """
    accesses = [cloud_access(RENTABLE[name], environ) for name in names]
    needed = wanted and (each or all(access.lacks for access in accesses))
    found: list[Finding] = []
    for access in accesses:
        name = f"credentials {access.cloud}"
        if not access.lacks:
            found.append(
                Finding(
                    name, "ok", f"{access.found}; run `orch check --online` to see whether they are accepted"
                )
            )
        else:
            where = f"{access.lacks} ({access.found})" if access.found else access.lacks
            found.append(Finding(name, "missing" if needed else "warning", where, access.next))
    return found


def owner(home: Path) -> Finding:
    """The owner name of VMs rented from here, which `orch reap` needs on another machine."""
    try:
        kept = stored_owner(home)
    except (UsageError, OSError) as error:
        return Finding("owner", "missing", str(error), "`orch launch --on sky` needs a valid owner name")
    return Finding(
        "owner", "ok", f"{kept}, the VMs' label orch-owner" if kept else "generated at the first launch"
    )


def catalogs(environ: Mapping[str, str], names: Iterable[str] = RENTABLE) -> list[Finding]:
    """Age of the catalogs of these clouds, whose prices a plan would use."""
    folder = catalog_folder(environ)
    found: list[Finding] = []
    for cloud in names:
        name, read = f"catalog {cloud}", read_catalog(folder, cloud)
        if isinstance(read, str):
            found.append(
                Finding(
                    name,
                    "warning",
                    read,
                    "plans use the built-in price books; SkyPilot downloads the catalog on first use",
                )
            )
            continue
        age_days = (time.time() - read.modified_s) / 86400
        rows = sum(len(rows) for rows in read.regions.values())
        text = f"{read.source}: {rows} rows, {age_days:.0f} days old"
        if age_days > _OLD_DAYS:
            found.append(
                Finding(name, "warning", text, "SkyPilot downloads a newer one when it is used online")
            )
        else:
            found.append(Finding(name, "ok", text))
    return found
