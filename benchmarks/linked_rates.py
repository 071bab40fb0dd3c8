"""Compare the predicted samples/s of a pipeline over a long path with measured ones.

Profiles the pipeline from a near store and over `--link`, alternately, and predicts each strategy's rate over the path from
the near profile: `analysis.pipeline.options.rate`, round trips of the profile's own shards included. Prints a row per
strategy, and the largest difference.

    python -m benchmarks.linked_rates imagenet --link 210,103 --streams 1 2 4 --workers 1 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from analysis.pipeline.options import PlanPeer, link_of, options_of, rate
from analysis.pipeline.profile_records import Profile
from cloud.storage.link import Link
from orchestrator.pipeline.profiling import Wanted, profile
from orchestrator.pipeline.target import find_target

_NEVER_WAITS_SPS = 1e9


def measured(name: str, options: argparse.Namespace, link: Link | None) -> Profile:
    """A profile over the path, or from a near store."""
    wanted = Wanted(
        splits=(0,),
        codecs=("none",),
        streams=tuple(options.streams),
        workers=tuple(options.workers),
        kind="thread",
        caches=("none",),
        samples=options.samples,
        windows=options.windows,
        link=link,
    )
    return profile(find_target(name), wanted, lambda _: None, lambda text: print(text, file=sys.stderr))


def predicted_sps(near: Profile, link: Link) -> list[float]:
    """The rate of each strategy over the path, from its T4 near the store. Its shards are the profile's."""
    far = PlanPeer("far", "", "", "", False, None, "", _NEVER_WAITS_SPS, link.rate_mbps * 1e6, link.rtt_s)
    found: list[float] = []
    for option in options_of(replace(near, generated=False)):
        m = option.measured
        path = link_of(option, far, m.wire_bytes)
        found.append(rate(m.delivered_sps.value, _NEVER_WAITS_SPS, path)[0])
    return found


def print_rows(near: Sequence[Profile], far: Sequence[Profile], link: Link) -> float:
    """Print medians of the repeats, and return the largest relative difference."""
    predictions = [predicted_sps(one, link) for one in near]
    worst = 0.0
    print("strategy            near T4   predicted   measured over the path (least, most)   difference")
    for k, m in enumerate(near[0].measurements):
        near_sps = statistics.median(one.measurements[k].delivered_sps.value for one in near)
        expected = statistics.median(one[k] for one in predictions)
        got = [one.measurements[k].delivered_sps.value for one in far]
        middle = statistics.median(got)
        worst = max(worst, abs(expected / middle - 1))
        print(
            f"{m.strategy.label:18} {near_sps:8.1f} {expected:11.1f} {middle:10.1f}   ({min(got):.1f}, {max(got):.1f})"
            f"{expected / middle - 1:+25.1%}"
        )
    return worst


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pipeline", nargs="?", default="imagenet")
    parser.add_argument("--link", type=Link.parse, default=Link(210, 103), help="Mb/s of a stream, ms")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    near: list[Profile] = []
    far: list[Profile] = []
    for _ in range(options.repeats):
        near.append(measured(options.pipeline, options, None))
        far.append(measured(options.pipeline, options, options.link))
    worst = print_rows(near, far, options.link)
    shards = near[0].measurements[0].shards
    print(
        f"{options.samples} samples in {shards} shards, {options.repeats} repeats; largest difference {worst:.1%}"
    )


if __name__ == "__main__":
    main()
