"""Reads one VM's log: its steps by phase, its network counters and its clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.importers.wandb.clock import RUNTIME, UNIX, Clock, last_known, read_clock, step_ends
from analysis.importers.wandb.tables import Table

_STEP = "_step"
_EPOCH = "03_hivemind/global_epoch"
_PEERS = "03_hivemind/num_peers"
_SAMPLES = "01_general/locally_processed_samples"
_LOSS = "01_general/minibatch_loss"
_SENT = "bandwidth/net_sent_sys_bandwidth_Mbits"
_RECEIVED = "bandwidth/net_recv_sys_bandwidth_Mbits"
_WHOLE = "02_timing/step_time_s"  # the sum of the timers
_OPT = "02_timing/opt_step_time_s"
_TIMERS = {
    "load": "02_timing/dataload_time_s",
    "move": "02_timing/dataload_cuda_move_time_s",
    "forward": "02_timing/forward_time_s",
    "loss": "02_timing/loss_calc_time_s",
    "backward": "02_timing/backward_time_s",
    "opt": _OPT,
}
BEE_COLUMNS = (
    RUNTIME, UNIX, _STEP, *_TIMERS.values(), _WHOLE, _EPOCH, _PEERS, _SAMPLES, _LOSS, _SENT, _RECEIVED,
)  # fmt: skip
_FEW = 3  # the timers' columns may differ in length by this many steps without a warning
_GAP_S = 3.0  # of the 1 Hz network counters; 2 s appear when an interval slightly over 1 s is truncated


@dataclass(frozen=True, slots=True)
class Nic:
    """The 1 Hz counters of the VM's network card: unix seconds, and bytes in that second."""

    at_s: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    gaps: int  # intervals of 3 s or more without a row


@dataclass(frozen=True)
class Bee:
    """A VM's log. Arrays are by step unless stated otherwise; times are unix seconds, durations seconds."""

    host: str
    shown: str
    first_s: float
    last_s: float
    logged_s: float  # from the program's start, which may be before the first row, to the last row
    rows: int
    load: np.ndarray
    move: np.ndarray
    forward: np.ndarray  # with the loss
    backward: np.ndarray
    opt: np.ndarray
    end_s: np.ndarray
    samples: np.ndarray | None  # None: not logged
    loss: np.ndarray
    epoch: np.ndarray  # as logged with the step; NaN: not logged
    peers: np.ndarray
    nic: Nic | None
    jumps: int
    dated: bool  # False: the log has no unix time, so its times are relative to its start
    missing: tuple[str, ...]  # timers missing in the log: their zeros mean unknown
    notes: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return len(self.opt)

    @property
    def timed_s(self) -> np.ndarray:
        """The sum of each step's timers."""
        return self.load + self.move + self.forward + self.backward + self.opt

    def shifted(self, by_s: float) -> Bee:
        """Return the same log shifted in time, marked as dated."""
        nic = replace(self.nic, at_s=self.nic.at_s + by_s) if self.nic is not None else None
        return replace(
            self,
            first_s=self.first_s + by_s,
            last_s=self.last_s + by_s,
            end_s=self.end_s + by_s,
            nic=nic,
            dated=True,
        )

    def sent_around(self) -> np.ndarray:
        """Bytes sent during each step's optimizer call and one second before and after it; NaN without counters."""
        if self.nic is None or not len(self.nic.at_s):
            return np.full(self.steps, np.nan)
        total = np.concatenate([[0.0], np.cumsum(self.nic.sent)])
        last = np.searchsorted(self.nic.at_s, self.end_s + 1, side="right")
        first = np.searchsorted(self.nic.at_s, self.end_s - self.opt - 1, side="right")
        return total[last] - total[first]


