"""The section on a profile: delivered samples/s and stored bytes by strategy."""

from __future__ import annotations

from typing import Any

from analysis.charts import pipeline as figures
from analysis.pipeline.profile_records import Profile
from analysis.report.files import FigureFolder
from analysis.report.page import Section, table
from metrics.readable import number, size
from metrics.stats import Estimate

MOST_BARS = 40
"""Strategies in a figure."""


def profile_sections(profile: Profile, files: FigureFolder) -> list[Section]:
    """Return the section of a profile."""
    rows = strategy_rows(profile)
    fastest = sorted(rows, key=lambda row: -row["t4_sps"])[:MOST_BARS]
    drawn = [row for row in rows if row in fastest]
    link = (
        ""
        if profile.link_mbps is None or profile.link_rtt_ms is None
        else f" The store was read over {profile.link_mbps:g} Mb/s a stream and {profile.link_rtt_ms:g} ms."
    )
    lead = (
        "T4: batches that a consumer gets which does nothing else. A strategy's name is its split (operations that run once), "
        "codec, streams (s), workers (w; t: threads, p: processes) and cache. Lines: 95 % intervals. Bytes are those in the "
        f"shard, with the tar's headers.{link}"
    )
    if len(drawn) < len(rows):
        lead += f" The figure shows the {len(drawn)} fastest of {len(rows)} strategies; the files have all."
    return [
        files.section(
            "strategies",
            "Samples/s and storage by strategy",
            lead,
            rows,
            figures.strategies(drawn),
            "<details><summary>All figures of the strategies</summary>"
            + table(_table(profile), "Strategies", text=["strategy", "stored after"])
            + "</details>",
        )
    ]


def strategy_rows(profile: Profile) -> list[dict[str, Any]]:
    """One row per strategy, in the order of the profile."""
    return [
        {
            "strategy": m.strategy.label,
            "after": m.after,
            "samples": m.samples,
            "t4_sps": m.delivered_sps.value,
            "t4_sps_low": m.delivered_sps.low,
            "t4_sps_high": m.delivered_sps.high,
            "stored_bytes": m.stored_bytes,
            "wire_bytes": m.wire_bytes,
            "later_wire_bytes": m.later_wire_bytes,
            "cached_bytes": m.cached_bytes,
            "offline_s": m.offline_s,
            "save_s": m.save_s,
            "t1_sps": m.read_sps.value,
            "t2_sps": None if m.write_sps is None else m.write_sps.value,
            "t3_sps": None if m.stored_read_sps is None else m.stored_read_sps.value,
            "cpu_s": m.cpu_s.value,
        }
        for m in profile.measurements
    ]


def _table(profile: Profile) -> list[dict[str, Any]]:
    return [
        {
            "strategy": m.strategy.label,
            "stored after": m.after or "-",
            "stored": size(m.stored_bytes),
            "on the wire": size(m.wire_bytes),
            "later passes": size(m.later_wire_bytes),
            "T1, /s": number(m.read_sps.value),
            "T2, /s": _value(m.write_sps),
            "T3, /s": _value(m.stored_read_sps),
            "T4, /s": number(m.delivered_sps.value),
            "95 %": _interval(m.delivered_sps),
            "offline, ms": "-" if m.offline_s is None else number(1e3 * m.offline_s),
            "save, ms": "-" if m.save_s is None else number(1e3 * m.save_s),
            "CPU, ms": number(1e3 * m.cpu_s.value),
        }
        for m in profile.measurements
    ]


def _value(estimate: Estimate | None) -> str:
    return "-" if estimate is None else number(estimate.value)


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "unknown"
    return f"{number(estimate.low)} to {number(estimate.high)}"
