"""Parts of a run's plan and meta that are specific to rented VMs."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from analysis.planning.plan import Quote, Quoter
from cloud import targets
from cloud.sky.vm.bootstrap import INSTALL_WITHIN_S, SETUP_WITHIN_S
from experiments.emulation.accelerators import is_padded
from experiments.emulation.scales import EmulationPlan, full_size, resolve_emulation
from experiments.schema.models import ExperimentSpec
from metrics.store.meta import RunMeta
from orchestrator.core.state import RunSpec
from orchestrator.home import owner

SKY = targets.SKY.provider

# Launches by SkyPilot were measured at 25 to 65 s, and at some minutes with failover or while waiting for ssh (at
# most 10 min). The VM's later phases have deadlines of their own.
_REQUEST_S = 900.0
_BOOT_S = 1200.0
_JOIN_S = 600.0
BARRIER_S = 900.0  # the VMs become ready minutes apart
_OBSERVE_S = 120.0
# The program exits, its logs are copied, SkyPilot terminates the cluster (6 to 24 s measured).
_TERMINATE_S = 180.0
_CLOSE_S = 600.0
_OBSERVE_PERIOD_S = 2.0
_DAY_S = 86_400.0
_LIFE_AFTER_END_S = 900.0


def full_scale_emulation(spec: ExperimentSpec, cores: int) -> EmulationPlan:
    """The emulation plan for real VMs: all scales 1, and no emulated network.

    With `emulation`, a small network is padded to the model's size and step time (SpecError if that is
    unknown). With `emulation: null`, or accelerators that are not padded, the model itself is trained, and no step time is
    needed.
    """
    if spec.emulation is None or not is_padded(spec):
        return full_size(spec)
    real = {"bytes_scale": 1.0, "time_scale": 1.0, "samples_scale": 1.0, "network": "none"}
    emulation = spec.emulation.model_copy(update=real)
    return resolve_emulation(spec.model_copy(update={"emulation": emulation}), cores)


def planned_quoter(plan: Mapping[str, Any]) -> Quoter:
    """Quote the instance types and prices of a plan, so that a launch uses what was shown."""
    places = {
        (p["location"], p["accelerator"], p["use_spot"]): p for peer in plan["peers"] for p in peer["places"]
    }

    def quote(location: str, accelerator: str, use_spot: bool) -> Quote:
        found = places[(location, accelerator, use_spot)]
        usd = found["usd_per_h"]
        return Quote(found["instance"], None if usd is None else Decimal(usd), found["price_source"])

    return quote


def patient(run: RunSpec) -> RunSpec:
    """The run with the deadlines of real clouds.

    All VMs are requested at once, because rented VMs get their initial peers after they have booted.
    """
    return replace(
        run,
        boot_deadline_s=_BOOT_S,
        setup_deadline_s=SETUP_WITHIN_S,
        install_deadline_s=INSTALL_WITHIN_S,
        join_deadline_s=_JOIN_S,
        barrier_s=BARRIER_S,
        first_alone=False,
    )


def sky_meta(meta: RunMeta, spec: ExperimentSpec, home: Path) -> RunMeta:
    """The meta of the run on rented VMs."""
    wall_s = spec.max_wall_time_s
    return replace(
        meta,
        provider=SKY,
        emulated=is_padded(spec),
        owner=owner(home),
        request_deadline_s=_REQUEST_S,
        observe_deadline_s=_OBSERVE_S,
        observe_period_s=_OBSERVE_PERIOD_S,
        terminate_deadline_s=_TERMINATE_S,
        close_deadline_s=_CLOSE_S,
        max_life_s=_DAY_S if wall_s is None else min(_DAY_S, wall_s + _LIFE_AFTER_END_S),
    )


def labels_of(meta: RunMeta, slot: str, now_s: float) -> dict[str, str]:
    """Labels that a VM gets at its creation."""
    lease_s = float(meta.document.get("lease_s", 600.0))
    return {
        "orch-run": str(meta.run_id),
        "orch-slot": slot,
        "orch-owner": str(meta.owner),
        "orch-lease-until": str(round(now_s + lease_s)),
    }


def store_node(spec: ExperimentSpec) -> dict[str, tuple[str, str]]:
    """The object store as a node of the traffic matrix (address, location); {} without an endpoint."""
    host = urlsplit(spec.data.endpoint).hostname
    if not host:
        return {}
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:  # the VMs may resolve it even if this machine cannot
        address = ""
    return {"store": (address, spec.data.location)}
