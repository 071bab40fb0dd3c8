"""The clouds as this machine knows them: credentials' files, SkyPilot's catalogs. Contacts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cloud.sky.skypilot.catalog_files import catalog_folder, read_catalog
from cloud.vendors import RENTED
from orchestrator.checks.credentials import cloud_access
from orchestrator.checks.findings import Finding
from orchestrator.errors import UsageError
from orchestrator.home import kept_owner

_OLD_DAYS = 14


def credentials(environ: Mapping[str, str], wanted: bool) -> list[Finding]:
    """One line a cloud. `wanted`: a run on rented VMs is asked for, so that one cloud at least must be usable."""
    accesses = [cloud_access(vendor, environ) for vendor in RENTED.values()]
    none = wanted and all(access.lacks for access in accesses)
    found: list[Finding] = []
    for access in accesses:
        name = f"credentials {access.cloud}"
        if not access.lacks:
            found.append(
                Finding(name, "ok", f"{access.found}; `orch check --online` asks whether they are accepted")
            )
        else:
            where = f"{access.lacks} ({access.found})" if access.found else access.lacks
            found.append(Finding(name, "missing" if none else "warning", where, access.next))
    return found


def owner(home: Path) -> Finding:
    """Under whose name VMs are rented from here: what `orch reap` on another machine has to be told."""
    try:
        kept = kept_owner(home)
    except (UsageError, OSError) as error:
        return Finding("owner", "missing", str(error), "`orch launch --on sky` needs one")
    return Finding(
        "owner", "ok", f"{kept}, the VMs' label orch-owner" if kept else "made at the first launch"
    )


def catalogs(environ: Mapping[str, str]) -> list[Finding]:
    """How old the prices are that a plan would use."""
    folder = catalog_folder(environ)
    found: list[Finding] = []
    for cloud in RENTED:
        name, read = f"catalog {cloud}", read_catalog(folder, cloud)
        if isinstance(read, str):
            found.append(
                Finding(
                    name, "warning", read, "plans use the price books; SkyPilot fetches it at its first use"
                )
            )
            continue
        age_days = (time.time() - read.modified_s) / 86400
        rows = sum(len(rows) for rows in read.regions.values())
        text = f"{read.source}: {rows} rows, {age_days:.0f} days old"
        if age_days > _OLD_DAYS:
            found.append(
                Finding(name, "warning", text, "SkyPilot fetches a newer one when it is used with a network")
            )
        else:
            found.append(Finding(name, "ok", text))
    return found
