"""Tidy rows for the report's charts and CSV files: lists of flat dicts, at full scale."""

from __future__ import annotations

from typing import Any

from metrics.epochs.throughput import samples_until
from metrics.figures import EPOCH, FIGURES
from metrics.records import UtilisationRecord
from metrics.run import Records, RunNumbers


def per_epoch(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per epoch.

    Columns: epoch, warmup, measured, peers, samples, the figures of `metrics.figures.EPOCH`, loss, joined, left, dropped
    (whether part of the round was lost), and raw_calc_s, raw_comm_s, raw_epoch_s, raw_samples, ended_s and crossed_s
    (unix seconds, as measured).
    """
    run = _run(store)
    figures = {key: of for key in EPOCH if (of := FIGURES[key].of_epoch) is not None}
    rows: list[dict[str, Any]] = []
    for raw, full_scale in zip(run.raw, run.study, strict=True):
        rows.append(
            {
                "epoch": full_scale.epoch,
                "warmup": full_scale.warmup,
                "measured": full_scale.complete
                and not full_scale.warmup
                and full_scale.duration_s is not None,
                "peers": len(full_scale.peers),
                "samples": full_scale.samples,
                **{key: of(full_scale) for key, of in figures.items()},
                "loss": full_scale.loss,
                "joined": ", ".join(run.slot(vm) for vm in full_scale.joined),
                "left": ", ".join(run.slot(vm) for vm in full_scale.left),
                "dropped": bool(full_scale.dropped),
                **{f"raw_{key}": figures[key](raw) for key in ("calc_s", "comm_s", "epoch_s")},
                "raw_samples": raw.samples,
                "ended_s": raw.ended_s,
                "crossed_s": raw.crossed_s,
            }
        )
    return rows


def evaluations(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per evaluated epoch.

    Columns: epoch, at_s (unix), peers (that evaluated it), samples (held-out ones), raw_trained_samples (trained on up to
    then; None: the records of an epoch are missing), figures ({name: value}), trained_samples, trained_s and usd (see
    `metrics.learning_curve.CurvePoint`).
    """
    run = _run(store)
    trained = samples_until(run.raw, run.meta.start_epoch)
    return [
        {
            "epoch": one.epoch,
            "at_s": one.at_s,
            "peers": one.peers,
            "samples": one.samples,
            "raw_trained_samples": trained.get(one.epoch),
            "figures": dict(one.figures),
            "trained_samples": at.samples,
            "trained_s": at.trained_s,
            "usd": None if at.usd is None else float(at.usd),
        }
        for one, at in zip(run.evaluations, run.curve.points, strict=True)
    ]


def traffic(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per directed pair of slots and class. The VMs of a slot are added up.

    Columns: src, dst, class, src_location, dst_location, bytes, raw_bytes, usd (None: unknown).
    """
    run = _run(store)
    raw: dict[tuple[str, str, str], int] = {}
    for flow in run.flows:
        way = (flow.src, flow.dst, flow.kind)
        raw[way] = raw.get(way, 0) + flow.bytes
    usd = run.bill.by_link_and_class()
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for cell in run.matrix:
        key = (run.slot(cell.src), run.slot(cell.dst), cell.kind)
        way = (cell.src, cell.dst, cell.kind)
        dollars = usd.get(way)
        row = rows.get(key)
        if row is None:
            rows[key] = {
                "src": key[0],
                "dst": key[1],
                "class": cell.kind,
                "src_location": cell.src_location,
                "dst_location": cell.dst_location,
                "bytes": cell.bytes,
                "raw_bytes": raw[way],
                "usd": None if dollars is None else float(dollars),
            }
            continue
        row["bytes"] += cell.bytes
        row["raw_bytes"] += raw[way]
        row["usd"] = None if row["usd"] is None or dollars is None else row["usd"] + float(dollars)
    return [rows[key] for key in sorted(rows)]


def cost_lines(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per line of the bill.

    Columns: kind (vm, egress, data, storage, controller), what, src, dst, quantity (None: unknown), unit (s, bytes), usd
    (None: unknown), price (its source, or why it is unknown), tier and month, estimated (see
    `metrics.cost.ledger.CostLine`).
    """
    run = _run(store)
    return [
        {
            "kind": line.kind,
            "what": line.what,
            "src": run.slot(line.src),
            "dst": run.slot(line.dst),
            "quantity": line.quantity,
            "unit": line.unit,
            "usd": None if line.usd is None else float(line.usd),
            "price": line.price,
            "tier": line.tier,
            "month": line.month,
            "estimated": line.estimated,
        }
        for line in run.bill.lines
    ]


def preemptions(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per preempted VM (see `metrics.cost.preemptions.Preemption`).

    Columns: vm, slot, location, at_s (unix, as measured), replaced_by, lost_s, startup_s, absent_s, state_s, state_bytes,
    lost_samples, slowed_epochs (a list), slowed_s, lost_usd, startup_usd, slowed_usd, usd. None: unknown; state_s is also
    None if no replacement joined.
    """
    return [
        {
            "vm": row.vm,
            "slot": row.slot,
            "location": row.location,
            "at_s": row.at_s,
            "replaced_by": row.replaced_by,
            "lost_s": row.lost_s,
            "startup_s": row.startup_s,
            "absent_s": row.absent_s,
            "state_s": row.state_s,
            "state_bytes": None if row.state_bytes is None else round(row.state_bytes),
            "lost_samples": row.lost_samples,
            "slowed_epochs": None if row.slowed_epochs is None else list(row.slowed_epochs),
            "slowed_s": row.slowed_s,
            **{
                name: None if usd is None else float(usd)
                for name, usd in (
                    ("lost_usd", row.lost_usd),
                    ("startup_usd", row.startup_usd),
                    ("slowed_usd", row.slowed_usd),
                    ("usd", row.usd),
                )
            },
        }
        for row in _run(store).preemptions.rows
    ]


def checkpoints(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per checkpoint stored, and per VM that began from one, by time.

    Columns: what (stored, restored), slot, name, epoch, bytes, sent_bytes (None: restored), seconds (of the upload or
    the download), copy_s (for which training was interrupted; None: restored), at_s (unix, by the VM's clock).
    """
    run = _run(store)
    rows = [
        {
            "what": "stored",
            "slot": run.slot(one.vm),
            "name": one.name,
            "epoch": one.epoch,
            "bytes": one.bytes,
            "sent_bytes": one.sent_bytes,
            "seconds": one.upload_s,
            "copy_s": one.copy_s,
            "at_s": one.at_s,
        }
        for one in run.checkpoints.stored
    ]
    rows += [
        {
            "what": "restored",
            "slot": run.slot(one.vm),
            "name": one.name,
            "epoch": one.epoch,
            "bytes": one.bytes,
            "sent_bytes": None,
            "seconds": one.seconds,
            "copy_s": None,
            "at_s": one.at_s,
        }
        for one in run.checkpoints.restored
    ]
    return sorted(rows, key=lambda row: (row["at_s"], row["name"]))


def joins(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per VM that downloaded the state from another (see `metrics.events.joins.Join`).

    Columns: vm, slot, location, at_s (unix, as measured), from_epoch, donor (slot), donor_location, seconds, bytes,
    resumed, usd. None: unknown.
    """
    return [
        {
            **{name: getattr(row, name) for name in ("vm", "slot", "location", "at_s", "from_epoch")},
            **{name: getattr(row, name) for name in ("donor", "donor_location", "seconds")},
            "bytes": None if row.bytes is None else round(row.bytes),
            "resumed": row.resumed,
            "usd": None if row.usd is None else float(row.usd),
        }
        for row in _run(store).joins
    ]


def utilisation(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per VM and about ten seconds (see `metrics.records.UtilisationRecord`), as measured.

    Columns: vm, slot, location, began_s (unix) and the other fields of the record. None: unknown.
    """
    run = _run(store)
    places = {row.vm: row.location for row in run.vms}
    return [
        {"vm": row.vm, "slot": run.slot(row.vm), "location": places.get(row.vm, "")}
        | {name: getattr(row, name) for name in UtilisationRecord.__slots__ if name != "vm"}
        for row in run.utilisation
    ]


def input_sums(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per VM, epoch and operation or part of a batch, as measured. Empty: the run has no trace.

    Columns: vm, slot, epoch (None: began in no recorded epoch of the VM), kind ("op": n samples; "batch": n batches), op
    (of batches: fetch, collate, wait, delay), n, wall_s, cpu_s, bytes_out. None: unknown.
    """
    run = _run(store)
    rows = [
        {"vm": r.vm, "slot": run.slot(r.vm), "epoch": r.epoch or None, "kind": "op", "op": r.op, "n": r.n,
         "wall_s": r.wall_s, "cpu_s": r.cpu_s, "bytes_out": r.bytes_out}
        for r in run.input_ops
    ]  # fmt: skip
    rows += [
        {"vm": r.vm, "slot": run.slot(r.vm), "epoch": r.epoch or None, "kind": "batch", "op": part, "n": r.n,
         "wall_s": getattr(r, f"{part}_s"), "cpu_s": None, "bytes_out": None}
        for r in run.input_batches
        for part in ("fetch", "collate", "wait", "delay")
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["vm"], row["epoch"] or 0))


def coverage(store: Records | RunNumbers) -> list[dict[str, Any]]:
    """Return one row per pass over the training data (see `metrics.coverage.PassCoverage`), as measured.

    Columns: pass (from 1), samples (None: unknown), counted, once, more, never, unknown, unsized_shards. Empty: unknown.
    """
    found = _run(store).coverage
    return [] if found is None else [one.to_json() for one in found.passes]


def _run(store: Records | RunNumbers) -> RunNumbers:
    return store if isinstance(store, RunNumbers) else RunNumbers.of(store)
