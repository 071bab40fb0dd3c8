"""The figures by which a study's options are compared, from a run's records. All at the study's scale but the samples learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.compare.option_figures import Learned, Measured, OptionRun
from analysis.compare.published import ComparedRun, why_not
from analysis.compare.published_runs import LOOPBACK
from cloud.prices.classes import continent
from metrics.epochs.granularity import communication, granularity
from metrics.epochs.throughput import SwarmEpoch, measured, throughput_epoch_mean
from metrics.run import RunNumbers
from metrics.run_cost import steady
from metrics.store.database import RunStore
from metrics.traffic import Flow, traffic

_OUTSIDE = ("joining", "leaving")


def option_run(
    folder: Path, row: ComparedRun, label: str, include_contended: bool = False, against: str = ""
) -> OptionRun:
    """The run of a folder with `run.db`. `row`: the same run as it is compared otherwise. `against`: a label.

    It does not count where its host was too busy, unless asked for, and without distance. Raises metrics.store.database.StoreError.
    """
    with RunStore.open_reader(folder / "run.db") as store:
        run = RunNumbers.of(store)
    # An option is what is looked for here, so it alone takes no run out.
    busy = replace(row, not_judged=LOOPBACK if row.target == "loopback" else "")
    target, model = run.terms.raw_target, run.meta.model
    return OptionRun(
        name=row.experiment.removesuffix(f" {label}") if label else row.experiment,
        label=label,
        model=(model and model.name) or "unknown model",
        run_id=row.run_id,
        figures=option_figures(run),
        learned=learned_by_run(run.raw, run.meta.evaluations),
        target_batch=None if target is None else float(target),
        dropped_rounds=row.dropped_rounds or 0,
        origin="emulated" if run.meta.emulated else "own",
        prices=run.terms.book.name if run.terms.book else "no price book",
        left_out=why_not(busy, include_contended),
        against=against,
        experiment=str(run.meta.document.get("name") or ""),
        target=row.target,
        scales=row.scales,
        host_contended=row.host_contended,
    )


def option_figures(run: RunNumbers) -> dict[str, Measured]:
    """Throughput as the mean of the epochs' rates; dollars are the VMs' and the egress of the measured epochs.

    The training data is in no dollars here: it costs every option the same by the sample. Intercontinental bytes are
    those of all peers in one epoch, to peers on another continent.
    """
    epochs = measured(run.study)
    single = [replace(run, study=(epoch,)) for epoch in epochs]
    rate, ratio, comm = throughput_epoch_mean(epochs), granularity(epochs), communication(epochs)
    return {
        "sps": Measured(
            rate.value if rate else None, tuple(e.samples / e.duration_s for e in epochs if e.duration_s)
        ),
        "granularity": Measured(
            ratio.value if ratio else None,
            tuple(g.value for e in epochs if (g := granularity([e])) is not None),
        ),
        "comm_s": Measured(
            comm.value if comm else None,
            tuple(c.value for e in epochs if (c := communication([e])) is not None),
        ),
        "usd_per_1m": Measured(_usd_per_1m(run), _known([_usd_per_1m(one) for one in single])),
        "egress_bytes_per_vm_epoch": Measured(
            _sent(run, epochs), _known([_sent(run, [epoch]) for epoch in epochs])
        ),
        "intercontinental_bytes": Measured(
            _between(run, epochs), _known([_between(run, [epoch]) for epoch in epochs])
        ),
    }


def learned_by_run(
    raw: Sequence[SwarmEpoch], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[Learned, ...]]:
    """The training loss of each epoch and the held-out loss after some, by how many samples were learned from by then.

    Both end at the first epoch whose own count, or whose predecessor, is missing: the sum is unknown from there on. A
    loss that is not known leaves its record out. `evaluations`: of the peers; their mean counts.
    """
    samples: dict[int, float] = {}
    total = 0.0
    for expected, epoch in enumerate(sorted(raw, key=lambda one: one.epoch), 1):
        if epoch.epoch != expected or not epoch.complete:
            break
        total += epoch.samples
        samples[epoch.epoch] = total
    training = [Learned(samples[e.epoch], e.loss) for e in raw if e.epoch in samples and e.loss is not None]
    heldout: dict[int, list[float]] = {}
    for row in evaluations:
        if row.get("loss") is not None and row.get("epoch") in samples:
            heldout.setdefault(int(row["epoch"]), []).append(float(row["loss"]))
    return {
        "loss": tuple(training),
        "heldout_loss": tuple(Learned(samples[e], fmean(found)) for e, found in sorted(heldout.items())),
    }


def _usd_per_1m(run: RunNumbers) -> float | None:
    """VMs and egress of the measured epochs, dollars a million samples."""
    found = steady(run, ())
    if found is None or not found.samples:
        return None
    parts = [found.usd_per_vm_h[kind] for kind in ("vm", "egress")]
    known = [float(usd) for usd in parts if usd is not None]
    return sum(known) * found.vm_hours / found.samples * 1e6 if len(known) == len(parts) else None


def _flows(run: RunNumbers, epochs: Sequence[SwarmEpoch]) -> list[Flow]:
    """What peers sent each other in these epochs."""
    numbers, names = {e.epoch for e in epochs}, {row.vm for row in run.vms}
    return [f for f in run.flows if f.epoch in numbers and f.dst in names and f.phase not in _OUTSIDE]


def _sent(run: RunNumbers, epochs: Sequence[SwarmEpoch]) -> float | None:
    """Bytes to other peers, a VM and epoch, over the VMs whose bytes were counted; None where nobody's were."""
    sent = _flows(run, epochs)
    metered = {f.src for f in sent}
    turns = sum(1 for e in epochs for p in e.peers if p.vm in metered)
    cells = traffic(sent, run.study, run.terms.scales, {row.vm for row in run.vms})
    return math.fsum(cell.bytes for cell in cells) / turns if turns else None


def _between(run: RunNumbers, epochs: Sequence[SwarmEpoch]) -> float | None:
    """Bytes to peers on another continent, a swarm epoch; None where they were not counted or a place is unknown."""
    sent = _flows(run, epochs)
    if not sent:
        return None
    total = 0.0
    for cell in traffic(sent, run.study, run.terms.scales, {row.vm for row in run.vms}):
        here, there = (
            continent(place) if place else None for place in (cell.src_location, cell.dst_location)
        )
        if here is None or there is None:
            return None
        total += cell.bytes if here != there else 0.0
    return total / len({e.epoch for e in epochs})


def _known(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None and math.isfinite(value))
