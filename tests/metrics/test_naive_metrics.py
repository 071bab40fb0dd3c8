"""Every number again, by the naive implementation in `naive_numbers`: they agree to 1e-9.

Random runs of both kinds go through both: ours (the peers' records alone) and logs with a watcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import date
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_numbers import (
    BOOK,
    Epoch,
    Read,
    Run,
    Sent,
    Step,
    T,
    Vm,
    Watched,
    naive_bill,
    naive_numbers,
    naive_single,
    naive_usd,
)
from synthetic_runs import vm as vm_record

from analysis.replay import RunRow, read_run, with_speedups
from cloud.prices.ladder import Ladder, tiered_usd
from cloud.prices.rows import Price
from metrics.epochs.restarts import training
from metrics.records import TABLES, EgressRecord, EpochRecord, IngressRecord, StepRecord, SwarmEpochRecord
from metrics.run import RunNumbers
from metrics.stats import t_quantile
from metrics.store.meta import RunMeta

EXACT = 1e-9
NOW = 400.0  # when the made-up runs ended
DAY = date(2026, 11, 1)


def random_run(seed: int, watched: bool) -> Run:
    random = Random(seed)
    names = [f"p{n}" for n in range(random.randint(1, 4))]
    last = random.randint(2, 7)
    epochs, sent, read, steps, seen, vms = [], [], [], [], [], []
    for name in names:
        at = random.uniform(0, 3)
        k = random.randint(1, 2)
        until = random.randint(k, last)
        while k <= until:
            calc, comm = random.uniform(1, 30), random.choice([0.0, random.uniform(0.1, 8)])
            epochs.append(Epoch(name, k, at, at + calc + comm, random.randint(1, 900), calc, comm))
            at += calc + comm
            for other in [*(n for n in names if n != name), "store"]:
                for phase, seconds in (("settling", 1.0), ("calc", calc), ("comm", comm), ("joining", 1.0)):
                    if random.random() < 0.6:
                        sent.append(Sent(name, k, f"at-{other}", phase, seconds, random.randint(0, 10**9)))
            if random.random() < 0.8:
                read.append(Read(name, k, random.randint(0, 10**8)))
            k += 1 if random.random() < 0.9 else 2
        steps += random_steps(random, name, random.randint(0, 60))
        vms.append(Vm(name, random.choice([None, at + random.uniform(-20, 20)])))
    if watched:
        at = 0.0
        for k in range(1, last + 1):
            took = random.uniform(5, 40)
            at += took
            samples = random.randint(100, 4000)
            rate = random.choice([samples / took * random.uniform(0.95, 1.05)] * 3 + [0.0, None])
            seen.append(Watched(k, at, random.choice([took] * 4 + [None]), samples, rate))
    for rows in (epochs, sent, read):
        random.shuffle(rows)
    return Run(
        watched, False, random.randint(1, 2000), random.randint(0, 2), vms, epochs, sent, read, steps, seen
    )


def random_steps(random: Random, name: str, count: int) -> list[Step]:
    steps, at = [], 0.0
    for k in range(count):
        wall = random.uniform(0.5, 2.0)
        phases = [random.uniform(0, 0.3) for _ in range(5)]
        sync = random.choice([0.0] * 9 + [random.uniform(5, 9)])
        steps.append(Step(name, k, random.randint(1, 64), at, wall, *phases, sync))
        at += wall
    return steps


class Held:
    """A run's tables and meta, held in memory, as a store gives them."""

    def __init__(self, run: Run) -> None:
        names = [v.name for v in run.vms]
        zones = ("gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b")
        self.place = {name: zones[n % 2] for n, name in enumerate(names)}
        self.tables: dict[str, list[Any]] = {table: [] for table in TABLES}
        self.tables["vms"] = [
            vm_record(v.name, ended_s=v.ended, ready_s=0.0, location=self.place[v.name]) for v in run.vms
        ]
        self.tables["epochs"] = [
            EpochRecord(
                vm=e.vm, epoch=e.k, began_s=e.began, ended_s=e.ended, steps=1, samples=e.samples, load_s=0.0,
                move_s=0.0, forward_s=e.calc, backward_s=0.0, optimizer_local_s=0.0, optimizer_sync_s=e.comm,
                other_s=0.0, calc_s=e.calc, comm_s=e.comm, loss=None, group_size=2, dropped="", ran="",
            )
            for e in run.epochs
        ]  # fmt: skip
        self.tables["egress"] = [EgressRecord(*s) for s in run.sent]
        self.tables["ingress"] = [IngressRecord(*r, 0) for r in run.read]
        self.tables["steps"] = [
            StepRecord(
                vm=s.vm, step=s.k, epoch=1, began_s=s.began, wall_s=s.wall, load_s=s.load, move_s=s.move,
                forward_s=s.forward, backward_s=s.backward, optimizer_local_s=s.local, optimizer_sync_s=s.sync,
                other_s=0.0, samples=s.samples,
            )
            for s in run.steps
        ]  # fmt: skip
        self.tables["swarm_epochs"] = [SwarmEpochRecord(*w) for w in run.watched]
        self.known = {
            "run_id": "made-up-1",
            "warmup_epochs": run.warmup,
            "target_batch_size": run.target,
            "raw_target_batch_size": run.target,
            "model": {"name": "ConvNextLarge"},
            "addresses": {f"at-{name}": name for name in [*names, "store"]},
            "locations": {**self.place, "store": "b2/us-west-1"},
            "ended_s": NOW,
            "price_book": {"name": "made-up", "csv": BOOK},
            "status": "done",
            "imported": {"kind": "wandb", "baseline": run.baseline} if run.imported else None,
        }

    def records(self, table: str) -> list[Any]:
        return list(self.tables[table])

    def columns(self, table: str, only: Sequence[str] = ()) -> dict[str, list[Any]]:
        names = [f.name for f in fields(TABLES[table]) if not only or f.name in only]
        return {name: [getattr(row, name) for row in self.tables[table]] for name in names}

    def run_meta(self) -> RunMeta:
        return RunMeta.from_json(self.known)


