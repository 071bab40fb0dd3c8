"""The path model is fitted by `benchmarks/calibrate.py` to the logs of B only."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.calibrate import COLUMNS, Round, SpellFit, delays, fit_streams, main, read_rounds, rows
from cloud.networks import Network
from experiments.catalog import step_times

STEP = "02_timing/opt_step_time_s"


def _round(label: str, peers: int, transfer_s: float, late_s: float = 0.0, parameters: int = 560_142_482):
    """A round at a steady pace with a delayed end of the last tenth."""
    at = {share: 5 + share * transfer_s for share in (0.1, 0.8, 0.9, 0.99)}
    return Round(label, peers, parameters, at[0.1], at[0.8], at[0.9], at[0.99] + late_s)


def _transfer_s(peers: int, parameters: int, window_bytes: float, hold_s: float) -> float:
    pace_bps = window_bytes * 8 / (0.1031 + hold_s * (peers - 2))
    return 2 * parameters / peers * 2 * 8 / pace_bps


def test_fit_recovers_window_and_hold():
    rounds = [
        _round(f"{model} B-{n}", n, _transfer_s(n, parameters, 2.9e6, 0.02), 1.0, parameters)
        for model, parameters in (("CV", 197_767_336), ("NLP", 560_142_482))
        for n in (2, 4, 6, 8)
        for _ in range(3)
    ]
    window_bytes, hold_s = fit_streams(rounds, 0.1031)
    assert window_bytes == pytest.approx(2.9e6)
    assert hold_s == pytest.approx(0.02)
    assert delays(rounds) == pytest.approx([0.0] * 24, abs=1e-9)


def test_fit_recovers_slow_periods():
    random, rate, factor, mean_s, pairs, transfer_s = np.random.default_rng(1), 5e-4, 0.4, 12.0, 16, 20.0
    rounds: list[Round] = []
    for _ in range(3000):
        late_s = 0.0
        for _ in range(
            random.poisson(pairs * rate * (transfer_s + 100))
        ):  # spells that begin 100 s before, too
            begins_s, lasts_s = random.uniform(-100, transfer_s), random.exponential(mean_s)
            ends_s, begins_s = begins_s + lasts_s, max(begins_s, 0.0)
            slow_s = min(ends_s - begins_s, (transfer_s - begins_s) / factor)
            late_s = max(late_s, slow_s * (1 - factor))
        rounds.append(_round("NLP B-8", 8, transfer_s, late_s))
    found = SpellFit(rounds, delays(rounds), factor).best(np.ones(len(rounds)))
    assert found.rate_per_s == pytest.approx(rate, rel=0.15)
    assert found.mean_s == pytest.approx(mean_s, rel=0.15)


def test_no_slow_periods_without_late_rounds():
    rounds = [_round("CV B-2", 2, 15.0, 0.1 * k) for k in range(3)]
    found = SpellFit(rounds, delays(rounds)).best(np.ones(3))
    assert (found.rate_per_s, found.factor, found.mean_s) == (0.0, None, None)


def _bee(folder: Path, name: str, syncs: list[tuple[float, float]], mbps: float, total_s: int) -> None:
    """A log: one step of 0.1 s per second, synchronizing steps (begin, seconds), and traffic during them."""
    rows: list[dict[str, float]] = []
    for t in range(total_s):
        busy = any(begin < t <= begin + took for begin, took in syncs)
        rows.append({"_timestamp": t, "bandwidth/net_sent_sys_bandwidth_Mbits": mbps if busy else 0.0})
        if not busy:
            rows.append({"_timestamp": t, "02_timing/opt_step_time_s": 0.1})
    rows += [{"_timestamp": begin + took, "02_timing/opt_step_time_s": took} for begin, took in syncs]
    pd.DataFrame(rows).sort_values("_timestamp", kind="stable").to_csv(folder / name, index=False)


def _index(folder: Path, runs: dict[str, list[str]]) -> None:
    with (folder / "INDEX.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "role", "file", "model"])
        for label, files in runs.items():
            writer.writerows([label, "bee", name, "RoBERTaXLM"] for name in files)
            writer.writerow([label, "monitor", "not-there.csv", "RoBERTaXLM"])


def test_a_rounds_times_are_read_from_the_counters(tmp_path):
    syncs = [(100.0, 40.0), (300.0, 40.0), (500.0, 40.0)]
    for name in ("a.csv", "b.csv"):
        _bee(tmp_path, name, syncs, 225.0, 600)
    _index(tmp_path, {"NLP B-2": ["a.csv", "b.csv"]})
    found = read_rounds(tmp_path)
    assert [(r.label, r.peers) for r in found] == [("NLP B-2", 2)] * 3
    for r in found:
        assert r.transfer_s == pytest.approx(40, abs=0.1)
        assert r.tail_s == pytest.approx(0, abs=0.1)
        assert r.stream_bps == pytest.approx(560_142_482 * 2 * 2 * 8 / 2 / 40, rel=5e-3)


def test_only_logs_of_b_are_opened(tmp_path):
    for name in ("a.csv", "b.csv"):
        _bee(tmp_path, name, [(100.0, 40.0), (300.0, 40.0), (500.0, 40.0)], 225.0, 600)
    others = {label: ["not-there.csv"] for label in ("NLP A-2", "CV A-8", "NLP C-4", "NLP C-8", "CV D-2")}
    _index(tmp_path, {"NLP B-2": ["a.csv", "b.csv"], **others})
    assert {r.label for r in read_rounds(tmp_path)} == {"NLP B-2"}


def test_a_log_with_too_few_rounds_is_refused(tmp_path):
    _bee(tmp_path, "a.csv", [(100.0, 40.0), (300.0, 40.0)], 225.0, 400)
    _index(tmp_path, {"NLP B-2": ["a.csv"]})
    with pytest.raises(ValueError, match="NLP B-2: a log has 2 averaging rounds"):
        read_rounds(tmp_path)


@pytest.mark.slow
def test_file_matches_the_logs(paper_traces, capsys):
    assert main(["--logs", str(paper_traces)]) == 0
    printed = capsys.readouterr()
    fresh = list(csv.DictReader(printed.out.splitlines()))
    with (resources.files("cloud.networks") / "path_models.csv").open(encoding="utf-8") as text:
        kept = list(csv.DictReader(text))
    assert [tuple(row) for row in (fresh[0], kept[0])] == [COLUMNS, COLUMNS]
    assert [row["key"] for row in fresh] == [row["key"] for row in kept]
    for new, old in zip(fresh, kept, strict=True):
        assert float(new["value"]) == pytest.approx(float(old["value"]), rel=0.02), new["key"]
        for bound in ("low", "high"):
            assert (new[bound] == old[bound] == "") or float(new[bound]) == pytest.approx(
                float(old[bound]), rel=0.1
            )
        assert {k: new[k] for k in ("name", "unit", "calibrated_on", "source")} == {
            k: old[k] for k in ("name", "unit", "calibrated_on", "source")
        }
    assert " C-" not in printed.out + printed.err, "nothing of C is read or printed"


@pytest.mark.slow
def test_window_of_b_explains_the_iperf_table(paper_traces):
    """Rate x RTT of ten-second tests decreases with the RTT (slow start); at 0 it equals the window."""
    paths = [path for path in Network.load("study-2023-04").paths.values() if path.rtt_s > 0.1]
    _, window_bytes = np.polyfit([path.rtt_s for path in paths], [path.window_bytes for path in paths], 1)
    found = {row["key"]: float(row["value"]) for row in rows(read_rounds(paper_traces), resamples=2)}
    assert found["window_bytes"] == pytest.approx(window_bytes, rel=0.05)


@pytest.mark.slow
def test_step_times_of_a_t4_match_a1_and_a2(paper_traces):
    """In a swarm: A-2's calculation time per epoch over its 512 steps (half of 32768 / 32); alone: A-1's wall-clock step."""
    with (paper_traces / "INDEX.csv").open(newline="") as file:
        logs = [row for row in csv.DictReader(file) if row["label"][-3:] in ("A-1", "A-2")]
    for model in ("ConvNextLarge", "RoBERTaXLM"):
        calc_s, plain_s = [], []
        for row in logs:
            if row["model"] != model or row["role"] == "monitor":
                continue
            log = pd.read_csv(paper_traces / row["file"], usecols=["_timestamp", STEP]).dropna()
            if row["role"] == "baseline":
                plain_s.append(np.ptp(log["_timestamp"]) / (len(log) - 1))
                continue
            syncs = log[log[STEP] >= log[STEP].median() + 2 * log[STEP].std()]
            calc_s += list(np.diff(syncs["_timestamp"]) - syncs[STEP].to_numpy()[1:])
        times = step_times()[model, "T4:1"]
        assert (len(calc_s), len(plain_s)) == (4, 1)
        assert times.step_s == pytest.approx(np.mean(calc_s) / 512, rel=0.005)
        assert times.plain_step_s == pytest.approx(plain_s[0], rel=0.005)


@pytest.mark.slow
def test_spread_of_steps_matches_a2_and_b(paper_traces):
    """Mean step of each VM and epoch: calculation time (from the end of a round to the next start) / steps.

    Of VMs: around their run's mean, with n - 1, pooled over A-2 and B. Of epochs: half the difference of A-2's two.
    """
    with (paper_traces / "INDEX.csv").open(newline="") as file:
        bees = [row for row in csv.DictReader(file) if row["role"] == "bee"]
    of_models, of_epochs = [], []
    for model in ("CV", "NLP"):
        squares, degrees = 0.0, 0
        for label in (f"{model} {run}" for run in ("A-2", "B-2", "B-4", "B-6", "B-8")):
            steps = np.array([_mean_steps(paper_traces / r["file"]) for r in bees if r["label"] == label])
            of_vms = steps.mean(axis=1) / steps.mean() - 1
            squares, degrees = squares + float(of_vms @ of_vms), degrees + len(of_vms) - 1
            if label.endswith("A-2"):
                of_epochs += [np.ptp(of_vm) / 2 / steps.mean() for of_vm in steps]
        of_models.append((squares / degrees) ** 0.5)
    pooled = float(np.sqrt(np.mean(np.square(of_models))))
    with (resources.files("cloud.networks") / "vm_models.csv").open(encoding="utf-8") as text:
        kept = {row["key"]: row for row in csv.DictReader(text)}
    found = (
        ("step_spread_of_vms", pooled, of_models),
        ("step_spread_of_epochs", np.mean(of_epochs), of_epochs),
    )
    for key, value, bounds in found:
        assert float(kept[key]["value"]) == pytest.approx(value, rel=0.1 if bounds is of_epochs else 0.01)
        assert float(kept[key]["low"]) == pytest.approx(min(bounds), rel=0.1)
        assert float(kept[key]["high"]) == pytest.approx(max(bounds), rel=0.1)


def _mean_steps(path: Path) -> list[float]:
    """Mean step of a VM in each epoch."""
    log = pd.read_csv(path, usecols=["_timestamp", STEP]).dropna()
    syncs = log[log[STEP] >= log[STEP].median() + 2 * log[STEP].std()]
    ends, took = syncs["_timestamp"].to_numpy(), syncs[STEP].to_numpy()
    spans = zip(ends, ends[1:], took[1:], strict=False)
    return [(b - a - s) / log["_timestamp"].between(a, b, inclusive="right").sum() for a, b, s in spans]
