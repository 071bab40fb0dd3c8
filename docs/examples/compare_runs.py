"""Runs side by side: which gains from more VMs, where its time goes, what it sends and what it costs.

    python docs/examples/compare_runs.py FOLDER [INDEX.csv [RUN ...]]

FOLDER holds W&B logs, exported runs, or is the folder of one run. docs/notebook.md shows what it prints.
"""

from __future__ import annotations

import sys

import pandas as pd

import orch


def whole(amounts: pd.Series) -> float:
    """A sum that is unknown when a part of it is."""
    return amounts.sum(skipna=False)


def main(folder: str, index: str | None = None, *runs: str) -> None:
    """Print the comparison, then the fastest run's epochs, peers, links and bill."""
    with orch.replay(folder, index=index, runs=runs) as study:
        table = study.table()
        table["label"] = table["label"].fillna(table["run_id"])
        rates = table["sps"].dropna()
        table["sps"] = table["sps"].fillna(table["sps_wall"])  # a baseline: one VM, no hivemind epochs
        columns = ["label", "peers", "sps", "sps_low", "sps_high", "granularity", "speedup"]
        show("Throughput by wall clock, 95 % interval over the epochs", table[columns])

        if rates.empty:
            print("No run has a measured epoch.")
            return
        run = study[table.loc[rates.idxmax(), "run_id"]]
        print(f"The fastest: {run.label or run.run_id}")
        for sentence in run.warnings:
            print(f"- {sentence}")
        print()

        epochs = run.epochs()
        show("Its epochs", epochs[["epoch", "measured", "samples", "calc_s", "comm_s", "epoch_s", "sps"]])

        peers = run.peers()
        peers["sent_GB"] = peers["egress_bytes"] / 1e9
        show("Its peers", peers[["slot", "location", "calc_s", "comm_s", "granularity", "sent_GB"]])

        traffic = run.traffic()
        links = traffic.groupby("class", as_index=False).agg({"bytes": "sum", "usd": whole})
        show("What left its VMs", links)

        bill = run.costs().groupby("kind", as_index=False).agg({"usd": whole})
        show("What it cost", bill)


def show(heading: str, frame: pd.DataFrame) -> None:
    """A table as text; unknown reads `unknown`."""
    text = frame.to_string(index=False, na_rep="unknown", float_format=lambda value: f"{value:.4g}")
    lines = [line.rstrip() for line in text.splitlines()]
    print("\n".join([heading, *lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
