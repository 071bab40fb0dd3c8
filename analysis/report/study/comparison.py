"""The comparison with the paper as the first section of the study report. Nothing is drawn here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.compare.differences import Differences
from analysis.compare.held_out import HeldOutComparison, run_count
from analysis.compare.options import Gains
from analysis.compare.published import Check, ComparedRun, comparable, judge, kendall_tau, long_rows, why_not
from analysis.compare.rows import Row
from analysis.report.page import Card
from analysis.report.study.sections import Drawn
from experiments.catalog import published
from experiments.study_file.limits import Limit
from metrics.figures import compared_figure
from metrics.readable import few, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS = (("sps", "mean of epoch rates (samples/s)"), ("comm_s", "communication (s of a VM's epoch)"))
_WHOLE_STUDY = {
    "kendall_tau": "Kendall's tau of the mean epoch rates",
    "host_contended": "runs on a host that was too busy",
}
"""Figures of a study as a whole that can have a limit, in words."""


@dataclass(frozen=True)
class Compared:
    """The compared runs and their limits. `missing`: why an experiment has no run, by its name."""

    rows: Sequence[ComparedRun]
    limits: Sequence[Limit] = ()
    missing: Mapping[str, str] | None = None
    include_contended: bool = False
    held_out: HeldOutComparison | None = None  # None: no held-out figure is compared
    gains: Gains | None = None  # None: there is no baseline
    differences: Differences | None = None  # None: the runs are not compared with each other
    whole: bool = True  # False: only some of the runs that the limits are for

    @property
    def checks(self) -> list[Check]:
        """All limits, applied to the runs that count."""
        return judge(self.rows, self.limits, self.include_contended, self.whole)

    @property
    def named_twice(self) -> bool:
        """Whether rows need the run's id to be distinguished."""
        return len({row.experiment for row in self.rows}) < len(self.rows)

    @property
    def shown(self) -> list[ComparedRun]:
        """The rows shown beside the paper's: all, or only those with published figures if runs are compared with each other."""
        return [row for row in self.rows if row.published or self.differences is None]

    @property
    def published(self) -> bool:
        """Whether the paper published one of these experiments."""
        return any(row.published for row in self.rows)


def comparison(compared: Compared) -> Drawn | None:
    """Return the section; None if no run has a published figure."""
    rows = _dot_rows(compared)
    if not any(row["published"] is not None for row in rows):
        return None
    lead = (
        "The paper's figures, the same recomputed from its logs (replayed), and these runs'. Rates are means of the epochs' rates, "
        "as in the paper, not throughput. A percentage is (run - published) / published."
    )
    notes: list[str] = []
    reasons = Counter(why_not(row, compared.include_contended) for row in compared.shown)
    for why, count in reasons.items():
        if why:
            notes.append(f"Shown but not judged: {run_count(count)} ({why}).")
    if whole := study_checks(compared):
        notes.append(f"Over all runs: {'; '.join(whole)}.")
    without: dict[str, list[str]] = {}
    for name, why in (compared.missing or {}).items():
        without.setdefault(why, []).append(name)
    for why, names in without.items():
        notes.append(f"{few(names, 6, ', ')}: {why}.")
    return Drawn(
        "comparison",
        "Published, replayed, emulated",
        lead,
        rows,
        lambda: _drawn(rows),
        wide_rows(compared),
        "Published | replayed | emulated (difference from the published)",
        notes,
    )


def unlike_published(compared: Compared) -> list[str]:
    """Describe why a run has no published figures although the paper's experiment has its name, a sentence each."""
    return [
        f"{row.experiment} ({row.run_id}) has no published figures: {row.not_judged}."
        for row in compared.rows
        if not row.published and published(row.experiment) is not None
    ]


def cards(compared: Compared) -> list[Card]:
    """Return the headlines: the rank correlation, and how many limits are met."""
    counted = comparable(compared.rows, compared.include_contended)
    tau = kendall_tau(counted)
    found: list[Card] = []
    if tau is not None or compared.whole:
        of = "mean of epoch rates" if compared.whole else "mean of epoch rates, not the whole study"
        shown = "unknown" if tau is None else f"{tau:.3f}"
        found.append(Card("Kendall's tau", shown, f"{of}, {run_count(len(counted))}"))
    each = [c for c in compared.checks if c.scope == "each"]
    if each:
        inside = sum(1 for c in each if c.inside)
        found.append(Card("Within the limits", f"{inside} of {len(each)}", "figures of single runs"))
    return found


