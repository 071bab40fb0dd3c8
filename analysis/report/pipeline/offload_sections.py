"""The sections on a profile of each sample: what shrinks, and what offloading gives, by policy and by cores."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from analysis.charts import offload as figures
from analysis.charts.pipeline import dollars
from analysis.pipeline.offload.compare import PolicyRow, shrinking, shrinking_by_op
from analysis.pipeline.offload.pass_time import BILL_WORDS
from analysis.pipeline.offload.sample_profile import SampleProfile
from analysis.report.files import FigureFolder
from analysis.report.page import Card, Section, table
from analysis.report.pipeline.parts import OffloadPart
from metrics.readable import number, size, usd

_VERDICTS = {
    "baseline": "(compared with)",
    "pays": "pays",
    "does_not": "does not",
    "no_difference": "no difference",
    "unknown": "unknown",
}


def offload_sections(part: OffloadPart, files: FigureFolder) -> list[Section]:
    """Return the sections of a profile. What needs the operations' times or prices is left out without them."""
    profile = part.profile
    shrunk = shrinking_rows(profile)
    found = [
        files.section(
            "shrinking",
            "Samples that shrink, by operation",
            f"{shrinking(profile):,} of {len(profile.keys):,} samples are smaller after an operation than they are stored. Light: "
            "smaller after this operation than stored. Dark: smallest after it, the first of equals counting.",
            shrunk,
            figures.shrinking(shrunk),
        )
    ]
    if profile.op_s is not None:
        benefits = benefit_rows(profile, part.speed)
        found.append(
            files.section(
                "benefit",
                "Benefit by CPU second",
                "Bytes that are saved if a sample is sent where it is smallest, by CPU second next to the storage until then. "
                "Samples that do not shrink have no benefit. Without codecs, the greedy policy offloads from left to right.",
                benefits,
                figures.benefit(benefits, len(profile.keys)),
            )
        )
    rows = policy_rows(part.rows)
    why = "".join(f"<li>{_escaped(row)}</li>" for row in part.rows)
    found.append(
        files.section(
            "policies",
            "Pass time and traffic by policy",
            f"{part.setting} Bytes are payload, without headers.",
            rows,
            figures.policies(rows),
            f"<ul>{why}</ul>" + table(_table(part.rows), "Policies", text=["policy", "verdict"]),
        )
    )
    if part.by_cores:
        cores = cores_rows(part.by_cores)
        found.append(
            files.section(
                "cores",
                "Pass time by cores next to the storage",
                "The other settings are those above. A policy that offloads is impossible without a core.",
                cores,
                figures.by_cores(cores),
            )
        )
    if any(row.usd_parts_per_1m is not None for row in part.rows):
        bill = bill_rows(part.rows)
        found.append(
            files.section(
                "bill",
                "The bill",
                "Dollars per million samples. With a server, all bytes go through it; without one they go from the store to the "
                "client. Bars with an arrow are cut.",
                bill,
                dollars([("", bill)], BILL_WORDS),
            )
        )
    return found


def offload_cards(part: OffloadPart) -> list[Card]:
    """The headline numbers."""
    profile, by_name = part.profile, {row.policy: row for row in part.rows}
    none, best = by_name["none"], by_name["best"]
    share = shrinking(profile) / len(profile.keys)
    cards = [Card("Samples that shrink", f"{100 * share:.1f} %", f"of {len(profile.keys):,}")]
    if none.found is not None and best.found is not None:
        cards.append(
            Card(
                "A pass, best",
                f"{number(best.found.seconds)} s",
                f"{number(none.found.seconds)} s if nothing is offloaded",
            )
        )
        cards.append(
            Card("Offloaded, best", f"{best.found.offloaded:,}", f"samples; {_VERDICTS[best.verdict]}")
        )
    if none.usd_per_1m is not None and best.usd_per_1m is not None:
        cards.append(
            Card(
                "Dollars, best",
                f"{usd(best.usd_per_1m)} per 1M samples",
                f"{usd(none.usd_per_1m)} if nothing is offloaded",
            )
        )
    return cards


