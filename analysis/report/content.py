"""The report's content: headline cards, sentences and table rows from a run's numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report.page import Card
from cloud.targets import target_of
from metrics.figures import FIGURES, PAPER, Figure, headlines
from metrics.host_load import describe_host
from metrics.records import EpochRecord
from metrics.run import RunNumbers

Summary = Mapping[str, Any]


def basis_line(summary: Summary) -> str:
    """Return the page's first line: what ran where, and what is emulated."""
    target = target_of(summary["target"])
    if target.from_logs:
        return (
            "Computed from imported logs, not measured by orch. Bytes are those of whole network cards, split equally "
            "over the other VMs; dollars are by the price book named below."
        )
    if not summary["emulated"]:
        return f"Measured on rented VMs{_tuned(summary)}; dollars are by the price book named below."
    if target.rents:
        return (
            f"Measured on rented VMs and their real network{_tuned(summary)}; the trained network is small "
            f"({_ran(summary)}), padded to the model's size and the accelerator's measured step time; dollars are by the "
            "price book named below."
        )
    scales = summary["scales"]
    distance = (
        f"peers in network namespaces of one machine, {_distance(summary)}"
        if target.emulates_distance
        else "peers as plain processes on loopback, without network distance"
    )
    multiplied = (
        "nothing is scaled"
        if set(scales.values()) == {1}
        else f"bytes are 1/{scales['bytes']:g}, samples 1/{scales['samples']:g}, time 1/{scales['time']:g} of full "
        "scale; times, bytes and dollars below are at full scale, the raw ones are in the CSV files"
    )
    return f"Emulated: {distance}; accelerators are padded to their measured step time ({_ran(summary)}); {multiplied}."


def _tuned(summary: Summary) -> str:
    tuned = (summary["network"] or {}).get("tuning") == "wan"
    return (
        " with network_tuning: wan requested from their kernels (each VM's setup.log has the effective values)"
        if tuned
        else ""
    )


def _distance(summary: Summary) -> str:
    network = summary["network"] or {}
    if network.get("windows") != "kernel":
        return "distance and bandwidth by a user-space switch"
    return (
        f"distance by a user-space switch, a stream's bandwidth by its VM's own TCP window (network_tuning: "
        f"{network['tuning']}, {network['window_bytes'] / 1e6:.1f} MB at full size)"
    )


def title(summary: Summary) -> str:
    """Return the page's heading."""
    return f"{summary['experiment']}: run {summary['run_id']}"


def cards(summary: Summary) -> list[Card]:
    """Return the headline numbers, each with its interval and n."""
    cost = summary["cost"]
    dollars = summary["usd_per_1m_samples"]
    unknown = "; ".join(cost["unknown"]) if cost["unknown"] else ""
    known = summary["host"]
    host = {
        True: f"host was too busy, times are doubtful: {describe_host(known)}",
        False: f"host was not too busy: {describe_host(known)}",
        None: "host load unknown",
    }[summary["host_contended"]]
    accuracy = summary["accuracy"]
    return [
        *(_estimate_card(figure, estimate) for figure, estimate in headlines(summary)),
        Card("Cost per million samples", _usd(dollars), unknown or f"price book {cost['price_book']}"),
        Card(
            "Cost of the run",
            _usd(cost["total_usd"]),
            f"VMs {_usd(cost['vm_usd'])}, egress {_usd(cost['egress_usd'])}, data {_usd(cost['data_usd'])}",
        ),
        Card(
            "Held-out accuracy", "unknown" if accuracy is None else f"{accuracy:.1%}", "at the end of the run"
        ),
        Card(
            "Dropped rounds",
            str(summary["dropped_rounds"]),
            f"averaging rounds that were partly lost; {host}",
        ),
    ]


