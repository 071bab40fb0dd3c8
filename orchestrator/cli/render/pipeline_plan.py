"""The plan of an experiment's input in words and cells."""

from __future__ import annotations

from typing import Any

from analysis.pipeline.plan import PART_WORDS, VERDICT_WORDS, Best, Interval, Row
from orchestrator.pipeline.plan_setting import (
    GIVEN,
    NO_LINK,
    OF_PROFILE,
    PlanSetting,
)

COLUMNS = (
    "passes",
    "strategy",
    "sps",
    "bound",
    "usd_per_1m",
    "one_off_usd",
    "break_even_passes",
    "verdict",
    "score",
)
_BOUND = {"trainer": "the trainer", "link": "the path to the store", "input": "the input"}


def row_cells(row: Row) -> dict[str, Any]:
    """Return the cells of the table, by column."""
    never = "never" if row.cost.usd is not None else "unknown"
    return {
        "passes": row.cost.passes,
        "strategy": row.label,
        "sps": interval_text(row.sps, 4),
        "bound": row.bound,
        "usd_per_1m": "unknown" if row.usd_per_1m is None else interval_text(row.usd_per_1m, 4),
        "one_off_usd": None if row.cost.one_off_usd is None else f"{row.cost.one_off_usd:.4g}",
        "break_even_passes": "-" if row.verdict == "baseline" else row.break_even_passes or never,
        "verdict": VERDICT_WORDS[row.verdict],
        "score": None if row.score is None else f"{row.score:.3f}",
    }


def interval_text(interval: Interval, digits: int) -> str:
    """Format as "9.1 (8.8 to 9.4)"; the value alone if its ends are equal."""
    value = f"{interval.value:.{digits}g}"
    if interval.low is None or interval.high is None:
        return f"{value} (unknown)"
    low, high = f"{interval.low:.{digits}g}", f"{interval.high:.{digits}g}"
    return value if low == high == value else f"{value} ({low} to {high})"


def strategy_text(row: Row) -> str:
    """Describe a strategy, such as "stored after decode (zlib), 1 stream, 2 threads, cache on disk"."""
    strategy = row.option.measured.strategy
    codec = "" if strategy.codec == "none" else f" ({strategy.codec})"
    stored = f"stored after {row.option.measured.after}{codec}" if strategy.split else "nothing stored"
    streams = _count(strategy.streams, "stream")
    workers = _count(strategy.workers, strategy.worker_kind)
    cache = {"none": "no cache", "disk": "cache on disk", "memory": "cache in memory"}[strategy.cache]
    return f"{stored}, {streams}, {workers}, {cache}"


def _count(number: int, what: str) -> str:
    plural = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number} {what}{plural}"


def best_text(best: Best, cache_gb: float) -> str:
    """Say which strategy is best with this many passes, and why. `cache_gb`: the experiment's `data.cache_gb`."""
    row, base = best.row, best.baseline
    passes = "1 pass" if row.cost.passes == 1 else f"{row.cost.passes} passes"
    more = f" ({best.unknown} unknown)" if best.unknown else ""
    limit = f"{_BOUND[row.bound]} limits it to {row.sps.value:.4g} samples/s"
    if row.usd_per_1m is None or base.usd_per_1m is None:
        why = "; ".join(base.cost.unknown)
        return (
            f"{passes}: unknown which strategy is best: {why}; choose a book with --prices (docs/prices.md)."
        )
    usd = row.usd_per_1m.value
    if row is base:
        nothing = "nothing is known to pay" if best.unknown else "nothing pays"
        return f"{passes}: {nothing}{more}: keep {row.label} ({strategy_text(row)}), ${usd:.4g} per 1M samples; {limit}."
    less = base.usd_per_1m.value - usd
    share = less / base.usd_per_1m.value
    parts = [] if best.saves is None else [f"{PART_WORDS[best.saves[0]]} cost ${best.saves[1]:.3g} less"]
    if best.costs is not None:
        parts.append(f"{PART_WORDS[best.costs[0]]} ${best.costs[1]:.3g} more")
    begins = "" if row.break_even_passes is None else f"; it is cheaper from pass {row.break_even_passes} on"
    cache = ""
    if row.peer_cache_bytes:
        needed_gb = row.peer_cache_bytes / 1e9
        cache = f"; each peer's cache needs {needed_gb:.3g} GB"
        if row.option.measured.strategy.cache == "disk" and needed_gb > cache_gb:
            cache += f" (data.cache_gb is {cache_gb:g})"
    return (
        f"{passes}: {row.label} is best ({strategy_text(row)}), ${usd:.4g} per 1M samples, "
        f"${less:.3g} ({share:.0%}) less than {base.label}: "
        f"{', '.join(parts)}; {limit} (compared: {base.sps.value:.4g}, {_BOUND[base.bound]}){begins}{cache}{more}."
    )


def assumptions(found: PlanSetting, generated: bool, sources: str) -> list[dict[str, str]]:
    """Return what the figures rest on, each with a code."""
    setting = found.setting
    rates = sorted({f"{peer.trainer_sps:.4g}" for peer in setting.peers})
    given = found.trainer_from == GIVEN
    lines: list[tuple[str, str]] = [
        (
            "trainer",
            f"a peer that never waits for data trains on {' or '.join(rates)} samples/s, "
            + ("as given" if given else "as predicted from its accelerator's step time")
            + "; averaging, its time and its egress, is not in it",
        ),
        (
            "samples",
            f"the data set has {setting.samples:,} samples, "
            + {
                GIVEN: "as given",
                "extrapolation": "as in the profile's extrapolation",
                "measured": "those that were profiled",
            }[found.samples_from],
        ),
        ("prices", f"prices of {setting.book.name}, the store in {setting.store}; requests are not in it"),
        ("cpu", f"T4 and offline seconds are those of the profiled machine ({sources}), also on the VMs"),
    ]
    lines.append(
        ("cache", "disk and memory of a cache are not billed; a VM has the profiled machine's memory")
    )
    if setting.offline is None:
        lines.append(("offline", "the work before training runs on this machine, which is not billed"))
    else:
        lines.append(
            (
                "offline",
                f"the work before training runs on one VM as {setting.offline.slot}'s, in one process",
            )
        )
    links = found.link_from
    unknown = [slot for slot, source in links.items() if source == NO_LINK]
    if unknown:
        lines.append(
            ("link", f"the path from the store to {', '.join(unknown)} is unknown and taken as no limit")
        )
    elif OF_PROFILE in links.values():
        lines.append(("link", "the path to the store is the one that was profiled"))
    else:
        lines.append(("link", "the path to the store carries the network's figure for each stream"))
    if generated:
        lines.append(("generated", "the profiled samples were generated"))
    return [{"code": code, "text": text} for code, text in lines]
