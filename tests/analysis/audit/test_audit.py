"""Every check of the audit, on a clean run and on the same run with one defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from audited_run import START_S, MadeRun, made_baseline, made_run

from analysis.audit.audit import audit
from analysis.audit.evidence import Evidence
from analysis.audit.findings import Finding, reaches


def audited(*runs: MadeRun) -> list[Finding]:
    return audit([Evidence.of(run) for run in runs])


def only(found: list[Finding], check: str) -> list[Finding]:
    return [f for f in found if f.check == check]


def test_a_clean_run_has_no_findings():
    assert audited(made_run()) == []


def test_a_clean_baseline_has_no_findings():
    assert audited(made_baseline(untimed=0.01)) == []


def test_untimed_wall_time_is_a_doubt():
    [found] = audited(made_run(untimed=0.5))
    assert (found.check, found.severity, found.run_id, found.n) == ("mixed-clock", "doubt", "hivemind-1", 5)
    assert found.value == pytest.approx(0.45)  # half of 90 of 100 seconds
    assert "45 % of the wall time" in found.sentence
    assert "4.5 by phase timers and 9 by wall clock" in found.sentence


def test_baseline_reports_both_rates_and_its_log():
    [found] = audited(made_baseline(untimed=0.5))
    assert found.value == pytest.approx(0.5)
    assert "80 sps by phase timers, 40 sps by wall clock" in found.sentence
    assert found.file == "wandb/baseline-1-gc-t4-1.csv.gz"


def test_timers_beyond_wall_time_are_an_error():
    [found] = audited(made_run(untimed=-0.5))
    assert (found.check, found.severity) == ("mixed-clock", "error")
    assert found.value == pytest.approx(-0.45)


def test_speed_up_over_phase_timed_baseline_is_an_error():
    found = only(
        audited(made_baseline(), made_run(untimed=0.3), made_run(peers=8, run_id="h-8", label="CV A-8")),
        "speed-up",
    )
    assert [f.run_id for f in found] == [None, "hivemind-1", "h-8"]
    assert {f.severity for f in found} == {"error"}
    whole = found[0]
    assert whole.sentence.startswith(
        "On one clock 8 T4s are 8.2 times (ConvNextLarge, CV A-8) as fast as one, not 4.10"
    )
    assert whole.expected == pytest.approx(327.68 / 40, rel=1e-3)
    assert whole.value == pytest.approx(327.68 / 80, rel=1e-3)


def test_no_speed_up_finding_on_one_clock():
    assert only(audited(made_baseline(untimed=0.01), made_run()), "speed-up") == []


def test_baseline_of_another_model_is_ignored():
    other = made_baseline()
    other.values["model"] = {"name": "RoBERTaXLM", "parameters": None}
    assert only(audited(other, made_run()), "speed-up") == []


Spoil = Callable[[MadeRun], Any]


def _edit(table: str, change: Callable[[Any], Any]) -> Spoil:
    """Replace each row by `change(row)`; None drops it."""

    def spoil(run: MadeRun) -> None:
        run.tables[table] = [new for row in run.tables[table] if (new := change(row)) is not None]

    return spoil


def _set(*path: str, value: Any) -> Spoil:
    def spoil(run: MadeRun) -> None:
        place: Any = run.values
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return spoil


def _rates(*sps: float) -> Spoil:
    """Give the epochs these rates by changing their samples."""

    def spoil(run: MadeRun) -> None:
        rows = run.tables["swarm_epochs"]
        run.tables["swarm_epochs"] = [
            replace(row, samples=round(rate * 100), sps=rate) for row, rate in zip(rows, sps, strict=True)
        ]
        run.tables["epochs"] = [
            replace(r, samples=round(sps[r.epoch - 1] * 25)) for r in run.tables["epochs"]
        ]
        run.values["raw_target_batch_size"] = run.values["target_batch_size"] = None

    return spoil


def _vm4(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda row: change(row) if row.vm == "gc-t4-4" else row


_VM4 = "wandb/hivemind-1-gc-t4-4.csv.gz"
_MONITOR = "wandb/hivemind-1-vm-monitor.csv.gz"

# what is wrong: (how, check, severity, value, expected, file, a part of the sentence)
CASES: dict[str, tuple[Spoil, str, str, float | None, float | None, str | None, str]] = {
    "an epoch twice as fast": (
        _rates(300, 600, 300, 300, 300, 300), "few-epochs", "doubt", 0.463, 0.10, None, "mean of 5 epochs",
    ),
    "a slow first epoch": (
        _rates(100, 300, 300.3, 300, 300.1, 300), "first-epoch", "note", -0.111, 0.01, None, "It is excluded",
    ),
    "no warm-up left out": (
        lambda run: (_rates(100, 300, 300.3, 300, 300.1, 300)(run), _set("warmup_epochs", value=0)(run)),
        "first-epoch", "doubt", -0.111, 0.05, None, "includes the first epoch",
    ),
    "published with the first epoch": (
        lambda run: (_rates(294, 330, 330, 330, 330, 330)(run), _set("published", value={"sps": "324"})(run)),
        "published", "doubt", 324, 330, None, "it matches the mean with the first epoch, 324.0",
    ),
    "published from elsewhere": (
        _set("published", value={"sps": 350.0}), "published", "doubt", 350.0, 327.7, None, "327.7 (+6.8%).",
    ),
    "the authors' rule finds too many": (
        _set("imported", "sync", "gc-t4-4", value={"rule": "epochs", "agree": False, "found": 6, "authors": 19}),
        "sync-rule", "doubt", 19, 6, _VM4, "finds 19 synchronising steps",
    ),
    "nothing confirms the rule": (
        _set("imported", "sync", "gc-t4-4", value={"rule": "opt_step", "agree": None, "found": 6, "authors": 6}),
        "sync-rule", "note", 6, None, _VM4, "the log does not confirm",
    ),
    "a doubled counter": (
        _set("imported", "nic", "gc-t4-4", value={
            "sent_bytes": 10**9, "received_bytes": 11 * 10**8, "raw_sent_bytes": 2 * 10**9, "raw_received_bytes": 22 * 10**8,
            "seconds": 600, "doubled": True, "samples": 600, "gaps": 0,
        }), "doubled-counter", "doubt", 2e9, 1e9, _VM4, "2 GB sent, the figures use 1 GB",
    ),
    "a VM that ends early": (
        _edit("vms", _vm4(lambda r: replace(r, ended_s=r.ended_s - 250))),
        "peer-ended", "doubt", 250, 100, _VM4, "250.0 s before",
    ),
    "a VM in no epoch": (
        lambda run: [_edit(t, _vm4(lambda r: None))(run) for t in ("epochs", "egress")],
        "peer-epochs", "doubt", 0, 6, _VM4, "none of the 6 epochs",
    ),
    "a VM that misses an epoch": (
        _edit("epochs", _vm4(lambda r: None if r.epoch == 3 else r)),
        "peer-epochs", "doubt", 5, 6, _VM4, "missed epoch 3 of",
    ),
    "a VM that joins after the warm-up": (
        _edit("epochs", _vm4(lambda r: None if r.epoch == 1 else r)),
        "peer-epochs", "note", 5, 6, _VM4, "(warm-up only)",
    ),
    "a VM that leaves": (
        _edit("epochs", _vm4(lambda r: None if r.epoch > 4 else r)),
        "peer-epochs", "doubt", 4, 6, _VM4, "left early and missed epochs 5, 6",
    ),
    "a VM that idles": (
        _edit("epochs", _vm4(lambda r: replace(r, samples=1000))),
        "peer-idle", "doubt", 1000, 8192.4, _VM4, "processed 1,000 samples per epoch",
    ),
    "a VM that was taken": (
        _edit("vms", _vm4(lambda r: replace(r, end_cause="failed: out of memory"))),
        "peer-ended", "doubt", START_S + 605, None, _VM4, "failed: out of memory",
    ),
    "a missing bee": (
        _edit("progress", lambda r: replace(r, peers=5)), "peers-seen", "doubt", 5, 4, _MONITOR, "up to 5 peers",
    ),
    "a peer that the monitor does not see": (
        _edit("progress", lambda r: replace(r, peers=3)), "peers-seen", "doubt", 1.0, 0.05, _MONITOR, "fewer than 4 peers",
    ),
    "too many bytes": (
        _edit("egress", _vm4(lambda r: replace(r, bytes=2 * r.bytes))),
        "bytes", "doubt", 6.12e8, 3.06e8, _VM4, "2.00 times",
    ),
    "too few bytes": (
        _edit("egress", _vm4(lambda r: replace(r, bytes=r.bytes // 2))),
        "bytes", "doubt", 1.53e8, 3.06e8, _VM4, "0.50 times",
    ),
    "received less than sent": (
        _set("imported", "nic", "gc-t4-4", "received_bytes", value=5 * 10**8),
        "bytes", "doubt", 5e8, 1e9, _VM4, "received 0.5 GB, 50 % less than the 1 GB it sent",
    ),
    "places between which bytes are split": (
        lambda run: [
            _set("imported", "egress_destinations", value="split equally")(run),
            _edit("vms", _vm4(lambda r: replace(r, location="gcp/europe-west1")))(run),
        ],
        "destinations", "note", 2, None, None, "(split equally)",
    ),
    "unknown parameters": (
        _set("model", "parameters", value=None), "bytes", "note", None, None, None, "parameters of ConvNextLarge",
    ),
    "a slow monitor": (
        _set("imported", "monitor_period_s", value=4.0), "monitor-period", "doubt", 4.0, 2.0, _MONITOR, "4 %",
    ),
    "an epoch without a rate": (
        _edit("swarm_epochs", lambda r: replace(r, sps=0.0) if r.epoch == 4 else r),
        "zero-rate", "doubt", 1, 0, _MONITOR, "the rate 0 for epoch 4",
    ),
    "a skipped epoch": (
        _edit("swarm_epochs", lambda r: None if r.epoch == 4 else r),
        "skipped-epochs", "doubt", 1, 0, _MONITOR, "skips epoch 4",
    ),
    "a gap of the monitor": (
        _edit("progress", lambda r: None if 120 < r.at_s - START_S < 150 else r),
        "monitor-gaps", "note", 30, 5, _MONITOR, "1 time",
    ),
    "a gap of the monitor over an epoch's end": (
        _edit("progress", lambda r: None if 180 < r.at_s - START_S < 210 else r),
        "monitor-gaps", "doubt", 30, 5, _MONITOR, "the end of epoch 2",
    ),
    "a clock that jumps": (
        _set("imported", "clock", "gc-t4-4", "jumps", value=2), "clock", "doubt", 2, 0, _VM4, "jumps 2 times",
    ),
    "gaps in the counters": (
        _set("imported", "nic", "gc-t4-4", "gaps", value=1), "counter-gaps", "note", 1, 0, _VM4, "1 gap of 3 s",
    ),
    "no counters": (
        _set("imported", "nic", value={}), "counter-gaps", "note", 0, None, "wandb/hivemind-1-gc-t4-1.csv.gz", "no network",
    ),
    "samples that do not add up": (
        _edit("swarm_epochs", lambda r: replace(r, samples=35000, sps=350.0) if r.epoch == 4 else r),
        "samples", "doubt", 32768, 35000, _MONITOR, "Epoch 4",
    ),
    "an overshot target": (
        _set("raw_target_batch_size", value=30000), "samples", "note", 32768, 30000, None, "more than the target",
    ),
    "the importer's warning": (
        _set("warnings", value=["hivemind-1-gc-t4-4.csv.gz:17: cut in the middle of a line."]),
        "warning", "note", None, None, _VM4, ":17:",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_defect_is_found_with_its_evidence(name: str):
    spoil, check, severity, value, expected, file, part = CASES[name]
    run = made_run()
    spoil(run)
    found = only(audited(run), check)
    assert found, audited(run)
    first = found[0]
    assert first.severity == severity
    assert part in first.sentence
    assert first.file == file
    assert first.value == (None if value is None else pytest.approx(value, rel=0.01))
    assert first.expected == (None if expected is None else pytest.approx(expected, rel=0.01))
    assert first.sentence.endswith(".")


@pytest.mark.parametrize(
    ("epochs", "severity", "n"), [(1, "error", 0), (2, "doubt", 1), (3, "note", 2), (5, None, 4)]
)
def test_severity_by_number_of_epochs(epochs: int, severity: str | None, n: int):
    run = made_run(epochs=epochs)
    found = only(audited(run), "few-epochs")
    assert [(f.severity, f.n) for f in found] == ([] if severity is None else [(severity, n)])


def test_missing_monitor_is_reported_and_its_checks_skipped():
    run = made_run()
    run.tables["swarm_epochs"] = run.tables["progress"] = []
    run.values["imported"] |= {"monitor": False, "monitor_period_s": None}
    assert [f.check for f in audited(run)] == ["monitor-missing"]


def test_empty_run_is_an_error_without_traceback():
    run = made_run()
    run.tables = {table: [] for table in run.tables}
    run.values = {"run_id": "empty", "imported": {"kind": "wandb"}}
    found = audited(run)
    assert found[0].check == "few-epochs"
    assert found[0].severity == "error"


def test_findings_are_sorted_by_severity():
    run = made_run(epochs=1)
    run.values["warnings"] = ["Something was odd."]
    assert [f.severity for f in audited(run)] == ["error", "note"]
    assert reaches("error", "doubt")
    assert not reaches("note", "doubt")


def test_dht_reports_of_a_tiny_model_are_allowed_for():
    run = made_run()
    run.values["model"]["parameters"] = 4810
    run.tables["egress"] = [replace(row, bytes=row.bytes and 25_000) for row in run.tables["egress"]]
    assert only(audited(run), "bytes") == []


def test_hierarchical_averaging_expects_bytes_by_region():
    """Of six peers the one alone in its region must send one vector, the others 1.8; all sent 1.67, as in flat averaging."""
    run = made_run(peers=6)
    run.values["experiment"] = {"swarm": {"averaging": "hierarchical"}}
    run.values["locations"]["gc-t4-6"] = "gcp/europe-west1"
    [found] = only(audited(run), "bytes")
    assert found.sentence.startswith("gc-t4-6 sent ")
    assert found.value / found.expected == pytest.approx(5 / 3, rel=0.01)


def test_compressed_gradients_expect_compressed_bytes():
    for compression, share in (("uniform8bit", 2), ("powersgd:4", 2 * 100e6 / 2_990_512)):
        run = made_run()
        run.values["experiment"] = {"swarm": {"compression": compression}}
        found = only(audited(run), "bytes")
        assert all(f.value / f.expected == pytest.approx(share, rel=0.02) for f in found)
        assert all(f"parameters as {compression} among" in f.sentence for f in found)
        assert found


def test_equal_counts_of_different_steps_are_reported():
    run = made_run()
    run.values["imported"]["sync"]["gc-t4-1"] = {"rule": "epochs", "agree": False, "found": 6, "authors": 6}
    [found] = only(audited(run), "sync-rule")
    assert "but different ones" in found.sentence


def test_mixed_clock_of_a_run_with_only_a_warm_up_epoch():
    [found] = only(audited(made_run(epochs=1, untimed=0.5)), "mixed-clock")
    assert found.value == pytest.approx(0.45)
    assert found.n == 0
    assert "of all epochs" in found.sentence


def test_mixed_clock_of_a_run_without_epochs_uses_its_steps():
    run = made_run(epochs=2, untimed=0.5)
    run.tables["epochs"] = run.tables["swarm_epochs"] = run.tables["egress"] = []
    [found] = only(audited(run), "mixed-clock")
    assert found.value == pytest.approx(0.45)
    assert "of all steps" in found.sentence


def test_changing_number_of_peers_is_a_doubt():
    run = made_run()
    _edit("epochs", _vm4(lambda r: None if r.epoch > 4 else r))(run)
    [found] = only(audited(run), "peers-changed")
    assert found.severity == "doubt"
    assert "have 3 and 4 peers" in found.sentence


def test_vms_of_the_epochs_before_all_peers_were_lost_did_take_part():
    run = made_run()
    lost_s = START_S + 205.0  # after two epochs

    def of_the_first_two(row: Any) -> bool:
        return row.epoch <= 2

    earlier = [replace(r, vm=f"{r.vm}-lost") for r in run.tables["epochs"] if of_the_first_two(r)]
    later = [
        replace(r, epoch=r.epoch - 2, began_s=r.began_s + 50, ended_s=r.ended_s + 50)
        for r in run.tables["epochs"]
        if not of_the_first_two(r)
    ]
    vms = run.tables["vms"]
    run.tables["epochs"] = [*earlier, *later]
    run.tables["vms"] = [
        *(replace(r, vm=f"{r.vm}-lost", ended_s=lost_s, end_cause="preempted") for r in vms),
        *(replace(r, generation=1) for r in vms),
    ]
    run.tables["swarm_epochs"] = []
    [found] = only(audited(run), "peer-epochs")
    assert (found.severity, found.value, found.n) == ("note", 2, 2)
    assert "gc-t4-1-lost" in found.sentence
    assert "in up to 2 epochs before that counts in the cost only" in found.sentence
