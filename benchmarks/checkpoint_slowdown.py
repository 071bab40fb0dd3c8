"""Measure what checkpoints cost a peer: the same training with and without them, in turns.

Both are one Hivemind peer that trains the small GPT-2 of `stdlib-lm-2`, each in its own process, with the embedded store.
Prints the ratio of their throughputs by wall clock (`benchmarks.one_peer`), and how long training waited for each copy.

    python -m benchmarks.checkpoint_slowdown --rounds 3
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.one_peer import Case, interval, peer_window, task
from cloud.storage.client import make_client
from cloud.storage.swift import SwiftServer
from tests.experiments.peer_rig import RUN, PeerProcess, config_of

_BUCKET = "bucket"


def train(
    folder: Path, case: Case, server: SwiftServer, every_epochs: int | None, epochs: int
) -> tuple[float, list[dict[str, Any]]]:
    """Samples per second after the first epoch, and the stored checkpoints."""
    shards = tuple(f"s3://{_BUCKET}/{name}" for name in case.shards)
    config = config_of("a", server.endpoint, shards, sync_work_s=0.0, max_epochs=epochs, **case.changes)
    checkpoint = {
        "prefix": f"s3://{_BUCKET}/checkpoints/{RUN}-{folder.name}",
        "every_epochs": every_epochs,
        "every_s": None,
        "keep": 2,
        "writers": ["a"],
        "start": None,
    }
    config = dataclasses.replace(
        config,
        run_id=f"{RUN}-{folder.name}",
        environment=server.credentials.environment(),
        checkpoint=None if every_epochs is None else checkpoint,
    )
    peer = PeerProcess(folder, config)
    try:
        done = peer.wait_for(lambda status: status["phase"] == "done", timeout_s=1200)
        assert not done["checkpoints"]["error"], done
        peer.leave()
    finally:
        peer.kill()
    window = peer_window(folder)
    return window.samples / (window.ended_s - window.began_s), done["checkpoints"]["stored"]


def main() -> None:
    parser = argparse.ArgumentParser(description="One peer with checkpoints against one without")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--every-epochs", type=int, default=2)
    parser.add_argument("--epoch-s", type=float, default=10.0, help="about the length of an epoch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch-slowdown-") as text:
        work, ratios = Path(text), []
        case = task(work, "stdlib", 2 * options.epoch_s)
        with SwiftServer(work / "swift") as server:
            keys = server.credentials
            client = make_client(server.endpoint, access_key=keys.access_key, secret_key=keys.secret_key)
            client.create_bucket(Bucket=_BUCKET)
            for name in case.shards:
                client.upload_file(str(case.folder / name), _BUCKET, name)
            for turn in range(options.rounds):
                kinds = [("with", options.every_epochs), ("without", None)]
                rates: dict[str, float] = {}
                for kind, every in kinds if turn % 2 == 0 else kinds[::-1]:
                    rates[kind], stored = train(work / f"{kind}-{turn}", case, server, every, options.epochs)
                    if stored:
                        copy_s = statistics.fmean(entry["copy_s"] for entry in stored)
                        upload_s = statistics.fmean(entry["upload_s"] for entry in stored)
                        size = stored[-1]["bytes"] / 1e6
                        print(
                            f"  {len(stored)} of {size:.1f} MB: copy {copy_s:.4f} s, storing {upload_s:.2f} s"
                        )
                ratios.append(rates["with"] / rates["without"])
                print(
                    f"  turn {turn + 1}: with {rates['with']:.2f} sps, without {rates['without']:.2f} sps, "
                    f"ratio {ratios[-1]:.4f}",
                    flush=True,
                )
        print(f"with / without checkpoints = {interval(ratios)}")


if __name__ == "__main__":
    main()
