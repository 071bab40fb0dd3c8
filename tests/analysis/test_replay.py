"""The rows of `orch replay`: the paper's logs compared with its table, and incomplete stores."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from wandb_logs import Swarm, write_swarm

from analysis.replay import KEYS, RunRow, read_folder, read_run, replay_rows, with_speedups
from analysis.sources import opened
from metrics.records import (
    EgressRecord,
    EpochRecord,
    IngressRecord,
    ProgressRecord,
    StepRecord,
    SwarmEpochRecord,
    VmRecord,
)
from metrics.stats import Estimate
from metrics.store.database import RunStore

# The authors' rule on their logs, unrounded where PAPER.md's table has one digit.
AUTHORS_GRANULARITY = {
    "CV A-2": 39.73, "CV A-3": 21.23, "CV A-4": 14.48, "CV A-6": 8.31, "CV A-8": 5.39,
    "NLP A-2": 6.86, "NLP A-3": 3.89, "NLP A-4": 2.73, "NLP A-6": 1.66, "NLP A-8": 1.14,
    "CV B-2": 14.38, "CV B-4": 9.33, "CV B-6": 6.65, "CV B-8": 4.92,
    "NLP B-2": 2.12, "NLP B-4": 1.41, "NLP B-6": 1.02, "NLP B-8": 0.63,
}  # fmt: skip
# PAPER.md's columns and ours: the tolerance, and the unit.
COLUMNS = {
    "sps_epoch_mean": (0.002, 1.0),
    "granularity_phase_timed": (0.02, 1.0),
    "granularity": (0.02, 1.0),
    "calc_s": (0.02, 1.0),
    "comm_s": (0.02, 1.0),
    "epoch_s": (0.02, 1.0),
    "egress_bytes_per_vm_epoch": (0.03, 1e9),
}
# The table's 0.56 GB weighs each sample by the whole seconds since the one before. The log's clock is cut to
# whole seconds, so a sampling interval of 1.003 s looks like 2 s now and then. All three VMs' plain sums say
# 0.539, and 2(n-1)/n x parameters x 2 bytes + 2 % says 0.538.
A3_EGRESS_GB = "0.539"


@pytest.fixture(scope="module")
def study_rows() -> dict[str, dict]:
    """Filled by the first test that has the logs; the import takes two seconds."""
    return {}


@pytest.fixture
def rows(paper_traces: Path, study_rows: dict[str, dict]) -> dict[str, dict]:
    if not study_rows:
        with opened([paper_traces], index=paper_traces / "INDEX.csv") as found:
            assert found.problems == ()
            made = replay_rows([read_folder(run.folder).row for run in found.runs])
        study_rows.update({row["label"]: row for row in made})
    return study_rows


def test_the_index_in_docs_names_the_papers_files_wherever_they_are(
    paper_traces: Path, rows: dict[str, dict]
):
    index = Path(__file__).parents[2] / "docs" / "examples" / "paper-index.csv"
    assert all(",artifacts/wandb/" in line for line in index.read_text().splitlines()[1:])
    with opened([paper_traces], index=index) as found:
        assert found.problems == ()
        made = replay_rows([read_folder(run.folder).row for run in found.runs])
    assert len(made) == 20
    assert {row["label"]: row for row in made} == rows


def table(paper_traces: Path) -> Generator[tuple[str, Sequence[str]]]:
    """(run, its printed figures) of PAPER.md's table of A and B."""
    for line in (paper_traces.parent / "PAPER.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"(CV|NLP) [AB]-[2-8]", cells[0]) and len(cells) == 1 + len(COLUMNS):
            yield cells[0], cells[1:]


def test_every_figure_of_the_papers_table_is_reproduced(rows: dict[str, dict], paper_traces: Path):
    seen = 0
    for run, printed in table(paper_traces):
        for (key, (share, unit)), text in zip(COLUMNS.items(), printed, strict=True):
            text = A3_EGRESS_GB if (run, key) == ("CV A-3", "egress_bytes_per_vm_epoch") else text
            # A figure of two digits was rounded by more than the tolerance.
            rounding = (
                0.5 * 10 ** -len(text.partition(".")[2]) if len(text.replace(".", "").lstrip("0")) <= 2 else 0
            )
            assert rows[run][key] == pytest.approx(
                float(text) * unit, abs=(share * float(text) + rounding) * unit
            ), (run, key)
            seen += 1
    assert seen == 18 * len(COLUMNS)


def test_the_authors_granularity_unrounded(rows: dict[str, dict]):
    found = {run: rows[run]["granularity_phase_timed"] for run in AUTHORS_GRANULARITY}
    assert found == {run: pytest.approx(value, abs=0.0051) for run, value in AUTHORS_GRANULARITY.items()}


def test_the_single_gpus_have_both_rates_and_the_speedups_are_on_one_clock(rows: dict[str, dict]):
    cv, nlp = rows["CV A-1"], rows["NLP A-1"]
    assert (cv["sps_wall"], nlp["sps_wall"]) == (
        pytest.approx(36.8, rel=0.002),
        pytest.approx(139.2, rel=0.002),
    )
    assert (cv["sps_phase_timed"], nlp["sps_phase_timed"]) == (
        pytest.approx(80.778, rel=1e-4),
        pytest.approx(208.763, rel=1e-4),
    )
    assert rows["CV A-8"]["speedup"] == pytest.approx(7.1, abs=0.05)
    assert rows["NLP A-8"]["speedup"] == pytest.approx(4.1, abs=0.05)
    assert rows["CV A-8"]["speedup_phase_timed"] == pytest.approx(3.24, abs=0.01)
    assert rows["NLP A-8"]["speedup_phase_timed"] == pytest.approx(2.75, abs=0.01)


def test_rows_are_complete_and_nulls_are_explained(rows: dict[str, dict]):
    assert len(rows) == 20
    swarm = set(KEYS) - {"sps_wall", "sps_phase_timed", "scales", "host_contended"}
    for run, row in rows.items():
        assert tuple(row) == KEYS
        known = swarm if not run.endswith("-1") else {
            "label", "run_id", "model", "peers", "tbs", "ingress_bytes_per_vm_h", "sps_wall", "sps_phase_timed", "target",
            "emulated", "warnings",
        }  # fmt: skip
        assert {key for key, value in row.items() if value is not None} == known, run
        assert any("null" in text for text in row["warnings"])
    b8 = rows["NLP B-8"]
    assert (b8["peers"], b8["tbs"], b8["n_epochs"], b8["model"]) == (8, 32768, 2, "RoBERTaXLM")
    assert b8["sps_low"] < b8["sps"] < b8["sps_high"]


# --- what a log may lack --------------------------------------------------------------------------------------


def write(folder: Path, **changes: object) -> RunStore:
    """A synthetic import of two VMs, three epochs and a monitor; `changes` replace meta."""
    store = RunStore.open_writer(folder / "run.db")
    meta = {
        "run_id": "hivemind-1", "label": None, "experiment": "hivemind-1", "target": "imported", "status": "done",
        "model": {"name": "ConvNextLarge"}, "target_batch_size": 1000, "raw_target_batch_size": 1000,
        "warmup_epochs": 1, "addresses": {"a": "a", "b": "b"},
        "locations": {"a": "gcp/us-central1", "b": "gcp/us-central1"},
        "imported": {"kind": "wandb", "baseline": False},
    }  # fmt: skip
    for key, value in {**meta, **changes}.items():
        store.set_meta(key, value)
    for vm in ("a", "b"):
        store.upsert_vm(
            VmRecord(vm, vm, 0, "gcp/us-central1", "", "T4:1", True, None, "", vm, 0.0, 1.0, 99.0, "")
        )
        for k in (1, 2, 3):
            began = 30.0 * (k - 1)
            store.append("epochs", [EpochRecord(
                vm, k, began, began + 30, 10, 500, 0, 0, 20.0, 0, 0, 10.0, 0, 20.0, 10.0, None, 2, "", "",
            )])  # fmt: skip
            other = "b" if vm == "a" else "a"
            store.append(
                "egress", [EgressRecord(vm, k, other, p, 10.0, n) for p, n in (("calc", 10), ("comm", 90))]
            )
            store.append("ingress", [IngressRecord(vm, k, 300, 0)])
            store.append("steps", [
                StepRecord(vm, 10 * k + n, k, began + 2 * n, 2.0, 0, 0, 2.0, 0, 0, 10.0 * (n == 9), 0, 50) for n in range(10)
            ])  # fmt: skip
    store.append("swarm_epochs", [SwarmEpochRecord(k, 30.0 * k, 30.0, 1000, 1000 / 30) for k in (1, 2, 3)])
    store.append("progress", [ProgressRecord(1.0 + k, "", 0, 0, 0.0, 2, None) for k in range(5)])
    return store


def without(store: RunStore, *tables: str, where: str = "") -> RunStore:
    """The same without some tables or rows."""
    for name in tables:
        store._connection.execute(f"DELETE FROM {name} {where}")
    return store


def reasons(row: RunRow) -> str:
    return "\n".join(row.to_json()["warnings"])


def test_complete_log_has_no_warnings(tmp_path: Path):
    with write(tmp_path) as store:
        row = read_run(store).row
    assert row.warnings == ("label is null: no index lists the run.",)
    values = row.to_json()
    assert values["sps"] == pytest.approx(2000 / 60)
    assert (values["n_epochs"], values["granularity"], values["epoch_s"]) == (2, 2.0, 30.0)
    assert values["granularity_phase_timed"] == pytest.approx(20 * 2.0 / 20.0)
    assert values["egress_bytes_per_vm_epoch"] == 100
    assert values["ingress_bytes_per_vm_h"] == pytest.approx(300 / 30 * 3600)


def test_without_a_monitor_rates_come_from_the_vms(tmp_path: Path):
    with without(write(tmp_path), "swarm_epochs", "progress") as store:
        row = read_run(store).row
    assert row.figures.get("sps_epoch_mean") is None
    assert row.figures.get("sps") is not None
    assert row.figures["sps"].value == pytest.approx(2000 / 60)
    assert "there is no monitor log" in reasons(row)


@pytest.mark.parametrize(
    ("counted_peers", "reason"),
    [
        (2, "2 peers averaged according to the VMs, but only 1 have logs"),
        (0, "500 of 1000 samples per epoch"),
    ],
)
def test_without_a_monitor_and_a_vm_rates_are_null(tmp_path: Path, counted_peers: int, reason: str):
    with without(write(tmp_path), "swarm_epochs", "progress") as store:
        for table_ in ("vms", "epochs", "egress", "ingress", "steps"):
            without(store, table_, where="WHERE vm = 'b'")
        store._connection.execute(f"UPDATE epochs SET group_size = {counted_peers}")
        row = read_run(store).row
    assert row.figures.get("sps") is None
    assert reason in reasons(row)
    assert row.figures.get("comm_s") is not None


def test_monitor_counts_peers_without_logs(tmp_path: Path):
    with write(tmp_path) as store:
        for table_ in ("vms", "epochs", "egress", "ingress", "steps"):
            without(store, table_, where="WHERE vm = 'b'")
        row = read_run(store).row
    assert row.peers == 2
    assert row.figures.get("sps") is not None


def test_a_monitor_alone_gives_rates_only(tmp_path: Path):
    with without(write(tmp_path), "vms", "epochs", "egress", "ingress", "steps") as store:
        row = read_run(store).row
    assert row.figures.keys() == {"sps", "epoch_s", "sps_epoch_mean"}
    for key in (
        "calc_s, comm_s and granularity",
        "granularity_phase_timed",
        "egress_bytes_per_vm_epoch",
        "ingress_bytes",
    ):
        assert f"{key}" in reasons(row)


def test_zero_rates_are_in_the_authors_mean_but_not_in_sps(tmp_path: Path):
    with without(write(tmp_path), "swarm_epochs") as store:
        rates = {1: 33.0, 2: 0.0, 3: 40.0}
        store.append("swarm_epochs", [SwarmEpochRecord(k, 30.0 * k, 25.0, 1000, r) for k, r in rates.items()])
        row = read_run(store).row
    assert row.figures.get("sps_epoch_mean") is not None
    assert (row.figures["sps_epoch_mean"].value, row.figures["sps_epoch_mean"].n) == (20.0, 2)
    assert row.figures.get("sps") == Estimate(40.0, None, None, 1)
    assert (
        "sps (1 epoch) leaves out records that sps_epoch_mean (2 rates, counted as in the paper) includes: epoch 2: rate 0."
        in row.warnings
    )
    assert "no wall time" not in reasons(row)


def test_only_zero_rates_give_no_throughput(tmp_path: Path):
    with write(tmp_path) as store:
        store._connection.execute("UPDATE swarm_epochs SET sps = 0")
        row = read_run(store).row
    assert (row.figures.get("sps"), row.figures.get("sps_epoch_mean")) == (None, None)
    assert "sps_epoch_mean is null: the monitor logged no rate above 0" in reasons(row)
    assert "sps (0 epochs) leaves out" in reasons(row)
    assert "epochs 2 and 3: rate 0" in reasons(row)


@pytest.mark.parametrize("epochs", [0, 1])
def test_no_epoch_after_the_warmup_leaves_rates_unknown(tmp_path: Path, epochs: int):
    with write(tmp_path) as store:
        for table_ in ("swarm_epochs", "epochs"):
            without(store, table_, where=f"WHERE epoch > {epochs}")
        row = read_run(store).row
    assert (row.figures.get("sps"), row.figures.get("sps_epoch_mean"), row.n_epochs) == (None, None, 0)
    assert "No epoch ended after the warm-up" in reasons(row)
    assert "ingress_bytes_per_vm_h are null: no epoch is measured" in reasons(row)


def test_a_log_without_a_timer_has_no_phase_timed_figures(tmp_path: Path):
    missing = {vm: ["02_timing/backward_time_s"] for vm in ("a", "b")}
    with write(tmp_path, imported={"kind": "wandb", "baseline": False, "missing_columns": missing}) as store:
        row = read_run(store).row
    assert row.figures.get("granularity_phase_timed") is None
    assert "its log has no 02_timing/backward_time_s" in reasons(row)


def test_uncounted_bytes_are_not_zero_bytes(tmp_path: Path):
    with without(write(tmp_path), "egress", where="WHERE vm = 'b'") as store:
        row = read_run(store).row
    assert row.value("egress_bytes_per_vm_epoch") == 100
    assert "The sent bytes of b were not counted" in reasons(row)


# --- speed-ups ------------------------------------------------------------------------------------------------


def a_row(run_id: str, figures: dict[str, float] | None = None, **other: object) -> RunRow:
    known = {"sps": 260.0, "sps_epoch_mean": 262.0} if figures is None else figures
    row = RunRow(None, run_id, "ConvNextLarge", 8, 32768, False, ("T4:1",), {})
    estimates = {key: Estimate(value, None, None, 1) for key, value in known.items()}
    return replace(row, figures=estimates, **other)  # type: ignore[arg-type]


def a_baseline(run_id: str, wall: float, timed: float | None = 80.0) -> RunRow:
    rates = {"sps_wall": wall} | ({} if timed is None else {"sps_phase_timed": timed})
    return a_row(run_id, rates, baseline=True)


def test_several_baselines_are_averaged_and_reported():
    row = with_speedups([a_row("r"), a_baseline("b1", 30.0), a_baseline("b2", 40.0)])[0]
    assert (row.value("speedup"), row.value("speedup_phase_timed")) == (
        pytest.approx(260 / 35),
        pytest.approx(262 / 80),
    )
    assert "the mean of 2 baselines: b1, b2" in reasons(row)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_row("r", accelerators=("A10:1", "T4:1")), "the peers have different GPUs (A10:1, T4:1)"),
        (a_row("r", accelerators=("V100:1",)), "no single-VM run of ConvNextLarge on V100:1"),
        (a_row("r", model="WhisperSmall"), "no single-VM run of WhisperSmall on T4:1"),
        (a_row("r", model=None), "the run's model is unknown"),
        (a_row("r", accelerators=("",)), "the run's GPU is unknown"),
    ],
)
def test_missing_baseline_is_explained(row: RunRow, reason: str):
    found = with_speedups([row, a_baseline("b", 36.8)])[0]
    assert (found.figures.get("speedup"), found.figures.get("speedup_phase_timed")) == (None, None)
    assert reason in reasons(found)


