"""Reads the monitor's log: one swarm epoch for each rate that it computed, and its scrapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.importers.wandb.clock import RUNTIME, UNIX, read_clock
from analysis.importers.wandb.tables import Table, TableError
from metrics.records import SwarmEpochRecord

_RATE = "03_hivemind/epoch_based_sps"
_SAMPLES = "03_hivemind/per_epoch_training_samples"
_SECONDS = "03_hivemind/epoch_s"
_EPOCH = "03_hivemind/global_epoch"
_NOW = "03_hivemind/global_samples_accumulated"
_RATE_NOW = "03_hivemind/actual_total_samples_per_second"
_PEERS = "03_hivemind/num_peers"
_ETA = "03_hivemind/eta_next_epoch_s"
_NEAR_S = 20.0  # the end of an epoch on a VM and for the monitor differs by less
MONITOR_COLUMNS = (RUNTIME, UNIX, _RATE, _SAMPLES, _SECONDS, _EPOCH, _NOW, _RATE_NOW, _PEERS, _ETA)


@dataclass(frozen=True)
class Monitor:
    """The monitor's observations. `progress`: columns at_s, epoch, samples, sps, peers, eta_s of its scrapes."""

    shown: str
    first_s: float
    last_s: float
    rows: int
    period_s: float | None
    epochs: tuple[SwarmEpochRecord, ...]
    rates: tuple[
        tuple[int | None, float | None], ...
    ]  # (epoch, rate) of all rows that ended one, also ignored rows
    peers: int  # the highest count that lasted
    progress: dict[str, np.ndarray]
    numbered: bool  # False: the log has no epoch numbers, so they are counted from 1
    dated: bool  # False: the log has no unix time
    notes: tuple[str, ...]

    @property
    def zero_rate(self) -> tuple[int, ...]:
        """Epochs with the rate 0."""
        return tuple(e.epoch for e in self.epochs if e.sps == 0)


def read_monitor(table: Table) -> Monitor:
    """Interpret the monitor's table. Raises TableError if it has no clock or no epochs."""
    notes = list(table.notes)
    clock = read_clock(table)
    if clock.jumps:
        notes.append(
            f"{table.shown}: the clock jumps {len(clock.jumps)} times (first at line {table.lines[clock.jumps[0]]})."
        )
    if UNIX not in table:
        notes.append(table.missing(UNIX, "its date is derived from the VMs' epochs"))
    ended = np.isfinite(table.get(_RATE))
    if _RATE not in table:
        notes.append(table.missing(_RATE, "rates are computed as samples over time of the logged epochs"))
        ended = np.isfinite(table.get(_SAMPLES)) | np.isfinite(table.get(_SECONDS))
    epoch = table.get(_EPOCH)
    if _EPOCH not in table:
        if not ended.any():
            raise TableError(table.missing(_EPOCH, "the monitor's epochs are unknown"))
        notes.append(table.missing(_EPOCH, "epochs are counted by the logged rates"))
        epoch = np.cumsum(ended).astype(np.float64)
    rows = np.flatnonzero(ended & np.isfinite(epoch))
    if _RATE not in table and not len(rows):
        known = np.flatnonzero(np.isfinite(epoch))
        rows = known[1:][np.diff(epoch[known]) > 0]
    epochs = _epochs(table, epoch, clock.at_s, rows, notes)
    rates: list[tuple[int | None, float | None]] = [(e.epoch, e.sps) for e in epochs]
    if _RATE in table:
        rates = [
            (int(epoch[k]) if np.isfinite(epoch[k]) else None, float(table.get(_RATE)[k]))
            for k in np.flatnonzero(ended)
        ]
    peers = table.get(_PEERS)
    peers = peers[np.isfinite(peers)]
    scraped = np.flatnonzero(np.isfinite(epoch) & np.isfinite(table.get(_NOW)))
    gaps = np.diff(clock.at_s)
    return Monitor(
        shown=table.shown,
        first_s=float(clock.at_s[0]),
        last_s=float(clock.at_s[-1]),
        rows=table.rows,
        period_s=float(np.median(gaps)) if len(gaps) else None,
        epochs=epochs,
        rates=tuple(rates),
        peers=_most_peers(peers),
        progress={
            "at_s": clock.at_s[scraped],
            "epoch": epoch[scraped],
            "samples": table.get(_NOW)[scraped],
            "sps": np.nan_to_num(table.get(_RATE_NOW)[scraped]),
            "peers": np.nan_to_num(table.get(_PEERS)[scraped]),
            "eta_s": table.get(_ETA)[scraped],
        },
        numbered=_EPOCH in table,
        dated=bool(np.isfinite(table.get(UNIX)).any()),
        notes=tuple(notes),
    )


