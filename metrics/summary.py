"""Summary of a run as one JSON object, the output of `orch report RUN -o json`.

Times, bytes and dollars are at full scale; the raw values are under "raw". Numbers are JSON numbers, bytes are
whole, dollars are rounded to a millionth (the ledger itself is Decimal). What cannot be computed is null, and a
sentence in "warnings" says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from metrics import tables
from metrics.epochs.granularity import granularity_spread
from metrics.epochs.throughput import SwarmEpoch, dropped_rounds, measured
from metrics.events.bad_samples import bad_samples_of
from metrics.events.evaluation import Evaluation, best_of, held_out, heldout_given, names_of
from metrics.figures import FIGURES, SUMMARY
from metrics.more_peers import of_run
from metrics.paper.comparison import compare
from metrics.predicted import not_predicted, pairs
from metrics.records import VmEnd
from metrics.run import Records, RunNumbers
from metrics.stats import Estimate
from metrics.store.meta import RunMeta
from metrics.traffic import handed_over
from metrics.warnings import sentences

SUMMARY_VERSION = 1  # unchanged while keys are only added
_RAW = ("sps", "granularity", "calc_s", "comm_s", "epoch_s")


def summarise(store: Records | RunNumbers) -> dict[str, Any]:
    """Summarise a run's store, or numbers that are already computed. JSON types only."""
    run = store if isinstance(store, RunNumbers) else RunNumbers.of(store)
    meta, scales = run.meta, run.terms.scales
    chosen = measured(run.study)
    samples = sum(e.samples for e in run.study)
    total = run.bill.sum()
    ingress = list(run.ingress.values())
    evaluated, evaluations = held_out(run.evaluation_rows), run.evaluations
    left_out = bad_samples_of(meta.bad_samples, run.slot)
    return {
        "schema_version": SUMMARY_VERSION,
        "run_id": meta.run_id,
        "experiment": _experiment_name(meta),
        "target": meta.target,
        "status": meta.status,
        "emulated": bool(meta.emulated),
        "accelerators": None if meta.emulation is None else meta.emulation.accelerators,
        "scales": {"bytes": scales.bytes, "time": scales.time, "samples": scales.samples},
        "network": meta.network and meta.network.to_json(),
        "host_contended": meta.host_contended,
        "host": meta.host and meta.host.to_json(),
        "model": meta.model and meta.model.to_json(),
        "task": _task(meta),
        "target_batch_size": meta.target_batch_size,
        "peers": _peers(run),
        "epochs": {
            "warmup": sum(1 for e in run.raw if e.warmup),
            "measured": len(chosen),
            "joined": sum(1 for e in chosen if e.joined),
            "left": sum(1 for e in chosen if e.left),
            "unrecorded": None if run.unrecorded is None else len(run.unrecorded),  # in none of the figures
        },
        "samples": samples,
        **_estimates(SUMMARY, run.study),
        "granularity_epochs": None if (spread := granularity_spread(run.study)) is None else spread.to_json(),
        "more_peers": None if (more := of_run(run)) is None else more.to_json(),
        "sps_epoch_mean": _json(run.epoch_mean()),  # of an imported run: from its monitor's rates
        "dropped_rounds": len(dropped_rounds(run.raw)),
        "egress": [_egress_row(row, "bytes") for row in tables.traffic(run)],
        "ingress_bytes": None if None in ingress else round(sum(b for b in ingress if b is not None)),
        "cost": {
            "vm_usd": _usd(run.bill.sum("vm")),
            "egress_usd": _usd(run.bill.sum("egress")),
            "checkpoint_usd": _usd(_checkpoint_usd(run)),  # part of egress_usd, data_usd and storage_usd
            "data_usd": _usd(run.bill.sum("data")),
            "storage_usd": _usd(run.bill.sum("storage")),
            "controller_usd": _usd(run.bill.sum("controller")),
            "total_usd": _usd(total),
            "estimated_usd": _usd(run.bill.estimated_usd),
            **_budget(meta, total),
            "price_book": run.terms.book.name if run.terms.book else None,
            "unknown": list(run.bill.unknown),
        },
        "usd_per_1m_samples": None
        if total is None or not samples
        else _usd(total / Decimal(repr(samples)) * 1_000_000),
        "preemptions": _preemptions(run),
        "pauses": {
            "count": len(run.preemptions.pauses),
            "seconds": run.preemptions.paused_s,
            "usd": _usd(run.preemptions.paused_usd),
        },
        "lost_work": _lost_work(run),
        "checkpoints": run.checkpoints.to_json(),
        "start_from": meta.start_from and dict(meta.start_from),
        "loss": _loss(run),
        "accuracy": None if evaluated is None else evaluated.accuracy,
        "evaluation": dict(evaluations[-1].figures) if evaluations else None,
        "evaluation_best": _best(evaluations),
        "evaluations": tables.evaluations(run),
        "ended_by": meta.ended_by,
        "target_reached": _target_reached(run),
        "heldout_given": heldout_given(meta.document),
        "bad_samples": None if left_out is None else left_out.to_json(),
        "coverage": None if run.coverage is None else run.coverage.to_json(),
        "input": None if run.input is None else run.input.to_json(run.slot),
        "published": compare(
            meta.published, run.study, run.matrix, [row.vm for row in run.vms], run.epoch_mean()
        ),
        "predicted": pairs(run),
        "not_predicted": not_predicted(run),
        "agreement": _agreement(run),
        "raw": _raw(run),
        "warnings": sentences(run),
    }


