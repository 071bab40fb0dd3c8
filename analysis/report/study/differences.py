"""Runs compared with each other, as tables for a terminal and a page, notes, headlines and curves. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from analysis.compare.configuration import differing, same_keys
from analysis.compare.differences import Differences, FigureDifference, OwnRun
from analysis.compare.rows import Row
from analysis.report.page import Card, Section, table
from analysis.report.study.sections import Drawn
from metrics.events.evaluation import figure_words
from metrics.figures import FIGURES, OF_WHOLE_RUN, TO_TARGET
from metrics.readable import duration, usd
from metrics.stats import Estimate

_RULE = (
    "Noise: the 95 % interval of the ratio by Welch's method over the values of both runs' measured epochs. A difference is "
    "beyond noise if that interval does not contain 1. It covers what varies from epoch to epoch, not from run to run."
)
_LOSS_RULE = (
    "Losses are those of the last records of two runs after equally many samples (at most a tenth of the smaller target "
    "batch apart), never interpolated. Samples are those actually trained on, not multiplied back. The noise of a loss is "
    "unknown, because each run has one value."
)
HELD_OUT_RULE = (
    "Held-out figures are those of each run's last evaluation, in which the runs may have trained on different numbers of "
    "samples (this run's, then the first run's). How much they vary from run to run is unknown without repeats."
)
_TIMES = 5  # from this ratio on, percentages are hard to read
_SMALL = 0.001  # a difference below it needs more digits than one
_HEADLINES = (
    ("sps", "Fastest"),
    ("usd_per_1m_samples", "Cheapest"),
    ("time_to_target_s", "First to reach the target"),
    ("usd_to_target", "Cheapest to reach the target"),
)


def run_table(found: Differences) -> list[Row]:
    """Return one row per run: what it is, on what it ran, how it ended."""
    return [
        {
            "run": run.run_id,
            "experiment": run.experiment,
            "model": run.model,
            "on": run.origin,
            "status": run.status,
            "peers": run.peers,
            "measured epochs": run.epochs,
            "host": run.host,
        }
        for run in found.runs
    ]


def configuration_table(found: Differences) -> list[Row]:
    """Return one row per key in which the runs differ, with a column per run."""
    names = list(found.names.values())
    return [
        {"key": row.key}
        | {
            name: _setting(value) if present else "-" if known else "unknown"
            for name, value, present, known in zip(names, row.values, row.present, row.known, strict=True)
        }
        for row in differing([run.configuration for run in found.runs])
    ]


def configuration_line(found: Differences) -> str:
    """Describe how many keys differ, and which runs' configuration is not known."""
    configurations = [run.configuration for run in found.runs]
    count = len(differing(configurations))
    same = f"{same_keys(configurations)} with the same value in all"
    unknown = _without_experiment(found)
    known = "known " if unknown else ""
    line = f"Configuration: {count} {known}{'key differs' if count == 1 else 'keys differ'}, {same}."
    if unknown:
        line += f" No complete experiment is stored with {unknown}: whether other keys differ is unknown."
    return line


def _without_experiment(found: Differences) -> str:
    return ", ".join(found.names[run.run_id] for run in found.runs if not run.configuration.whole)


def figure_table(found: Differences, others: Sequence[OwnRun]) -> list[Row]:
    """Return one row per figure of the first run and `others`.

    For one other run: both with interval and n, the difference, its interval, and whether it is beyond noise. For
    several: value, difference and a mark for the noise in one column per run.
    """
    names, first = found.names, found.first
    rows: list[Row] = []
    for key in found.figures:
        figure = FIGURES[key]
        row: Row = {"figure": ", ".join(filter(None, (figure.name, figure.unit)))}
        show = _with_interval if len(others) < 2 else _value
        row[names[first.run_id]] = show(key, found.figure(key, first).estimate)
        if len(others) > 1:
            row |= {names[run.run_id]: _marked(key, found.figure(key, run)) for run in others}
        for run in others if len(others) == 1 else ():
            one = found.figure(key, run)
            row[names[run.run_id]] = _with_interval(key, one.estimate)
            row["difference"] = _difference(key, one)
            row["95 % interval"] = (
                "" if one.low is None or one.high is None else f"{_percent(one.low)} to {_percent(one.high)}"
            )
            row["noise"] = "" if one.difference is None else _noise(one)
        rows.append(row)
    return rows


