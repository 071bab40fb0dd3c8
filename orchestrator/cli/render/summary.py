"""Render the plan before a run and the summary after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from itertools import groupby
from typing import Any

from cloud.networks.tuning import BUFFER_BYTES
from cloud.prices.book import EMULATED_BOOK
from cloud.prices.classes import is_own
from cloud.targets import TARGETS, target_of
from experiments.schema.limits import Limits
from metrics.events.evaluation import accuracy_words, evaluation_words
from metrics.figures import headlines
from metrics.host_load import describe_host
from metrics.learning_curve import target_words
from metrics.readable import size, usd
from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.prediction import measured_rows, prediction_lines
from orchestrator.cli.render.words import (
    counted,
    duration,
    emulation_line,
    interval,
    number,
    place,
    scales_of,
)

_COLUMNS = (
    "slot",
    "choice",
    "location",
    "instance",
    "accelerator",
    "market",
    "usd_per_h",
    "ceiling_usd_per_h",
)

_PADDED = (
    "; 'emulation' is set: a small network is trained, padded to the model's size and step time "
    "(use `--set emulation=null` to train the model itself)"
)

_TUNED = (
    f"  network_tuning wan: before setup, each VM's kernel is set to TCP buffers of up to {BUFFER_BYTES >> 20} MiB and BBR, if "
    "available; its setup.log shows the values applied",
)


def _checkpoint_line(stored: Mapping[str, Any]) -> str:
    count = "an unknown number" if stored["count"] is None else f"about {stored['count']}"
    each = "of unknown size" if stored["bytes"] is None else f"of {size(stored['bytes'])} each"
    costs = (
        ("sending them", "usd"),
        ("a download by all peers", "restore_usd"),
        ("keeping them", "kept_usd"),
    )
    known = [f"{what} costs {usd(stored[key])}" for what, key in costs if stored.get(key) is not None]
    unknown = [what for what, key in costs if stored.get(key) is None]
    rest = [f"what {' and '.join(unknown)} costs is unknown"] if unknown else []
    return f"checkpoints: {count}, {each}, written by {stored['writer']}; {', '.join([*known, *rest])}"


def _task_line(task: Mapping[str, Any]) -> str:
    if task["sha256"] is None:
        return f"task {task['name']}, which could not be built"
    size = "of unknown size" if task["bytes_per_sample"] is None else f"of {task['bytes_per_sample']:,} bytes"
    return (
        f"task {task['name']}: {task['parameters']:,} parameters, samples {size}; SHA-256 of code, requirements and "
        f"settings {task['sha256'][:12]}"
    )


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Format a plan (`analysis.planning.plan.Plan.as_dict`) for approval."""
    peers: Sequence[Mapping[str, Any]] = plan["peers"]
    epochs, rented = plan["epochs"], TARGETS[plan["on"]].rents
    lines = [
        f"{plan['experiment']}: {plan['model']}, {counted(len(peers), 'peer')}, target batch size "
        f"{plan['target_batch_size']:,}, {epochs['warmup']} warm-up + {epochs['measured']} measured epochs"
    ]
    if task := plan.get("task"):
        lines.append(f"  {_task_line(task)}")
    if stored := plan.get("checkpoints"):
        lines.append(f"  {_checkpoint_line(stored)}")
    if rented:
        lines.append("  Real VMs, rented through SkyPilot" + (_PADDED if plan["emulated"] else ""))
        lines.extend(_TUNED if plan.get("network_tuning") == "wan" else ())
    elif plan["emulated"]:
        lines.append(f"  {emulation_line(plan)}")
        lines.extend(f"    {reason}" for reason in plan["scale_reasons"])
    for key, group in groupby(sorted(peers, key=_kind), key=_kind):
        members = list(group)
        location, instance, accelerator, spot, alternatives = key
        other = f", else {', '.join(place(a) for a in alternatives)}" if alternatives else ""
        on = f" on {instance}" if rented and not is_own(location) else ""
        lines.append(
            f"  {len(members)} x {place(location)}  {accelerator}{on} {_market(location, spot)}  "
            f"{usd(members[0]['usd_per_h'])}/h each{other}"
        )
    if rented:
        dearest = plan["dearest_usd_per_h"]
        up_to = (
            f", at most {usd(dearest)}/h in the most expensive places" if dearest != plan["usd_per_h"] else ""
        )
        share = float(plan["price_tolerance"])
        ceiling = f"; VMs more than {share:.0%} above the planned price are refused"
        lines.append(f"  all VMs {usd(plan['usd_per_h'])}/h{up_to}{ceiling}")
        dated = f"{plan['price_book']} (prices of {plan['price_book_date'] or 'unknown date'})"
        lines.append(f"  traffic {_traffic_words(plan['budget'])}, by {dated}")
        known = {p["price_source"]: p for peer in peers for p in peer["places"] if p["usd_per_h"] is not None}
        lines.extend(f"  price {place(p['location'])}: {source}" for source, p in known.items())
    else:
        spent = "the cost of real VMs; nothing is rented"
        book = plan["price_book"]
        by = f"{book}, the paper's own prices of 2023" if book == f"{EMULATED_BOOK}.csv" else book
        lines.append(f"  all VMs {usd(plan['usd_per_h'])}/h by {by} ({spent})")
    lines.append(f"  {_budget_words(plan['budget'])}")
    lines.append(f"  {_limit_words(plan['limits'])}")
    lines.append(f"  expected duration: {_duration_words(plan)}")
    lines += prediction_lines(plan)
    lines.extend(f"  warning: {warning}" for warning in plan.get("warnings", ()))
    lines.extend(f"  note: {note}" for note in plan["notes"])
    return lines


