"""Prometheus metrics: equal to the report, without unknown values, and with counters that never decrease."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from made_up_run import write_run
from prometheus_client.parser import text_string_to_metric_families

from metrics.cost.bill import cost_so_far
from metrics.run import RunNumbers, terms_of
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.controller.prometheus import MetricsServer, RunCollector
from orchestrator.core.journal import begin
from orchestrator.core.state import Place, RunSpec, RunState, SlotSpec, SlotState
from orchestrator.errors import UsageError
from orchestrator.metrics_address import address_of, chosen_address

NOW_S = 1_700_000_500.0
PLACES = [Place(f"gcp/r-{n}/r-{n}-a", "n1", "T4:1", True, Decimal("0.18"), "book") for n in range(2)]
DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "orch.json"


def state_of(budget: str | None = "25.50") -> RunState:
    slots = tuple(SlotSpec(f"p-{n}", (place,)) for n, place in enumerate(PLACES))
    state = begin(RunSpec("geo", slots, budget_usd=None if budget is None else Decimal(budget)))
    return replace(state, slots=(replace(state.slots[0], state=SlotState.TRAINING), state.slots[1]))


def collector(store: RunStore, state: RunState | None = None, **more) -> RunCollector:
    known = state or state_of()
    return RunCollector(store, lambda: known, now_s=lambda: NOW_S, **more)


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the labels' values in the order of their names."""
    return {
        (s.name, *(s.labels[name] for name in sorted(s.labels))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        yield store


def served(*collected: RunCollector) -> list[str]:
    """What each of them says, one after the other, over HTTP."""
    texts = []
    for one in collected:
        server = MetricsServer(("127.0.0.1", 0), one)
        try:
            server.ticked(0.02)
            texts.append(scrape(server.url))
        finally:
            server.close()
    return texts


def test_metrics_equal_the_report(store):
    (text,) = served(collector(store))
    said = samples(text)
    summary = summarise(store)
    assert said["orch_samples_total",] == summary["samples"]
    assert said["orch_epoch",] == 5
    assert said["orch_budget_usd",] == 25.5
    assert said["orch_run_info", "geo-c8", "geo", "local"] == 1
    sent = {key: value for key, value in said.items() if key[0] == "orch_egress_bytes_total"}
    assert sum(sent.values()) == pytest.approx(sum(row["bytes"] for row in summary["egress"]), abs=10)
    assert ("orch_egress_bytes_total", "same_zone", *2 * ["gcp/us-central1/us-central1-a"]) in sent
    assert said["orch_paused",] == 0
    terms, _ = terms_of(store.run_meta())
    cost = cost_so_far(
        store.records("vms"), store.records("epochs"), store.records("egress"), NOW_S, terms, None, 1
    )
    told = sum(value for key, value in said.items() if key[0] == "orch_cost_usd_total")
    assert cost.spent_usd is not None
    assert told == pytest.approx(float(cost.spent_usd))
    taken = {key[1]: value for key, value in said.items() if key[0] == "orch_preemptions_total"}
    assert taken["gcp/australia-southeast1/australia-southeast1-a"] == 1
    assert sorted(taken.values()) == [0, 0, 0, 1]
    assert said["orch_peers", PLACES[0].location, "TRAINING"] == 1
    assert said["orch_peers", PLACES[0].location, "WAITING"] == 0
    assert said["orch_controller_tick_seconds_count",] == 1


def test_unknown_values_are_omitted(store):
    first = store.records("vms")[0]
    store.upsert_vm(replace(first, usd_per_h=None))
    (text,) = served(collector(store, state_of(budget=None)))
    said = samples(text)
    cost = [key[1:] for key in said if key[0] == "orch_cost_usd_total"]
    assert ("vm", first.location) not in cost
    assert ("vm", store.records("vms")[1].location) in cost
    assert not any(key[0] == "orch_budget_usd" for key in said)


def test_without_a_price_book_only_traffic_costs_are_missing(store):
    store.set_meta("price_book", {"name": "mine", "csv": "nonsense"})
    (text,) = served(collector(store))
    said = samples(text)
    names = {key[0] for key in said}
    assert {key[1] for key in said if key[0] == "orch_cost_usd_total"} == {
        "vm"
    }  # their prices are the VMs' own
    assert {"orch_samples_total", "orch_egress_bytes_total", "orch_preemptions_total", "orch_epoch"} <= names


def test_counters_never_decrease_across_a_restart(store):
    (before,) = served(collector(store))
    # A VM's end is learnt late: what was estimated until now was too much.
    for row in store.records("vms"):
        store.upsert_vm(replace(row, ended_s=row.requested_s + 1.0))
    (after,) = served(collector(store))
    assert RunNumbers.of(store).bill.sum("vm") < sum(
        Decimal(repr(v)) for k, v in samples(before).items() if k[:2] == ("orch_cost_usd_total", "vm")
    )
    old, new = samples(before), samples(after)
    counters = [key for key in old if key[0].endswith("_total")]
    assert len(counters) > 10
    assert all(new[key] >= old[key] for key in counters)


def test_the_run_is_read_at_most_every_few_seconds(store):
    clock = [0.0]
    reader = collector(store, monotonic_s=lambda: clock[0])

    def epochs() -> float:
        (family,) = [f for f in reader.collect() if f.name == "orch_preemptions"]
        return sum(s.value for s in family.samples)

    assert epochs() == 1
    store.upsert_vm(replace(store.records("vms")[0], end_cause="preempted"))
    clock[0] = 4.9
    assert epochs() == 1
    clock[0] = 5.0
    assert epochs() == 2


def test_an_unreadable_run_exports_no_metrics(store, tmp_path):
    reader = collector(store)
    (tmp_path / "run.db").unlink()
    (text,) = served(reader)
    assert {key[0] for key in samples(text) if not key[0].startswith("orch_controller")} == set()


def test_the_endpoint_ends_with_its_server(store):
    server = MetricsServer(("127.0.0.1", 0), collector(store))
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(OSError, match="in use"):
        MetricsServer(("127.0.0.1", port), collector(store))
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_addresses():
    assert address_of("127.0.0.1:9464") == ("127.0.0.1", 9464)
    assert address_of("[::1]:0") == ("::1", 0)
    assert address_of("off") is None
    assert chosen_address({}) == "127.0.0.1:0"
    for wrong in ("9464", ":1", "localhost:http", "127.0.0.1:70000"):
        with pytest.raises(UsageError, match=r"use the form 127\.0\.0\.1:9464"):
            chosen_address({"ORCH_METRICS_ADDRESS": wrong})


def test_the_dashboard_queries_existing_metrics(store):
    """Each metric a query names is served, with the labels the query names."""
    (text,) = served(collector(store))
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    queries = dashboard_queries()
    asked = {name for query in queries for name in re.findall(r"\borch_[a-z_]+", query)}
    assert asked <= set(labels)
    assert set(labels) - asked <= {f"orch_controller_tick_seconds_{n}" for n in ("count", "sum", "created")}
    for query in queries:
        known = {"instance"}.union(*(labels[n] for n in re.findall(r"\borch_[a-z_]+", query)))
        named = re.findall(r"\bby \(([^)]*)\)|\{([a-z]+)=", query)
        assert {label for pair in named for group in pair for label in group.split(", ") if label} <= known, (
            query
        )


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_promtool_finds_nothing_wrong(store, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:  # no skip: the reference parser has read the same text above
        return
    (text,) = served(collector(store))
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rules = [{"record": f"q:{n}", "expr": q.replace("$run", ".*")} for n, q in enumerate(dashboard_queries())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