def timeline_rows(
    run: RunNumbers, records: Sequence[EpochRecord]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return VMs and averaging rounds, in seconds since the launch, for the timeline figure."""
    start = min((row.requested_s for row in run.vms), default=0.0)
    last = max(
        [row.ended_s for row in run.vms if row.ended_s is not None]
        + [e.ended_s for e in run.raw if e.ended_s]
        + [start]
    )
    vms = [
        {
            "slot": row.slot,
            "vm": row.vm,
            "location": row.location,
            "requested_s": row.requested_s - start,
            "ready_s": None if row.ready_s is None else row.ready_s - start,
            "ended_s": (last if row.ended_s is None else row.ended_s) - start,
            "end_cause": row.end_cause,
        }
        for row in run.vms
    ]
    epochs = [
        {
            "vm": row.vm,
            "epoch": row.epoch,
            "sync_began_s": row.ended_s - row.comm_s - start,
            "sync_ended_s": row.ended_s - start,
        }
        for row in records
    ]
    return vms, epochs


def learning_rows(run: RunNumbers, records: Sequence[EpochRecord]) -> list[dict[str, Any]]:
    """Return the loss by slot and epoch; a replacement continues its slot's line."""
    return [{"vm": run.slot(row.vm), "epoch": row.epoch, "loss": row.loss} for row in records]


def epoch_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the page's table of epochs."""
    shown = []
    for row in rows:
        remarks = [
            "warm-up, not in the means" if row["warmup"] else "",
            f"joined: {row['joined']}" if row["joined"] else "",
            f"left: {row['left']}" if row["left"] else "",
            "the round was partly lost" if row["dropped"] else "",
        ]
        shown.append(
            {
                "epoch": row["epoch"],
                "peers": row["peers"],
                "samples": _whole(row["samples"]),
                "epoch s": _number(row["epoch_s"]),
                "calc s": _number(row["calc_s"]),
                "comm s": _number(row["comm_s"]),
                "samples/s": _number(row["sps"]),
                "granularity": _number(row["granularity"]),
                "loss": _number(row["loss"]),
                "remarks": "; ".join(r for r in remarks if r),
            }
        )
    return shown


def traffic_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the page's table of egress by source and destination."""
    return [
        {
            "from": row["src"],
            "to": row["dst"],
            "class": row["class"],
            "GB": f"{row['bytes'] / 1e9:.4g}",
            "raw MB": f"{row['raw_bytes'] / 1e6:.4g}",
            "$": None if row["usd"] is None else f"{row['usd']:.4f}",
        }
        for row in rows
    ]


def budget_line(summary: Summary) -> str:
    """Describe how much of the budget was spent; "" without a budget."""
    cost = summary["cost"]
    if cost["budget_usd"] is None:
        return ""
    over = cost["overshoot_usd"]
    passed = "overshoot unknown" if over is None else f"overshoot {over:.6g} USD"
    return f" Budget {cost['budget_usd']:.6g} USD: {_usd(cost['total_usd'])} spent, {passed}."


def preemption_line(summary: Summary) -> str:
    """Describe the total cost of preemptions and pauses, for the text above the table."""
    taken, paused = summary["preemptions"], summary["pauses"]
    slowed = taken["epochs_slowed"]
    epochs = "unknown" if slowed is None else ", ".join(map(str, slowed)) or "none"
    text = (
        f"Preempted VMs: {taken['count']}. Paid for time without training: {_usd(taken['usd'])}; samples lost: "
        f"{_whole(taken['lost_samples']) or 'unknown'}; slowed epochs of the other peers: {epochs}. "
        "Seconds and dollars are at full scale."
    )
    if paused["count"]:
        text += (
            f" Pauses with fewer peers than min_peers: {paused['count']}, {paused['seconds']:.0f} s; the VMs kept "
            f"during them cost {_usd(paused['usd'])}."
        )
    return text


JOINS = (
    "VMs that joined while the others trained, and the state that each downloaded before its first step, at full scale. "
    "The dollars are part of the egress above, at the price book's first tier from the donor's place."
)


def join_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per joined VM for the page's table."""
    return [
        {
            "slot": row["slot"],
            "from": row["donor"] or "unknown",
            "epoch": row["from_epoch"],
            "state s": _number(row["seconds"]),
            "state MB": _megabytes(row["bytes"]),
            "resumed after an interruption": "unknown" if row["resumed"] is None else row["resumed"],
            "USD": _usd(row["usd"]),
        }
        for row in rows
    ]


def preemption_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per preempted VM for the page's table."""
    return [
        {
            "slot": row["slot"],
            "replaced by": row["replaced_by"] or "none",
            "lost work s": _number(row["lost_s"]),
            "request to training s": _number(row["startup_s"]),
            "state download s": _number(row["state_s"]) if row["replaced_by"] else "none",
            "state MB": _megabytes(row["state_bytes"]) if row["replaced_by"] else "none",
            "samples lost": _whole(row["lost_samples"]),
            "slowdown of others s": _number(row["slowed_s"]),
            "$": None if row["usd"] is None else f"{row['usd']:.4f}",
        }
        for row in rows
    ]


def cost_rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the bill's lines by category; a sum with an unknown part is unknown."""
    sums: dict[str, float | None] = {}
    for line in lines:
        name: str = {"vm": "VMs", "data": "training data from the store"}.get(line["kind"]) or line["what"]
        name += " (estimated)" if line["estimated"] else ""
        before = sums.get(name, 0.0)
        sums[name] = None if before is None or line["usd"] is None else before + line["usd"]
    return [{"what": name, "usd": usd} for name, usd in sums.items()]


def comparison_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return this run's figures and the paper's, with the run's interval as ratios."""
    published = summary["published"]
    if not published:
        return []
    rows = []
    for figure in (FIGURES[key] for key in PAPER):
        pair = published["compared"].get(figure.paper_column)
        if pair is None or pair["ours"] is None or not pair["study"]:
            continue
        interval = summary.get(figure.key) or {}
        rows.append(
            {
                "what": figure.words if figure.unit else f"{figure.name} (wall clock)",
                "study": pair["study"],
                "ours": pair["ours"],
                "ratio": pair["ours"] / pair["study"],
                "low": None if interval.get("low") is None else interval["low"] / pair["study"],
                "high": None if interval.get("high") is None else interval["high"] / pair["study"],
            }
        )
    return rows


def _estimate_card(figure: Figure, estimate: Mapping[str, Any] | None) -> Card:
    name = figure.name.capitalize()
    if estimate is None:
        return Card(name, "unknown", "no measured epoch")
    value = f"{_number(estimate['value'])} {figure.unit_of_run}".strip()
    if estimate["low"] is None:
        return Card(name, value, f"n = {estimate['n']}: no interval")
    low, high = _number(estimate["low"]), _number(estimate["high"])
    return Card(name, value, f"95 % interval {low} to {high}, n = {estimate['n']}")


def _ran(summary: Summary) -> str:
    model = summary["model"] or {}
    return str(model.get("ran") or f"emulates {model.get('name', 'the model')}")


def _usd(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:,.4g}" if abs(amount) < 1 else f"${amount:,.2f}"


def _megabytes(amount: int | None) -> str | None:
    return None if amount is None else f"{amount / 1e6:.4g}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