def loss_table(found: Differences) -> list[Row]:
    """Return one row per loss and run but the first: both losses after equally many samples."""
    rows: list[Row] = []
    for one in found.losses():
        row: Row = {"loss": FIGURES[one.figure].name, "run": found.names[one.run_id]}
        if one.own is None or one.first is None:
            row |= {
                "its loss": None,
                "loss of the first run": None,
                "difference": "",
                "after samples": "",
                "note": one.why,
            }
        else:
            row |= {
                "its loss": f"{one.own.loss:.4f}",
                "loss of the first run": f"{one.first.loss:.4f}",
                "difference": f"{one.own.loss - one.first.loss:+.4f}",
                "after samples": f"{one.own.samples:,.0f}",
                "note": "",
            }
            if one.own.samples != one.first.samples:
                row["note"] = f"the first run after {one.first.samples:,.0f}"
        rows.append(row)
    if not any(row["note"] for row in rows):
        rows = [{key: value for key, value in row.items() if key != "note"} for row in rows]
    return rows


def held_out_table(found: Differences) -> list[Row]:
    """Return one row per held-out figure and run but the first: both values at the end, and which is better."""
    rows: list[Row] = []
    ends = {run.run_id: run.held_out for run in found.runs}
    for one in found.held_out():
        trained = [ends[run_id] for run_id in (one.run_id, found.first.run_id)]
        better = {True: found.names[one.run_id], False: found.names[found.first.run_id], None: "-"}[
            one.better
        ]
        points = one.figure == "accuracy"
        rows.append(
            {
                "held-out": one.figure,
                "run": found.names[one.run_id],
                "its value": figure_words(one.figure, one.value),
                "of the first run": figure_words(one.figure, one.first),
                "difference": f"{one.difference * 100:+.1f} points" if points else f"{one.difference:+.4g}",
                "better": better,
                "after samples": " and ".join(
                    "unknown" if at is None or at.trained_samples is None else f"{at.trained_samples:,.0f}"
                    for at in trained
                ),
                "note": one.why,
            }
        )
    if not any(row["note"] for row in rows):
        rows = [{key: value for key, value in row.items() if key != "note"} for row in rows]
    return rows


def ranking_lines(found: Differences) -> list[str]:
    """Return the runs in the order of what it took to reach their common target, a sentence each; [] without one."""
    goal = found.first.goal
    if goal is None or not found.others:
        return []
    if found.why_not_ranked:
        return [f"Not ranked by what it took to reach a target: {found.why_not_ranked}."]
    lines: list[str] = []
    for key, what, words in (("usd_to_target", "dollars", usd), ("time_to_target_s", "time", duration)):
        ranked = found.ranking(key)
        if ranked:
            places = (
                f"{n}. {found.names[run.run_id]} ({words(run.figures[key].estimate.value)})"
                for n, run in enumerate(ranked, 1)
            )
            lines.append(f"By {what} to reach {goal}: {', '.join(places)}.")
    missed = [
        found.names[run.run_id] for run in found.runs if not any(key in run.figures for key in TO_TARGET)
    ]
    if missed:
        lines.append(f"The target, {goal}, was not reached by {', '.join(missed)}.")
    priced = {run.run_id for run in found.ranking("usd_to_target")}
    unpriced = [
        found.names[run.run_id] for run in found.ranking("time_to_target_s") if run.run_id not in priced
    ]
    if unpriced:
        lines.append(f"Dollars to reach the target are unknown: {', '.join(unpriced)}.")
    return lines


def figure_notes(found: Differences) -> list[str]:
    """Return the rule for noise, the meaning of the marks, and why noise is unknown, a sentence each."""
    if not found.others:
        return ["Name a second run to see the differences."]
    notes = [
        f"Differences are those from {found.names[found.first.run_id]}; ± is half a 95 % interval over n epochs, and seconds "
        f"are those of an epoch. {_RULE}"
    ]
    if len(found.others) > 1:
        notes.append("Marks: * beyond noise, ? noise unknown, none: within noise.")
    why: dict[str, list[str]] = {}
    for key in found.figures:
        for run in found.others:
            one = found.figure(key, run)
            if one.why and key not in OF_WHOLE_RUN:
                why.setdefault(one.why, []).append(FIGURES[key].name)
    notes += [f"Not judged: {', '.join(dict.fromkeys(keys))}: {reason}." for reason, keys in why.items()]
    if any(key in OF_WHOLE_RUN for key in found.figures):
        notes.append(
            "Figures of a whole run are one value per run: how much they vary is unknown without repeats."
        )
    return notes


