"""Advice as text for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.planning.advice import Advice, Alternative, LeftOut, Proposal, why
from analysis.planning.prediction import Value
from analysis.planning.prediction import as_json as prediction_json
from analysis.planning.what_if import Changed
from cloud.prices.classes import is_own
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

_COLUMNS = ("no", "peers", "option", "samples_per_s", "granularity", "usd_per_h", "usd_per_1m", "hours")
_EXAMPLES = 3  # of what is left out for one reason
_REASONS = {
    "option_invalid": "options that do not fit the experiment",
    "unpredicted": "what the predictor does not know",
    "no_place": "places that the network does not have",
    "no_vm_price": "VMs without a price",
    "no_path": "pairs of places that were not measured",
    "no_egress_price": "pairs of places whose traffic has no price",
    "same_figures": "places equal to another one",
}
_GOALS = {
    "max_usd_per_h": ("--max-usd-per-h", "$/h"),
    "min_sps": ("--min-sps", "samples/s"),
    "max_usd_per_1m": ("--max-usd-per-1m", "$ per 10^6 samples"),
}


def advice_text(advice: Advice) -> str:
    """Format the proposals, what stands against them, and the account of the search."""
    lines: list[str] = []
    shown = advice.proposals
    if advice.unmet is not None:
        lines += _unmet(advice)
        shown = (advice.unmet.nearest,)
    table = rows_text("proposals", [_row(k + 1, p) for k, p in enumerate(shown)], _COLUMNS, Format.table)
    lines += table.rstrip("\n").split("\n")
    lines.append("")
    lines += [f"{k + 1}: {why(proposal)}" for k, proposal in enumerate(shown)]
    if advice.more:
        lines.append(f"{advice.more} more of the Pareto set lie between these; --rows shows more")
    lines += ["", *_alternatives(advice, len(shown))]
    lines += _left_out(advice.left_out)
    lines += ["", *_account(advice)]
    return "\n".join(lines) + "\n"


def advice_json(advice: Advice, written: Mapping[str, str]) -> str:
    """Serialise as JSON. `written`: the file of a proposal, by experiment name."""
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
        "peers": _peers(p),
        "option": p.option or "as in the file",
        "samples_per_s": _interval(p.sps),
        "granularity": p.granularity,
        "usd_per_h": _interval(p.usd_per_h),
        "usd_per_1m": _interval(p.usd_per_1m),
        "hours": _interval(Value(p.time_s.value / 3600, p.time_s.low / 3600, p.time_s.high / 3600)),
    }


def _peers(p: Proposal) -> str:
    """For example: 2 x T4:1 gcp/us-central1/us-central1-a + 1 x A10:1 lambda/us-west-1 on demand."""
    parts: list[str] = []
    for each in p.peers:
        market = "" if each.use_spot or is_own(each.location) else " on demand"
        parts.append(f"{each.count} x {each.accelerators} {each.location}{market}")
    return " + ".join(parts)


def _interval(value: Value | None) -> str:
    return "unknown" if value is None else f"{value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _unmet(advice: Advice) -> list[str]:
    assert advice.unmet is not None
    limits = asdict(advice.goals)
    names = [f"{_GOALS[goal][0]} {limits[goal]:g}" for goal in advice.unmet.goals]
    together = " together" if len(names) > 1 else ""
    searched = "" if advice.account.complete else " that was searched"
    missed = [
        f"{100 * excess:.3g} % {'short of' if goal == 'min_sps' else 'above'} {_GOALS[goal][0]}"
        for goal, excess in advice.unmet.excess.items()
        if excess > 0
    ]
    return [
        f"No combination{searched} meets {' and '.join(names)}{together}; the nearest is {', '.join(missed)}:",
        "",
    ]


def _alternatives(advice: Advice, shown: int) -> list[str]:
    lines: list[str] = []
    for each in advice.alternatives:
        goals = ", which meets the goals" if advice.unmet is not None and each.meets_goals else ""
        words = f"{each.name}{goals}: {each.sps:.4g} samples/s, ${each.usd_per_h:.4g}/h, ${each.usd_per_1m:.3f} per 10^6 samples"
        if each.better_than:
            lines.append(f"  {words}: faster and cheaper than {_numbers(each.better_than, shown)}")
        elif each.meets_goals and each.cheaper_than:
            lines.append(f"  {words}: slower, but cheaper than {_numbers(each.cheaper_than, shown)}")
        elif each.faster_than:
            lines.append(f"  {words}: faster than {_numbers(each.faster_than, shown)}, but dearer per sample")
        else:
            continue
        lines.append(f"    rate by {_clock(each)}; {each.note}; source: {each.source}")
    if not lines:
        return [
            f"No machine in one place with a known rate of {advice.experiment}'s model is faster or cheaper."
        ]
    return ["When not to do it: machines in one place (those of the paper at its prices of 2023)", *lines]


def _clock(each: Alternative) -> str:
    return {
        "wall": "wall clock",
        "phase-timed": "phase timers, which overstate it",
        "unknown": "a clock that is not stated",
        "predicted": "prediction",
    }[each.clock]


def _numbers(numbers: tuple[int, ...], shown: int) -> str:
    if len(numbers) == shown:
        return "all of these" if shown > 1 else "this one"
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    listed = ", ".join(" to ".join(map(str, part)) for part in parts)
    return f"{'proposal' if len(numbers) == 1 else 'proposals'} {listed}"


def _left_out(left_out: tuple[LeftOut, ...]) -> list[str]:
    """What is left out, by reason: a count and the first of each."""
    if not left_out:
        return []
    lines = ["", "Left out (-o json lists all):"]
    for code, heading in _REASONS.items():
        some = [each for each in left_out if each.code == code]
        if some:
            lines.append(f"  {heading}: {len(some)}")
            lines += [f"    {each.what}: {each.detail}" for each in some[:_EXAMPLES]]
    return lines


def _account(advice: Advice) -> list[str]:
    a = advice.account
    outside = advice.requested - a.combinations
    parts = [f"{a.evaluated} computed", f"{a.ruled_out} ruled out by bounds"]
    if a.unfit:
        parts.append(f"{a.unfit} of peers that cannot train together")
    if outside:
        parts.append(f"{outside} with what is left out")
    lines = [f"{advice.requested} combinations at the prices of {advice.price_book}: {', '.join(parts)}."]
    if not a.complete:
        missed = ", ".join(f"{count} of {n} peers" for n, count in sorted(a.not_searched.items()))
        lines.append(
            f"Not searched, because of --limit: {missed}. What is shown is the best of the others; narrow --places, "
            "--accelerators or --peers, or raise --limit."
        )
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
