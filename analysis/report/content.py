"""The report's content: headline cards, sentences and table rows from a run's numbers. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.report.page import Card
from cloud.targets import target_of
from metrics.cost.ledger import READING_CHECKPOINTS
from metrics.coverage import Coverage
from metrics.events.evaluation import LOWER_IS_BETTER, accuracy_words, evaluation_words, figure_words
from metrics.figures import FIGURES, PAPER, Figure, headlines
from metrics.host_load import describe_host
from metrics.learning_curve import target_name, target_words
from metrics.predicted import words
from metrics.readable import duration, few, number, size, usd
from metrics.records import EpochRecord, UtilisationRecord
from metrics.run import RunNumbers
from metrics.traffic import CLASS_WORDS
from metrics.utilisation import Busy, busy

Summary = Mapping[str, Any]
_CARDS = 4  # held-out figures with a card; the table has all
_POINTS, _POINT_S = 240, 10.0  # of a chart over time: at most so many, each at least so long
_SETTINGS = 300  # characters of a task's settings


def basis_line(summary: Summary) -> str:
    """Return the page's first line: what ran where, and what is emulated."""
    target = target_of(summary["target"])
    if target.from_logs:
        return (
            "Computed from imported logs, not measured by orch. Bytes are those of whole network cards, split equally "
            "over the other VMs; dollars are by the price book named below."
        )
    if not summary["emulated"]:
        trained = f"; {_ran(summary)} was trained" if _sha256(summary) else ""
        return f"Measured on rented VMs{_tuned(summary)}{trained}; dollars are by the price book named below."
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
    steps = (
        f"calculation times are those of this machine's CPU, not of the accelerators ({_ran(summary)} was trained)"
        if summary.get("accelerators") == "host"
        else f"accelerators are padded to their measured step time ({_ran(summary)})"
    )
    return f"Emulated: {distance}; {steps}; {multiplied}."


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
    unknown = few(cost["unknown"])
    known = summary["host"]
    host = {
        True: f"host was too busy, times are doubtful: {describe_host(known)}",
        False: f"host was not too busy: {describe_host(known)}",
        None: "host load unknown",
    }[summary["host_contended"]]
    return [
        *(_estimate_card(figure, estimate, summary) for figure, estimate in headlines(summary)),
        Card("Cost per million samples", usd(dollars), unknown or f"price book {cost['price_book']}"),
        Card(
            "Cost of the run",
            usd(cost["total_usd"]),
            f"VMs {usd(cost['vm_usd'])}, egress {usd(cost['egress_usd'])}, data {usd(cost['data_usd'])}",
        ),
        *_held_out_cards(summary),
        *_target_cards(summary),
        Card(
            "Dropped rounds",
            str(summary["dropped_rounds"]),
            f"averaging rounds that were partly lost; {host}",
        ),
    ]


def _held_out_cards(summary: Summary) -> list[Card]:
    """Cards of the last evaluation: the accuracy, unless the task has none, and the other figures."""
    figures: Mapping[str, float] = summary["evaluation"] or {}
    found: list[Card] = []
    if summary["accuracy"] is not None or not figures:
        accuracy = accuracy_words(summary["accuracy"], summary["heldout_given"])
        more = "" if summary["accuracy"] is None else "at the end of the run"
        found.append(Card("Held-out accuracy", accuracy, more))
    others = [(name, value) for name, value in figures.items() if name != "accuracy"]
    for name, value in others[:_CARDS]:
        best = summary["evaluation_best"][name]
        more = "at the end of the run"
        if best is not None and best["value"] != value:
            more += f"; best {figure_words(name, best['value'])} after epoch {best['epoch']}"
        found.append(Card(f"Held-out {name}", figure_words(name, value), more))
    return found


def _target_cards(summary: Summary) -> list[Card]:
    """The card of what it took to reach the experiment's target."""
    target = summary["target_reached"]
    if target is None:
        return []
    if not target["reached"]:
        return [Card("Target", "not reached", target_name(target))]
    cost = "dollars unknown" if target["usd"] is None else f"{usd(target['usd'])} of the run"
    more = f"{cost}; {target_name(target)}, after epoch {target['epoch']}"
    return [Card("Time to reach the target", duration(target["time_s"]), more)]