def loss_notes(found: Differences) -> list[str]:
    """Return how losses are compared, a sentence each."""
    notes = [_LOSS_RULE]
    if len({run.target_batch for run in found.runs}) > 1:
        notes.append(
            "The runs step after different numbers of samples, and a training loss is the mean of the epoch that ends "
            "there, so it reaches back differently far. The held-out loss does not have this difference."
        )
    return notes


def long_rows(found: Differences) -> list[Row]:
    """Return one row per run and figure with all numbers, as in the file `differences.csv`. None: unknown."""
    rows: list[Row] = []
    for key in found.figures:
        for run in found.runs:
            one = found.figure(key, run)
            estimate = one.estimate
            rows.append(
                {
                    "run": run.run_id,
                    "experiment": run.experiment,
                    "figure": key,
                    "value": estimate and estimate.value,
                    "value_low": estimate and estimate.low,
                    "value_high": estimate and estimate.high,
                    "n": estimate and estimate.n,
                    "ratio": one.ratio,
                    "ratio_low": one.low,
                    "ratio_high": one.high,
                    "beyond_noise": one.beyond_noise,
                    "why": one.why,
                }
            )
    return rows


AGAINST_COLUMNS = (
    "of", "value", "low", "high", "n", "against", "against_value", "ratio", "ratio_low", "ratio_high", "beyond_noise",
    "samples", "against_samples", "better", "why",
)  # fmt: skip
"""Columns of `against_rows`, in addition to experiment, run_id, figure, host_contended, target and origin."""


def against_rows(found: Differences) -> list[Row]:
    """Return one row per run but the first and figure, loss or held-out figure, with the first run's value.

    `of`: "figure", "loss" (after equally many samples) or "evaluation". None: unknown.
    """
    first, runs = found.first, {run.run_id: run for run in found.runs}

    def row(of: str, figure: str, run_id: str, **numbers: Any) -> Row:
        run = runs[run_id]
        about = {
            "experiment": run.experiment,
            "run_id": run_id,
            "figure": figure,
            "of": of,
            "against": first.run_id,
        }
        ran = {"host_contended": run.ran.host_contended, "target": run.ran.target, "origin": run.origin}
        return {**about, **ran, **numbers}

    rows: list[Row] = []
    for key in found.figures:
        theirs = found.figure(key, first).estimate
        for run in found.others:
            one = found.figure(key, run)
            own = one.estimate
            rows.append(
                row(
                    "figure", key, run.run_id,
                    value=own and own.value, low=own and own.low, high=own and own.high, n=own and own.n,
                    against_value=theirs and theirs.value, ratio=one.ratio, ratio_low=one.low, ratio_high=one.high,
                    beyond_noise=one.beyond_noise, why=one.why,
                )
            )  # fmt: skip
    for loss in found.losses():
        rows.append(
            row(
                "loss", loss.figure, loss.run_id,
                value=loss.own and loss.own.loss, against_value=loss.first and loss.first.loss,
                samples=loss.own and loss.own.samples, against_samples=loss.first and loss.first.samples, why=loss.why,
            )
        )  # fmt: skip
    for end in found.held_out():
        values = {"value": end.value, "against_value": end.first, "better": end.better, "why": end.why}
        rows.append(row("evaluation", end.figure, end.run_id, **values))
    return rows


def held_out_notes(found: Differences) -> list[str]:
    """Return the runs whose held-out figures are not compared, a sentence each."""
    return [f"Not compared: {found.names[run_id]}: {why}." for run_id, why in found.unevaluated()]


