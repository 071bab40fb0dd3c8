"""Every number of a run by loops over tuples: a second implementation that shares no code with the first.

It is written from docs/numbers.md and docs/replay.md, and is as simple as can be.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

# Student's t, 97.5 %, from a table, by degrees of freedom.
T = {
    1: 12.706204736174694, 2: 4.302652729749462, 3: 3.1824463052837078, 4: 2.7764451051977925,
    5: 2.5705818356363146, 6: 2.446911851144969, 7: 2.3646242515927844, 8: 2.306004135204166, 9: 2.2621571627982,
}  # fmt: skip

# What naive_bill bills by.
BOOK = """provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source
gcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,0.18,60,1,2026-11-01,made up
gcp,egress,*,*,same_zone,GiB,0,0.00,,,2026-11-01,made up
gcp,egress,*,*,inter_continent,GiB,0,0.08,,,2026-11-01,made up
gcp,egress,*,*,inter_continent,GiB,3,0.05,,,2026-11-01,made up
gcp,egress,*,*,inter_continent,GiB,8,0.01,,,2026-11-01,made up
gcp,egress,*,*,internet,GB,0,0.12,,,2026-11-01,made up
gcp,egress,*,*,internet,GB,5,0.10,,,2026-11-01,made up
b2,store_egress,*,*,*,GB,0,0.01,,,2026-11-01,made up
b2,store_egress,*,*,*,GB,0.1,0.005,,,2026-11-01,made up
"""


class Vm(NamedTuple):
    name: str
    ended: float | None


class Epoch(NamedTuple):
    vm: str
    k: int
    began: float
    ended: float
    samples: int
    calc: float
    comm: float


class Sent(NamedTuple):
    vm: str
    k: int
    to: str
    phase: str
    seconds: float
    count: int


class Read(NamedTuple):
    vm: str
    k: int
    count: int


class Step(NamedTuple):
    vm: str
    k: int
    samples: int
    began: float
    wall: float
    load: float
    move: float
    forward: float
    backward: float
    local: float
    sync: float


class Watched(NamedTuple):
    k: int
    ended: float
    duration: float | None
    samples: int
    sps: float | None


class Run(NamedTuple):
    """What a run's folder holds, as plain tuples."""

    imported: bool
    baseline: bool
    target: int
    warmup: int
    vms: list[Vm]
    epochs: list[Epoch]
    sent: list[Sent]
    read: list[Read]
    steps: list[Step]
    watched: list[Watched]


def naive_mean(values: list[float]) -> tuple[float, float | None, float | None, int] | None:
    if not values:
        return None
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, None, None, 1
    deviation = (sum((v - mean) ** 2 for v in values) / (n - 1)) ** 0.5
    return mean, mean - T[n - 1] * deviation / n**0.5, mean + T[n - 1] * deviation / n**0.5, n


def naive_ratio(pairs: list[tuple[float, float]]) -> tuple[float, float | None, float | None, int] | None:
    if not pairs:
        return None
    n = len(pairs)
    ratio = sum(y for y, _ in pairs) / sum(x for _, x in pairs)
    if n == 1:
        return ratio, None, None, 1
    squares = 0.0
    for y, x in pairs:
        squares += (y - ratio * x) ** 2
    error = (squares / (n - 1)) ** 0.5 / n**0.5 / (sum(x for _, x in pairs) / n)
    return ratio, ratio - T[n - 1] * error, ratio + T[n - 1] * error, n


def naive_epochs(run: Run) -> list[tuple[int, float, float, list[Epoch]]]:
    """(number, samples, wall seconds, its peers) of the measured epochs."""
    measured = []
    numbers = sorted({e.k for e in run.epochs} | {w.k for w in run.watched})
    for k in numbers:
        peers = [e for e in run.epochs if e.k == k]
        before = [e for e in run.epochs if e.k == k - 1]
        watch = [w for w in run.watched if w.k == k]
        if watch:
            samples = watch[0].samples
            wall = None if watch[0].sps == 0 else watch[0].duration
        else:
            samples = sum(e.samples for e in peers)
            end = sum(e.ended for e in peers) / len(peers)
            wall = None
            if before:
                wall = end - sum(e.ended for e in before) / len(before)
            elif k == numbers[0]:
                wall = end - sum(e.began for e in peers) / len(peers)
            if k == numbers[-1]:
                for e in before:
                    here = any(p.vm == e.vm for p in peers)
                    died = next(v.ended for v in run.vms if v.name == e.vm)
                    if not here and (died is None or died > end):
                        wall = None  # somebody who lived had not reported it
        if k > run.warmup and wall is not None and wall > 0:
            measured.append((k, samples, wall, peers))
    return measured