def rent_question(plan: Mapping[str, Any]) -> str:
    """Return the confirmation question before real VMs are rented."""
    vms = f"{counted(len(plan['peers']), 'VM')} for {usd(plan['usd_per_h'])} per hour"
    return f"Rent {vms}, with traffic of {_traffic_words(plan['budget'])}?"


def plan_table(plan: Mapping[str, Any]) -> str:
    """Format the places of every slot, in order of preference, as a table followed by an empty line."""
    rows = [
        {**at, "slot": peer["slot"], "choice": number, "market": _market(at["location"], at["use_spot"])}
        for peer in plan["peers"]
        for number, at in enumerate(peer["places"], 1)
    ]
    return rows_text("places", rows, _COLUMNS, Format.table) + "\n"


def summary_lines(summary: Mapping[str, Any], report: str | None) -> list[str]:
    """Format the numbers of a finished run (`metrics.summary.summarise`) and the path of its report."""
    cost = summary.get("cost") or {}
    epochs = summary.get("epochs") or {}
    lacking = f", {epochs['unrecorded']} without a record" if epochs.get("unrecorded") else ""
    loss = summary.get("loss") or {}
    lines = [f"{summary.get('run_id')}: {summary.get('status')}"]
    emulation = emulation_line(summary)
    if emulation:
        scales = scales_of(summary)
        whole = target_of(summary.get("target")).rents or (scales and all(scale == 1 for _, scale in scales))
        lines.append(emulation if whole else f"{emulation} (figures below are at full scale)")
    if summary.get("host_contended"):
        lines.append(
            f"HOST TOO BUSY: the emulation fell behind its clock: {describe_host(summary.get('host'))}; do not trust these numbers"
        )
    rows = [
        *((of.short or of.name, interval(known, of.unit)) for of, known in headlines(summary, "epoch_s")),
        *([("more peers", more["text"])] if (more := summary.get("more_peers")) else []),
        ("epochs", f"{epochs.get('measured')} measured, {epochs.get('warmup')} warm-up excluded{lacking}"),
        ("dropped rounds", str(summary.get("dropped_rounds"))),
        ("cost", _cost_words(cost)),
        ("per 1M samples", usd(summary.get("usd_per_1m_samples"))),
        ("loss", f"{number(loss.get('first'))} to {number(loss.get('last'))}"),
        *_held_out_rows(summary),
        *_target_rows(summary),
    ]
    if start := summary.get("start_from"):
        rows.append(("started from", f"{start['prefix']}/{start['name']} (epoch {start['epoch']})"))
    rows += _spot_rows(summary)
    rows += measured_rows(summary.get("predicted") or ())
    published = summary.get("published")
    if published:
        rows.append(("the paper", _published_words(published)))
    lines.extend(f"  {name:<15} {words}" for name, words in rows)
    lines.extend(f"  warning: {warning}" for warning in summary.get("warnings") or ())
    if report:
        lines.append(f"  report          {report}")
    return lines


def _held_out_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on the last evaluation: the accuracy, unless the task has none, and the other figures."""
    figures = summary.get("evaluation") or {}
    others = {name: value for name, value in figures.items() if name != "accuracy"}
    rows: list[tuple[str, str]] = []
    if summary.get("accuracy") is not None or not figures:
        rows.append(("accuracy", accuracy_words(summary.get("accuracy"), summary.get("heldout_given"))))
    if others:
        rows.append(("held-out", evaluation_words(others)))
    return rows


def _target_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on the goal that ended the run and on the experiment's target, if there are any."""
    target, goal = summary.get("target_reached"), summary.get("ended_by")
    rows = [] if goal is None else [("ended by", f"the goal {goal} of train.until")]
    return rows if target is None else [*rows, ("target", target_words(target))]