def _task(meta: RunMeta) -> dict[str, Any] | None:
    """Return the task: "causal-lm" or "my_task:build", the settings, the SHA-256. None: a model of models.csv."""
    task: Mapping[str, Any] | None = meta.document.get("task")
    if not task:
        return None
    return {
        "call": (meta.model and meta.model.name) or task.get("name") or task.get("python"),
        "with": task.get("with") or {},
        "sha256": meta.model and meta.model.sha256,
    }


def _best(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, float | int] | None]:
    """Return the best value of each figure and its epoch. None: it is unknown which value is better."""
    found = {name: best_of(evaluations, name) for name in names_of(evaluations)}
    return {
        name: None if one is None else {"value": one.value, "epoch": one.epoch} for name, one in found.items()
    }


def _target_reached(run: RunNumbers) -> dict[str, Any] | None:
    """Return the experiment's target and what it took to reach it. None: it has none."""
    target, reached = run.target, run.curve.reached(run.target)
    if target is None:
        return None
    return {
        "name": target.name,
        "at_most": target.at_most,
        "at_least": target.at_least,
        "reached": reached is not None,
        "epoch": reached and reached.epoch,
        "value": reached and reached.figures[target.name],
        "samples": reached and reached.samples,
        "time_s": reached and reached.trained_s,
        "usd": None if reached is None else _usd(reached.usd),
        "usd_unknown": list(run.curve.unknown) if reached is not None and reached.usd is None else [],
    }


def _raw(run: RunNumbers) -> dict[str, Any]:
    return {
        "target_batch_size": run.terms.raw_target,
        "samples": sum(e.samples for e in run.raw),
        **_estimates(_RAW, run.raw),
        "egress": [_egress_row(row, "raw_bytes") for row in tables.traffic(run)],
        "egress_after_death_bytes": sum(run.tails.values()),
        "ingress_bytes": sum(run.raw_ingress.values()),
        "cache_bytes": run.cache_bytes,
    }


def _egress_row(row: dict[str, Any], column: str) -> dict[str, Any]:
    names = ("src", "dst", "class", "src_location", "dst_location")
    chosen: dict[str, Any] = {name: row[name] for name in names}
    chosen["bytes"] = round(row[column])
    if column == "bytes":
        chosen["usd"] = None if row["usd"] is None else round(row["usd"], 6)
    return chosen


def _peers(run: RunNumbers) -> list[dict[str, Any]]:
    vms: Counter[str] = Counter(row.slot for row in run.vms)
    taken: Counter[str] = Counter(row.slot for row in run.vms if row.end is VmEnd.PREEMPTED)
    last = {row.slot: row.location for row in sorted(run.vms, key=lambda row: row.generation)}
    return [
        {"slot": slot, "location": last[slot], "vms": vms[slot], "preemptions": taken[slot]}
        for slot in sorted(last)
    ]