def naive_numbers(run: Run) -> dict[str, Any]:
    epochs = naive_epochs(run)
    peers_of = [peers for _, _, _, peers in epochs if peers]
    ratios = []
    for peers in peers_of:
        each = [e.calc / e.comm for e in peers if e.comm > 0]
        if each:
            ratios.append(sum(each) / len(each))
    rates = [samples / wall for _, samples, wall, _ in epochs]
    if run.watched:
        logged = sorted(run.watched, key=lambda w: w.k)[1:]  # the study drops the first and keeps rates of 0
        rates = [w.sps for w in logged if w.sps is not None]
        if not any(rates):
            rates = []
    return {
        "sps": naive_ratio([(samples, wall) for _, samples, wall, _ in epochs]),
        "sps_epoch_mean": naive_mean(rates),
        "epoch_s": naive_mean([wall for _, _, wall, _ in epochs]),
        "calc_s": naive_mean([sum(e.calc for e in peers) / len(peers) for peers in peers_of]),
        "comm_s": naive_mean([sum(e.comm for e in peers) / len(peers) for peers in peers_of])
        if any(e.comm for peers in peers_of for e in peers)
        else None,  # nobody ever synchronised: there was nothing to measure
        "granularity": naive_mean(ratios),
        "granularity_phase_timed": naive_study_granularity(run.steps),
        "egress_bytes_per_vm_epoch": naive_egress(run, epochs),
        "ingress_bytes_per_vm_h": naive_ingress(run, epochs),
    }


def naive_egress(run: Run, epochs: list) -> float | None:
    names = [v.name for v in run.vms]
    turns, total = 0, 0
    for vm in names:
        rows = []
        for k, _, _, _ in epochs:
            for s in run.sent:
                averaging = s.phase in ("settling", "calc", "comm")
                if s.vm == vm and s.k == k and averaging and s.to.removeprefix("at-") in names:
                    rows.append(s)
        if not rows:
            continue  # nobody counted what it sent
        total += sum(s.count for s in rows)
        for _, _, _, peers in epochs:
            turns += sum(1 for e in peers if e.vm == vm)
    return total / turns if turns else None


def naive_ingress(run: Run, epochs: list) -> float | None:
    total, seconds = 0, 0.0
    for k, _, _, peers in epochs:
        for e in peers:
            for r in run.read:
                if (r.vm, r.k) == (e.vm, k):
                    total += r.count
                    seconds += e.calc + e.comm
    return total / (seconds / 3600) if seconds > 0 else None


def naive_study_granularity(steps: list[Step]) -> float | None:
    found = []
    for vm in sorted({s.vm for s in steps}):
        mine = sorted((s for s in steps if s.vm == vm), key=lambda s: s.k)
        if len(mine) < 2:
            continue
        optimizer = [s.local + s.sync for s in mine]
        ordered = sorted(optimizer)
        n = len(ordered)
        median = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
        mean = sum(optimizer) / n
        limit = median + 2 * (sum((o - mean) ** 2 for o in optimizer) / (n - 1)) ** 0.5
        began, calculation, communication = False, 0.0, 0.0
        for s, o in zip(mine, optimizer, strict=True):
            if not began:
                began = o >= limit
                continue
            calculation += s.move + s.forward + s.backward
            if o >= limit:
                communication += o
            else:
                calculation += o
        if communication > 0:
            found.append(calculation / communication)
    return sum(found) / len(found) if found else None


def naive_single(steps: list[Step]) -> tuple[float, float]:
    """(by wall clock after the first tenth, by phase timers)."""
    ended = [s.began + s.wall for s in steps]
    first = len(steps) // 10
    done = sum(s.samples for s in steps[first + 1 :])
    rates = [s.samples / (s.load + s.move + s.forward + s.backward + s.local + s.sync) for s in steps]
    return done / (ended[-1] - ended[first]), sum(rates) / len(rates)


def naive_usd(tiers: list[tuple[int, Fraction]], unit: int, already: int, amount: int) -> Fraction:
    """Byte ranges one after the other: what of [already, already + amount) lies in each tier."""
    total = Fraction(0)
    for n, (start, usd) in enumerate(tiers):
        low = max(already, start)
        high = already + amount
        if n + 1 < len(tiers):
            high = min(high, tiers[n + 1][0])
        if high > low:
            total += usd * (high - low) / unit
    return total


def naive_bill(run: Run, place: dict[str, str], now: float) -> dict[str, Fraction | None]:
    """Dollars by kind by `BOOK`: whole VM seconds, bytes by tier (one month), bytes read."""
    vm = Fraction(0)
    for v in run.vms:
        seconds = now if v.ended is None else max(v.ended, 0)
        whole = int(seconds) if int(seconds) == seconds else int(seconds) + 1
        vm += Fraction("0.18") * max(whole, 60) / 3600
    # Bytes between two continents share one ladder, to the store (the internet) another; in a zone they are free.
    far, away = 0, 0
    for s in run.sent:
        to = s.to.removeprefix("at-")
        if to == "store":
            away += s.count
        elif place[s.vm] != place[to]:
            far += s.count
    gib, gb = 2**30, 10**9
    egress = naive_usd(
        [(0, Fraction("0.08")), (3 * gib, Fraction("0.05")), (8 * gib, Fraction("0.01"))], gib, 0, far
    )
    egress += naive_usd([(0, Fraction("0.12")), (5 * gb, Fraction("0.10"))], gb, 0, away)
    silent = False
    for e in run.epochs:
        if not any(s.vm == e.vm for s in run.sent):
            silent = (
                True  # the made-up rounds are all of two peers: something was sent, and nobody counted it
            )
    read = sum(r.count for r in run.read)
    data = naive_usd([(0, Fraction("0.01")), (gb // 10, Fraction("0.005"))], gb, 0, read)
    kinds = {"vm": vm, "egress": None if silent else egress, "data": data}
    return {**kinds, "all": None if silent else vm + egress + data}
