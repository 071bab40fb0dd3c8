"""A snapshot made up for the tests of the command line, in the shape of `client.snapshot`."""

from __future__ import annotations

from typing import Any


def event(at_s: float, slot: str, text: str) -> dict[str, Any]:
    return {"at_s": at_s, "slot": slot, "text": text}


def snapshot(**changes: Any) -> dict[str, Any]:
    """Two peers in the second epoch of five; `changes` replace keys."""
    peer = {
        "vm": "geo-b2-20261121-7f3a-us-0-0",
        "generation": 0,
        "state": "TRAINING",
        "accelerator": "T4:1",
        "use_spot": True,
        "usd_per_h": "0.18",
        "epoch": 2,
        "samples": 512,
        "sps": 35.5,
        "preemptions": 0,
        "cause": "",
        "since_s": 10.0,
        "clock_skew_s": None,
    }
    return {
        "run_id": "geo-b2-20261121-7f3a",
        "experiment": "geo-b2",
        "status": "running",
        "error": "",
        "target": "local",
        "emulated": True,
        "scales": {"bytes": 100.0, "time": 1.0, "samples": 32.0},
        "started_s": 0.0,
        "ended_s": None,
        "at_s": 95.0,
        "elapsed_s": 95.0,
        "controller": "alive",
        "peers": [
            {**peer, "slot": "us-0", "location": "gcp/us-central1/us-central1-a"},
            {
                **peer,
                "slot": "eu-0",
                "location": "gcp/europe-west1/europe-west1-b",
                "state": "WAITING",
                "epoch": None,
                "sps": None,
                "preemptions": 1,
                "cause": "preempted; [next try in 10 s]",
            },
        ],
        "epoch": {
            "current": 2,
            "last": 5,
            "warmup": 1,
            "measured": 4,
            "samples": 512,
            "target": 1024,
            "sps": 70.25,
            "eta_s": 7.3,
        },
        "throughput_sps": 61.24,
        "granularity": 25.44,
        "cost": {"spent_usd": "0.0961", "usd_per_h": "0.36", "budget_usd": None},
        "dropped_rounds": 0,
        "events": [event(90.0, "eu-0", "WAITING: preempted")],
        "warnings": [],
        **changes,
    }
