"""The JSON of a run: its keys, its scale, its warnings, and null where there is nothing to say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import load
from metrics.records import CHECKPOINT_STORED, EventRecord, IngressRecord
from metrics.store.database import RunStore
from metrics.summary import summarise
from metrics.tables import cost_lines, per_epoch, traffic
from orchestrator.cli.render.summary import summary_lines

IOWA, BELGIUM = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"
# Issue 3, section 8: what `orch report RUN -o json` gives at least.
KEYS = [
    "schema_version",
    "run_id",
    "experiment",
    "target",
    "status",
    "emulated",
    "scales",
    "host_contended",
    "host",
    "target_batch_size",
    "peers",
    "epochs",
    "sps",
    "granularity",
    "calc_s",
    "comm_s",
    "epoch_s",
    "dropped_rounds",
    "egress",
    "ingress_bytes",
    "cost",
    "usd_per_1m_samples",
    "loss",
    "accuracy",
    "published",
    "warnings",
    "raw",
]


def _meta():
    book = load("study-2023-04")
    return {
        "run_id": "geo-b2-20261121-7f3a",
        "experiment": {"name": "geo-b2"},
        "target": "local",
        "emulated": True,
        "scales": {"bytes": 100, "time": 1, "samples": 32},
        "status": "done",
        "started_s": 0.0,
        "ended_s": 130.0,
        "price_book": {"name": book.name, "sha256": book.sha256, "csv": book.text},
        "model": {
            "name": "ConvNextLarge",
            "parameters": 197767336,
            "ran": "digits",
            "bytes_per_sample": 124000,
        },
        "warmup_epochs": 1,
        "target_batch_size": 32768,
        "raw_target_batch_size": 1024,
        "addresses": {"10.0.0.1": "a-0", "10.0.0.2": "b-0", "10.0.0.9": "store"},
        "locations": {"a-0": IOWA, "b-0": BELGIUM, "store": "b2/us-west-004"},
        "host": {"contended": False, "reasons": []},
        "switch": {
            "sent_bytes": {
                "a-0>b-0": 3_100_000,
                "b-0>a-0": 3_100_000,
                "a-0>store": 9000,
                "store>a-0": 40_000,
                "store>monitor": 7,
            }
        },
        "rejected": {},
        "evaluations": [
            {"vm": "a-0", "epoch": 3, "at_s": 1.0, "accuracy": 0.93, "loss": 0.2, "samples": 300}
        ],
        "published": {"experiment": "geo-b2", "sps": "68.4", "comm_s": "18.1", "granularity_wall": "25.4"},
    }


def _records():
    epochs = [
        epoch(v, k, 10 + (k - 1) * 32.5, 14.4, 18.1, samples=512, loss=2.5 - 0.5 * k)
        for v in ("a-0", "b-0")
        for k in (1, 2, 3)
    ]
    sent = [
        egress(src, k, dst, phase, seconds, count)
        for src, dst in (("a-0", "10.0.0.2"), ("b-0", "10.0.0.1"))
        for k in (1, 2, 3)
        for phase, seconds, count in (("calc", 14.4, 14_400), ("comm", 18.1, 1_018_100))
    ]
    sent += [egress("a-0", k, "10.0.0.9", "calc", 14.4, 3000) for k in (1, 2, 3)]
    vms = [
        vm("a-0", slot="us", ended_s=120.0, end_cause="terminated"),
        vm("b-0", slot="eu", location=BELGIUM, ended_s=120.0, end_cause="terminated"),
    ]
    read = [IngressRecord(v, k, 4000, 1000) for v in ("a-0", "b-0") for k in (1, 2, 3)]
    return {"epochs": epochs, "egress": sent, "vms": vms, "ingress": read}


def _store(tmp_path: Path, meta=None, records=None) -> RunStore:
    store = RunStore.open_writer(tmp_path / "run" / "run.db")
    for key, value in (_meta() if meta is None else meta).items():
        store.set_meta(key, value)
    for table, rows in (_records() if records is None else records).items():
        store.append(table, rows)
    return store


def _value(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def test_what_the_plan_predicted_is_beside_what_was_measured(tmp_path):
    predicted = {
        "sps": _value(70.0, 60.0, 80.0), "comm_s": _value(20.0, 19.0, 21.0), "calc_s": None,
        "usd_per_1m_samples": _value(1.0, 0.9, 1.1),
    }  # fmt: skip
    with _store(tmp_path, {**_meta(), "plan": {"prediction": predicted}}) as store:
        found = summarise(store)
    rows = {row["figure"]: row for row in found["predicted"]}
    assert list(rows) == ["sps", "comm_s", "usd_per_1m"]  # what was not predicted is left out
    measured = 32768 / (14.4 * 32 + 18.1)
    assert rows["sps"]["measured"] == pytest.approx(measured)
    assert rows["sps"]["error"] == pytest.approx(70.0 / measured - 1)
    assert rows["sps"]["inside"] is True
    assert (rows["comm_s"]["inside"], rows["comm_s"]["predicted"]) == (False, predicted["comm_s"])
    line = next(line for line in summary_lines(found, None) if line.strip().startswith("predicted"))
    assert "communication 20 [19, 21] (+10.5%, measured outside)" in line


def test_a_figure_without_a_measurement_is_unknown_beside_its_prediction(tmp_path):
    plan = {"prediction": {"sps": _value(70.0, 60.0, 80.0)}}
    with _store(tmp_path, {**_meta(), "plan": plan}, {**_records(), "epochs": []}) as store:
        (row,) = summarise(store)["predicted"]
    assert (row["measured"], row["error"], row["inside"]) == (None, None, None)


@pytest.mark.parametrize(
    "plan",
    [
        None, {}, {"prediction": None}, {"prediction": "x"}, {"prediction": [1]}, {"prediction": {"unknown": 5}},
        {"prediction": {"comm_s": 5}}, {"prediction": {"comm_s": {"value": 1.0}}},
        {"prediction": {"comm_s": {"value": "1", "low": None, "high": 2.0}}},
    ],
)  # fmt: skip
def test_a_run_without_a_prediction_has_no_rows(tmp_path, plan):
    with _store(tmp_path, {**_meta(), "plan": plan}) as store:
        found = summarise(store)
    assert (found["predicted"], found["not_predicted"]) == ([], [])


def test_why_nothing_was_predicted_is_kept(tmp_path):
    plan = {"prediction": {"sps": None, "unknown": ["no step time of M on CPU:1"]}}
    with _store(tmp_path, {**_meta(), "plan": plan}) as store:
        assert summarise(store)["not_predicted"] == ["no step time of M on CPU:1"]


def test_run_of_the_paper_s_transatlantic_experiment(tmp_path):
    with _store(tmp_path) as store:
        found = summarise(store)
    assert set(KEYS) <= set(found)
    json.dumps(found, allow_nan=False)
    assert (found["run_id"], found["experiment"], found["status"]) == (
        "geo-b2-20261121-7f3a",
        "geo-b2",
        "done",
    )
    assert found["epochs"] == {"warmup": 1, "measured": 2, "joined": 0, "left": 0, "unrecorded": 0}
    assert found["calc_s"]["value"] == pytest.approx(14.4 * 32)
    assert found["comm_s"]["value"] == pytest.approx(18.1)
    assert found["epoch_s"]["value"] == pytest.approx(14.4 * 32 + 18.1)
    assert found["sps"]["value"] == pytest.approx(32768 / (14.4 * 32 + 18.1))
    assert found["sps"]["n"] == 2
    assert found["granularity"]["value"] == pytest.approx(14.4 * 32 / 18.1)
    assert found["raw"]["calc_s"]["value"] == pytest.approx(14.4)
    assert found["raw"]["sps"]["value"] == pytest.approx(1024 / 32.5)
    assert (found["dropped_rounds"], found["accuracy"], found["host_contended"]) == (0, 0.93, False)
    assert found["loss"] == {"first": pytest.approx(2.0), "last": pytest.approx(1.0)}
    assert found["peers"] == [
        {"slot": "eu", "location": BELGIUM, "vms": 1, "preemptions": 0},
        {"slot": "us", "location": IOWA, "vms": 1, "preemptions": 0},
    ]
    assert found["ingress_bytes"] == 3 * 32768 * 124_000
    assert [w.split(":")[0] for w in found["warnings"]] == ["Emulated"]


def test_traffic_and_dollars_at_full_scale(tmp_path):
    with _store(tmp_path) as store:
        found, rows, lines = summarise(store), traffic(store), cost_lines(store)
    pairs = {(e["src"], e["dst"], e["class"]): e["bytes"] for e in found["egress"]}
    epoch_s = 14.4 * 32 + 18.1
    each = round(3 * (1_000_000 * 100 + 1000 * epoch_s))
    assert pairs["us", "eu", "inter_continent"] == pairs["eu", "us", "inter_continent"] == each
    assert set(pairs) == {
        ("us", "eu", "inter_continent"),
        ("eu", "us", "inter_continent"),
        ("us", "store", "store"),
    }
    usd = {k: found["cost"][k] for k in ("vm_usd", "egress_usd", "data_usd", "total_usd")}
    seconds = 120 - 3 * 32.5 + 3 * epoch_s
    assert usd["vm_usd"] == pytest.approx(2 * 0.18 * math.ceil(seconds) / 3600, abs=1e-6)
    assert usd["data_usd"] == pytest.approx(3 * 32768 * 124_000 / 1e9 * 0.01, abs=1e-6)
    assert usd["total_usd"] == pytest.approx(usd["vm_usd"] + usd["egress_usd"] + usd["data_usd"], abs=3e-6)
    assert sum(line["usd"] for line in lines) == pytest.approx(usd["total_usd"], abs=1e-6)
    assert sum(row["usd"] for row in rows) == pytest.approx(usd["egress_usd"], abs=1e-6)
    assert found["usd_per_1m_samples"] == pytest.approx(usd["total_usd"] / (3 * 32768) * 1e6, rel=1e-4)
    assert found["agreement"]["difference"] == pytest.approx((2 * 3 * 1_032_500 + 9000) / 6_209_000 - 1)
    data = found["agreement"]["data"]
    assert (data["read_bytes"], data["switch_bytes"]) == (24_000, 40_000)
    assert data["difference"] == pytest.approx(-0.4)


def test_paper_s_figures_are_compared(tmp_path):
    with _store(tmp_path) as store:
        found = summarise(store)["published"]
    assert found["figures"]["sps"] == "68.4"
    assert found["compared"]["comm_s"] == {
        "study": 18.1,
        "ours": pytest.approx(18.1),
        "difference": pytest.approx(0),
    }
    assert found["compared"]["sps"]["difference"] == pytest.approx(32768 / 478.9 / 68.4 - 1)
    assert "calc_s" not in found["compared"]


def test_per_epoch_rows(tmp_path):
    with _store(tmp_path) as store:
        rows = per_epoch(store)
    assert [(r["epoch"], r["warmup"], r["measured"]) for r in rows] == [
        (1, True, False),
        (2, False, True),
        (3, False, True),
    ]
    assert rows[1]["epoch_s"] == pytest.approx(rows[1]["calc_s"] + rows[1]["comm_s"])
    assert rows[1]["raw_epoch_s"] == pytest.approx(32.5)


def test_a_run_without_an_epoch_is_null_with_a_warning(tmp_path):
    meta = {"run_id": "x", "status": "failed", "error": "no capacity", "emulated": False}
    with _store(tmp_path, meta, {}) as store:
        found = summarise(store)
    nulls = (
        "sps",
        "granularity",
        "calc_s",
        "comm_s",
        "epoch_s",
        "usd_per_1m_samples",
        "accuracy",
        "published",
    )
    assert {k: found[k] for k in nulls} == dict.fromkeys(nulls)
    assert found["host_contended"] is None
    assert found["loss"] == {"first": None, "last": None}
    assert found["warnings"][0] == "The run ended as 'failed': no capacity."
    assert any("No epoch ended after the warm-up" in w for w in found["warnings"])
    json.dumps(found, allow_nan=False)


def test_calculation_on_the_hosts_cpu_is_said(tmp_path):
    meta, records = _meta(), _records()
    meta["emulation"] = {**(meta.get("emulation") or {}), "accelerators": "host"}
    with _store(tmp_path, meta, records) as store:
        found = summarise(store)
    assert found["accelerators"] == "host"
    assert "nothing is scaled, and calculation times are those of this machine's CPU" in found["warnings"][0]


def test_warnings_are_sentences(tmp_path):
    meta, records = _meta(), _records()
    meta["target"] = "loopback"
    meta["warnings"] = ["The monitor was started twice."]
    meta["sync_work_s"] = {"T4:1": 2.6, "CPU:1": 0.0}
    meta["host"] = {"contended": True, "reasons": ["worst packet 0.7 s late"]}
    meta["rejected"] = {"bad signature": 2}
    meta["switch"] = {"sent_bytes": {"a-0>b-0": 4_000_000, "b-0>a-0": 4_000_000}}
    meta["locations"]["store"] = "gcp/us-central1/us-central1-a"
    records["epochs"][1] = epoch("a-0", 2, 42.5, 14.4, 18.1, samples=512, dropped="received 43 %")
    records["vms"][0] = vm("a-0", slot="us", ended_s=120.0, usd_per_h=None, end_cause="preempted")
    with _store(tmp_path, meta, records) as store:
        found = summarise(store)
    text = "\n".join(found["warnings"])
    assert found["warnings"][0].startswith(
        "Emulated: peers on this machine's loopback, without network delays"
    )
    assert found["warnings"][1].startswith("Communication includes 2.6 s on T4:1 per round")
    for part in (
        "worst packet 0.7 s late",
        "Hivemind lost part of 1 of 3 rounds (in epoch 2: received 43 %)",
        "bad signature: 2",
        "fewer bytes than the switch",
        "Lost VMs sent",
        "no price for T4:1 spot",
        "The embedded store is billed as b2",
        "The monitor was started twice.",
    ):
        assert part in text
    assert (found["cost"]["vm_usd"], found["cost"]["total_usd"], found["usd_per_1m_samples"]) == (None,) * 3
    assert found["cost"]["egress_usd"] > 0
    assert (found["dropped_rounds"], found["host_contended"]) == (1, True)
    assert [p["preemptions"] for p in found["peers"]] == [0, 1]


@pytest.mark.parametrize(
    ("newest", "status", "warned"), [(2, "done", True), (3, "done", False), (2, "budget", False)]
)
def test_a_model_at_the_end_that_is_in_no_checkpoint_is_a_warning(tmp_path, newest, status, warned):
    meta, records = _meta() | {"status": status}, _records()
    entry = {
        "name": f"epoch-{newest:08d}-a-0", "epoch": newest, "bytes": 1, "sent_bytes": 1, "copy_s": 0.0, "upload_s": 1.0,
        "at_s": 1.0,
    }  # fmt: skip
    records["events"] = [
        EventRecord(1, 1.0, CHECKPOINT_STORED, "us", 0, "a-0", "", "", "stored", json.dumps(entry))
    ]
    with _store(tmp_path, meta, records) as store:
        found = summarise(store)["warnings"]
    sentence = "The model of the last epoch is in no checkpoint that was reported: the newest one is of epoch 2 of 3."
    assert (sentence in found) == warned


def _held_out_lines(found: dict) -> list[str]:
    shown = (line.split(maxsplit=1) for line in summary_lines(found, None))
    return [" ".join(line) for line in shown if line[0] in ("accuracy", "held-out")]


def test_last_lines_have_the_accuracy_and_the_other_held_out_figures(tmp_path):
    with _store(tmp_path) as store:
        assert _held_out_lines(summarise(store)) == ["accuracy 93.0%", "held-out loss 0.2"]
        row = {"vm": "a-0", "epoch": 3, "at_s": 1.0, "accuracy": None, "loss": 1.52, "samples": 300}
        store.set_meta("evaluations", [{**row, "metrics": {"perplexity": 4.57, "nats_per_byte": 1.48}}])
        found = summarise(store)
        assert found["accuracy"] is None  # the task has none, which is not "unknown"
        assert _held_out_lines(found) == ["held-out loss 1.52, perplexity 4.57, nats_per_byte 1.48"]
        store.set_meta("evaluations", [])
        assert _held_out_lines(summarise(store)) == ["accuracy unknown"]


def test_an_unreadable_price_book_makes_the_cost_unknown(tmp_path):
    meta = {**_meta(), "price_book": {"name": "mine.csv", "csv": "nonsense"}}
    with _store(tmp_path, meta) as store:
        found = summarise(store)
    assert found["cost"]["total_usd"] is None
    assert any("mine.csv:1" in w for w in found["warnings"])


@pytest.mark.parametrize(("budget", "passed"), [("1000", 0.0), ("0.01", True), (None, None)])
def test_budget_overshoot(tmp_path, budget, passed):
    meta = _meta()
    meta["experiment"]["budget_usd"] = budget
    with _store(tmp_path, meta) as store:
        cost = summarise(store)["cost"]
    assert cost["budget_usd"] == (None if budget is None else float(budget))
    if passed is True:
        assert cost["overshoot_usd"] == pytest.approx(cost["total_usd"] - 0.01, abs=1e-6)
        assert cost["overshoot_usd"] > 0
    else:
        assert cost["overshoot_usd"] == passed
    meta["price_book"] = {"name": "mine.csv", "csv": "nonsense"}
    with _store(tmp_path / "unpriced", meta) as store:
        assert summarise(store)["cost"]["overshoot_usd"] is None


def test_metrics_do_not_import_pandas():
    code = "import sys, metrics.summary, metrics.tables; sys.exit('pandas' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0
