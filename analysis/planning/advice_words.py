"""Sentences about advice, for the terminal and the page: proposals, goals, machines in one place, the search. Pure."""

from __future__ import annotations

from dataclasses import asdict

from analysis.planning.advice import Advice, Alternative, Proposal
from cloud.prices.classes import is_own

REASONS = {
    "option_invalid": "options that do not fit the experiment",
    "unpredicted": "what the predictor does not know",
    "no_place": "places that the network does not have",
    "no_vm_price": "VMs without a price",
    "no_path": "pairs of places that were not measured",
    "no_egress_price": "pairs of places whose traffic has no price",
    "same_figures": "places equal to another one",
}
"""What is left out, by its code, in the order in which it is shown."""
_GOALS = {
    "max_usd_per_h": ("--max-usd-per-h", "$/h"),
    "min_sps": ("--min-sps", "samples/s"),
    "max_usd_per_1m": ("--max-usd-per-1m", "$ per 10^6 samples"),
}
_CLOCKS = {
    "wall": "wall clock",
    "phase-timed": "phase timers, which overstate it",
    "unknown": "a clock that is not stated",
    "predicted": "prediction",
}


def peers_words(proposal: Proposal) -> str:
    """List a proposal's peers: 2 x T4:1 gcp/us-central1/us-central1-a + 1 x A10:1 lambda/us-west-1 on demand."""
    parts: list[str] = []
    for each in proposal.peers:
        market = "" if each.use_spot or is_own(each.location) else " on demand"
        parts.append(f"{each.count} x {each.accelerators} {each.location}{market}")
    return " + ".join(parts)


def goal_words(advice: Advice) -> list[str]:
    """Return the goals as they are given on the command line; [] without any."""
    limits = asdict(advice.goals)
    return [f"{option} {limits[goal]:g}" for goal, (option, _) in _GOALS.items() if limits[goal] is not None]


def unmet_line(advice: Advice) -> str:
    """Say which goals nothing meets together and by how much the nearest combination misses them; "" if they are met."""
    if advice.unmet is None:
        return ""
    limits = asdict(advice.goals)
    names = [f"{_GOALS[goal][0]} {limits[goal]:g}" for goal in advice.unmet.goals]
    together = " together" if len(names) > 1 else ""
    searched = "" if advice.account.complete else " that was searched"
    missed = [
        f"{100 * excess:.3g} % {'short of' if goal == 'min_sps' else 'above'} {_GOALS[goal][0]}"
        for goal, excess in advice.unmet.excess.items()
        if excess > 0
    ]
    return (
        f"No combination{searched} meets {' and '.join(names)}{together}; the nearest is {', '.join(missed)}"
    )


def against_words(each: Alternative, shown: int) -> str:
    """Say what a machine in one place is better at than which of the `shown` proposals; "" if it is worse at everything."""
    if each.better_than:
        return f"faster and cheaper than {numbers_words(each.better_than, shown)}"
    if each.meets_goals and each.cheaper_than:
        return f"slower, but cheaper than {numbers_words(each.cheaper_than, shown)}"
    if each.faster_than:
        return f"faster than {numbers_words(each.faster_than, shown)}, but dearer per sample"
    return ""


def alternative_words(advice: Advice, each: Alternative) -> str:
    """Name a machine in one place with its figures."""
    goals = ", which meets the goals" if advice.unmet is not None and each.meets_goals else ""
    return f"{each.name}{goals}: {each.sps:.4g} samples/s, ${each.usd_per_h:.4g}/h, ${each.usd_per_1m:.3f} per 10^6 samples"


def clock_words(each: Alternative) -> str:
    """Name the clock of a machine's rate."""
    return _CLOCKS[each.clock]


def numbers_words(numbers: tuple[int, ...], shown: int) -> str:
    """Name proposals by their numbers, of `shown` in all: "proposals 1 to 3, 5"."""
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


def account_lines(advice: Advice) -> list[str]:
    """Say what became of all combinations; a second line says what was not searched."""
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
