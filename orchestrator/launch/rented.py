"""What a run on rented VMs has in its meta and its plan that one on this machine has not."""

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
from experiments.emulation.scales import EmulationPlan, full_size, resolve_emulation
from experiments.schema.models import ExperimentSpec
from metrics.store.meta import RunMeta
from orchestrator.core.state import RunSpec
from orchestrator.home import owner

SKY = targets.SKY.provider

# A launch by SkyPilot was measured to take 25 to 65 s, and some minutes when it fails over or waits for ssh (at
# most 10 min). What the VM itself then does has limits of its own, told by its phase.
_REQUEST_S = 900.0
_BOOT_S = 1200.0
_JOIN_S = 600.0
BARRIER_S = 900.0  # they are ready minutes apart
_OBSERVE_S = 120.0
_TERMINATE_S = (
    180.0  # its program leaves, its logs are copied, SkyPilot ends the cluster (6 to 24 s measured)
)
_CLOSE_S = 600.0
_OBSERVE_PERIOD_S = 2.0
_DAY_S = 86_400.0
_LIFE_AFTER_END_S = 900.0


def unscaled(spec: ExperimentSpec, cores: int) -> EmulationPlan:
    """On real VMs nothing is shrunk, and the network is as it is.

    `emulation` set: a small network padded to the model's size and step time (SpecError where none is known); null:
    the model itself, for which no step time has to be known.
    """
    if spec.emulation is None:
        return full_size(spec)
    real = {"bytes_scale": 1.0, "time_scale": 1.0, "samples_scale": 1.0, "network": "none"}
    emulation = spec.emulation.model_copy(update=real)
    return resolve_emulation(spec.model_copy(update={"emulation": emulation}), cores)


def planned_quoter(plan: Mapping[str, Any]) -> Quoter:
    """Instance types and prices as the plan has them: what was shown is what is asked for."""
    places = {
        (p["location"], p["accelerator"], p["use_spot"]): p for peer in plan["peers"] for p in peer["places"]
    }

    def quote(location: str, accelerator: str, use_spot: bool) -> Quote:
        found = places[(location, accelerator, use_spot)]
        usd = found["usd_per_h"]
        return Quote(found["instance"], None if usd is None else Decimal(usd), found["price_source"])

    return quote


def patient(run: RunSpec) -> RunSpec:
    """The same run with a real cloud's deadlines; its VMs are told whom to join when they are up, so none waits for
    the first one's address before it is requested."""
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
    """The same run's meta on rented VMs."""
    wall_s = spec.max_wall_time_s
    return replace(
        meta,
        provider=SKY,
        emulated=spec.emulation is not None,
        owner=owner(home),
        request_deadline_s=_REQUEST_S,
        observe_deadline_s=_OBSERVE_S,
        observe_period_s=_OBSERVE_PERIOD_S,
        terminate_deadline_s=_TERMINATE_S,
        close_deadline_s=_CLOSE_S,
        max_life_s=_DAY_S if wall_s is None else min(_DAY_S, wall_s + _LIFE_AFTER_END_S),
    )


def labels_of(meta: RunMeta, slot: str, now_s: float) -> dict[str, str]:
    """Tags of a VM at its creation."""
    lease_s = float(meta.document.get("lease_s", 600.0))
    return {
        "orch-run": str(meta.run_id),
        "orch-slot": slot,
        "orch-owner": str(meta.owner),
        "orch-lease-until": str(round(now_s + lease_s)),
    }


def store_node(spec: ExperimentSpec) -> dict[str, tuple[str, str]]:
    """The object store as a node of the traffic matrix: its address and place; {} when it has no endpoint."""
    host = urlsplit(spec.data.endpoint).hostname
    if not host:
        return {}
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:  # its name is resolved by the VMs, not by us
        address = ""
    return {"store": (address, spec.data.location)}
