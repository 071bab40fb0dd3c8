"""Variants of logs in the paper's format: the same run with missing, unusual or reordered parts."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from wandb_logs import Swarm, Truth, write_baseline, write_index, write_swarm

from analysis.importers.wandb.files import parse_name
from analysis.replay import read_folder, replay_rows
from analysis.sources import opened
from metrics.store.database import RunStore
from metrics.summary import summarise

FOUR = ("gc-us-t4-1", "gc-us-t4-2", "gc-eu-t4-1", "gc-asia-t4-1")
RATE, SECONDS = "03_hivemind/epoch_based_sps", "03_hivemind/epoch_s"
SAMPLES, EPOCH = "03_hivemind/per_epoch_training_samples", "03_hivemind/global_epoch"
SENT, RECEIVED = "bandwidth/net_sent_sys_bandwidth_Mbits", "bandwidth/net_recv_sys_bandwidth_Mbits"
UNIX, RUNTIME, STEP = "_timestamp", "_runtime", "_step"
COUNT = "01_general/locally_processed_samples"
Rows = list[dict[str, Any]]


@contextmanager
def _edited(path: Path) -> Iterator[Rows]:
    """Yield a log's rows and write them back with the changes."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows: Rows = list(reader)
        header = list(reader.fieldnames or ())
    yield rows
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)


def _drop(path: Path, *columns: str) -> None:
    with path.open(newline="") as file:
        rows: Rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [n for n in rows[0] if n not in columns], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _replay(folder: Path) -> tuple[dict[str, Any], str]:
    """(the one run's row, its warnings)."""
    with opened([folder]) as found:
        (row,) = replay_rows([read_folder(run.folder).row for run in found.runs])
    return row, "\n".join(row["warnings"])


def _meta(folder: Path) -> dict[str, Any]:
    with opened([folder]) as found, RunStore.open_reader(found.runs[0].folder / "run.db") as store:
        return store.all_meta()


def _epochs(swarm: Swarm, truth: Truth, without: Sequence[tuple[str, int]] = ()) -> dict[str, float]:
    """True calc_s, comm_s and granularity of all epochs but the first."""
    calc: dict[int, list[float]] = {}
    comm: dict[int, list[float]] = {}
    for (host, number), end in truth.ended_s.items():
        if (
            number > swarm.first_epoch + 1
            and (host, number) not in without
            and (host, number - 1) in truth.ended_s
        ):
            seconds = truth.comm_s[host, number] - swarm.local_opt_s
            comm.setdefault(number, []).append(seconds)
            calc.setdefault(number, []).append(end - truth.ended_s[host, number - 1] - seconds)
    pairs = [[a / b for a, b in zip(calc[n], comm[n], strict=True)] for n in calc]
    return {
        "calc_s": fmean(fmean(v) for v in calc.values()),
        "comm_s": fmean(fmean(v) for v in comm.values()),
        "granularity": fmean(fmean(v) for v in pairs),
    }


def _rates(truth: Truth, after: int = 1) -> dict[str, float]:
    """True sps_epoch_mean, sps and epoch_s of the epochs after the given one."""
    ends, counts = truth.swarm_ended_s, truth.swarm_samples
    chosen = [n for n in sorted(ends) if n > after]
    seconds = [ends[n] - ends[n - 1] for n in chosen]
    return {
        "sps_epoch_mean": fmean(counts[n] / s for n, s in zip(chosen, seconds, strict=True)),
        "sps": sum(counts[n] for n in chosen) / sum(seconds),
        "epoch_s": fmean(seconds),
    }


def _close(row: dict[str, Any], truth: dict[str, float], rate: float = 0.002) -> None:
    for key, value in truth.items():
        assert row[key] == pytest.approx(value, rel=rate if key.startswith("sps") else 0.02), key


