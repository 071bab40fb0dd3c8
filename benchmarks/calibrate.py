"""Recompute `cloud/networks/path_models.csv` from the paper's logs of its transatlantic runs (B) only.

    python -m benchmarks.calibrate [--logs ../shared/paper-traces]

Prints the rows of model "study" with 90 % bootstrap intervals. The fitted bandwidths are later used to predict the
runs of C, so this program only opens files of the runs B-2 to B-8. docs/emulated-cloud.md explains the model.
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

from cloud.networks import Network
from experiments.catalog import models

COLUMNS = ("name", "key", "value", "low", "high", "unit", "calibrated_on", "source")

_LABEL = re.compile(r"(CV|NLP) B-([2468])")
_CROSS_PAIRS = {2: 1, 4: 4, 6: 8, 8: 16}  # pairs of VMs in two regions: 1+1, 2+2, 4+2, 4+4
_US, _EU = "gcp/us-central1", "gcp/europe-west1"
_BYTES = 2  # bytes per gradient value on the wire
LATE_S = 1.5  # a tail longer than its run's median tail by this much indicates a slow period
_SENT = "bandwidth/net_sent_sys_bandwidth_Mbits"
_STEP = "02_timing/opt_step_time_s"
_LOGS = "authors' logs of arXiv 2306.03163, 1 Hz counters of the VMs' network cards in all 24 rounds"
_ROWS = (
    ("window_bytes", "bytes", f"{_LOGS}: start of the line round trip / pace over streams"),
    ("hold_s", "s a further stream", f"{_LOGS}: slope of that line"),
    (
        "spell_rate_per_s",
        "1/s and pair of VMs",
        f"{_LOGS}: three rounds had tails over 1.5 s longer than usual",
    ),
    ("spell_factor", "times the pace", f"{_LOGS}: the one spell that outlasted its round (NLP B-8)"),
    ("spell_mean_s", "s", f"{_LOGS}: most likely for the three delays"),
)


@dataclass(frozen=True)
class Round:
    """An averaging round of a run: the times at which the swarm had sent 10, 80, 90 and 99 % of its bytes."""

    label: str
    peers: int
    parameters: int
    t10_s: float
    t80_s: float
    t90_s: float
    t99_s: float

    @property
    def stream_bps(self) -> float:
        """Payload bits/s of one of a VM's streams, between 10 % and 80 % of the round's bytes.

        Computed from the share of the round's bytes, so that neither the counter's unit nor headers matter. Each VM
        sends each other VM 2/n of the parameters (parts and averaged parts), and all streams run at the pace of the
        slowest one, since a part is averaged when all peers have sent theirs.
        """
        pair_bits = 2 * self.parameters / self.peers * _BYTES * 8
        return 0.7 * pair_bits / (self.t80_s - self.t10_s)

    @property
    def transfer_s(self) -> float:
        """Seconds needed for the round's bytes at its steady pace."""
        return (self.t80_s - self.t10_s) / 0.7

    @property
    def tail_s(self) -> float:
        """Delay of 99 % of the bytes compared with the steady pace, in seconds."""
        return self.t99_s - self.t10_s - 0.89 * self.transfer_s

    @property
    def tail_pace(self) -> float:
        """Pace of the slowest pair while the last bytes are sent, relative to the steady pace.

        When all pairs but (a, b) are done, the rest is averaged by a and b at the pace of that pair: each part goes
        to and comes back from every other VM, so the swarm sends 2 (n-1) times the bytes of the pair's stream.
        """
        left = 0.09 * self.peers * (self.peers - 1) / (2 * (self.peers - 1))  # streams' worth of bytes
        return left * self.transfer_s / (self.t99_s - self.t90_s)


@dataclass(frozen=True)
class Spells:
    """Slow periods: rate per second and pair of VMs, slowdown factor, mean duration."""

    rate_per_s: float
    factor: float | None  # None: not observed in any round
    mean_s: float | None