def evaluation_table(summary: Summary) -> list[dict[str, Any]]:
    """Return the last and the best value of each held-out figure."""
    rows: list[dict[str, Any]] = []
    for name, best in summary["evaluation_best"].items():
        last = next(e for e in reversed(summary["evaluations"]) if name in e["figures"])
        rows.append(
            {
                "figure": name,
                "last": figure_words(name, last["figures"][name]),
                "after epoch": last["epoch"],
                "best": "-" if best is None else figure_words(name, best["value"]),
                "best after epoch": "-" if best is None else best["epoch"],
                "better is": {True: "lower", False: "higher", None: "unknown"}[LOWER_IS_BETTER.get(name)],
                "held-out samples": last["samples"],
                "peers": last["peers"],
            }
        )
    return rows


def evaluation_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one row per evaluated epoch and figure, as in the figure and its CSV file."""
    return [
        {
            "epoch": one["epoch"],
            "at_s": one["at_s"],
            "raw_trained_samples": one["raw_trained_samples"],
            "trained_samples": one["trained_samples"],
            "trained_s": one["trained_s"],
            "usd": one["usd"],
            "peers": one["peers"],
            "heldout_samples": one["samples"],
            "figure": name,
            "value": value,
        }
        for one in summary["evaluations"]
        for name, value in one["figures"].items()
    ]


def ended_by(summary: Summary) -> str:
    """Say which goal ended the run before its planned epochs; "" if none did."""
    goal = summary["ended_by"]
    return "" if goal is None else f", ended by the goal {goal} of train.until"


def started_from(summary: Summary) -> str:
    """Name the checkpoint of another run with which the run began; "" if it began from scratch."""
    start = summary["start_from"]
    return "" if start is None else f"; started from {start['prefix']}/{start['name']}"


def target_line(summary: Summary) -> str:
    """Say what it took to reach the experiment's target; "" without one."""
    target = summary["target_reached"]
    if target is None:
        return ""
    return f" {target_words(target)}."


def curve_note(summary: Summary) -> str:
    """Explain the axes of the learning curves, and why one is missing."""
    note = (
        " Samples, time and dollars are those until the end of the evaluated epoch, at full scale: time since training began, "
        "dollars of the whole run."
    )
    rows = summary["evaluations"]
    if all(row["usd"] is None for row in rows):
        note += f" Dollars are unknown: {few(summary['cost']['unknown']) or 'the evaluated epochs have no record'}."
    return note


def task_table(summary: Summary) -> list[dict[str, Any]]:
    """Return what was trained, as rows of a table; none for a model of models.csv."""
    task, model = summary["task"], summary["model"] or {}
    if task is None:
        return []
    settings = json.dumps(task["with"], ensure_ascii=False)
    parameters = model.get("parameters")
    rows = [
        ("task", task["call"]),
        ("settings", settings if len(settings) <= _SETTINGS else f"{settings[: _SETTINGS - 3]}..."),
        ("parameters", None if parameters is None else f"{parameters:,}"),
        ("SHA-256 of code, requirements and settings", task["sha256"]),
    ]
    return [{"what": what, "value": value} for what, value in rows]


def task_lead(summary: Summary) -> str:
    """Return the sentence of the section on the task: whose step times the calculation times are."""
    if summary["accelerators"] == "host":
        return "The task's own model was trained. Calculation times are those of this machine's CPU, not of the accelerators."
    if summary["accelerators"] == "padded" and summary["emulated"]:
        return "The task's own model was trained, each step padded to the accelerator's measured time."
    return "The task's own model was trained on the VMs' accelerators."