def wide_rows(compared: Compared) -> list[Row]:
    """Return one row per run: "published | replayed | emulated (difference)" of each figure, and the verdict."""
    by_run: dict[str, dict[str, Row]] = {}
    for r in long_rows(compared.shown, compared.checks):
        by_run.setdefault(r["run_id"], {})[r["figure"]] = r
    found: list[Row] = []
    for row in compared.shown:
        own = by_run.get(row.run_id, {})
        outside = [compared_figure(name).name for name, r in own.items() if r["inside"] is False]
        judged = any(r["inside"] is not None for r in own.values())
        line: Row = {"experiment": row.experiment} | ({"run": row.run_id} if compared.named_twice else {})
        line["on"] = row.origin
        line["judged"] = f"outside: {', '.join(outside)}" if outside else "inside" if judged else ""
        if why_not(row, compared.include_contended):
            line["judged"] = "not judged"
        line |= {compared_figure(name).heading: _cell(own.get(name)) for name in _FIGURES}
        line |= {"host": row.host, "dropped rounds": row.dropped_rounds, "attempts": row.attempts}
        found.append(line)
    return found


def study_checks(compared: Compared) -> list[str]:
    """Describe each limit on the study as a whole or on a median, and Kendall's tau even without a limit."""
    lines: list[str] = []
    for check in compared.checks:
        if check.scope == "each" or (check.found is None and not compared.whole):
            continue
        what = (
            _WHOLE_STUDY[check.figure]
            if check.scope == "study"
            else f"median difference of {compared_figure(check.figure).heading}"
        )
        share = check.scope == "median"
        bound = (
            f"at least {_number(check.low, share)}"
            if check.low is not None
            else f"at most {_number(check.high, share)}"
        )
        held = {True: "inside", False: "OUTSIDE", None: "unknown"}[check.inside]
        if not compared.whole:
            held = "not judged, needs all runs of the study"
        lines.append(f"{what}: {_number(check.found, share)} ({bound}: {held})")
    counted = comparable(compared.rows, compared.include_contended)
    tau = kendall_tau(counted)
    if tau is not None and not any(check.figure == "kendall_tau" for check in compared.checks):
        lines.append(
            f"{_WHOLE_STUDY['kendall_tau']}: {_number(tau, False)} ({run_count(len(counted))}, no limit)"
        )
    return lines


_FIGURES = ("sps", "calc_s", "comm_s", "granularity", "egress_bytes_per_vm_epoch")


def _dot_rows(compared: Compared) -> list[Row]:
    checks = compared.checks
    bounds = {(c.run_id, c.figure): (c.low, c.high) for c in checks if c.scope == "each"}
    found: list[Row] = []
    for row in long_rows(compared.shown, checks):
        low, high = bounds.get((row["run_id"], row["figure"]), (None, None))
        found.append({**row, "low": low, "high": high})
    return found


def _drawn(rows: Sequence[Row]) -> Figure:
    from analysis.charts.dots import dots

    families = ["CV", "NLP"]
    named = dict.fromkeys(row["experiment"] for row in rows)
    groups = [(f, [n for n in named if n.startswith(f"{f} ")]) for f in families]
    groups.append(("", [n for n in named if not n.startswith(("CV ", "NLP "))]))
    panels: list[tuple[str, str, list[Row]]] = []
    for family, names in groups:
        for figure, label in _PANELS if names else ():
            part = [r for r in rows if r["figure"] == figure and r["experiment"] in names]
            panels.append((family, label, part))
    return dots(panels)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    scale = compared_figure(row["figure"]).shown_factor
    values = [row["published"], row["replayed"], row["emulated"]]
    text = " | ".join("-" if v is None else number(v * scale) for v in values)
    return text if row["difference"] is None else f"{text} ({row['difference']:+.1%})"


def _number(value: Any, share: bool) -> str:
    return "unknown" if value is None else f"{value:.1%}" if share else f"{value:.3g}"
