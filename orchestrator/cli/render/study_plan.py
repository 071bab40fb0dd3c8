"""The plan of a study for approval: one line per run, and the totals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from cloud.targets import TARGETS
from experiments.emulation.bytes_scale import WARNING
from metrics.readable import usd
from orchestrator.cli.render.prediction import prediction_words
from orchestrator.cli.render.words import duration, number
from orchestrator.study.eta import OVERHEAD_S

_RENTED_OVERHEAD_S = 600.0  # per run: renting, booting and teardown


def plan_document(name: str, on: str, plans: Mapping[str, Mapping[str, Any]], retries: int) -> dict[str, Any]:
    """Combine the plans of all runs, by key, with their totals; a total with an unknown part is None.

    A plan of an older study has no `launchable`: it was launched. `raw_duration_s` is the time on this machine,
    including startup and teardown. `vm_usd` and `egress_usd` are at full scale; `egress_usd` is an upper bound.
    """
    own, target = list(plans.values()), TARGETS[on]
    overhead_s = _RENTED_OVERHEAD_S if target.rents else OVERHEAD_S
    raw_s, study_s = ([plan[key] for plan in own] for key in ("raw_duration_s", "duration_s"))
    return {
        "schema_version": 1,
        "study": name,
        "on": on,
        "launchable": all(plan.get("launchable", True) for plan in own),
        "runs": [{"run": key, **plan} for key, plan in plans.items()],
        "raw_duration_s": None if None in raw_s else sum(raw_s) + len(own) * overhead_s,
        "duration_s": None if None in study_s else sum(study_s),
        "vm_usd": _sum([plan["vm_usd"] for plan in own]),
        "egress_usd": _sum([_egress_usd(plan) for plan in own]),
        "most_vms": max((len(plan["peers"]) for plan in own), default=0),
        "contended_retries": retries if target.on_this_host else 0,
    }


def study_plan_lines(document: Mapping[str, Any]) -> list[str]:
    """Format `plan_document`, the verdict and the obstacles first; a text shared by several runs is printed once."""
    runs: Sequence[Mapping[str, Any]] = document["runs"]
    rented = TARGETS[document["on"]].rents
    where = "on VMs rented through SkyPilot" if rented else "on the emulated cloud on this machine"
    count = f"{len(runs)} runs one after the other" if len(runs) != 1 else "1 run"
    refused = [run["run"] for run in runs if run.get("obstacles")]
    can = f"cannot be launched as it is: {len(refused)} of {len(runs)} runs have obstacles"
    lines = [f"{document['study']} {can if refused else 'can be launched'}"]
    against: dict[str, list[str]] = {}
    for run in runs:
        for obstacle in run.get("obstacles", ()):
            against.setdefault(obstacle["text"], []).append(run["run"])
    lines += [f"  - {_several(keys, len(runs))}: {text}" for text, keys in against.items()]
    lines.append(f"{document['study']}: {count}, {where}")
    width = max((len(run["run"]) for run in runs), default=0)
    for run in runs:
        vms = f"{len(run['peers'])} VM{'s' if len(run['peers']) > 1 else ' '}"
        parts = [f"{usd(run['usd_per_h'])}/h", f"{duration(run['duration_s'])} at full scale"]
        if rented:
            parts = [parts[0], _about(run["duration_s"]), f"VMs {usd(run['vm_usd'])}"]
            parts.append(_traffic(_egress_usd(run)))
        else:
            scales = run["scales"]
            parts.insert(0, f"{_about(run['raw_duration_s'])} of epochs here")
            parts.append(f"bytes 1/{number(scales['bytes'])}, samples 1/{number(scales['samples'])}")
        if predicted := prediction_words(run.get("prediction")):
            parts.append(predicted)
        lines.append(f"  {run['run']:<{width}}  {vms}  {', '.join(parts)}")
    money = f"VMs {usd(document['vm_usd'])}, {_traffic(document['egress_usd'])}"
    together = f"{_about(document['raw_duration_s'])}, including startup and teardown"
    lines.append(f"  total: {together}; {money if rented else 'nothing is rented'}")
    if document["contended_retries"]:
        times = "once" if document["contended_retries"] == 1 else "twice"
        lines.append(f"  not included: a run disturbed by the host is repeated, at most {times}")
    warned: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.get("warnings", ()):
            warned.setdefault(warning, []).append(run["run"])
    lines += [f"  warning: {_several(keys, len(runs))}: {warning}" for warning, keys in warned.items()]
    noted: dict[str, list[str]] = {}
    for run in runs:
        scales = [] if rented else run["scale_reasons"]  # rented VMs are not this host
        doubts = [reason.removeprefix(WARNING) for reason in scales if reason.startswith(WARNING)]
        for note in (*run["notes"], *doubts):
            noted.setdefault(note, []).append(run["run"])
    for note, keys in noted.items():
        lines.append(f"  note: {_several(keys, len(runs))}: {note}")
    return lines


def study_question(document: Mapping[str, Any]) -> str:
    """Return the confirmation question for the whole study."""
    if not TARGETS[document["on"]].rents:
        return "Start this study?"
    vms, traffic = document["vm_usd"], document["egress_usd"]
    sums = [
        "VMs at an unknown price" if vms is None else f"{usd(vms)} of VMs",
        "traffic at an unknown price" if traffic is None else f"at most {usd(traffic)} of traffic",
    ]
    return f"Rent up to {document['most_vms']} VMs at a time, {' and '.join(sums)} in all?"


def _about(seconds: float | None) -> str:
    return "unknown duration" if seconds is None else f"about {duration(seconds)}"


def _traffic(most_usd: str | None) -> str:
    return "traffic: unknown" if most_usd is None else f"traffic at most {usd(most_usd)}"


def _egress_usd(plan: Mapping[str, Any]) -> str | None:
    """Upper bound of the cost of the traffic of a run's epochs."""
    hourly, seconds = plan["budget"]["egress_usd_per_h"], plan["duration_s"]
    if hourly is None or seconds is None:
        return None
    return str((Decimal(hourly) * Decimal(repr(float(seconds))) / 3600).quantize(Decimal("0.01")))


def _sum(amounts: Sequence[str | None]) -> str | None:
    known = [Decimal(amount) for amount in amounts if amount is not None]
    return str(sum(known, Decimal(0))) if len(known) == len(amounts) else None


def _several(keys: Sequence[str], of: int) -> str:
    return "every run" if len(keys) == of else f"{', '.join(keys[:4])}{' ...' if len(keys) > 4 else ''}"