def timeline_rows(
    run: RunNumbers, records: Sequence[EpochRecord]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return VMs, averaging rounds and losses of all peers for the timeline figure.

    Times are in seconds since the launch; if it is unknown, since the first request for a VM.
    """
    begun = [row.requested_s for row in run.vms]
    if run.meta.started_s is not None:
        begun.append(run.meta.started_s)
    start = min(begun, default=0.0)
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
    return vms, epochs, [{"all_peers_lost_s": at_s - start} for at_s in run.lost_s]


def utilisation_rows(run: RunNumbers) -> list[dict[str, Any]]:
    """Return how busy each group of VMs was over time, for the figure.

    At most `_POINTS` rows per group. Columns: group, at_s (since the launch; the middle of the row's time), vms, and the
    fields of `metrics.utilisation.Busy` except `scopes`: means per VM, peaks of any VM.
    """
    if not run.utilisation:
        return []
    start = min(row.began_s for row in run.utilisation)
    end = max(row.began_s + row.wall_s for row in run.utilisation)
    launched = start if run.meta.started_s is None else min(run.meta.started_s, start)
    width_s = max(_POINT_S, (end - start) / _POINTS)
    cells: dict[tuple[str, int], list[UtilisationRecord]] = {}
    for row in run.utilisation:
        place = group_of(run.slot(row.vm)), int((row.began_s - start) / width_s)
        cells.setdefault(place, []).append(row)
    return [
        {"group": group, "at_s": start - launched + (n + 0.5) * width_s, "vms": len({row.vm for row in rows})}
        | {name: value for name, value in found.to_json().items() if name != "scopes"}
        for (group, n), rows in sorted(cells.items())
        if (found := busy(rows)) is not None
    ]


def group_of(slot: str) -> str:
    """Return the group of peers of a slot: "us" of "us-0"."""
    name, _, number = slot.rpartition("-")
    return name if number.isdigit() else slot


def utilisation_table(run: RunNumbers) -> list[dict[str, Any]]:
    """Return one row per VM for the page's table, without columns that are unknown for all of them."""
    by_vm: dict[str, list[UtilisationRecord]] = {}
    for row in run.utilisation:
        by_vm.setdefault(row.vm, []).append(row)
    rows = [(vm, found) for vm, own in by_vm.items() if (found := busy(own)) is not None]
    shown = [{"VM": vm} | {name: of(found) for name, of in _BUSY.items()} for vm, found in rows]
    known = [name for name in _BUSY if any(row[name] is not None for row in shown)]
    return [{"VM": row["VM"]} | {n: "unknown" if row[n] is None else row[n] for n in known} for row in shown]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _size(amount: float | None, per: str = "") -> str | None:
    return None if amount is None else size(amount) + per


_BUSY: Mapping[str, Callable[[Busy], str | None]] = {
    "CPU": lambda b: _percent(b.cpu_mean),
    "CPU peak": lambda b: _percent(b.cpu_peak),
    "memory peak": lambda b: _size(b.memory_peak_bytes),
    "sent": lambda b: _size(b.sent_mean_bytes_per_s, "/s"),
    "sent peak": lambda b: _size(b.sent_peak_bytes_per_s, "/s"),
    "received": lambda b: _size(b.received_mean_bytes_per_s, "/s"),
    "received peak": lambda b: _size(b.received_peak_bytes_per_s, "/s"),
    "GPU": lambda b: _percent(b.gpu_mean),
    "GPU peak": lambda b: _percent(b.gpu_peak),
    "GPU memory peak": lambda b: _size(b.gpu_memory_peak_bytes),
}


def utilisation_lead(run: RunNumbers) -> str:
    """Return the sentence of the section: what was read, and what CPU and memory are of."""
    of_peer = any(row.scope == "peer" for row in run.utilisation)
    own = (
        "VMs share this machine, so CPU and memory are those of the peer's processes, as a share of all cores of the machine"
        if of_peer
        else "CPU and memory are those of the whole VM"
    )
    raw = (
        " Bytes and seconds are raw: divided by the emulation's scales."
        if run.meta.emulated and of_peer
        else ""
    )
    return (
        f"Read once a second: lines are means of a group's VMs, dots the highest second of one of them. {own}.{raw} "
        "Network bytes are those of the VM's interface, the object store's data included."
    )


_SHOWN_PASSES = 10  # at each end


def coverage_lead(covered: Coverage) -> str:
    """Return the sentences of the section: what counts, the newest pass's counts, and what is not known."""
    said = [
        "How often each sample was handed to an accelerator step that ended, as measured, by pass over the data. Peers "
        "can be in different passes."
    ]
    said += [f"{one.sentence[0].upper()}{one.sentence[1:]}." for one in covered.passes[:3]]
    if covered.open_vms:
        said.append(
            f"{few(covered.open_vms, between=', ')} ended without a last report: how often the rest of its shard "
            "was seen is unknown, and it may have begun the next ones."
        )
    if covered.incomplete_vms:
        said.append(f"Reports of {few(covered.incomplete_vms, between=', ')} are missing: it used more.")
    if covered.silent_vms:
        said.append(f"{few(covered.silent_vms, between=', ')} trained, but reported nothing.")
    said += [
        f"{one.replaced_by} replaced {one.vm}: it repeated {one.repeated_samples:,} samples"
        + (f" and left out {one.skipped_samples:,}." if one.skipped_samples else ".")
        for one in covered.handovers[:_SHOWN_PASSES]
    ]
    return " ".join(said)


def coverage_table(covered: Coverage) -> list[dict[str, Any]]:
    """Return the first and the last passes; empty: unknown."""
    shown = covered.passes
    if len(shown) > 2 * _SHOWN_PASSES:
        shown = (*shown[:_SHOWN_PASSES], *shown[-_SHOWN_PASSES:])
    return [
        {
            "pass": one.number,
            "samples": "unknown" if one.samples is None else f"{one.samples:,}",
            "once": f"{one.once:,}",
            "twice or more": f"{one.more:,}",
            "not (yet)": f"{one.never:,}",
            "unknown": f"{one.unknown:,}",
            "shards of unknown size": f"{one.unsized_shards:,}",
        }
        for one in shown
    ]


def learning_rows(run: RunNumbers, records: Sequence[EpochRecord]) -> list[dict[str, Any]]:
    """Return the loss by slot and epoch; a replacement continues its slot's line."""
    return [{"vm": run.slot(row.vm), "epoch": row.epoch, "loss": row.loss} for row in records]


def learning_lead(summary: Summary) -> str:
    """Return the sentence of the section on learning; a task may have no accuracy."""
    if summary["accuracy"] is None and summary["evaluation"]:
        words = evaluation_words(summary["evaluation"])
        return f"The peers' training loss; on held-out samples at the end: {words}."
    accuracy = accuracy_words(summary["accuracy"], summary["heldout_given"])
    return f"The peers' training loss, and the accuracy on held-out samples: {accuracy}."


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
                "epoch s": number(row["epoch_s"]),
                "calc s": number(row["calc_s"]),
                "comm s": number(row["comm_s"]),
                "samples/s": number(row["sps"]),
                "granularity": number(row["granularity"]),
                "without stalls": number(row["granularity_stall_free"]),
                "loss": number(row["loss"]),
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
            "egress": CLASS_WORDS[row["class"]],
            "sent": size(row["bytes"]),
            "before scaling": size(row["raw_bytes"]),
            "cost": usd(row["usd"]),
        }
        for row in rows
    ]


