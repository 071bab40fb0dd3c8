"""Runs in a notebook: frames with units, unknown values, a single exception type, no cluster needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from made_up_run import write_run
from traced_run import SAMPLES, store_sums, write_traces

import orch
from metrics.records import CoverageRecord, EventRecord, StepRecord
from metrics.store.database import RunStore

pytestmark = pytest.mark.slow

RUN = "geo-c8-20231114-aaaa"
FRAMES = (
    "epochs",
    "peers",
    "traffic",
    "costs",
    "evaluations",
    "preemptions",
    "events",
    "steps",
    "coverage",
    "utilisation",
)


def _run_in(home: Path, run_id: str = RUN) -> Path:
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("")
    write_run(folder)
    return folder


def _set_meta(folder: Path, **values: object) -> None:
    with RunStore.open_writer(folder / "run.db") as store:
        for key, value in values.items():
            store.set_meta(key, value)


@pytest.fixture
def folder(own_home: Path) -> Path:
    """A generated run of eight peers and five epochs in ORCH_HOME."""
    return _run_in(own_home)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_documented_columns_and_types(folder: Path, name: str):
    found = getattr(orch.open(RUN), name)()
    wanted = {c.name: c.dtype for c in orch.FRAMES[name]}
    assert {column: str(kind) for column, kind in found.dtypes.items()} == wanted


def test_epochs_match_the_report(folder: Path):
    run = orch.open(RUN)
    epochs = run.epochs()
    assert list(epochs["epoch"]) == [1, 2, 3, 4, 5]
    assert list(epochs["measured"]) == [False, True, True, True, True]
    measured = epochs[epochs["measured"]]
    assert measured["samples"].sum() / measured["epoch_s"].sum() == pytest.approx(
        run.summary()["sps"]["value"]
    )
    assert measured["granularity"].mean() == pytest.approx(run.summary()["granularity"]["value"])
    # Eight peers' 512 samples an epoch, times the run's scale of 8.
    assert set(epochs["raw_samples"]) == {4096.0}
    assert set(epochs["samples"]) == {32768.0}


def test_epochs_by_peer_add_up_to_the_swarms(folder: Path):
    run = orch.open(RUN)
    by_peer = run.epochs(by="peer")
    assert len(by_peer) == 8 * 5
    assert list(by_peer.groupby("epoch")["samples"].sum()) == pytest.approx(list(run.epochs()["samples"]))
    with pytest.raises(orch.OrchError, match="'swarm' or 'peer'"):
        run.epochs(by="vm")


def test_evaluations_have_a_row_per_epoch_and_figure(folder: Path):
    rows = [
        {
            "vm": "a",
            "epoch": e,
            "at_s": 9.0,
            "accuracy": None,
            "loss": 2.0 / e,
            "samples": 90,
            "metrics": {"mine": 1.0},
        }
        for e in (2, 4)
    ]
    _set_meta(folder, evaluations=rows)
    run = orch.open(RUN)
    found = run.evaluations()
    assert list(zip(found["epoch"], found["figure"], found["value"], strict=True)) == [
        (2, "loss", 1.0), (2, "mine", 1.0), (4, "loss", 0.5), (4, "mine", 1.0),
    ]  # fmt: skip
    assert list(found["raw_trained_samples"]) == [2 * 4096.0] * 2 + [4 * 4096.0] * 2
    assert list(found["lower_is_better"].fillna(False)) == [True, False, True, False]
    assert found["lower_is_better"].isna().tolist() == [False, True, False, True]
    assert "<td>loss 0.5, mine 1</td>" in run._repr_html_()
    _set_meta(folder, evaluations=[])
    assert len(orch.open(RUN).evaluations()) == 0
    assert "held-out data" not in orch.open(RUN)._repr_html_()


@pytest.mark.parametrize("name", ["input", "batches", "ops"])
def test_a_trace_has_the_documented_columns_and_types(folder: Path, name: str):
    store_sums(folder, write_traces(folder))
    found = getattr(orch.open(RUN), name)()
    wanted = {c.name: c.dtype for c in orch.FRAMES[name]}
    assert {column: str(kind) for column, kind in found.dtypes.items()} == wanted


def test_sums_of_a_trace_are_those_of_its_records(folder: Path):
    store_sums(folder, write_traces(folder))
    run = orch.open(RUN)
    sums, batches, ops = run.input(), run.batches(), run.ops()
    assert (len(batches), len(ops)) == (8 * 5, 8 * 5 * SAMPLES)
    of_op = sums[sums["kind"] == "op"]
    assert of_op["n"].sum() == len(ops)
    assert of_op["wall_s"].sum() == pytest.approx(ops["wall_ns"].sum() / 1e9)
    assert of_op["bytes_out"].sum() == ops["bytes_out"].sum()
    for part in ("fetch", "collate", "wait", "delay"):
        own = sums[sums["op"] == part]
        assert (own["n"].sum(), sorted(own["epoch"].unique())) == (len(batches), [1, 2, 3, 4, 5])
        assert own["wall_s"].sum() == pytest.approx(batches[f"{part}_ns"].sum() / 1e9)
    assert sums["slot"].nunique() == 8


def test_without_the_files_of_rented_vms_their_sums_are_named(folder: Path):
    written = write_traces(folder)
    store_sums(folder, written)
    for vm in written.values():
        shutil.rmtree(vm / "trace")
    run = orch.open(RUN)
    assert run.input()["n"].sum() > 0
    with pytest.raises(
        orch.OrchError, match=r"those of rented VMs end with the VMs; input\(\) has their sums"
    ):
        run.batches()


def test_a_damaged_file_costs_its_own_records_only(folder: Path):
    written = write_traces(folder)
    (next(iter(written.values())) / "trace" / "7-1-0.trace").write_bytes(b"no trace")
    assert len(orch.open(RUN).ops()) == 7 * 5 * SAMPLES


@pytest.mark.parametrize("name", ["input", "batches", "ops"])
def test_without_a_trace_the_error_tells_how_to_get_one(folder: Path, name: str):
    with pytest.raises(orch.OrchError, match=r"set data\.trace: .* in the experiment and run it again"):
        getattr(orch.open(RUN), name)()
    _set_meta(folder, status="running")
    with pytest.raises(orch.OrchError, match="it has not ended; read it again then"):
        getattr(orch.open(RUN), name)()


def test_a_trace_of_batches_has_no_operations(folder: Path):
    store_sums(folder, write_traces(folder, ops=False))
    run = orch.open(RUN)
    assert len(run.batches()) == 8 * 5
    with pytest.raises(
        orch.OrchError, match=r"has no traced operations: set data\.trace: ops in the experiment"
    ):
        run.ops()


def test_peers_traffic_and_costs_agree(folder: Path):
    run = orch.open(RUN)
    peers, traffic, costs = run.peers(), run.traffic(), run.costs()
    assert peers["egress_bytes"].sum() == pytest.approx(traffic["bytes"].sum(), abs=len(traffic))
    total = run.numbers().bill.sum()
    assert total is not None
    assert costs["usd"].sum(skipna=False) == pytest.approx(float(total))
    parts = peers["vm_usd"].sum() + peers["egress_usd"].sum() + peers["data_usd"].sum()
    assert parts == pytest.approx(float(total))
    assert traffic["usd"].sum(skipna=False) == pytest.approx(peers["egress_usd"].sum())
    assert list(peers["epochs"]) == [4] * 8
    assert peers["end_cause"].iloc[-1] == "preempted"


def test_granularity_of_a_peer_is_the_mean_of_its_epochs_ratios(folder: Path):
    run = orch.open(RUN)
    epochs = run.epochs()
    measured = set(epochs.loc[epochs["measured"], "epoch"])
    by_peer = run.epochs(by="peer")
    ratios = by_peer[by_peer["epoch"].isin(measured)].groupby("vm")["granularity"].mean()
    assert dict(run.peers().set_index("vm")["granularity"].dropna()) == pytest.approx(dict(ratios))


def test_coverage_counts_the_samples_of_each_pass(folder: Path):
    assert len(orch.open(RUN).coverage()) == 0  # no reports: unknown
    vms = list(orch.open(RUN).peers()["vm"])
    _set_meta(folder, training_shards=2)
    with RunStore.open_writer(folder / "run.db") as store:
        told = [("size", 0, 0, 0, 100), ("used", 0, 0, 0, 60), ("used", 1, 0, 0, 10), ("end", 0, 0, 0, 0)]
        store.append("coverage", [CoverageRecord(vms[0], n, *row) for n, row in enumerate(told)])
        told = [("used", 0, 0, 50, 80), ("end", 0, 0, 0, 0)]
        store.append("coverage", [CoverageRecord(vms[1], n, *row) for n, row in enumerate(told)])
    found = orch.open(RUN).coverage()
    assert found["samples"].isna().all()  # the size of one shard is unknown
    names = ["pass", "counted", "once", "more", "never", "unknown", "unsized_shards"]
    assert found[names].to_numpy().tolist() == [[1, 100, 70, 10, 20, 0, 1], [2, 100, 10, 0, 90, 0, 1]]
    assert str(found["samples"].dtype) == "Int64"


def test_unknown_is_never_0(own_home: Path):
    folder = _run_in(own_home)
    _set_meta(folder, price_book=None, model=None)
    run = orch.open(RUN)
    assert run.traffic()["usd"].isna().all()
    assert run.peers()["ingress_bytes"].isna().all()
    assert run.peers()["egress_usd"].isna().all()
    assert run.peers()["data_usd"].isna().all()
    costs = run.costs()
    assert pd.isna(costs["usd"].sum(skipna=False))
    assert costs.loc[costs["kind"] == "data", "billed_bytes"].isna().all()
    assert run.summary()["cost"]["total_usd"] is None
    assert "unknown" in run._repr_html_()


def test_dollars_are_exact_as_decimals(folder: Path):
    bill = orch.open(RUN).numbers().bill
    assert isinstance(bill.sum("vm"), Decimal)


def test_another_book_bills_the_run_again(folder: Path):
    run = orch.open(RUN)
    before, after = run.costs(), run.costs(prices="list-2026-11")
    assert set(before["price"]) == {"study-2023-04"}
    assert all(source.startswith(("list-2026-11", "no price")) for source in after["price"])
    assert list(after["billed_bytes"].dropna()) == list(before["billed_bytes"].dropna())
    assert after["usd"].sum() != before["usd"].sum()
    with pytest.raises(orch.OrchError, match="no-such-book"):
        run.costs(prices="no-such-book")


def test_dollars_on_both_bases(folder: Path):
    run = orch.open(RUN)
    known = run.cost_summary()
    assert known["measured"]["run"]["usd"]["total"] == run.numbers().bill.sum()
    assert known["published"]["price_book"].startswith("study-2023-04")
    assert "per 1M samples" in known["difference"]


def test_events_and_steps_are_as_recorded(folder: Path):
    with RunStore.open_writer(folder / "run.db") as store:
        store.append(
            "events",
            [EventRecord(1, 5.0, "requested", "p-0", 0, "vm", "waiting", "provisioning", "why", "{}")],
        )
        step = StepRecord("vm", 1, 1, 5.0, 3.0, 0.5, 0.0, 1.0, 1.0, 0.25, 0.0, 0.25, 32)
        store.append("steps", [step])
    run = orch.open(RUN)
    assert run.events().iloc[0].to_dict() == {
        "seq": 1, "at_s": 5.0, "kind": "requested", "slot": "p-0", "generation": 0, "vm": "vm",
        "from_state": "waiting", "to_state": "provisioning", "cause": "why",
    }  # fmt: skip
    phases = [c for c in run.steps().columns if c.endswith("_s") and c not in ("began_s", "wall_s")]
    assert run.steps()[phases].sum(axis=1).iloc[0] == run.steps()["wall_s"].iloc[0] == 3.0


def test_a_run_is_found_by_id_prefix_latest_and_path(folder: Path, own_home: Path):
    for word in (RUN, "geo-c8", "latest", folder, str(folder)):
        assert orch.open(word).run_id == RUN
    assert orch.open(RUN, home=own_home).folder == folder


def test_running_run_is_read_again(folder: Path):
    _set_meta(folder, status="running", ended_s=None)
    run = orch.open(RUN)
    before = run.summary()["samples"]
    with RunStore.open_writer(folder / "run.db") as store:
        last = [r for r in store.records("epochs") if r.epoch == 5]
        store.append(
            "epochs", [type(r)(**{n: getattr(r, n) for n in r.__slots__} | {"epoch": 6}) for r in last]
        )
    assert run.summary()["samples"] > before


def test_runs_lists_them_the_newest_first(own_home: Path):
    assert len(orch.runs()) == 0
    _run_in(own_home)
    broken = own_home / "runs" / "broken-20231114-bbbb"
    broken.mkdir()
    (broken / "experiment.yaml").write_text("")
    (broken / "run.db").write_bytes(b"not a database, but long enough to look at" * 30)
    found = orch.runs()
    assert list(found.columns) == [c.name for c in orch.FRAMES["runs"]]
    assert list(found["status"]) == ["unreadable", "done"]
    assert "is not a run's database" in found["error"].iloc[0]
    row = found.iloc[1]
    assert (row["experiment"], row["peers"], row["target"], bool(row["emulated"])) == (
        "geo-c8",
        8,
        "local",
        True,
    )
    assert (row["scales"], bool(row["host_contended"])) == ({"bytes": 100, "time": 1, "samples": 8}, False)
    assert found["host_contended"].iloc[0] is pd.NA
    assert str(row["started_at"]) == "2023-11-14 22:13:20+00:00"
    assert pd.isna(found["peers"].iloc[0])


def test_bad_input_is_one_exception_with_a_sentence(own_home: Path, tmp_path: Path):
    with pytest.raises(orch.OrchError, match="no run yet"):
        orch.open()
    _run_in(own_home)
    with pytest.raises(orch.OrchError, match="no such run"):
        orch.open("nothing-like-it")
    with pytest.raises(orch.OrchError, match="no such run"):
        orch.open(tmp_path)
    (tmp_path / "run.db").write_text("x" * 2000)
    with pytest.raises(orch.OrchError, match="is not a run's database") as caught:
        orch.open(tmp_path)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


def test_run_html_shows_emulation_first_and_escapes(folder: Path):
    _set_meta(folder, experiment={"name": "<script>alert(1)</script>"}, warnings=["a <b>", "another"])
    run = orch.open(RUN)
    html = run._repr_html_()
    assert html.index("Emulated:") < html.index("<table>")
    assert "2 warnings" in html
    assert "<script>" not in html
    assert "a &lt;b&gt;" in html
    assert RUN in repr(run)
    assert run.warnings[0].startswith("Emulated:")


def test_the_report_is_built_in_the_runs_folder(folder: Path):
    page = orch.open(RUN).report()
    assert page == folder / "report" / "report.html"
    assert page.stat().st_size > 10_000


_ALONE = """
import builtins, importlib.abc, socket, sys
NEVER = {"ray", "torch", "hivemind", "boto3", "botocore", "sky"}
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NEVER:
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Blocked())
import orch
early = {"pandas", "numpy", "matplotlib", "pyarrow", "typer", "rich", "pydantic"} & set(sys.modules)
assert not early, early
def no_network(*_):
    raise AssertionError("asked for the network")
socket.socket.connect = no_network
socket.getaddrinfo = no_network
run = orch.open("latest")
for name in ("epochs", "peers", "traffic", "costs", "events", "steps", "summary", "report"):
    getattr(run, name)()
run._repr_html_(), orch.runs(), run.meta, run.warnings
run.cost_summary(), run.costs(prices="list-2026-11")
with orch.replay(run.folder) as study:
    study.table(), study._repr_html_(), study.report("study.html")
assert not NEVER & set(sys.modules)
print(run.run_id)
"""


def test_reading_needs_neither_cluster_nor_network_nor_credentials(
    folder: Path, own_home: Path, tmp_path: Path
):
    environment = {
        "ORCH_HOME": str(own_home),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "MPLBACKEND": "agg",
    }
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == RUN
