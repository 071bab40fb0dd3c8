"""A trace and a map of `imagenet` as `orch pipeline trace` and `map` write them, with made-up figures."""

from __future__ import annotations

from typing import Any

_OPS = {"decode": (5.0, 2_359_297), "crop": (2.0, 150_529), "flip": (0.1, 150_529)}
_ABOUT = {
    "schema_version": 1,
    "target": "imagenet",
    "pipeline": "imagenet",
    "fingerprint": "0" * 64,
    "machine": "made up",
    "measured_at": "2026-11-28T04:00:00+00:00",
}


def trace_document(**changed: Any) -> dict[str, Any]:
    """A trace with 1 and 2 threads; CPU seconds of `flip` are unknown, as is the interval with 2."""
    return {
        **_ABOUT,
        "kind": "pipeline",
        "vms": None,
        "generated": True,
        "shards": 8,
        "endpoint": "http://127.0.0.1:1",
        "link": None,
        "batch_size": 32,
        "warm_up_batches": 2,
        "mean_bytes_stored": 301_000,
        "traces": [_trace(1, 140.0, [130.0, 150.0]), _trace(2, 200.0, None)],
        "advice": [
            {
                "code": "knee",
                "of_workers": None,
                "evidence": {},
                "sentence": "More than 2 workers gain <little>.",
            }
        ],
        **changed,
    }


def _trace(workers: int, sps: float, interval: list[float] | None) -> dict[str, Any]:
    return {
        "workers": workers,
        "worker_kind": "thread",
        "in_order": True,
        "streams": 1,
        "bad_samples": 0,
        "samples_per_s": sps,
        "samples_per_s_interval": interval,
        "busy_share": 0.9,
        "cpu_s": 1.5,
        "dropped": 0,
        "ops": [
            {
                "name": name,
                "n": 192,
                "mean_ms": mean_ms,
                "p90_ms": 1.5 * mean_ms,
                "share_below_10ms": 1.0,
                "share_below_100us": 0.0,
                "cpu_s": None if name == "flip" else 192 * mean_ms / 2e3,
                "mean_bytes_out": bytes_out,
            }
            for name, (mean_ms, bytes_out) in _OPS.items()
        ],
        "collate": None,
        "batches": {
            "n": 6,
            "mean_ms": 230.0,
            "sd_percent": 3.0,
            "iqr_ms": 5.0,
            "outliers": 0,
            "wait_s": 1.2,
            "delay_s": 0.06 if workers == 2 else None,
            "wait_share": 0.9,
            "share_wait_over_500ms": 0.5,
            "share_delay_over_500ms": 0.0,
            "out_of_order": 0,
        },
    }


def map_document(**changed: Any) -> dict[str, Any]:
    """A sampled map. `decode` has six functions, of which one has less than 1 %."""
    counts = {"decode": (700, 150, 100, 30, 15, 5), "crop": (300,), "flip": (0,)}
    total = sum(map(sum, counts.values()))
    return {
        **_ABOUT,
        "data_sha256": "1" * 64,
        "unit": "samples",
        "samples": 64,
        "frequency_hz": 1000,
        "seconds": 1.3,
        "ops": [
            {
                "op": op,
                "calls": 192,
                "count": sum(own),
                "share": sum(own) / total,
                "wall_ns": _OPS[op][0] * 1e6,
                "events": {"cycles": None},
            }
            for op, own in counts.items()
        ],
        "functions": [
            {
                "op": op,
                "function": f"{op}_{k}",
                "library": "_imaging.cpython-311-x86_64-linux-gnu.so",
                "count": count,
                "share": count / sum(own),
                "low": 0.9 * count / sum(own),
                "high": min(1.0, 1.1 * count / sum(own)),
            }
            for op, own in counts.items()
            for k, count in enumerate(own)
            if count
        ],
        "between": 3,
        "other_threads": 0,
        "unknown_events": {"cycles": "this machine has no counter"},
        "lotus": {"confidence": 0.75, "error": 0.203, "unmapped": 0.01, "ops": []},
        **changed,
    }
