"""A made-up profile of `imagenet`, from figures of a machine with two cores: see each function."""

from __future__ import annotations

from dataclasses import replace

from analysis.pipeline.profile_records import Measurement, Profile, Strategy
from metrics.stats import Estimate

SOURCE_BYTES = 301_000.0  # of a photo in its shard (cloud/datasets/sample_bytes.py)
RAW_BYTES = 150_528.0  # 224 x 224 x 3
SHARE = {"none": 1.0, "webp": 0.45, "png": 0.57, "zlib": 0.74, "zstd": 0.79}
WRITE_MS = {"none": 0.1, "webp": 3.4, "png": 4.6, "zlib": 2.5, "zstd": 0.4}
READ_MS = {"none": 0.05, "webp": 1.2, "png": 1.8, "zlib": 0.8, "zstd": 0.15}
DECODE_MS = 4.7  # with PIL, of a 1024 x 768 photo
REST_MS = 1.4  # the other operations; made up


def estimate(value: float, half: float = 0.03) -> Estimate:
    """Return an estimate with five windows and an interval of +- `half` of its value."""
    return Estimate(value, value * (1 - half), value * (1 + half), 5)


def measurement(
    strategy: Strategy, stored: float, sps: float, cached: float = 0.0, offline_s: float | None = None
) -> Measurement:
    """Return a measurement; what a cache keeps is not read again."""
    stores = strategy.split > 0
    return Measurement(
        strategy=strategy,
        after="decode" if stores else "",
        samples=500,
        stored_bytes=stored,
        wire_bytes=stored,
        later_wire_bytes=stored if strategy.cache == "none" else 0.0,
        cached_bytes=cached,
        offline_s=offline_s,
        offline_cpu_s=offline_s,
        save_s=0.002 if stores else None,
        read_sps=estimate(2000),
        write_sps=estimate(500) if stores else None,
        stored_read_sps=estimate(1500) if stores else None,
        delivered_sps=estimate(sps),
        cpu_s=estimate(1 / sps),
    )


def profile(*measurements: Measurement) -> Profile:
    """Return a profile of these measurements, or of `imagenet`'s."""
    return Profile(
        target="imagenet",
        pipeline="imagenet",
        fingerprint="0" * 64,
        ops=("decode", "crop", "flip", "to_tensor", "normalise"),
        storable=1,
        machine="made up from measured parts",
        cores=2,
        memory_bytes=24 * 10**9,
        link_mbps=None,
        link_rtt_ms=None,
        generated=True,
        measured_at="2026-11-28T05:00:00Z",
        seconds=60.0,
        measurements=measurements or imagenet(),
    )


def imagenet() -> tuple[Measurement, ...]:
    """All online with 1 and 2 threads (329 samples/s), its caches, and crops stored with each codec."""
    online = 1000 / (DECODE_MS + REST_MS)
    found = [
        measurement(Strategy(0), SOURCE_BYTES, online),
        measurement(Strategy(0, workers=2), SOURCE_BYTES, 329.0),
        measurement(Strategy(0, streams=4, workers=2), SOURCE_BYTES, 329.0),
        measurement(Strategy(0, cache="disk"), SOURCE_BYTES, online, SOURCE_BYTES),
        measurement(Strategy(0, cache="memory"), SOURCE_BYTES, 1000 / REST_MS, 4 * RAW_BYTES),
    ]
    for codec, share in SHARE.items():
        stored = RAW_BYTES * share + 1024
        sps = 1000 / (READ_MS[codec] + REST_MS)
        offline_s = (DECODE_MS + WRITE_MS[codec]) / 1000
        one = measurement(Strategy(1, codec), stored, sps, 0.0, offline_s)
        found.append(one)
        found.append(
            replace(
                one, strategy=replace(one.strategy, cache="disk"), later_wire_bytes=0.0, cached_bytes=stored
            )
        )
    return tuple(found)