@pytest.mark.parametrize(
    "missing",
    [
        (RATE,),
        (SECONDS,),
        (SAMPLES,),
        (EPOCH,),
        (UNIX,),
        (RUNTIME,),
        (SECONDS, SAMPLES),
        ("03_hivemind/num_peers",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("first", [0, 7])
def test_a_monitor_without_a_column_has_the_same_rates(tmp_path: Path, missing: tuple[str, ...], first: int):
    swarm = Swarm(hosts=FOUR, first_epoch=first, epochs=4)
    truth = write_swarm(tmp_path, swarm)
    if missing == (SECONDS, SAMPLES):  # what is left of the samples is the highest count that was scraped
        with _edited(truth.files["monitor"]) as rows:
            for row in rows:
                row["03_hivemind/global_samples_accumulated"] = swarm.target_batch_size
    _drop(truth.files["monitor"], *missing)
    row, _ = _replay(tmp_path)
    _close(row, _rates(truth, first + 1) | _epochs(swarm, truth))
    assert row["n_epochs"] == 3
    meta = _meta(tmp_path)
    assert meta["started_s"] >= swarm.start_unix
    assert not any("the monitor differ" in w or "one of the clocks jumped" in w for w in meta["warnings"])


def test_missed_epoch_does_not_prolong_the_next(tmp_path: Path):
    swarm = Swarm(hosts=FOUR, epochs=4)
    truth = write_swarm(tmp_path, swarm)
    with _edited(truth.files["monitor"]) as rows:
        ended = [k for k, r in enumerate(rows) if r[RATE]]
        both = truth.swarm_ended_s[3] - truth.swarm_ended_s[1]
        rows[ended[2]] |= {SECONDS: both, RATE: truth.swarm_samples[3] / both}
        del rows[ended[1] - 3 : ended[2]]
    row, text = _replay(tmp_path)
    rates = {key: value for key, value in _rates(truth).items() if key != "sps_epoch_mean"}
    _close(row, rates | _epochs(swarm, truth), rate=0.01)  # the VMs' clocks are cut to seconds
    assert "the monitor missed epoch 2." in text
    assert "the logged duration of epoch 3 starts at the end of epoch 1" in text


def test_epochs_excluded_from_sps_are_in_the_authors_mean_and_named(tmp_path: Path):
    # As in a run of the paper's section F: its printed mean has five rates, one of them 0; two epochs remain for sps.
    truth = write_swarm(tmp_path, Swarm(hosts=FOUR, epochs=4))
    with _edited(truth.files["monitor"]) as rows:
        ended = [k for k, r in enumerate(rows) if r[RATE]]
        rows[ended[3]] |= {RATE: 0, SAMPLES: 0}
        again = [rows[ended[1]] | {RATE: 570}, rows[ended[2]] | {RATE: 580}]
        for k, row in ((ended[2], again[1]), (ended[1], again[0])):
            rows[k + 1] |= {name: row[name] for name in (RATE, SAMPLES, SECONDS)}
        rates = [float(rows[k][RATE]) for k in ended]
    row, text = _replay(tmp_path)
    assert row["sps_epoch_mean"] == pytest.approx((rates[1] + 570 + rates[2] + 580 + 0) / 5, rel=1e-12)
    seconds = truth.swarm_ended_s[3] - truth.swarm_ended_s[1]
    assert row["sps"] == pytest.approx((truth.swarm_samples[2] + truth.swarm_samples[3]) / seconds, rel=0.002)
    assert row["n_epochs"] == 2
    assert (
        "sps (2 epochs) leaves out records that sps_epoch_mean (5 rates, counted as in the paper) includes: "
        "epochs 2 and 3: recorded twice, only the first record is used; epoch 4: rate 0."
    ) in row["warnings"]
    assert "no wall time" not in text
    with opened([tmp_path]) as found, RunStore.open_reader(found.runs[0].folder / "run.db") as store:
        assert summarise(store)["sps_epoch_mean"]["value"] == row["sps_epoch_mean"]


def test_restarted_swarm_in_the_monitor_log_is_reported(tmp_path: Path):
    truth = write_swarm(tmp_path, Swarm(hosts=FOUR, epochs=5))
    for host in FOUR:
        truth.files[host].unlink()
    with _edited(truth.files["monitor"]) as rows:
        ended = [k for k, r in enumerate(rows) if r[RATE]]
        for k, row in enumerate(rows):
            row[EPOCH] = int(row[EPOCH]) + 5 if k < ended[2] else int(row[EPOCH]) - 2  # 6, 7; then 1, 2, 3
        rates = [float(rows[k][RATE]) for k in ended]
    row, _ = _replay(tmp_path)
    assert row["sps_epoch_mean"] == pytest.approx(fmean(rates[1:]), rel=1e-12)
    assert row["n_epochs"] == 1
    assert any("(4 rates" in w and "epochs 1, 2 and 3: recorded after epoch 7." in w for w in row["warnings"])


def test_early_end_of_the_monitor_is_reported(tmp_path: Path):
    swarm = Swarm(hosts=FOUR, epochs=4)
    truth = write_swarm(tmp_path, swarm)
    with _edited(truth.files["monitor"]) as rows:
        del rows[[k for k, r in enumerate(rows) if r[RATE]][1] + 1 :]
    row, text = _replay(tmp_path)
    assert row["sps_epoch_mean"] == pytest.approx(
        truth.swarm_samples[2] / (truth.swarm_ended_s[2] - truth.swarm_ended_s[1]), rel=0.002
    )
    assert row["epoch_s"] == pytest.approx(_rates(truth)["epoch_s"], rel=0.02)
    assert "its last epoch is 2, but the VMs' logs continue to 4" in text


def test_monitor_without_a_finished_epoch_is_not_missing(tmp_path: Path):
    truth = write_swarm(tmp_path, Swarm(hosts=FOUR))
    with _edited(truth.files["monitor"]) as rows:
        del rows[next(k for k, r in enumerate(rows) if r[RATE]) - 1 :]
    row, text = _replay(tmp_path)
    assert row["sps_epoch_mean"] is None
    assert "sps_epoch_mean is null: no epoch ended while the monitor ran" in text
    assert "there is no monitor log" not in text


@pytest.mark.parametrize("columns", [(STEP, RUNTIME, COUNT), (STEP, COUNT), (RUNTIME, COUNT)], ids=" ".join)
def test_restarted_vm_keeps_its_time(tmp_path: Path, columns: tuple[str, ...]):
    swarm = Swarm(hosts=FOUR, epochs=4)
    truth = write_swarm(tmp_path, swarm)
    host = FOUR[2]
    middle = truth.ended_s[host, 1] - swarm.start_unix
    with _edited(truth.files[host]) as rows:  # it stops for 6 s in the second epoch
        rows[:] = [r for r in rows if not middle + 8 <= int(r[RUNTIME]) < middle + 14]
        again = next(k for k, r in enumerate(rows) if int(r[RUNTIME]) >= middle + 14)
        for name in columns:
            start = next(int(r[name]) for r in rows[again:] if r[name]) - (
                swarm.batch if name == COUNT else 0
            )
            for r in rows[again:]:
                r[name] = str(int(r[name]) - start) if r[name] else ""
    row, text = _replay(tmp_path)
    _close(row, _epochs(swarm, truth))
    assert ("the program was restarted" in text) == (STEP in columns)
    assert "sorted by" not in text


def _few_steps(tmp_path: Path, seed: int) -> tuple[Swarm, Truth]:
    swarm = Swarm(hosts=FOUR, steps=4, epochs=6, step_s=4.0, comm_s=20.0, local_opt_s=0.03, seed=seed)
    return swarm, write_swarm(tmp_path, swarm)


@pytest.mark.parametrize("left_out", [(EPOCH,), (EPOCH, SENT)], ids=["no epochs", "no epochs and no bytes"])
@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_uneven_frequent_rounds_are_found_without_epochs(
    tmp_path: Path, left_out: tuple[str, ...], monitor: bool, seed: int
):
    swarm, truth = _few_steps(tmp_path, seed)
    slower = "02_timing/opt_step_time_s"
    for host in swarm.hosts:  # every other averaging waits less than it seems: lengths differ 2.5 times
        with _edited(truth.files[host]) as rows:
            syncs = [r for r in rows if r[slower] and float(r[slower]) > 10]
            for k, r in enumerate(syncs):
                if k % 2:
                    truth.comm_s[host, k + 1] = float(r[slower]) / 2.5
                    r[slower] = truth.comm_s[host, k + 1]
        _drop(truth.files[host], *left_out)
    if not monitor:
        truth.files["monitor"].unlink()
    row, _ = _replay(tmp_path)
    assert row["n_epochs"] == 5
    _close(row, _epochs(swarm, truth))
    assert (row["egress_bytes_per_vm_epoch"] is None) == (SENT in left_out)


def _steady(path: Path, share: Callable[[float], float]) -> None:
    """Add continuous sent bytes that depend on the bytes received beyond the sent ones."""
    with _edited(path) as rows:
        for r in rows:
            if r[SENT]:
                r[SENT] = float(r[SENT]) + share(max(float(r[RECEIVED]) - float(r[SENT]), 0.0))


def test_acknowledgements_are_not_a_doubled_counter(tmp_path: Path):
    hosts = ("gc-us-t4-1", "gc-us-t4-2", "gc-us-t4-3", "rtx8000-1")
    swarm = Swarm(hosts=hosts, parameters=11_689_512, step_s=0.9, comm_s=6)
    truth = write_swarm(tmp_path, swarm)
    round_bytes = truth.sent_bytes[hosts[3]]
    read = swarm.steps * swarm.batch * swarm.bytes_per_sample
    _steady(
        truth.files[hosts[3]], lambda beyond: beyond * 1.05 * round_bytes / read
    )  # as much again an epoch
    rows = [
        {
            "run_id": swarm.run_id,
            "file": f.name,
            "host": h,
            "role": "monitor" if h == "monitor" else "BEE",
            "model": "resnet18",
        }
        for h, f in truth.files.items()
    ]
    write_index(tmp_path, rows)
    row, text = _replay(tmp_path)
    assert "twice" not in text
    assert row["model"] == "ResNet18"
    assert row["egress_bytes_per_vm_epoch"] == pytest.approx(round_bytes * (4 + 1.05) / 4, rel=0.03)


@pytest.mark.parametrize("model", ["ConvNextLarge", ""])
def test_doubled_counters_of_all_vms_but_one(tmp_path: Path, model: str):
    hosts = ("gc-us-t4-1", "azure-us-t4-1", "azure-us-t4-2", "azure-us-t4-3")
    swarm = Swarm(hosts=hosts, doubled=hosts[1:])
    truth = write_swarm(tmp_path, swarm)
    write_index(tmp_path, [{"file": f.name, "model": model} for f in truth.files.values()])
    row, text = _replay(tmp_path)
    if model:
        assert row["egress_bytes_per_vm_epoch"] == pytest.approx(truth.sent_bytes[hosts[0]], rel=0.03)
        assert text.count("count each byte twice") == 3
    else:  # without parameters most may be right and one too low: reported, not corrected
        assert "azure-us-t4-1, azure-us-t4-2, azure-us-t4-3 sent 2.0" in text
        assert "without the model's parameters nothing is halved" in text


def test_index_with_other_case_order_and_columns(tmp_path: Path):
    swarm = Swarm(hosts=FOUR[:2], gz=True)
    truth = write_swarm(tmp_path / "logs" / "deep", swarm)
    write_index(
        tmp_path / "logs",
        [
            {"Extra": 1, "MODEL": "ConvNextLarge", " Host ": f.name[13:-7], "Role": "Monitor" if h == "monitor" else "Bee",
             "FILE": f"deep/{f.name}", "Label": "CV A-2", "Run_ID": swarm.run_id}
            for h, f in truth.files.items()
        ],
    )  # fmt: skip
    row, _ = _replay(tmp_path / "logs")
    assert (row["label"], row["model"], row["peers"], row["run_id"]) == (
        "CV A-2",
        "ConvNextLarge",
        2,
        swarm.run_id,
    )
    _close(row, _rates(truth) | _epochs(swarm, truth))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hivemind-212-aws-t4-3.csv.gz", ("hivemind-212", "bee", "aws-t4-3", "T4:1", None)),
        ("hivemind-250-lambda-a10-4.csv.gz", ("hivemind-250", "bee", "lambda-a10-4", "A10:1", None)),
        ("hivemind-262-rtx8000-1.csv", ("hivemind-262", "bee", "rtx8000-1", "RTX8000:1", None)),
        ("hivemind-270-dgx2-1.csv", ("hivemind-270", "bee", "dgx2-1", "V100:8", None)),
        ("hivemind-302-v100-1.csv", ("hivemind-302", "bee", "v100-1", "V100:1", None)),
        ("hivemind-270-vm-monitor.csv", ("hivemind-270", "monitor", "vm-monitor", None, None)),
        ("baseline-12-whisper-tiny-a10-1.csv", ("baseline-12", "baseline", "a10-1", "A10:1", "WhisperTiny")),
        ("baseline-12-roberta_mlm_xlm-a100-1.csv", ("baseline-12", "baseline", "a100-1", "A100:1", "RoBERTaXLM")),
        ("baseline-12-torchvision.models.convnext_large-4xt4.csv",
         ("baseline-12", "baseline", "4xt4", "T4:4", "ConvNextLarge")),
        ("baseline-12-torchvision.models.resnet152-rtx8000-1.csv",
         ("baseline-12", "baseline", "rtx8000-1", "RTX8000:1", "ResNet152")),
    ],
)  # fmt: skip
def test_names_without_an_index(name: str, expected: tuple[str | None, ...]):
    log = parse_name(Path(name), name)
    assert log is not None
    assert (log.run_id, log.role, log.host, log.gpu, log.model) == expected


def test_baseline_applies_to_its_own_gpu_only(tmp_path: Path):
    swarm = Swarm(hosts=("lambda-us-a10-1", "lambda-us-a10-2"))
    truth = write_swarm(tmp_path, swarm)
    write_baseline(tmp_path, "baseline-1-torchvision.models.convnext_large-gc-t4-1")
    write_baseline(
        tmp_path, "baseline-2-torchvision.models.convnext_large-lambda-a10-1", swarm=Swarm(step_s=0.45)
    )
    write_index(
        tmp_path,
        [{"file": f.name, "model": "ConvNextLarge" if "hive" in f.name else ""}
         for f in (*truth.files.values(), *sorted(tmp_path.glob("base*")))],
    )  # fmt: skip
    with opened([tmp_path]) as found:
        rows = {r["run_id"]: r for r in replay_rows([read_folder(run.folder).row for run in found.runs])}
    assert rows["baseline-2"]["sps_wall"] == pytest.approx(32 / 0.45, rel=0.01)
    assert rows["hivemind-900"]["speedup"] == pytest.approx(_rates(truth)["sps"] / (32 / 0.45), rel=0.01)


@pytest.mark.parametrize("batch", [64, 128])
def test_a_hundred_epochs_of_larger_batches(tmp_path: Path, batch: int):
    swarm = Swarm(hosts=FOUR[:2], epochs=110, steps=8, batch=batch, comm_s=5)
    truth = write_swarm(tmp_path, swarm)
    row, _ = _replay(tmp_path)
    assert row["n_epochs"] == 109
    assert row["tbs"] == swarm.target_batch_size
    _close(row, _rates(truth) | _epochs(swarm, truth))