def budget_line(summary: Summary) -> str:
    """Describe how much of the budget was spent; "" without a budget."""
    cost = summary["cost"]
    if cost["budget_usd"] is None:
        return ""
    over = cost["overshoot_usd"]
    passed = "overshoot unknown" if over is None else f"overshoot {usd(over)}"
    return f" Budget {usd(cost['budget_usd'])}: {usd(cost['total_usd'])} spent, {passed}."


def preemption_line(summary: Summary) -> str:
    """Describe the total cost of preemptions, of lost epochs and of pauses, for the text above the table."""
    taken, paused, lost = summary["preemptions"], summary["pauses"], summary["lost_work"]
    slowed = taken["epochs_slowed"]
    epochs = "unknown" if slowed is None else ", ".join(map(str, slowed)) or "none"
    text = (
        f"Preempted VMs: {taken['count']}. Paid for time without training: {usd(taken['usd'])}; samples lost: "
        f"{_whole(taken['lost_samples']) or 'unknown'}; slowed epochs of the other peers: {epochs}. "
        "Seconds and dollars are at full scale."
    )
    for one in lost["restarts"]:
        text += (
            f" All peers were lost at once: {one['epochs']} epochs after epoch {one['from_epoch']} were lost "
            f"({_whole(one['samples'])} samples, {usd(one['usd'])})."
        )
    if paused["count"]:
        text += (
            f" Pauses with fewer peers than min_peers: {paused['count']}, {paused['seconds']:.0f} s; the VMs kept "
            f"during them cost {usd(paused['usd'])}."
        )
    return text


CHECKPOINTS = (
    "States of the training that the peers stored, and from which VMs began, as measured: seconds of the upload or the "
    "download, and for how long training was interrupted to copy the state."
)


def checkpoint_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per checkpoint stored or restored for the page's table."""
    return [
        {
            "what": row["what"],
            "slot": row["slot"],
            "name": row["name"],
            "epoch": row["epoch"],
            "size": size(row["bytes"]),
            "s": number(row["seconds"]),
            "interrupted s": "" if row["copy_s"] is None else number(row["copy_s"]),
        }
        for row in rows
    ]


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
            "state s": number(row["seconds"]),
            "state": size(row["bytes"]),
            "resumed after an interruption": "unknown" if row["resumed"] is None else row["resumed"],
            "cost": usd(row["usd"]),
        }
        for row in rows
    ]


