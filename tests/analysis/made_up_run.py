"""A complete synthetic run for the report's tests: eight peers, one replaced, five epochs."""

from __future__ import annotations

from decimal import Decimal
from importlib import resources
from pathlib import Path

from metrics.records import EgressRecord, EpochRecord, IngressRecord, VmRecord
from metrics.store.database import RunStore

_PLACES = (
    "gcp/us-central1/us-central1-a",
    "gcp/europe-west1/europe-west1-b",
    "gcp/asia-east1/asia-east1-a",
    "gcp/australia-southeast1/australia-southeast1-a",
)
_START_S = 1_700_000_000.0


def write_run(folder: Path, peers: int = 8, epochs: int = 5, published: bool = True) -> None:
    """Write `run.db` into `folder`."""
    names = [f"geo-c8-20231114-aaaa-p{k}-0" for k in range(peers)]
    book = resources.files("cloud.prices").joinpath("study-2023-04.csv").read_text()
    with RunStore.open_writer(folder / "run.db") as store:
        meta = {
            "run_id": "geo-c8-20231114-aaaa",
            "experiment": {"name": "geo-c8"},
            "target": "local",
            "emulated": True,
            "scales": {"bytes": 100, "time": 1, "samples": 8},
            "status": "done",
            "started_s": _START_S,
            "ended_s": _START_S + 60 + 30 * epochs,
            "price_book": {"name": "study-2023-04", "csv": book, "sha256": "0"},
            "model": {
                "name": "ConvNextLarge",
                "parameters": 197_767_336,
                "ran": "digits",
                "bytes_per_sample": 1e5,
            },
            "warmup_epochs": 1,
            "target_batch_size": 32768,
            "raw_target_batch_size": 4096,
            "addresses": {f"10.77.0.{k + 10}": name for k, name in enumerate(names)},
            "locations": {name: _PLACES[k % 4] for k, name in enumerate(names)} | {"store": "b2/us-west-1"},
            "host": {"contended": False, "reasons": []},
            "evaluations": [
                {"vm": names[0], "epoch": epochs, "accuracy": 0.934, "loss": 0.2, "samples": 300}
            ],
            "published": {"sps": 244.3, "comm_s": 19.7, "calc_s": 114.8, "epoch_s": 134.7}
            if published
            else None,
        }
        for key, value in meta.items():
            store.set_meta(key, value)
        for k, name in enumerate(names):
            store.upsert_vm(
                VmRecord(
                    vm=name, slot=f"p-{k}", generation=0, location=_PLACES[k % 4], instance="n1-standard-8",
                    accelerator="T4:1", use_spot=True, usd_per_h=Decimal("0.18"), price_source="study-2023-04",
                    address=f"10.77.0.{k + 10}", requested_s=_START_S, ready_s=_START_S + 20 + k,
                    ended_s=_START_S + 50 + 30 * epochs, end_cause="preempted" if k == peers - 1 else "terminated",
                )
            )  # fmt: skip
            for e in range(1, epochs + 1):
                began = _START_S + 30 + 30 * (e - 1)
                comm = 12.0 + 0.3 * (k % 3)
                store.append("epochs", [
                    EpochRecord(
                        vm=name, epoch=e, began_s=began, ended_s=began + 30.0, steps=16, samples=4096 // peers,
                        load_s=0.01, move_s=0.0, forward_s=6.0, backward_s=30 - comm - 6.02, optimizer_local_s=0.01,
                        optimizer_sync_s=comm, other_s=0.0, calc_s=30.0 - comm, comm_s=comm,
                        loss=2.3 / e + 0.02 * k, group_size=peers, dropped="", ran="digits",
                    )
                ])  # fmt: skip
                store.append("egress", [
                    EgressRecord(name, e, f"10.77.0.{j + 10}", phase, 30.0 - comm if phase == "calc" else comm, size)
                    for j in range(peers) if j != k for phase, size in (("calc", 20_000), ("comm", 900_000))
                ])  # fmt: skip
                store.append("ingress", [IngressRecord(name, e, 40_000, 10_000)])
