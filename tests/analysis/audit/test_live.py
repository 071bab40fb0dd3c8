"""The audit of our own emulated run: the checks that do not apply to imported logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from analysis.audit.audit import audit
from analysis.audit.evidence import Evidence
from analysis.audit.findings import Finding
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.traffic import pair_bytes


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """An emulated run of our own, scaled, one VM preempted."""
    write_run(tmp_path, peers=4)
    return tmp_path


def live_findings(folder: Path, **meta: Any) -> dict[str, Finding]:
    with RunStore.open_writer(folder / "run.db") as store:
        for key, value in meta.items():
            store.set_meta(key, value)
    with RunStore.open_reader(folder / "run.db") as store:
        return {f.check: f for f in audit([Evidence.of(store)])}


def test_own_run_has_no_mixed_clock_and_is_marked_emulated(live: Path):
    found = live_findings(live)
    assert not {
        "mixed-clock",
        "monitor-missing",
        "counter-gaps",
        "host",
        "ended",
        "agreement",
        "dropped-rounds",
    } & set(found)
    assert "bytes 1/100, time 1/1, samples 1/8" in found["emulated"].sentence
    assert found["peer-ended"].severity == "note"  # preempted: what spot VMs do
    assert found["published"].value == 244.3  # made up, so it fits nothing


@pytest.mark.parametrize(
    ("meta", "check", "severity", "part"),
    [
        ({"host": {"contended": True, "reasons": ["late packets"]}}, "host", "doubt", "late packets"),
        ({"host": None}, "host", "note", "was not recorded"),
        ({"status": "failed", "error": "no capacity"}, "ended", "doubt", "no capacity"),
        ({"status": "running"}, "ended", "note", "so far"),
        ({"rejected": {"old": 3}}, "dropped-records", "note", "3 records"),
    ],
)
def test_findings_of_our_own_run(live: Path, meta: dict[str, Any], check: str, severity: str, part: str):
    found = live_findings(live, **meta)[check]
    assert found.severity == severity
    assert part in found.sentence


def test_meters_that_differ_from_the_switch(live: Path):
    with RunStore.open_reader(live / "run.db") as store:
        sent = {f"{a}>{b}": n for (a, b), n in pair_bytes(RunNumbers.of(store).flows).items()}
    assert "agreement" not in live_findings(live, switch={"sent_bytes": sent})
    more = {pair: round(n * 1.1) for pair, n in sent.items()}
    found = live_findings(live, switch={"sent_bytes": more})
    assert found["agreement"].severity == "doubt"
    assert "9.09 % fewer bytes than the switch" in found["agreement"].sentence
    assert "after-death" in found  # of the VM that was preempted


def test_rounds_that_hivemind_dropped(live: Path):
    with RunStore.open_reader(live / "run.db") as store:
        row = store.records("epochs")[-1]
    with RunStore.open_writer(live / "run.db") as store:
        store.append(
            "epochs",
            [replace(row, epoch=6, began_s=row.ended_s, ended_s=row.ended_s + 30, dropped="received 43 %")],
        )
    found = live_findings(live)["dropped-rounds"]
    assert (found.severity, found.value, found.n) == ("doubt", 1, 6)
