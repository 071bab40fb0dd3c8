"""The plan before a run and the numbers after it, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from orchestrator.cli.words import duration, emulation_line, interval, number, place, usd

__all__ = ["plan_lines", "summary_lines"]


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The plan (`analysis.plan.Plan.as_dict`) for a person to approve."""
    peers: Sequence[Mapping[str, Any]] = plan["peers"]
    epochs = plan["epochs"]
    lines = [
        f"{plan['experiment']}: {plan['model']}, {len(peers)} peers, target batch size "
        f"{plan['target_batch_size']:,}, {epochs['warmup']} warm-up + {epochs['measured']} measured epochs"
    ]
    if plan["emulated"]:
        lines.append(f"  {emulation_line(plan)}")
        lines.extend(f"    {reason}" for reason in plan["scale_reasons"])
    for key, group in groupby(sorted(peers, key=_kind), key=_kind):
        members = list(group)
        alternatives = members[0]["alternatives"]
        other = f", else {', '.join(place(a) for a in alternatives)}" if alternatives else ""
        location, accelerator, spot = key
        lines.append(
            f"  {len(members)} x {place(location)}  {accelerator} {'spot' if spot else 'on demand'}  "
            f"{usd(members[0]['usd_per_h'])}/h each{other}"
        )
    budget = f", budget {usd(plan['budget_usd'])}" if plan["budget_usd"] is not None else ""
    spent = "what the real VMs would cost; nothing is rented" if plan["emulated"] else "rented"
    lines.append(f"  VMs together {usd(plan['usd_per_h'])}/h by {plan['price_book']} ({spent}){budget}")
    lines.append(f"  expected duration: {_duration_words(plan)}")
    lines.extend(f"  note: {note}" for note in plan["notes"])
    return lines


def summary_lines(summary: Mapping[str, Any], report: str | None) -> list[str]:
    """The end of a run: `metrics.summary.summarise`'s numbers, and where the report is."""
    cost = summary.get("cost") or {}
    epochs = summary.get("epochs") or {}
    loss = summary.get("loss") or {}
    lines = [f"{summary.get('run_id')}: {summary.get('status')}"]
    emulation = emulation_line(summary)
    if emulation:
        lines.append(
            emulation if emulation.endswith("not scaled") else f"{emulation} (multiplied back below)"
        )
    if summary.get("host_contended"):
        lines.append("HOST TOO BUSY: the emulation's clock was late; do not trust these numbers")
    rows = [
        ("throughput", interval(summary.get("sps"), "samples/s")),
        ("granularity", interval(summary.get("granularity"))),
        ("calculation", interval(summary.get("calc_s"), "s")),
        ("communication", interval(summary.get("comm_s"), "s")),
        ("epoch", interval(summary.get("epoch_s"), "s")),
        ("epochs", f"{epochs.get('measured')} measured, {epochs.get('warmup')} warm-up left out"),
        ("dropped rounds", str(summary.get("dropped_rounds"))),
        ("cost", _cost_words(cost)),
        ("per 1M samples", usd(summary.get("usd_per_1m_samples"))),
        ("loss", f"{number(loss.get('first'))} to {number(loss.get('last'))}"),
        ("accuracy", number(summary.get("accuracy"))),
    ]
    published = summary.get("published")
    if published:
        rows.append(("the study", _published_words(published)))
    lines.extend(f"  {name:<15} {words}" for name, words in rows)
    lines.extend(f"  warning: {warning}" for warning in summary.get("warnings") or ())
    if report:
        lines.append(f"  report          {report}")
    return lines


def _kind(peer: Mapping[str, Any]) -> tuple[str, str, bool]:
    return peer["location"], peer["accelerator"], peer["use_spot"]


def _duration_words(plan: Mapping[str, Any]) -> str:
    if plan["raw_duration_s"] is None:
        return "unknown"
    here = f"about {duration(plan['raw_duration_s'])} of epochs here, plus the start"
    if not plan["emulated"]:
        return here
    return f"{here}; at the study's scale {duration(plan['duration_s'])}, VMs {usd(plan['vm_usd'])}"


def _cost_words(cost: Mapping[str, Any]) -> str:
    parts = [("VMs", "vm_usd"), ("egress", "egress_usd"), ("data", "data_usd")]
    split = ", ".join(f"{name} {usd(cost.get(key))}" for name, key in parts)
    return f"{usd(cost.get('total_usd'))} ({split})"


def _published_words(published: Mapping[str, Any]) -> str:
    figures, compared = published.get("figures") or {}, published.get("compared") or {}
    shown: list[str] = []
    for key, name in (
        ("sps", "samples/s"),
        ("comm_s", "communication, s"),
        ("granularity_wall", "granularity"),
    ):
        beside = compared.get(key)
        if beside:
            off = beside.get("difference")
            ours = "ours unknown" if off is None else f"ours {off:+.1%}"
            shown.append(f"{name} {number(beside.get('study'))} ({ours})")
    return f"{figures.get('run', 'the same experiment')}: {', '.join(shown) or 'nothing to compare'}"