def read_rounds(logs: Path) -> list[Round]:
    """Read the rounds of B. Raises FileNotFoundError, and ValueError for a log without three rounds."""
    with (logs / "INDEX.csv").open(newline="") as file:
        bees = [r for r in csv.DictReader(file) if r["role"] == "bee" and _LABEL.fullmatch(r["label"])]
    found: list[Round] = []
    for label in sorted({row["label"] for row in bees}):
        own = [row for row in bees if row["label"] == label]
        sent, syncs = zip(*(_read(logs / row["file"]) for row in own), strict=True)
        count = min(len(of_vm) for of_vm in syncs)
        if count < 3:
            raise ValueError(f"{label}: a log has {count} averaging rounds instead of three")
        parameters = models()[own[0]["model"]].parameters
        found += [_round(label, parameters, sent, [of_vm[k] for of_vm in syncs]) for k in range(count)]
    return found


def _read(path: Path) -> tuple[pd.DataFrame, list[tuple[float, float]]]:
    """Read (t, Mb/s sent) of each second, and (start, end) of each synchronizing step by the authors' rule."""
    log = pd.read_csv(path, usecols=["_timestamp", _SENT, _STEP])
    steps = log[_STEP].dropna()
    syncs = steps[steps >= steps.median() + 2 * steps.std()]
    sent = log.loc[log[_SENT].notna(), ["_timestamp", _SENT]].set_axis(["t", "mbps"], axis=1)
    ends = log.loc[syncs.index, "_timestamp"]
    return sent, [(float(end - took), float(end)) for end, took in zip(ends, syncs, strict=True)]


def _round(
    label: str, parameters: int, sent: Sequence[pd.DataFrame], syncs: Sequence[tuple[float, float]]
) -> Round:
    start, end = int(min(a for a, _ in syncs)), int(max(b for _, b in syncs)) + 3
    seconds = np.arange(start, end)
    swarm = np.zeros(len(seconds))
    for of_vm in sent:
        inside = of_vm[(of_vm.t >= start) & (of_vm.t <= end)]
        swarm += inside.groupby(inside.t.round())["mbps"].sum().reindex(seconds, fill_value=0.0).to_numpy()
    shares = np.cumsum(swarm) / swarm.sum()
    t10, t80, t90, t99 = (float(np.interp(share, shares, seconds)) for share in (0.1, 0.8, 0.9, 0.99))
    return Round(label, len(sent), parameters, t10, t80, t90, t99)


def fit_streams(rounds: Sequence[Round], rtt_s: float) -> tuple[float, float]:
    """Fit window (bytes) and hold (s) of pace = window / (RTT + hold x other streams) to the medians of the runs.

    1/pace is linear in the number of streams, so this is a linear least-squares fit. Weighting by the paces makes
    relative errors count.
    """
    by_run = _by_run(rounds)
    bps = np.array([np.median([r.stream_bps for r in own]) for own in by_run.values()])
    others = np.array([own[0].peers - 2 for own in by_run.values()])
    slope, start = np.polyfit(others, 1 / bps, 1, w=bps)
    return float(rtt_s / start / 8), float(rtt_s * slope / start)


def delays(rounds: Sequence[Round]) -> list[float]:
    """Difference between each round's tail and the median tail of its run, in seconds."""
    usual = {label: float(np.median([r.tail_s for r in own])) for label, own in _by_run(rounds).items()}
    return [r.tail_s - usual[r.label] for r in rounds]


