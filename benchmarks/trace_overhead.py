"""What a trace costs: CPU and wall time of the `imagenet` pipeline with `data.trace: ops` compared with `off`.

Each sample is decoded with and without a trace, in turns and in changing order; printed is the mean of the windows'
differences in percent with its 95 % interval. Needs a quiet machine: run it alone.

    python -m benchmarks.trace_overhead --samples 40 --windows 20
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from cloud.storage.samples import Sample
from experiments.peer.training.decoding import Decoder, Read
from experiments.pipeline.load import load_pipeline
from experiments.pipeline.trace import Recorder
from metrics.stats import mean_interval

LIMIT_PERCENT = 2.0  # of wall time


def photo(seed: int) -> Sample:
    """A made-up JPEG of 1024 x 768 with its label."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((1024, 768), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
    return {"__key__": f"{seed:05d}", "__url__": "s3://made-up/a.tar", "jpg": file.getvalue(), "cls": b"1"}


def window(off: Decoder, on: Decoder, samples: list[Sample]) -> tuple[float, float]:
    """How much longer `on` takes than `off` for all samples, in percent of wall and of CPU time.

    Each sample is decoded by both, one right after the other, and every second one in the other order: so a change of the
    machine's speed meets both.
    """
    wall, cpu = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
    for number, sample in enumerate(samples):
        for decoder in (off, on) if number % 2 else (on, off):
            began, began_cpu = time.perf_counter(), time.thread_time()
            decoder(Read(number, sample, 0))
            wall[decoder is on] += time.perf_counter() - began
            cpu[decoder is on] += time.thread_time() - began_cpu
    return 100 * (wall[True] / wall[False] - 1), 100 * (cpu[True] / cpu[False] - 1)


def main() -> int:
    """Returns 1 if the interval of the wall time lies above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=40, help="in a window")
    parser.add_argument("--windows", type=int, default=20)
    arguments = parser.parse_args()
    samples = [photo(seed) for seed in range(arguments.samples)]
    off = Decoder(load_pipeline("imagenet", {"size": 224}), 1)
    with tempfile.TemporaryDirectory() as folder:
        records = (arguments.windows + 1) * len(samples) * len(off.pipeline.ops)
        on = replace(off, trace=Recorder(Path(folder), records=records))
        window(off, on, samples)
        differences = [window(off, on, samples) for _ in range(arguments.windows)]
    walls, cpus = zip(*differences, strict=True)
    for name, percents in (("wall", walls), ("CPU", cpus)):
        found = mean_interval(percents)
        assert found is not None
        interval = "" if found.low is None else f" ({found.low:+.2f} to {found.high:+.2f})"
        print(f"{name}: {found.value:+.2f} %{interval}, {found.n} windows of {len(samples)} samples")
    wall = mean_interval(walls)
    assert wall is not None
    return int((wall.value if wall.low is None else wall.low) > LIMIT_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