def test_missing_rate_of_a_speedup_is_named():
    found = with_speedups([a_row("r", {"sps_epoch_mean": 262.0}), a_baseline("b", 36.8, timed=None)])[0]
    assert (found.figures.get("speedup"), found.figures.get("speedup_phase_timed")) == (None, None)
    assert "speedup is null: sps is unknown" in reasons(found)
    assert "the sps_phase_timed of the baseline is unknown" in reasons(found)


# --- damaged logs ---------------------------------------------------------------------------------------------

# What else a reason may call a number that is null.
ALSO = {"model": "The model is unknown", "tbs": "The target batch size is unknown"}


def assert_every_null_is_explained(row: dict) -> None:
    reasons = " ".join(row["warnings"])
    for key, value in row.items():
        if value is None:
            assert re.search(rf"\b{key}\b", reasons) or ALSO.get(key, "\0") in reasons, (row["run_id"], key)


@pytest.mark.parametrize(
    "damage",
    [
        "no monitor",
        "no bee",
        "no bees",
        "one VM left",
        "one epoch",
        "no epoch",
        "no timers",
        "no counters",
        "no epochs logged",
    ],
)
def test_every_null_is_explained_for_any_damage(damage: str, tmp_path: Path):
    hosts = ("gc-us-t4-1", "gc-us-t4-2", "gc-us-t4-3")
    fails = dict.fromkeys(hosts, 1) if damage == "no epoch" else {}
    swarm = Swarm(hosts=hosts, epochs=1 if damage == "one epoch" else 3, fails=fails)
    truth = write_swarm(tmp_path, swarm)
    files = truth.files
    if damage == "no monitor":
        files["monitor"].unlink()
    gone = {"no bee": 1, "one VM left": 2, "no bees": 3}.get(damage, 0)
    for host in hosts[:gone]:
        files[host].unlink()
    column = {
        "no timers": "backward_time_s",
        "no counters": "net_sent_sys",
        "no epochs logged": "global_epoch",
    }.get(damage)
    for host in hosts if column else ():
        head, _, rest = files[host].read_text().partition("\n")
        files[host].write_text(head.replace(column, "renamed") + "\n" + rest)
    with opened([tmp_path]) as found:
        (row,) = replay_rows([read_folder(run.folder).row for run in found.runs])
    assert_every_null_is_explained(row)
    if damage in ("no monitor", "no bee", "one VM left", "no timers", "no counters", "no epochs logged"):
        assert (row["comm_s"], row["granularity"]) != (None, None)
