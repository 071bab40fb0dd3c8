"""Prometheus metrics of a run, served by its controller on loopback for as long as it lives.

The values are those of the live view, at full scale, read from run.db through a separate connection. Unknown
values are omitted, never reported as 0. Counters never decrease, even across restarts of the controller,
because exported values are stored in run.db (an estimate that was too high stays until the actual value
exceeds it).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter as CountOf
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud.prices.book import PriceBookError
from metrics.cost.ledger import CostLine
from metrics.records import VmEnd
from metrics.run import RunNumbers
from metrics.store.database import RunStore, StoreError
from metrics.traffic import MONITOR, STORE
from orchestrator.controller.view import bill_of
from orchestrator.core.state import RunState, SlotState

_FRESH_S = 5.0
_REST = 10.0  # reading takes at most 1/10 of the controller's time
_TICKS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

_log = logging.getLogger("orchestrator.controller")

_Samples = dict[tuple[str, ...], float]


class RunCollector(Collector):
    """Reads the run when Prometheus scrapes, at most once every few seconds."""

    def __init__(
        self,
        store: RunStore,
        state: Callable[[], RunState],
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store`: the controller's own store; only the exported counter values are written to it."""
        self._store, self._state, self._now_s, self._monotonic_s = store, state, now_s, monotonic_s
        self._mutex = threading.Lock()
        self._metrics: list[Metric] = []
        self._fresh_until_s = float("-inf")
        self._exported: dict[str, float] = store.meta("prometheus", {})

    def describe(self) -> Iterable[Metric]:
        """Describe no metrics in advance, because they depend on the run."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Metric families, cached while they are fresh; none if run.db cannot be read."""
        with self._mutex:
            began_s = self._monotonic_s()
            if began_s >= self._fresh_until_s:
                try:
                    self._metrics = self._read()
                except StoreError as error:
                    _log.warning("no metrics are exported: run.db cannot be read: %s", error)
                    self._metrics = []
                took_s = self._monotonic_s() - began_s
                self._fresh_until_s = began_s + max(_FRESH_S, _REST * took_s)
            yield from self._metrics

    def _read(self) -> list[Metric]:
        state = self._state()
        with RunStore.open_reader(self._store.path) as store:
            run = RunNumbers.of(store)
            lines = _lines(store, self._now_s())
        places = {row.vm: row.location for row in run.vms}
        samples: _Samples = {(): sum(epoch.samples for epoch in run.study)}
        preempted: _Samples = {(row.location,): 0.0 for row in run.vms}
        for row in run.vms:
            preempted[row.location,] += row.end is VmEnd.PREEMPTED
        sent: _Samples = {}
        for cell in run.matrix:
            there = cell.dst_location or (cell.dst if cell.dst in (STORE, MONITOR) else "unknown")
            key = (cell.src_location or "unknown", there, cell.kind)
            sent[key] = sent.get(key, 0.0) + cell.bytes
        dollars: dict[tuple[str, ...], Decimal | None] = {
            ("egress_estimated", row.location): Decimal(0) for row in run.vms if run.terms.book
        }
        for line in lines:
            place = run.terms.store_location if line.src == STORE else places.get(line.src)
            key = (f"{line.kind}_estimated" if line.estimated else line.kind, place or "unknown")
            before = dollars.get(key, Decimal(0))
            dollars[key] = None if before is None or line.usd is None else before + line.usd
        known = {key: float(usd) for key, usd in dollars.items() if usd is not None}
        info = {
            "run": state.spec.run_id,
            "experiment": str(run.meta.document.get("name")),
            "target": str(run.meta.target),
        }
        found: list[Metric] = [
            _gauge("orch_run_info", "The run of this controller.", {tuple(info.values()): 1}, info),
            _gauge(
                "orch_epoch", "Hivemind epochs completed.", {(): max((e.epoch for e in run.raw), default=0)}
            ),
            _gauge("orch_paused", "1 while fewer than min_peers can train.", {(): state.paused}),
            _gauge(
                "orch_peers",
                "Slots by state and the place they are in or ask for.",
                _peers(state),
                ("state", "location"),
            ),
        ]
        if state.spec.budget_usd is not None:
            budget = {(): float(state.spec.budget_usd)}
            found.append(_gauge("orch_budget_usd", "The run's budget in USD.", budget))
        exported = dict(self._exported)
        found += [
            self._counter("orch_samples_total", "Samples of completed epochs, at full scale.", samples),
            self._counter(
                "orch_egress_bytes_total",
                "Bytes that VMs sent, at full scale.",
                sent,
                ("src", "dst", "class"),
            ),
            self._counter(
                "orch_cost_usd_total",
                "USD so far, at full scale; a kind whose price is unknown is left out.",
                known,
                ("kind", "location"),
            ),
            self._counter("orch_preemptions_total", "VMs the provider took back.", preempted, ("zone",)),
        ]
        if self._exported != exported:
            self._store.set_meta("prometheus", self._exported)
        return found

    def _counter(
        self, name: str, text: str, samples: Mapping[tuple[str, ...], float], labels: Iterable[str] = ()
    ) -> Metric:
        family = CounterMetricFamily(name, text, labels=tuple(labels))
        for values, value in sorted(samples.items()):
            key = json.dumps([name, *values])
            self._exported[key] = max(value, self._exported.get(key, 0.0))
            family.add_metric(values, self._exported[key])
        return family


class MetricsServer:
    """The HTTP endpoint at `url`; `close` stops it."""

    def __init__(self, address: tuple[str, int], collector: RunCollector) -> None:
        """Raises OSError if it cannot listen on the address."""
        registry = CollectorRegistry()
        registry.register(collector)
        self._ticks = Histogram(
            "orch_controller_tick_seconds",
            "Wall time of one round of the controller.",
            buckets=_TICKS_S,
            registry=registry,
        )
        host, port = address
        self._server, self._thread = start_http_server(port, host, registry)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def ticked(self, took_s: float) -> None:
        """Record the duration of one tick."""
        self._ticks.observe(took_s)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _lines(store: RunStore, now_s: float) -> Sequence[CostLine]:
    """Lines of the bill until now; none if the price book cannot be read."""
    try:
        return bill_of(store, now_s).lines
    except PriceBookError:  # reported in the run's warnings
        return ()


def _peers(state: RunState) -> _Samples:
    """Number of slots by state and location, including zeros for locations in use."""
    places = {spec.name: spec.places for spec in state.spec.slots}
    now = CountOf((str(s.state), places[s.name][s.place].location) for s in state.slots)
    locations = {location for _, location in now}
    return {(str(s), location): float(now[str(s), location]) for s in SlotState for location in locations}


def _gauge(
    name: str, text: str, samples: Mapping[tuple[str, ...], float], labels: Iterable[str] = ()
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    for values, value in sorted(samples.items()):
        family.add_metric(values, value)
    return family