def _preemptions(run: RunNumbers) -> dict[str, Any]:
    """Return the cost of preemptions, in total and by VM."""
    found = run.preemptions
    slowed = found.slowed_epochs
    return {
        "count": len(found.rows),
        "usd": _usd(found.usd),
        "lost_samples": found.lost_samples,
        "epochs_slowed": None if slowed is None else list(slowed),
        "vms": [
            {
                key: round(value, 6) if key.endswith("usd") and value is not None else value
                for key, value in row.items()
            }
            for row in tables.preemptions(run)
        ],
    }


def _checkpoint_usd(run: RunNumbers) -> Decimal | None:
    """Return the dollars of sending, downloading and keeping checkpoints. None: unknown, also if the egress of
    a writer was not measured.
    """
    measured_vms = {flow.src for flow in run.flows}
    if any(one.vm not in measured_vms for one in run.checkpoints.stored):
        return None
    return run.bill.checkpoints_usd()


def _lost_work(run: RunNumbers) -> dict[str, Any]:
    """Return the epochs that losses of all peers cost, in total and by loss. They are in the cost, not in the figures."""
    amounts = [one.usd for one in run.lost_work]
    known = [amount for amount in amounts if amount is not None]
    return {
        "epochs": sum(one.epochs for one in run.lost_work),
        "samples": sum(one.samples for one in run.lost_work),
        "usd": _usd(sum(known, Decimal(0))) if len(known) == len(amounts) else None,
        "restarts": [
            {
                "at_s": one.at_s,
                "from_epoch": one.from_epoch,
                "epochs": one.epochs,
                "samples": one.samples,
                "usd": _usd(one.usd),
            }
            for one in run.lost_work
        ],
    }


def _loss(run: RunNumbers) -> dict[str, float | None]:
    losses = [e.loss for e in run.raw if e.loss is not None]
    return {"first": losses[0] if losses else None, "last": losses[-1] if losses else None}


def _agreement(run: RunNumbers) -> dict[str, Any] | None:
    both = run.agreement
    if both is None:
        return None
    worst, model = both.worst, handed_over(run.flows)
    read, seen = sum(run.raw_ingress.values()), run.data_bytes_by_switch()
    return {
        "meter_bytes": both.meter_bytes,
        "switch_bytes": both.switch_bytes,
        "difference": both.difference,
        "worst_pair": None
        if worst is None
        else {"src": run.slot(worst.src), "dst": run.slot(worst.dst), "difference": worst.difference},
        # Payload of the model against the bytes that the meters counted, to the same addresses.
        "model": None if model is None else {"handed_bytes": model[0], "sent_bytes": model[1]},
        # Response bodies counted by the peers against packets counted by the switch, which include headers.
        "data": {
            "read_bytes": read,
            "switch_bytes": seen,
            "difference": (read - seen) / seen if seen else None,
        },
    }


def _experiment_name(meta: RunMeta) -> str | None:
    name = meta.document.get("name")
    return str(name) if name else None


def _estimates(keys: Sequence[str], epochs: Sequence[SwarmEpoch]) -> dict[str, Any]:
    found = {key: FIGURES[key].of_epochs for key in keys}
    return {key: None if of is None else _json(of(epochs)) for key, of in found.items()}


def _json(estimate: Estimate | None) -> dict[str, float | int | None] | None:
    return None if estimate is None else estimate.to_json()


def _budget(meta: RunMeta, total: Decimal | None) -> dict[str, float | None]:
    """Return the budget and by how much it was exceeded. None without a budget, or if the total is unknown."""
    given = meta.document.get("budget_usd")
    budget = None if given is None else Decimal(str(given))
    over = None if budget is None or total is None else max(Decimal(0), total - budget)
    return {"budget_usd": _usd(budget), "overshoot_usd": _usd(over)}


def _usd(amount: Decimal | None) -> float | None:
    return None if amount is None else round(float(amount), 6)