def _spot_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on preemptions, lost epochs, checkpoints and pauses, if there were any."""
    rows: list[tuple[str, str]] = []
    taken, paused = summary.get("preemptions") or {}, summary.get("pauses") or {}
    if taken.get("count"):
        slowed = taken["epochs_slowed"]
        epochs = "unknown" if slowed is None else len(slowed)
        words = f"{taken['count']}: {usd(taken['usd'])}, {number(taken['lost_samples'])} samples lost, {epochs} epochs slowed"
        rows.append(("preemptions", words))
    lost = summary.get("lost_work") or {}
    if lost.get("restarts"):
        went_on = ", ".join(f"epoch {one['from_epoch']}" for one in lost["restarts"])
        words = f"{lost['epochs']} epochs, {number(lost['samples'])} samples, {usd(lost['usd'])}; went on from {went_on}"
        rows.append(("all peers lost", words))
    stored = summary.get("checkpoints") or {}
    if stored.get("newest"):
        newest = stored["newest"]
        words = f"{stored['stored']}, the newest of epoch {newest['epoch']} ({size(newest['bytes'])})"
        rows.append(("checkpoints", words))
    if paused.get("count"):
        rows.append(("paused", f"{duration(paused['seconds'])} below min_peers, billed {usd(paused['usd'])}"))
    return rows


def _kind(peer: Mapping[str, Any]) -> tuple[str, str, str, bool, tuple[str, ...]]:
    return (
        peer["location"], peer["instance"], peer["accelerator"], peer["use_spot"], tuple(peer["alternatives"])
    )  # fmt: skip


def _market(location: str, spot: bool) -> str:
    return "own" if is_own(location) else "spot" if spot else "on demand"


def _traffic_words(budget: Mapping[str, Any]) -> str:
    most = budget["egress_usd_per_h"]
    return "unknown cost" if most is None else f"at most {usd(most)}/h"


def _budget_words(budget: Mapping[str, Any]) -> str:
    if budget["budget_usd"] is None:
        return budget["overshoot"]
    seconds = [number(budget[key]) for key in ("metering_period_s", "decision_s", "teardown_s")]
    most = "" if budget["reserve_usd"] is None else "at most "
    rates = f"{usd(budget['burn_usd_per_h'])}/h of VMs + {usd(budget['egress_usd_per_h'])}/h of traffic"
    return (
        f"budget {usd(budget['budget_usd'])}, reserve {most}{usd(budget['reserve_usd'])} = ({rates}) x "
        f"({' + '.join(seconds)} s: metering, decision, teardown); overshoot {budget['overshoot']}"
    )


def _limit_words(limits: Mapping[str, Any]) -> str:
    words = [
        f"pauses below {counted(limits['min_peers'], 'peer')}",
        f"peers exit after {duration(limits['lease_s'])} without contact with the controller",
    ]
    for key in fields(Limits):
        if (value := limits[key.name]) is not None:
            words.append(key.metadata["plan"].format(duration(value) if key.name.endswith("_s") else value))
    if limits["max_usd_per_h"] is not None:
        words.append(f"{usd(limits['max_usd_per_h'])}/h")
    if limits["max_wall_time_s"] is not None:
        words.append(f"{duration(limits['max_wall_time_s'])} in total")
    return f"limits: {', '.join(words)}"


def _duration_words(plan: Mapping[str, Any]) -> str:
    if plan["raw_duration_s"] is None:
        return "unknown"
    here = f"about {duration(plan['raw_duration_s'])} of epochs here, plus startup"
    if TARGETS[plan["on"]].rents:
        most = plan["budget"]["egress_usd_per_h"]
        traffic = "unknown" if most is None else f"at most {usd(float(most) * plan['duration_s'] / 3600)}"
        words = f"about {duration(plan['duration_s'])} of epochs, plus startup"
        return f"{words}; VMs {_vm_usd_words(plan)}, traffic {traffic}"
    return f"{here}; at full scale {duration(plan['duration_s'])}, VMs {_vm_usd_words(plan)}"


def _vm_usd_words(plan: Mapping[str, Any]) -> str:
    """Format the VMs' dollars; the plan has whole cents, so 0 of VMs that are not free is less than one."""
    amount = plan["vm_usd"]
    if amount is not None and not Decimal(amount) and Decimal(plan["usd_per_h"]):
        return "< $0.01"
    return usd(amount)


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
        row = compared.get(key)
        if row:
            off = row.get("difference")
            ours = "ours unknown" if off is None else f"ours {off:+.1%}"
            shown.append(f"{name} {number(row.get('study'))} ({ours})")
    return f"{figures.get('run', 'the same experiment')}: {', '.join(shown) or 'nothing to compare'}"
