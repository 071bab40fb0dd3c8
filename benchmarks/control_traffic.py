"""Derive the constants of bytes from the paper's logs of A-2 and B: reports, matchmaking, acknowledgements, headers.

    python -m benchmarks.control_traffic [--logs ../shared/paper-traces]

Prints the rows for analysis/planning/predictor_constants.csv, and on stderr how well they explain each run. Only files of
the runs A-2 and B-2 to B-8 are opened. docs/prediction.md explains the model.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.calibrate import fit_streams, read_rounds
from cloud.networks import Network
from experiments.catalog import models

_LABEL = re.compile(r"(CV|NLP) (A-2|B-[2468])")
_SENT, _RECEIVED = (f"bandwidth/net_{way}_sys_bandwidth_Mbits" for way in ("sent", "recv"))
_STEP = "02_timing/opt_step_time_s"
_BYTES_OF_MBITS = 1e6 / 8
_BEFORE_S, _AFTER_S = 8, 3  # of a round: matchmaking before it, and the last parts after it
_VALUE_BYTES = 2  # on the wire
_OWN_REPORT_BYTES = 18_000  # of two peers of our own, a second and report (analysis/audit/traffic.py)
_US, _EU = "gcp/us-central1", "gcp/europe-west1"
_LOGS = "authors' logs of arXiv 2306.03163, 1 Hz counters of the VMs' network cards in A-2 and B-2 to B-8"


@dataclass(frozen=True)
class Epoch:
    """One epoch of one VM: its calculation without the seconds next to rounds, and the round with them."""

    label: str
    peers: int
    calc_s: float
    calc_sent: float
    calc_received: float
    calc_steps: int
    round_sent: float
    payload: float  # that the VM must send in the round

    @property
    def reports_per_s(self) -> float:
        """Steps a second: each is one report."""
        return self.calc_steps / self.calc_s


def read_epochs(logs: Path, runs: re.Pattern[str] = _LABEL) -> list[Epoch]:
    """Read the epochs of the runs. Raises FileNotFoundError."""
    with (logs / "INDEX.csv").open(newline="") as file:
        bees = [r for r in csv.DictReader(file) if r["role"] == "bee" and runs.fullmatch(r["label"])]
    found: list[Epoch] = []
    for row in bees:
        peers = sum(other["label"] == row["label"] for other in bees)
        payload = 2 * (peers - 1) / peers * models()[row["model"]].parameters * _VALUE_BYTES
        log = pd.read_csv(logs / row["file"], usecols=["_timestamp", _SENT, _RECEIVED, _STEP])
        found += _epochs(log, row["label"], peers, payload)
    return found


def _epochs(log: pd.DataFrame, label: str, peers: int, payload: float) -> list[Epoch]:
    """Split a log at its synchronising steps, by the authors' rule."""
    steps = log.loc[log[_STEP].notna(), ["_timestamp", _STEP]].to_numpy()
    long = steps[:, 1] >= np.median(steps[:, 1]) + 2 * np.std(steps[:, 1])
    counters = log.loc[log[_SENT].notna(), ["_timestamp", _SENT, _RECEIVED]].to_numpy()
    at, sent, received = counters[:, 0], counters[:, 1] * _BYTES_OF_MBITS, counters[:, 2] * _BYTES_OF_MBITS
    found: list[Epoch] = []
    for (before, _), (after, took) in zip(steps[long], steps[long][1:], strict=False):
        start, end = before + _AFTER_S, after - took - _BEFORE_S
        calc, averaging = (at > start) & (at <= end), (at > end) & (at <= after + _AFTER_S)
        count = int(np.sum((steps[:, 0] > start) & (steps[:, 0] <= end)))
        found.append(
            Epoch(label, peers, float(end - start), float(sent[calc].sum()), float(np.nansum(received[calc])),
                  count, float(sent[averaging].sum()), payload)
        )  # fmt: skip
    return found


def fit(epochs: Sequence[Epoch]) -> dict[str, float]:
    """Fit the constants by least squares of relative errors.

    While a VM calculates it sends ack share x bytes of data received + reports/s x others x (bytes + bytes a peer x
    peers). In a round it sends payload x (1 + share) + others x bytes of a round, and the reports of the seconds
    before and after it.
    """
    others = np.array([e.peers - 1 for e in epochs])
    peers = np.array([e.peers for e in epochs])
    rates = np.array([e.reports_per_s for e in epochs])
    sent = np.array([e.calc_sent / e.calc_s for e in epochs])
    data = np.array([(e.calc_received - e.calc_sent) / e.calc_s for e in epochs])
    calculating = np.column_stack([data, rates * others, rates * others * peers])
    ack, report, more = _least_squares(calculating, sent, 1 / sent)
    left = calculating @ np.array([ack, report, more]) / sent - 1
    around = rates * others * (report + more * peers) * (_BEFORE_S + _AFTER_S)
    payload = np.array([e.payload for e in epochs])
    beyond = np.array([e.round_sent for e in epochs]) - around - payload
    share, once = _least_squares(np.column_stack([payload, others]), beyond, 1 / payload)
    of_rounds = (beyond - payload * share - others * once) / payload
    return {
        "report_bytes": report,
        "report_bytes_per_peer": more,
        "round_bytes": once,
        "ack_share": ack,
        "card_share": share,
        "control_spread": float(np.std(left)),
        "round_spread": float(np.std(of_rounds)),
        "own_report_factor": _OWN_REPORT_BYTES / (report + more * 2),
    }