def restarted(held: Held) -> bool:
    """Whether epochs were lost with all peers: one of three thousand of these runs, which naive_numbers does not know."""
    return bool(training(held.records("epochs"), held.records("vms")).restarts)


def close(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=EXACT, abs=1e-12)


def assert_same(row: RunRow, expected: dict[str, Any]) -> None:
    for key, naive in expected.items():
        ours = row.figures.get(key) if isinstance(naive, tuple) else row.to_json()[key]
        if isinstance(naive, tuple) and ours is not None:
            value, low, high, n = naive
            assert (ours.value, ours.low, ours.high, ours.n) == (close(value), close(low), close(high), n), (
                key
            )
        else:
            assert ours == close(naive), key


def test_t_quantiles_match_the_table():
    assert {n: t_quantile(n) for n in T} == pytest.approx(T, rel=EXACT)


@settings(max_examples=150)
@given(st.integers(0, 10**9), st.booleans())
def test_a_run_s_numbers(seed: int, watched: bool):
    run = random_run(seed, watched)
    assume(not restarted(Held(run)))
    assert_same(read_run(Held(run)).row, naive_numbers(run))


@given(st.integers(0, 10**9))
def test_egress_by_link(seed: int):
    run = random_run(seed, watched=False)
    links: dict[tuple[str, str], int] = {}
    for s in run.sent:
        link = (s.vm, s.to.removeprefix("at-"))
        links[link] = links.get(link, 0) + s.count
    matrix = RunNumbers.of(Held(run)).matrix
    assert {(cell.src, cell.dst): cell.bytes for cell in matrix} == pytest.approx(links, rel=EXACT)


@given(st.integers(0, 10**9))
def test_a_single_gpu_s_rates_and_the_speedups_against_it(seed: int):
    random = Random(seed)
    alone = Run(
        True, True, 2000, 1, [Vm("a", 99.0)], [], [], [], random_steps(random, "a", random.randint(2, 90)), []
    )
    swarm = random_run(seed, watched=True)
    assume(not restarted(Held(swarm)))
    base, row = with_speedups([read_run(Held(alone)).row, read_run(Held(swarm)).row])
    wall, timed = naive_single(alone.steps)
    assert (base.value("sps_wall"), base.value("sps_phase_timed")) == (close(wall), close(timed))
    naive = naive_numbers(swarm)
    for key, of, by in (("speedup", "sps", wall), ("speedup_phase_timed", "sps_epoch_mean", timed)):
        assert row.value(key) == close(None if naive[of] is None else naive[of][0] / by)


@given(st.integers(0, 10**9))
def test_a_run_s_bill(seed: int):
    run = random_run(seed, watched=False)
    held = Held(run)
    bill = RunNumbers.of(held).bill
    for kind, expected in naive_bill(run, held.place, NOW).items():
        found = bill.sum() if kind == "all" else bill.sum(kind)
        assert (None if found is None else float(found)) == close(
            None if expected is None else float(expected)
        ), kind


@given(
    st.lists(st.integers(1, 10**5), max_size=5, unique=True),
    st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
    st.sampled_from([10**9, 2**30]),
    st.integers(0, 10**14),
    st.integers(0, 10**14),
)
def test_dollars_by_tier(starts: list[int], micros: list[int], unit: int, already: int, amount: int):
    begin = [0, *sorted(starts)]
    prices = [Fraction(usd, 10**6) for usd in micros[: len(begin)]]
    expected = naive_usd([(n * unit, p) for n, p in zip(begin, prices, strict=True)], unit, already, amount)
    rows = [
        Price("gcp", "egress", "*", "*", "internet", "GB", Decimal(n), Decimal(usd) / 10**6, None, DAY, "", 1)
        for n, usd in zip(begin, micros, strict=False)
    ]
    found = tiered_usd(Ladder(("made up",), unit, tuple(rows)), amount, already)
    assert float(found) == pytest.approx(float(expected), rel=EXACT, abs=1e-15)
