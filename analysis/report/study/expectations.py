"""The verdicts on what a study expects of its rows, in words, as a card and as a section of the study report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.compare.expectations import Verdict
from analysis.report.page import Card, Section, table
from experiments.study_file.baseline import LOSSES
from metrics.figures import FIGURES

_SAID = {"met": "met", "missed": "MISSED", "unknown": "unknown", "told": "told"}


def expected_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """How many are met, and a line for each; none where nothing was expected."""
    if not verdicts:
        return []
    width = max(len(said) for said in _SAID.values())
    return [
        f"Expected: {_counted(verdicts)}",
        *(
            f"  {_SAID[one.verdict]:<{width}}  {one.row}: {FIGURES[one.expectation.figure].heading} {_found(one)}{_bound(one)}"
            for one in verdicts
        ),
    ]


def expected_card(verdicts: Sequence[Verdict]) -> Card | None:
    """The headline; None where nothing is judged."""
    judged = [one for one in verdicts if one.expectation.limits]
    if not judged:
        return None
    met = sum(1 for one in judged if one.verdict == "met")
    return Card("Expectations met", f"{met} of {len(judged)}", _counted(verdicts).partition(" met, ")[2])


def expected_section(verdicts: Sequence[Verdict]) -> Section:
    """One row an expectation."""
    lead = (
        f"{_counted(verdicts)[:1].upper()}{_counted(verdicts)[1:]}. The figure itself is held against the limit of the study's "
        "file; its 95 % interval stands beside it. What cannot be judged is unknown, never met; told: without a limit."
    )
    rows = [
        {
            "row": one.row,
            "against": one.against,
            "figure": FIGURES[one.expectation.figure].heading,
            "found": "unknown" if one.found is None else _found(one),
            "asked": one.expectation.words,
            "judged": _SAID[one.verdict],
            "why": "; ".join(part for part in (_reach(one), one.why) if part),
        }
        for one in verdicts
    ]
    return Section("What was expected", lead, html=table(rows, "Expectations", text=tuple(rows[0])))


def _counted(verdicts: Sequence[Verdict]) -> str:
    """`5 of 8 met, 1 MISSED, 2 unknown; 3 without a limit`."""
    judged = [one for one in verdicts if one.expectation.limits]
    count = Counter(one.verdict for one in judged)
    said = [f"{count['met']} of {len(judged)} met"] if judged else []
    said += [f"{count[name]} {_SAID[name]}" for name in ("missed", "unknown") if count[name]]
    others = len(verdicts) - len(judged)
    told = f"{others} without a limit" if others else ""
    return "; ".join(part for part in (", ".join(said), told) if part)


def _found(one: Verdict) -> str:
    if one.found is None:
        return f"against {one.against}" if one.against else "unknown"
    if one.expectation.figure in LOSSES:
        noise = "" if one.noise is None else f" (noise {one.noise:.4f}, n {one.noise_n})"
        return f"{one.found:+.4f} to {one.against}'s{noise}"
    times = "times lower than" if one.expectation.times_lower is not None else "times"
    spread = ""
    if one.low is not None and one.high is not None:
        spread = f" ({one.low:.3f} to {one.high:.3f} over {one.n_of})"
    return f"{one.found:.3f} {times} {one.against}'s{spread}"


def _bound(one: Verdict) -> str:
    said = [part for part in (one.expectation.words, _reach(one), one.why) if part]
    return f": {'; '.join(said)}" if said else ""


def _reach(one: Verdict) -> str:
    return "its interval reaches beyond the limit" if one.clear is False else ""