def difference_cards(found: Differences) -> list[Card]:
    """Return the headlines: the fastest and the cheapest run, and how many keys of the configuration differ."""
    cards: list[Card] = []
    for key, title in _HEADLINES if found.others else ():
        known = [run for run in found.runs if key in run.figures and key in found.figures]
        if len(known) < 2:
            continue
        best = min if FIGURES[key].lower_is_better else max
        run = best(known, key=lambda one: one.figures[key].estimate.value)
        more = found.names[run.run_id]
        one = found.figure(key, run)
        if one.ratio is not None:
            noise = {True: "beyond noise", False: "within noise", None: "noise unknown"}[one.beyond_noise]
            more += f": {_difference(key, one)} from {found.names[found.first.run_id]}, {noise}"
        unit, number = FIGURES[key].unit, _value(key, one.estimate)
        cards.append(
            Card(title, f"${number}{unit[1:]}" if unit.startswith("$") else f"{number} {unit}", more)
        )
    configurations = [run.configuration for run in found.runs]
    if found.others:
        count = str(len(differing(configurations)))
        same, unknown = f"{same_keys(configurations)} have the same value", _without_experiment(found)
        if unknown:
            cards.append(
                Card("Known keys that differ", count, f"{same}; the other keys of {unknown} are unknown")
            )
        else:
            cards.append(Card("Keys that differ", count, same))
    return cards


def difference_sections(found: Differences) -> list[Section]:
    """Return the page's sections of the configuration and the figures."""
    keys = configuration_table(found)
    columns = ["key", *found.names.values()]
    runs = table(run_table(found), "The runs", text=["run", "experiment", "model", "on", "status", "host"])
    if keys:
        runs += table(keys, "Keys with different values; -: the run does not have the key", text=columns)
    figures = table(figure_table(found, found.others), "Figures at full scale", text=["figure", "noise"])
    figures += _paragraphs([*ranking_lines(found), *figure_notes(found)])
    if losses := loss_table(found):
        figures += table(losses, "Losses after equally many samples", text=["loss", "run", "note"])
        figures += _paragraphs(loss_notes(found))
    if held_out := held_out_table(found):
        columns = ["held-out", "run", "better", "note"]
        figures += table(held_out, "Held-out figures at the end of the runs", text=columns)
        figures += _paragraphs([HELD_OUT_RULE])
    figures += _paragraphs(held_out_notes(found))
    lead = "Each figure of a run, and its difference from the first run."
    return [
        Section("Configuration", configuration_line(found), html=runs),
        Section("Figures", lead, html=figures),
    ]


def curves_section(found: Differences) -> Drawn:
    """Return the curves of the runs."""
    rows = found.curve_rows()
    lead = "Losses by samples actually trained on; throughput and communication by measured epoch, at full scale."
    return Drawn("curves", "Curves", lead, rows, lambda: _drawn(rows))


def _paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f'<p class="soft">{escape(one)}</p>' for one in sentences)


def _drawn(rows: Sequence[Row]) -> Any:
    from analysis.charts.lines import curves

    return curves(rows)


def _setting(value: Any) -> str:
    """A value of a configuration on one line, as in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(one) for one in value)
    return f"{value:.12g}" if isinstance(value, float) else " ".join(str(value).split())


def _noise(found: FigureDifference) -> str:
    return {True: "beyond", False: "within", None: "unknown"}[found.beyond_noise]


def _value(key: str, estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else _number(estimate.value * FIGURES[key].shown_factor)


def _with_interval(key: str, estimate: Estimate | None) -> str:
    text = _value(key, estimate)
    if estimate is None or key in OF_WHOLE_RUN:
        return text
    if estimate.low is None or estimate.high is None:
        return f"{text} (n {estimate.n})"
    half = _number((estimate.high - estimate.low) / 2 * FIGURES[key].shown_factor, 2)
    return f"{text} ±{half} (n {estimate.n})"


def _marked(key: str, found: FigureDifference) -> str:
    text = _value(key, found.estimate)
    if found.difference is None:
        return text
    mark = {True: " *", False: "", None: " ?"}[found.beyond_noise]
    return f"{text} ({_difference(key, found)}{mark})"


def _difference(key: str, found: FigureDifference) -> str:
    """The difference in percent, or of counts and shares as it is."""
    if found.ratio is not None:
        return _percent(found.ratio)
    if found.difference is None:
        return ""
    difference = found.difference * FIGURES[key].shown_factor
    return f"{'+' if difference >= 0 else ''}{_number(difference)}"


def _percent(ratio: float) -> str:
    if ratio >= _TIMES:
        return f"{ratio:.1f} times"
    share = ratio - 1
    small = 0 < abs(share) < _SMALL
    return f"{'+' if share > 0 else ''}{_number(share * 100, 2)}%" if small else f"{share:+.1%}"


def _number(value: float, digits: int = 4) -> str:
    """Significant digits without an exponent; whole numbers whole."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
