"""The verdicts on a study's expectations as text lines, as a card and as a section of the study report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.compare.expectations import Verdict
from analysis.report.page import Card, Section, table
from experiments.study_file.baseline import LOSSES
from metrics.figures import compared_figure

_SHOWN = {"met": "met", "missed": "MISSED", "unknown": "unknown", "told": "no limit"}


def expected_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line with the number of met expectations and a line for each; [] if there are none."""
    if not verdicts:
        return []
    width = max(map(len, _SHOWN.values()))
    return [
        f"Expected: {_counted(verdicts)}",
        *(
            f"  {_SHOWN[one.verdict]:<{width}}  {one.row}: {_heading(one)} {_found(one)}{_bound(one)}"
            for one in verdicts
        ),
    ]


def _heading(one: Verdict) -> str:
    return compared_figure(one.expectation.figure).heading


def expected_card(verdicts: Sequence[Verdict]) -> Card | None:
    """Return the headline; None if no expectation has a limit."""
    judged = [one for one in verdicts if one.expectation.limits]
    if not judged:
        return None
    met = sum(1 for one in judged if one.verdict == "met")
    return Card("Expectations met", f"{met} of {len(judged)}", _counted(verdicts).partition(" met, ")[2])


def expected_section(verdicts: Sequence[Verdict]) -> Section:
    """Return the section, with one row per expectation."""
    lead = (
        f"{_counted(verdicts)[:1].upper()}{_counted(verdicts)[1:]}. The figure itself is compared with the limit of the study's "
        "file; its 95 % interval is shown with it. What cannot be judged is unknown, never met."
    )
    rows = [
        {
            "row": one.row,
            "against": one.against,
            "figure": _heading(one),
            "found": "unknown" if one.found is None else _found(one),
            "asked": one.expectation.words,
            "judged": _SHOWN[one.verdict],
            "why": "; ".join(part for part in (_reach(one), one.why) if part),
        }
        for one in verdicts
    ]
    return Section("What was expected", lead, html=table(rows, "Expectations", text=tuple(rows[0])))


def _counted(verdicts: Sequence[Verdict]) -> str:
    """`5 of 8 met, 1 MISSED, 2 unknown; 3 without a limit`."""
    judged = [one for one in verdicts if one.expectation.limits]
    count = Counter(one.verdict for one in judged)
    parts = [f"{count['met']} of {len(judged)} met"] if judged else []
    parts += [f"{count[name]} {_SHOWN[name]}" for name in ("missed", "unknown") if count[name]]
    others = len(verdicts) - len(judged)
    unlimited = f"{others} without a limit" if others else ""
    return "; ".join(part for part in (", ".join(parts), unlimited) if part)


def _found(one: Verdict) -> str:
    if one.found is None:
        return f"against {one.against}" if one.against else "unknown"
    if one.expectation.figure in LOSSES:
        noise = "" if one.noise is None else f" (noise {one.noise:.4f}, n {one.noise_n})"
        return f"{one.found:+.4f} relative to {one.against}'s{noise}"
    times = "times lower than" if one.expectation.times_lower is not None else "times"
    spread = ""
    if one.low is not None and one.high is not None:
        spread = f" ({one.low:.3f} to {one.high:.3f} over {one.n_of})"
    return f"{one.found:.3f} {times} {one.against}'s{spread}"


def _bound(one: Verdict) -> str:
    parts = [part for part in (one.expectation.words, _reach(one), one.why) if part]
    return f": {'; '.join(parts)}" if parts else ""


def _reach(one: Verdict) -> str:
    return "its interval includes the limit" if one.clear is False else ""
