"""A plan's prediction, and predicted figures beside measured ones, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloud.targets import TARGETS
from metrics.figures import FIGURES
from metrics.readable import duration, number, usd
from orchestrator.cli.render.words import place

_PARTS = {
    "calculation": "calculation",
    "path": "the exchange between {where}",
    "vm": "the exchange, as fast as a VM processes it",
    "waiting": "peers waiting for each other",
    "work": "each VM's own work around a round",
}


def prediction_lines(plan: Mapping[str, Any]) -> list[str]:
    """Format the prediction of a plan. A plan of an older version of orch has none."""
    p = plan.get("prediction")
    if p is None:
        return []
    if p["sps"] is None:
        return [f"  not predicted: {'; '.join(p['unknown'])}"]
    here = plan["emulated"] and not TARGETS[plan["on"]].rents
    of = " of the real VMs, not of this machine" if here else ""
    lines = [f"  predicted{of}: {_with_interval(p['sps'])} samples/s{_granularity(p['granularity'])}"]
    if more := p.get("more_peers"):
        lines.append(f"    {more['text']}")
    took, unknown = p["time_to_samples_s"], "; ".join(p["unknown"])
    if took is None:
        time = f"the time for {p['samples']:,} samples is unknown"
    else:
        time = f"{duration(took['value'])} ({duration(took['low'])} to {duration(took['high'])}) for {p['samples']:,} samples"
    if p["usd_per_1m_samples"] is None:
        lines.append(f"    {time}; dollars are unknown: {unknown}")
    else:
        lines.append(
            f"    {_dollars(p['usd_per_1m_samples'])} per 1M samples, {_dollars(p['usd_per_h'])}/h of VMs and egress; "
            f"{_dollars(p['usd_to_samples'])} and {time}"
        )
    taken = p.get("preemptions")
    widest = _widest(p["assumptions"]) + ("" if taken else "; no preemptions assumed")
    lines.append(f"    most of an epoch: {_bottleneck(p['bottleneck'])}; {widest}")
    if taken:
        lines.append(f"    {_preemptions(taken)}")
    return lines


def prediction_words(p: Mapping[str, Any] | None) -> str:
    """Format samples/s and $/1M samples of a prediction in a few words; "" for a plan of an older version of orch."""
    if p is None:
        return ""
    if p["sps"] is None:
        return "not predicted"
    cost = p["usd_per_1m_samples"]
    dollars = "" if cost is None else f", {usd(cost['value'])}/1M samples"
    return f"predicted {number(p['sps']['value'], 3)} samples/s{dollars}"


def measured_rows(pairs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return rows of a run's summary on what was predicted of it (`metrics.predicted.pairs`)."""
    said = [
        f"{FIGURES[pair['figure']].name} {_shown(pair, 'value')} "
        f"[{_shown(pair, 'low')}, {_shown(pair, 'high')}] ({pair['error']:+.1%}"
        f"{'' if pair['inside'] else ', measured outside'})"
        for pair in pairs
        if pair["error"] is not None
    ]
    return [("predicted", ", ".join(said))] if said else []


def _shown(pair: Mapping[str, Any], key: str) -> str:
    figure = FIGURES[pair["figure"]]
    unit = " GB" if figure.shown_factor != 1 else ""
    return f"{number(pair['predicted'][key] * figure.shown_factor, 3)}{unit}"


def _granularity(g: Mapping[str, float] | None) -> str:
    if g is None:
        return ""
    return f"; granularity {_with_interval(g)}"


def _bottleneck(found: Mapping[str, Any]) -> str:
    where = " and ".join(place(one) for one in str(found["where"]).split(" to "))
    return f"{_PARTS[found['kind']].format(where=where)} ({found['share']:.0%})"


def _widest(assumptions: Sequence[Mapping[str, Any]]) -> str:
    known = [one for one in assumptions if one["share"] is not None and one.get("share_of", "sps") == "sps"]
    if not known:
        return "no input of the prediction is uncertain"
    most = max(known, key=lambda one: one["share"])
    return f"{most['share']:.0%} of the interval of samples/s is from {most['name']} ({most['value']})"


def _preemptions(taken: Mapping[str, Any]) -> str:
    left, billed, windows = taken["sps_share"], taken["billed_share"], taken["windows"]
    stretches = f"{windows} stretches of the histories" if windows > 1 else "the histories"
    short = "" if taken["window_s"] >= taken["run_s"] else ", which are shorter than the run"
    return (
        f"preemptions leave {left['value']:.1%} [{left['low']:.1%}, {left['high']:.1%}] of the samples/s (mean "
        f"{taken['mean_sps_share']:.1%}) and {billed['value']:.1%} of the VMs' hours, in {stretches} of "
        f"{duration(taken['window_s'])}{short}"
    )


def _with_interval(value: Mapping[str, float]) -> str:
    return f"{number(value['value'], 3)} [{number(value['low'], 3)}, {number(value['high'], 3)}]"


def _dollars(value: Mapping[str, float]) -> str:
    return f"{usd(value['value'])} [{usd(value['low'])}, {usd(value['high'])}]"