class SpellFit:
    """Maximum-likelihood fit of the slow periods that explain the rounds' delays.

    A slow period reduces one pair to `factor` of its pace for an exponentially distributed time d. A round of length T
    in which it starts at t0 is delayed by min(d, (T - t0) / factor) (1 - factor). So a round is delayed by more than x
    with probability 1 - exp(-rate L(x)), where, for m observed pairs,
    L(x) = m exp(-x / ((1 - factor) mean)) (max(0, T - x factor / (1 - factor)) + mean); the last term covers periods
    that began before the round. Delays below 1.5 s count as none, since tails vary by that much anyway. The factor is
    taken from the rounds in which a slow period outlasts all other traffic.
    """

    def __init__(
        self, rounds: Sequence[Round], delays_s: Sequence[float], factor: float | None = None
    ) -> None:
        """If `factor` is None, it is estimated from the rounds."""
        self._late = np.array(delays_s) > LATE_S
        paces = [
            r.tail_pace for r, late in zip(rounds, self._late, strict=True) if late and r.tail_pace < 0.5
        ]
        self.factor = factor or (float(np.mean(paces)) if paces else None)
        if self.factor is None:
            return
        self._means_s = np.geomspace(1, 200, 1000)
        self._pairs = np.array([_CROSS_PAIRS[r.peers] for r in rounds])
        self._transfer_s = np.array([r.transfer_s for r in rounds])
        x, h = np.maximum(delays_s, LATE_S), 1e-3
        self._seen = self._exposure(x)
        self._density = (self._exposure(x - h) - self._exposure(x + h)) / (2 * h)

    def _exposure(self, x: Any) -> Any:
        """L(x) in pair-seconds, of shape (means, rounds)."""
        assert self.factor is not None
        mean_s = self._means_s[:, None]
        room = np.maximum(self._transfer_s - x * self.factor / (1 - self.factor), 0) + mean_s
        return self._pairs * np.exp(-x / ((1 - self.factor) * mean_s)) * room

    def best(self, times: Any) -> Spells:
        """Return the most likely parameters when the k-th round is counted `times[k]` times."""
        late = int(np.sum(times * self._late))
        if self.factor is None or late == 0:
            return Spells(0.0, self.factor, None)
        total = self._seen @ times
        rate = late / total
        logs = np.log(rate[:, None] * self._density) @ (times * self._late) - late
        k = int(np.argmax(logs))
        return Spells(float(rate[k]), self.factor, float(self._means_s[k]))


def _by_run(rounds: Sequence[Round]) -> dict[str, list[Round]]:
    labels = sorted({r.label for r in rounds})
    return {label: [r for r in rounds if r.label == label] for label in labels}


def rows(rounds: Sequence[Round], resamples: int = 2000, seed: int = 0) -> list[dict[str, str]]:
    """Compute the rows of path_models.csv; low and high are the 5 % and 95 % quantiles of a bootstrap by run."""
    rtt_s = Network.load("study-2023-04").path(_US, _EU).rtt_s
    spells = SpellFit(rounds, delays(rounds))
    runs = [np.flatnonzero([r.label == label for r in rounds]) for label in _by_run(rounds)]
    random = np.random.default_rng(seed)

    def values(chosen: Any) -> tuple[float | None, ...]:
        found = spells.best(np.bincount(chosen, minlength=len(rounds)))
        streams = fit_streams([rounds[k] for k in chosen], rtt_s)
        return (*streams, found.rate_per_s, found.factor, found.mean_s)

    best = values(np.arange(len(rounds)))
    drawn = [values(np.concatenate([random.choice(run, len(run)) for run in runs])) for _ in range(resamples)]
    found: list[dict[str, str]] = []
    for k, (key, unit, source) in enumerate(_ROWS):
        known = [value for sample in drawn if (value := sample[k]) is not None]
        low, high = np.quantile(known, [0.05, 0.95]) if known else (None, None)
        numbers = {"value": best[k], "low": low, "high": high}
        if low == high:
            numbers |= {"low": None, "high": None}  # a single slow period has no spread
        shown = {
            name: "" if number is None else f"{float(f'{number:.3g}'):g}" for name, number in numbers.items()
        }
        found.append(
            {"name": "study", "key": key, **shown, "unit": unit}
            | {"calibrated_on": "B-2 B-4 B-6 B-8", "source": source}
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rounds' figures on stderr and the rows as CSV on stdout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("ORCH_SHARED") or Path(__file__).parents[2] / "shared")
    parser.add_argument("--logs", type=Path, default=shared / "paper-traces")
    rounds = read_rounds(parser.parse_args(arguments).logs)
    for r in rounds:
        print(
            f"{r.label}: {r.stream_bps / 1e6:5.0f} Mb/s a stream, tail {r.tail_s:4.1f} s, "
            f"last pair's pace {r.tail_pace:.2f}",
            file=sys.stderr,
        )
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