def _epochs(
    table: Table, epoch: np.ndarray, at_s: np.ndarray, rows: np.ndarray, notes: list[str]
) -> tuple[SwarmEpochRecord, ...]:
    """One record per row that ended an epoch; further rows of the same epoch are ignored."""
    rates = table.get(_RATE)
    samples, seconds, now = table.get(_SAMPLES), table.get(_SECONDS), table.get(_NOW)
    found: list[SwarmEpochRecord] = []
    before = 0  # the row after the previous epoch's end
    for k in rows:
        number, ended = int(epoch[k]), float(at_s[k])
        if found and number <= found[-1].epoch:
            continue
        rate = float(rates[k]) if np.isfinite(rates[k]) else None
        count = float(samples[k])
        between = ended - found[-1].ended_s if found else None
        duration = between
        if np.isfinite(seconds[k]) and seconds[k] > 0:
            duration = float(seconds[k])
        elif rate and np.isfinite(count):
            duration = count / rate  # finer than the clock
        if between is not None and duration is not None and abs(duration - between) > 2 + 0.02 * between:
            # The rate was computed from the true duration: if it fits, the clock is wrong.
            fits = rate is not None and abs(rate * duration - count) <= 0.01 * count
            notes.append(
                f"{table.at(k)}: epoch {number} lasted {duration:.1f} s by '{_SECONDS}' and {between:.0f} s by the "
                f"clock; {'the former is used because it fits the rate' if fits else 'the latter is used'}."
            )
            duration = duration if fits else between
        if found and number > found[-1].epoch + 1:
            missed = number - 1 - found[-1].epoch
            which = f"epoch {number - 1}" if missed == 1 else f"epochs {found[-1].epoch + 1} to {number - 1}"
            notes.append(f"{table.at(k)}: the monitor missed {which}.")
            if between is not None and duration is not None and duration > 0.8 * between:
                notes.append(
                    f"{table.at(k)}: the logged duration of epoch {number} starts at the end of epoch {found[-1].epoch}: the "
                    "authors' mean uses its rate as logged, its duration is taken from the VMs' logs."
                )
                duration, count = None, np.fmin(count, _highest(now[before : k + 1]) or np.nan)
        if not np.isfinite(count):
            count = rate * duration if rate and duration else _highest(now[before : k + 1])
            notes.append(
                f"{table.at(k)}: the samples of epoch {number} are not logged and assumed to be {count:.0f}."
            )
        if rate is None and duration:
            rate = count / duration
        found.append(SwarmEpochRecord(number, ended, duration, round(count), rate))
        before = k + 1
    return tuple(found)


def aligned(monitor: Monitor, ends: Sequence[tuple[int, float]]) -> Monitor:
    """Add missing epoch numbers or unix times to the monitor's log, derived from the VMs' (epoch, unix end)."""
    if not ends or not monitor.epochs or monitor.numbered == monitor.dated:
        return monitor
    plus, later = 0, 0.0
    if monitor.numbered:
        own = {e.epoch: e.ended_s for e in monitor.epochs}
        later = float(np.median([at - own[n] for n, at in ends if n in own] or [0.0]))
    else:
        near = [min(monitor.epochs, key=lambda e, at=at: abs(e.ended_s - at)) for _, at in ends]
        apart = [n - e.epoch for (n, at), e in zip(ends, near, strict=True) if abs(e.ended_s - at) < _NEAR_S]
        plus = int(np.median(apart)) if apart else 0
    moved = (replace(e, epoch=e.epoch + plus, ended_s=e.ended_s + later) for e in monitor.epochs)
    p = monitor.progress
    return replace(
        monitor,
        first_s=monitor.first_s + later,
        last_s=monitor.last_s + later,
        epochs=tuple(moved),
        rates=tuple((None if n is None else n + plus, rate) for n, rate in monitor.rates),
        progress={**p, "at_s": p["at_s"] + later, "epoch": p["epoch"] + plus},
    )


def _most_peers(counts: np.ndarray) -> int:
    """The highest count in at least 1 % of the scrapes: a restarting peer is briefly counted twice."""
    values, often = np.unique(counts, return_counts=True)
    lasting = values[often >= max(len(counts) / 100, 1)]
    return int(lasting.max()) if len(lasting) else 0


def _highest(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else 0.0


def inferred_target(epochs: tuple[SwarmEpochRecord, ...], most_over: int) -> int | None:
    """Infer the target batch size from the epochs' samples; None if no number fits.

    Each epoch exceeds it by less than `most_over` samples (peers x batch). Of the numbers that fit all epochs, the
    one that is divisible by the highest power of two is returned.
    """
    counts = [e.samples for e in epochs if e.samples > 0]
    if not counts:
        return None
    high, low = min(counts), max(max(counts) - most_over + 1, 1)
    if low > high:
        return None
    power = 1
    while (high // (power * 2)) * power * 2 >= low:
        power *= 2
    return high // power * power