def read_bee(table: Table, host: str) -> Bee:
    """Interpret one VM's table. Raises TableError if it has no clock."""
    notes = list(table.notes)
    table = _in_order(table, notes)
    clock = read_clock(table)
    if clock.jumps:
        notes.append(
            f"{table.shown}: the clock jumps {_times(len(clock.jumps))} (first at line {table.lines[clock.jumps[0]]}); "
            "the time between these rows is taken from the clock that did not jump."
        )
    if UNIX not in table:
        notes.append(table.missing(UNIX, "its date is derived from the epochs in the other logs"))
    _bounded(table, clock.at_s, notes)
    rows, opt = _optimizer(table, notes)
    count = len(opt)
    missing: list[str] = []
    timers: dict[str, np.ndarray] = {"opt": opt}
    for name, column in _TIMERS.items():
        if name != "opt":
            timers[name] = _timer(table, column, count, notes, missing)
    if count == 0 and _OPT in table:
        notes.append(
            f"{table.shown}: the VM logged {table.rows} rows but no training step: it failed or idled."
        )
    forward = timers["forward"] + timers["loss"]
    timed = timers["load"] + timers["move"] + forward + timers["backward"] + opt
    loss = table.get(_LOSS)
    samples = _samples(table, rows, notes)
    if samples is None and count:
        missing.append(_SAMPLES)
    return Bee(
        host=host,
        shown=table.shown,
        first_s=float(clock.at_s[0]),
        last_s=float(clock.at_s[-1]),
        logged_s=_logged(table.get(RUNTIME), clock),
        rows=table.rows,
        load=timers["load"],
        move=timers["move"],
        forward=forward,
        backward=timers["backward"],
        opt=opt,
        end_s=step_ends(clock.at_s[rows], timed, clock.resolution_s),
        samples=samples,
        loss=loss[rows],
        epoch=_since_previous_step(table.get(_EPOCH), rows),
        peers=_carried(table.get(_PEERS))[rows],
        nic=_nic(table, clock.at_s, notes),
        jumps=len(clock.jumps),
        dated=np.isfinite(table.get(UNIX)).any().item(),
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _logged(runtime_s: np.ndarray, clock: Clock) -> float:
    """Seconds that the log covers, by the run-time clock, which counts from the program's start, unless it jumped."""
    between = float(clock.at_s[-1] - clock.at_s[0])
    known = runtime_s[np.isfinite(runtime_s)]
    return between if clock.jumps or not len(known) else max(between, float(known[-1]))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _in_order(table: Table, notes: list[str]) -> Table:
    """Sort rows by the log's own row number if they are out of order.

    A restarted program counts from 0 again. Its rows are not sorted, because then the clock would go back.
    """
    number = table.get(_STEP)
    if not np.isfinite(number).all() or (np.diff(number) >= 0).all():
        return table
    order = np.argsort(number, kind="stable")
    clock = table.get(UNIX if UNIX in table else RUNTIME)
    if _times_back(clock[order]) > _times_back(clock):
        notes.append(
            f"{table.shown}: '{_STEP}' starts again: the program was restarted; rows are kept in their order."
        )
        return table
    notes.append(f"{table.shown}: the rows are out of order and were sorted by '{_STEP}'.")
    columns = {name: column[order] for name, column in table.columns.items()}
    return replace(table, columns=columns, lines=table.lines[order])


def _times_back(clock: np.ndarray) -> int:
    return int((np.diff(clock[np.isfinite(clock)]) < 0).sum())


def _bounded(table: Table, at_s: np.ndarray, notes: list[str]) -> None:
    """Set timers that are longer than the whole log to missing, in place."""
    span_s = float(at_s[-1] - at_s[0]) + 60
    for column in _TIMERS.values():
        values = table.get(column)
        bad = values > span_s
        if bad.any():
            row = int(np.argmax(bad))
            notes.append(
                f"{table.at(row)}: column '{column}' is {values[row]:.6g} s, but the whole log covers {span_s - 60:.0f} s; "
                f"{int(bad.sum())} such cells are treated as missing."
            )
            table.columns[column][bad] = np.nan


def _optimizer(table: Table, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(row of each step, its optimizer seconds)."""
    if _OPT in table:
        rows = np.flatnonzero(np.isfinite(table.get(_OPT)))
        return rows, table.get(_OPT)[rows]
    rows = np.flatnonzero(np.isfinite(table.get(_WHOLE)))
    if not len(rows):
        notes.append(table.missing(_OPT, "its steps and averaging rounds are unknown"))
        return rows, table.get(_WHOLE)[rows]
    notes.append(table.missing(_OPT, f"it is computed as '{_WHOLE}' minus the other timers"))
    left = table.get(_WHOLE)[rows]
    for name, column in _TIMERS.items():
        if name != "opt":
            left = left - _by_order(table.get(column), len(rows))
    return rows, np.maximum(left, 0.0)


def _timer(table: Table, column: str, count: int, notes: list[str], missing: list[str]) -> np.ndarray:
    """A timer's seconds by step.

    Two loggers write alternately and a row has only some columns, so the k-th value of a column is step k's.
    """
    if column not in table:
        if count:
            notes.append(table.missing(column, "phase-timed figures are unknown"))
            missing.append(column)
        return np.zeros(count)
    there = int(np.isfinite(table.get(column)).sum())
    if abs(there - count) > _FEW:
        notes.append(
            f"{table.shown}: {there} values of '{column}' for {count} steps; missing values count as 0 s, "
            "additional ones are ignored."
        )
    return _by_order(table.get(column), count)


def _by_order(values: np.ndarray, count: int) -> np.ndarray:
    known = values[np.isfinite(values)][:count]
    return np.concatenate([known, np.zeros(count - len(known))])


def _carried(values: np.ndarray) -> np.ndarray:
    """Each row's last value so far; NaN before the first."""
    last = last_known(values)
    return np.where(last < 0, np.nan, values[last])


def _since_previous_step(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The last value logged after the previous step's row, up to and including each step's own; NaN: none."""
    last = last_known(values)[rows]
    before = np.concatenate([[-1], rows[:-1]])
    return np.where(last > before, values[last], np.nan)


def _samples(table: Table, rows: np.ndarray, notes: list[str]) -> np.ndarray | None:
    """Samples of each step, from the running count. A count that falls has been restarted."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    logged = table.get(_SAMPLES)
    counts = logged[np.isfinite(logged)]
    # As with the timers, the k-th value is step k's, whatever its row.
    total = counts if len(counts) == len(rows) else _carried(logged)[rows]
    if not np.isfinite(total).any():
        notes.append(table.missing(_SAMPLES, "the VM's samples are unknown"))
        return None
    total = np.where(np.isfinite(total), total, 0.0)
    rise = np.diff(total)
    each = np.where(rise >= 0, rise, total[1:])
    usual = float(np.median(each)) if len(each) else total[0]
    first = total[0] if total[0] <= 2 * usual else usual  # the log starts late
    return np.rint(np.concatenate([[first], each])).astype(np.int64)


def _nic(table: Table, at_s: np.ndarray, notes: list[str]) -> Nic | None:
    if _SENT not in table or _RECEIVED not in table:
        name = _SENT if _SENT not in table else _RECEIVED
        notes.append(table.missing(name, "the VM's bytes are unknown"))
        return None
    sent, received = table.get(_SENT), table.get(_RECEIVED)
    rows = np.flatnonzero(np.isfinite(sent) | np.isfinite(received))
    if not len(rows):
        notes.append(f"{table.shown}: no row has network counters, so the VM's bytes are unknown.")
        return None
    at = at_s[rows]
    gaps = np.diff(at)
    period = float(np.median(gaps)) if len(gaps) else 1.0
    if period > 1.5:
        notes.append(
            f"{table.shown}: the network counters are logged every {period:g} s, not every second: the VM's bytes are "
            "correct only if a value covers the time since the previous one."
        )
    lost = gaps[gaps >= max(_GAP_S, 2.5 * period)]
    if len(lost):
        notes.append(
            f"{table.shown}: the network counters pause {_times(len(lost))} for 3 s or more "
            f"({lost.sum():.0f} s in total, the longest {lost.max():.0f} s): bytes of these pauses are missing from every sum."
        )
    in_bytes = 1e6 / 8
    return Nic(
        at_s=at,
        sent=np.nan_to_num(sent[rows]) * in_bytes,
        received=np.nan_to_num(received[rows]) * in_bytes,
        gaps=len(lost),
    )