def shrinking_rows(profile: SampleProfile) -> list[dict[str, Any]]:
    """A row for each operation: samples that are smaller than stored after it, and those that are smallest then."""
    count = len(profile.keys)
    smaller = np.count_nonzero(profile.size_bytes < profile.raw_bytes[:, None], axis=0)
    smallest = shrinking_by_op(profile)
    return [
        {
            "op": op,
            "smaller": int(less),
            "smaller_percent": 100 * int(less) / count,
            "smallest": smallest[op],
            "smallest_percent": 100 * smallest[op] / count,
        }
        for op, less in zip(profile.ops, smaller, strict=True)
    ]


def benefit_rows(profile: SampleProfile, speed: float) -> list[dict[str, Any]]:
    """A row for each sample that shrinks, those with the largest benefit first. Raises ValueError without times."""
    if profile.op_s is None:
        raise ValueError("the profile has no times")
    sizes, fewest = profile.sizes, profile.smallest
    rows = np.arange(len(profile.keys))
    saved = sizes[:, 0] - sizes[rows, fewest]
    done_s = np.column_stack([np.zeros(len(rows)), np.cumsum(profile.op_s, axis=1)]) * speed
    cpu_s = done_s[rows, fewest]
    by_second = np.divide(saved, cpu_s, out=np.full(len(rows), np.inf), where=cpu_s > 0)
    order = sorted(np.flatnonzero(fewest).tolist(), key=lambda i: (-by_second[i], profile.keys[i]))
    return [
        {
            "rank": rank,
            "sample": profile.keys[i],
            "saved_bytes": float(saved[i]),
            "cpu_s": float(cpu_s[i]),
            "mb_per_cpu_s": float(by_second[i]) / 1e6 if np.isfinite(by_second[i]) else None,
        }
        for rank, i in enumerate(order, 1)
    ]


def policy_rows(rows: Sequence[PolicyRow]) -> list[dict[str, Any]]:
    """A row for each policy, with the keys of `orch pipeline plan`'s JSON and the traffic in GB; None: unknown or impossible."""
    found: list[dict[str, Any]] = []
    for row in rows:
        shown = row.to_json()
        sent_gb = None if row.sent_bytes is None else row.sent_bytes / 1e9
        found.append({"policy": row.policy, **shown, "sent_gb": sent_gb})
    return found


def cores_rows(by_cores: dict[int, tuple[PolicyRow, ...]]) -> list[dict[str, Any]]:
    """A row for each number of cores and policy; None: impossible."""
    return [
        {
            "cores": cores,
            "policy": row.policy,
            "epoch_s": row.to_json()["epoch_s"],
            "bytes": row.sent_bytes,
            "offloaded": row.offloaded,
        }
        for cores, rows in by_cores.items()
        for row in rows
    ]


def bill_rows(rows: Sequence[PolicyRow]) -> list[dict[str, Any]]:
    """A row for each policy: dollars per million samples and their parts; None: unknown or impossible."""
    return [
        {
            "strategy": row.policy,
            "usd_per_1m": row.usd_per_1m,
            "usd_per_1m_low": None,
            "usd_per_1m_high": None,
            **(row.usd_parts_per_1m or dict.fromkeys(BILL_WORDS)),
            "verdict": row.verdict,
        }
        for row in rows
    ]


def _escaped(row: PolicyRow) -> str:
    return escape(f"{row.policy}: {row.why}.")


def _table(rows: Sequence[PolicyRow]) -> list[dict[str, Any]]:
    shown = [(row, row.to_json()) for row in rows]

    def seconds(value: float | None) -> str | None:
        return None if value is None else number(value)

    return [
        {
            "policy": row.policy,
            "pass, s": seconds(one["epoch_s"]),
            "client, s": seconds(one["t_cc_s"]),
            "server, s": seconds(one["t_cs_s"]),
            "network, s": seconds(one["t_net_s"]),
            "to the client": None if row.sent_bytes is None else size(row.sent_bytes),
            "offloaded": None if row.offloaded is None else f"{row.offloaded:,}",
            "client cached": None if one["client_cached"] is None else f"{one['client_cached']:,}",
            "server cached": None if one["server_cached"] is None else f"{one['server_cached']:,}",
            "$/1M": None if row.usd_per_1m is None else usd(row.usd_per_1m),
            "verdict": _VERDICTS[row.verdict],
        }
        for row, one in shown
    ]