def _least_squares(x: Any, y: Any, weights: Any) -> tuple[float, ...]:
    found, *_ = np.linalg.lstsq(x * weights[:, None], y * weights, rcond=None)
    return tuple(float(value) for value in found)


def window_hold_correlation(logs: Path, resamples: int = 2000, seed: int = 0) -> float:
    """Return the correlation of the path model's window and hold, by the bootstrap of `benchmarks.calibrate`."""
    rounds, random = read_rounds(logs), np.random.default_rng(seed)
    rtt_s = Network.load("study-2023-04").path(_US, _EU).rtt_s
    labels = sorted({r.label for r in rounds})
    runs = [[k for k, r in enumerate(rounds) if r.label == label] for label in labels]
    drawn = [
        fit_streams([rounds[k] for run in runs for k in random.choice(run, len(run))], rtt_s)
        for _ in range(resamples)
    ]
    return float(np.corrcoef(np.array(drawn).T)[0, 1])


def constant_rows(logs: Path) -> list[dict[str, str]]:
    """Return the rows of predictor_constants.csv that are derived from the logs."""
    how = {
        "report_bytes": ("bytes", "of each report to each other peer: fitted to the bytes sent while a VM calculates"),
        "report_bytes_per_peer": ("bytes", "more for each peer of the swarm, the same fit"),
        "round_bytes": ("bytes", "to each other peer once a round, matchmaking: fitted to the bytes around a round"),
        "ack_share": ("of bytes received", "acknowledgements: fitted to the bytes sent while a VM calculates and reads data"),
        "card_share": ("of payload", "headers and acknowledgements in a round, as the network cards count them: that fit"),
        "control_spread": ("relative", "standard deviation of the fit of bytes sent while a VM calculates"),
        "round_spread": ("of payload", "standard deviation of the fit of a round's bytes: retransmissions, whole seconds"),
        "own_report_factor": ("times", "18 kB a report of two peers of our own (analysis/audit/traffic.py) over that of the fit"),
    }  # fmt: skip
    values = fit(read_epochs(logs))
    rows = [
        {"name": name, "value": f"{values[name]:.3g}", "unit": unit, "source": _LOGS, "how": text}
        for name, (unit, text) in how.items()
    ]
    together = window_hold_correlation(logs)
    bootstrap = "cloud/networks/path_models.csv, benchmarks/calibrate.py (B-2 to B-8)"
    return [
        *rows,
        {"name": "window_hold_correlation", "value": f"{together:.2g}", "unit": "", "source": bootstrap,
         "how": "of the two figures in the bootstrap by run: they are start and slope of one line"},
        {"name": "spell_rounds", "value": "3", "unit": "rounds", "source": bootstrap,
         "how": "rounds with a tail over 1.5 s longer than usual, on which the rate of slow spells rests"},
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows on stdout and the fit's errors by run on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("ORCH_SHARED") or Path(__file__).parents[2] / "shared")
    parser.add_argument("--logs", type=Path, default=shared / "paper-traces")
    logs = parser.parse_args(arguments).logs
    epochs = read_epochs(logs)
    found = fit(epochs)
    for label in dict.fromkeys(e.label for e in epochs):
        own = [e for e in epochs if e.label == label]
        n = own[0].peers
        report = found["report_bytes"] + found["report_bytes_per_peer"] * n
        errors = [
            (found["ack_share"] * (e.calc_received - e.calc_sent) / e.calc_s + e.reports_per_s * (n - 1) * report)
            / (e.calc_sent / e.calc_s) - 1
            for e in own
        ]  # fmt: skip
        sent = np.mean([e.calc_sent / e.calc_s for e in own])
        print(
            f"{label}: {sent / 1e3:.1f} kB/s while calculating, fit {100 * np.mean(errors):+.1f} %",
            file=sys.stderr,
        )
    writer = csv.DictWriter(sys.stdout, ["name", "value", "unit", "source", "how"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(constant_rows(logs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
