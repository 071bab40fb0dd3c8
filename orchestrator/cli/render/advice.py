"""Advice as text for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.planning.advice import Advice, Alternative, LeftOut, Proposal, why
from analysis.planning.advice_words import (
    REASONS,
    account_lines,
    against_words,
    alternative_words,
    clock_words,
    peers_words,
    unmet_line,
)
from analysis.planning.prediction import Value
from analysis.planning.prediction import as_json as prediction_json
from analysis.planning.what_if import Changed
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

_COLUMNS = ("no", "peers", "option", "samples_per_s", "granularity", "usd_per_h", "usd_per_1m", "hours")
_EXAMPLES = 3  # of what is left out for one reason


def advice_text(advice: Advice) -> str:
    """Format the proposals, what stands against them, and the account of the search."""
    lines: list[str] = []
    shown = advice.shown
    if advice.unmet is not None:
        lines += [f"{unmet_line(advice)}:", ""]
    table = rows_text("proposals", [_row(k + 1, p) for k, p in enumerate(shown)], _COLUMNS, Format.table)
    lines += table.rstrip("\n").split("\n")
    lines.append("")
    lines += [f"{k + 1}: {why(proposal)}" for k, proposal in enumerate(shown)]
    if advice.more:
        lines.append(f"{advice.more} more of the Pareto set lie between these; --rows shows more")
    lines += ["", *_alternatives(advice, len(shown))]
    lines += _left_out(advice.left_out)
    lines += ["", *account_lines(advice)]
    return "\n".join(lines) + "\n"


def advice_json(advice: Advice, written: Mapping[str, str], report: str | None = None) -> str:
    """Serialise as JSON. `written`: the file of a proposal, by experiment name; `report`: the page, if one was written."""
    account, unmet = advice.account, advice.unmet
    return as_json(
        {
            "schema_version": SCHEMA_VERSION,
            "experiment": advice.experiment,
            "goals": asdict(advice.goals),
            "samples": advice.samples,
            "price_book": advice.price_book,
            "proposals": [_proposal_json(p, written.get(p.spec.name)) for p in advice.proposals],
            "more": advice.more,
            "unmet": None
            if unmet is None
            else {
                "goals": unmet.goals,
                "excess": unmet.excess,
                "nearest": _proposal_json(unmet.nearest, None),
            },
            "alternatives": [_alternative_json(a) for a in advice.alternatives],
            "left_out": [asdict(each) for each in advice.left_out],
            "search": {"requested": advice.requested, **asdict(account), "complete": account.complete},
            **({} if report is None else {"report": report}),
        }
    )


def what_if_text(experiment: str, samples: int, found: Sequence[Changed]) -> str:
    """Format predictions of an experiment and of changes to it."""
    shown = [
        {
            "change": each.change or f"{experiment} as it is",
            "samples_per_s": _interval(each.prediction.sps),
            "factor": _factor(each, found[0]),
            "granularity": _value(each.prediction.granularity),
            "usd_per_h": _interval(each.usd_per_h),
            "usd_per_1m": _interval(each.usd_per_1m),
            "hours": _interval(_time(samples, each.prediction.sps, 3600)),
        }
        for each in found
    ]
    columns = ("change", "samples_per_s", "factor", "granularity", "usd_per_h", "usd_per_1m", "hours")
    text = rows_text("what_if", shown, columns, Format.table)
    unknown = [f"{each.change or experiment}: {reason}" for each in found for reason in each.unknown]
    return text + "".join(f"{line}\n" for line in (["", *unknown] if unknown else []))


def what_if_json(experiment: str, samples: int, found: Sequence[Changed]) -> str:
    """Serialise predictions of an experiment and of changes to it as JSON."""

    def plain(value: Value | None) -> dict[str, float] | None:
        return None if value is None else asdict(value)

    rows = [
        {
            "change": each.change,
            "sps": plain(each.prediction.sps),
            "granularity": plain(each.prediction.granularity),
            "usd_per_h": plain(each.usd_per_h),
            "usd_per_1m_samples": plain(each.usd_per_1m),
            "time_to_samples_s": plain(_time(samples, each.prediction.sps, 1)),
            "unknown": each.unknown,
        }
        for each in found
    ]
    return as_json(
        {"schema_version": SCHEMA_VERSION, "experiment": experiment, "samples": samples, "what_if": rows}
    )


def _factor(each: Changed, before: Changed) -> float | None:
    """Samples/s relative to those of the experiment as it is."""
    now, then = each.prediction.sps, before.prediction.sps
    return None if now is None or then is None else now.value / then.value


def _value(value: Value | None) -> float | None:
    return None if value is None else value.value


def _time(samples: int, sps: Value | None, unit_s: int) -> Value | None:
    """The time to a number of samples, in units of `unit_s` seconds."""
    if sps is None:
        return None
    return Value(*(samples / rate / unit_s for rate in (sps.value, sps.high, sps.low)))


def _row(number: int, p: Proposal) -> dict[str, Any]:
    return {
        "no": number,
        "peers": peers_words(p),
        "option": p.option or "as in the file",
        "samples_per_s": _interval(p.sps),
        "granularity": p.granularity,
        "usd_per_h": _interval(p.usd_per_h),
        "usd_per_1m": _interval(p.usd_per_1m),
        "hours": _interval(Value(p.time_s.value / 3600, p.time_s.low / 3600, p.time_s.high / 3600)),
    }


def _interval(value: Value | None) -> str:
    return "unknown" if value is None else f"{value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _alternatives(advice: Advice, shown: int) -> list[str]:
    lines: list[str] = []
    for each in advice.alternatives:
        if against := against_words(each, shown):
            lines.append(f"  {alternative_words(advice, each)}: {against}")
            lines.append(f"    rate by {clock_words(each)}; {each.note}; source: {each.source}")
    if not lines:
        return [
            f"No machine in one place with a known rate of {advice.experiment}'s model is faster or cheaper."
        ]
    return ["When not to do it: machines in one place (those of the paper at its prices of 2023)", *lines]


def _left_out(left_out: tuple[LeftOut, ...]) -> list[str]:
    """What is left out, by reason: a count and the first of each."""
    if not left_out:
        return []
    lines = ["", "Left out (-o json lists all):"]
    for code, heading in REASONS.items():
        some = [each for each in left_out if each.code == code]
        if some:
            lines.append(f"  {heading}: {len(some)}")
            lines += [f"    {each.what}: {each.detail}" for each in some[:_EXAMPLES]]
    return lines


def _proposal_json(p: Proposal, file: str | None) -> dict[str, Any]:
    predicted = prediction_json(p.prediction)
    return {
        "name": p.spec.name,
        "option": p.option,
        "peers": [asdict(each) for each in p.peers],
        "sps": asdict(p.sps),
        "granularity": predicted["granularity"],
        "doubling": p.doubling,
        "usd_per_h": asdict(p.usd_per_h),
        "usd_per_1m_samples": asdict(p.usd_per_1m),
        "time_to_samples_s": asdict(p.time_s),
        "egress_share": p.egress_share,
        "bottleneck": predicted["bottleneck"],
        "transfer": asdict(p.transfer),
        "assumptions": predicted["assumptions"],
        "why": why(p),
        "file": file,
    }


def _alternative_json(a: Alternative) -> dict[str, Any]:
    return {
        "name": a.name,
        "sps": a.sps,
        "usd_per_h": str(a.usd_per_h),
        "usd_per_1m_samples": float(a.usd_per_1m),
        "clock": a.clock,
        "faster_than": a.faster_than,
        "cheaper_than": a.cheaper_than,
        "meets_goals": a.meets_goals,
        "note": a.note,
        "source": a.source,
    }