def preemption_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per preempted VM for the page's table."""
    return [
        {
            "slot": row["slot"],
            "replaced by": row["replaced_by"] or "none",
            "lost work s": number(row["lost_s"]),
            "request to training s": number(row["startup_s"]),
            "state download s": number(row["state_s"]) if row["replaced_by"] else "none",
            "state": size(row["state_bytes"]) if row["replaced_by"] else "none",
            "samples lost": _whole(row["lost_samples"]),
            "slowdown of others s": number(row["slowed_s"]),
            "cost": usd(row["usd"]),
        }
        for row in rows
    ]


def cost_rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the bill's lines by category; a sum with an unknown part is unknown."""
    sums: dict[str, float | None] = {}
    for line in lines:
        training = {"vm": "VMs", "data": "training data from the store"}
        name = _what(line) if line["what"] == READING_CHECKPOINTS else training.get(line["kind"], _what(line))
        name += " (estimated)" if line["estimated"] else ""
        before = sums.get(name, 0.0)
        sums[name] = None if before is None or line["usd"] is None else before + line["usd"]
    return [{"what": name, "usd": usd} for name, usd in sums.items()]


def bill_table(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the page's table of the bill's lines."""
    return [
        {
            "kind": line["kind"],
            "what": _what(line),
            "from": line["src"],
            "to": line["dst"],
            "quantity": _quantity(line),
            "cost": usd(line["usd"]),
            "price": line["price"],
        }
        for line in lines
    ]


def _what(line: Mapping[str, Any]) -> str:
    """Describe a line of the bill, with the class of egress in words."""
    head, _, kind = str(line["what"]).partition(" ")
    return f"{head} {CLASS_WORDS[kind]}" if line["kind"] == "egress" and kind else str(line["what"])


def _quantity(line: Mapping[str, Any]) -> str:
    if line["unit"] == "bytes":
        return size(line["quantity"])
    return (
        number(line["quantity"]) if line["quantity"] is None else f"{number(line['quantity'])} {line['unit']}"
    )


SELF = "A cell from a slot to itself is traffic between a VM and the one that replaced it."


def traffic_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """Explain a cell from a slot to itself; "" if there is none."""
    return f" {SELF}" if any(row["src"] == row["dst"] for row in rows) else ""


def more_peers_note(summary: Summary) -> str:
    """Say what the granularity means for more peers; "" if none was measured."""
    more = summary["more_peers"]
    return "" if more is None else f" Of this run: {more['text']}."


def samples_note(rows: Sequence[Mapping[str, Any]], target: int | None) -> str:
    """Explain epochs of more samples than the target batch size; "" if there is none."""
    if not target or all(row["samples"] <= target for row in rows):
        return ""
    return (
        f" An epoch ends once the peers together have {target:,} samples, the target batch size; each peer then finishes the "
        "batch that it has begun, so that an epoch can have more."
    )


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
                "what": figure.words if figure.unit else f"{figure.heading} (wall clock)",
                "study": pair["study"],
                "ours": pair["ours"],
                "ratio": pair["ours"] / pair["study"],
                "low": None if interval.get("low") is None else interval["low"] / pair["study"],
                "high": None if interval.get("high") is None else interval["high"] / pair["study"],
            }
        )
    return rows


def predicted_rows(summary: Summary) -> list[dict[str, str]]:
    """Return predicted and measured figures, formatted for a table; [] if nothing was predicted."""
    return [words(pair) for pair in summary["predicted"]]


def _estimate_card(figure: Figure, estimate: Mapping[str, Any] | None, summary: Summary) -> Card:
    name = figure.name.capitalize()
    if estimate is None:
        return Card(name, "unknown", "no measured epoch")
    value = f"{number(estimate['value'])} {figure.unit_of_run}".strip()
    if estimate["low"] is None:
        return Card(name, value, f"n = {estimate['n']}: no interval")
    low, high = number(estimate["low"]), number(estimate["high"])
    more = f"95 % interval {low} to {high}, n = {estimate['n']}"
    spread = summary["granularity_epochs"] if figure.key == "granularity_of_means" else None
    if spread:
        more += f"; epochs from {number(spread['least'])} to {number(spread['most'])}, median {number(spread['median'])}"
    return Card(name, value, more)


def _ran(summary: Summary) -> str:
    model, sha256 = summary["model"] or {}, _sha256(summary)
    ran = str(model.get("ran") or f"emulates {model.get('name', 'the model')}")
    return f"{ran}, SHA-256 {sha256[:12]}," if sha256 else ran


def _sha256(summary: Summary) -> str:
    """SHA-256 of the task's code, requirements and settings; "" for a model of models.csv."""
    return str((summary["model"] or {}).get("sha256") or "")


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
