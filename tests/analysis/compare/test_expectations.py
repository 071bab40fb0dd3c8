"""Verdicts on a study's expectations: met, missed, without a limit, and unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.compare.expectations import Listed, Verdict, judge_expected
from analysis.compare.option_figures import Learned, Measured, OptionRun
from analysis.compare.options import Gains, gains, gains_document
from analysis.report.study.expectations import expected_card, expected_lines, expected_section
from analysis.report.study.options import gain_cards
from experiments.study_file.expectations import Expectation

C8, A8 = "geo-c8-nlp", "geo-a8-nlp"
NAMES = {C8: "NLP C-8", A8: "NLP A-8", "geo-c8": "CV C-8", "geo-a8": "CV A-8"}


def a_run(experiment: str, label: str, value: float = 100.0, off: float = 0.0, **changes: Any) -> OptionRun:
    """A run with the value `value` for every figure, two epochs at +/- `off`, and a loss of 2."""
    both = (value - off, value + off)
    figures = {
        name: Measured(value, both) for name in ("sps", "granularity", "usd_per_1m", "intercontinental_bytes")
    }
    loss = (Learned(1000.0, changes.pop("loss", 2.0)),)
    model = "RoBERTaXLM" if experiment.endswith("nlp") else "ConvNextLarge"
    return OptionRun(
        NAMES[experiment], label, model, changes.pop("run_id", f"{experiment} {label}"), figures,
        {"loss": loss, "heldout_loss": loss}, 1000.0, experiment=experiment, **changes,
    )  # fmt: skip


def listed(*runs: OptionRun, **missing: str) -> list[Listed]:
    """The rows of these runs, and missing rows of NLP C-8 with their reasons."""
    own = [Listed(run.experiment, run.label, run.model, run.against) for run in runs]
    return own + [Listed(C8, label, "RoBERTaXLM", "", why) for label, why in missing.items()]


def judged(runs: list[OptionRun], entry: dict[str, Any], **missing: str) -> list[Verdict]:
    return judge_expected([Expectation.model_validate(entry)], listed(*runs, **missing), runs, "kernel")


@pytest.mark.parametrize(
    ("value", "limit", "found", "verdict"),
    [
        (140.0, {"at_least": 1.4}, 1.4, "met"),
        (139.9, {"at_least": 1.4}, 1.399, "missed"),
        (53.0, {"at_most": 0.53}, 0.53, "met"),
        (53.1, {"at_most": 0.53}, 0.531, "missed"),
        (90.5, {"within": 0.1}, 0.905, "met"),
        (89.5, {"within": 0.1}, 0.895, "missed"),
        (110.5, {"within": 0.1}, 1.105, "missed"),
        (62.5, {"times_lower": 1.5}, 1.6, "met"),
        (80.0, {"times_lower": 1.5}, 1.25, "missed"),
        (80.0, {}, 0.8, "told"),
    ],
)
def test_ratio_is_compared_with_its_limit(value: float, limit: dict[str, float], found: float, verdict: str):
    runs = [a_run(C8, "kernel"), a_run(C8, "wan", value)]
    (one,) = judged(runs, {"row": "wan", "figure": "sps", **limit})
    assert (one.verdict, one.found, one.why) == (verdict, pytest.approx(found), "")
    assert (one.row, one.against) == ("NLP C-8 wan", "NLP C-8 kernel")


def test_interval_that_includes_the_limit_is_reported():
    wide, narrow = a_run(C8, "wan", 150.0, 8.0), a_run(C8, "wan", 150.0, 0.01)
    entry = {"row": "wan", "figure": "sps", "at_least": 1.4}
    (one,) = judged([a_run(C8, "kernel", 100.0, 0.01), wide], entry)
    assert one.low is not None
    assert one.high is not None
    assert one.low < 1.4 < 1.5 < one.high
    assert (one.verdict, one.clear, one.n_of) == ("met", False, "epochs")
    assert expected_lines([one])[1].endswith(f"({one.low:.3f} to {one.high:.3f} over epochs): at least 1.4; its interval "
                                             "includes the limit")  # fmt: skip
    (one,) = judged([a_run(C8, "kernel", 100.0, 0.01), narrow], entry)
    assert (one.verdict, one.clear) == ("met", True)


def test_times_lower_inverts_the_interval():
    runs = [a_run(C8, "kernel", 100.0, 1.0), a_run(C8, "x", 50.0, 0.5)]
    (direct,) = judged(runs, {"row": "x", "figure": "usd_per_1m"})
    (lower,) = judged(runs, {"row": "x", "figure": "usd_per_1m", "times_lower": 1.5})
    assert direct.low is not None
    assert direct.high is not None
    assert lower.low == pytest.approx(1 / direct.high)
    assert lower.high == pytest.approx(1 / direct.low)
    assert "$/1M samples 2.000 times lower than NLP C-8 kernel's (" in expected_lines([lower])[1]


def test_row_applies_to_each_experiment_that_has_it():
    runs = [
        a_run(C8, "kernel", 100.0), a_run(C8, "wan", 200.0), a_run(A8, "", 400.0),
        a_run("geo-c8", "kernel", 10.0), a_run("geo-c8", "wan", 12.0), a_run("geo-a8", "", 12.0),
    ]  # fmt: skip
    found = judged(runs, {"row": "wan", "figure": "sps", "at_least": 1.5})
    assert [(one.row, one.found, one.verdict) for one in found] == [
        ("NLP C-8 wan", 2.0, "met"), ("CV C-8 wan", pytest.approx(1.2), "missed"),
    ]  # fmt: skip
    named = {"row": "wan", "experiment": C8, "against": A8, "figure": "sps", "within": 0.1}
    assert [(one.row, one.against, one.found) for one in judged(runs, named)] == [
        ("NLP C-8 wan", "NLP A-8", 0.5)
    ]
    zones = [judged(runs, {"row": row, "figure": "sps"})[0] for row in (A8, "geo-a8")]
    assert [one.against for one in zones] == ["NLP C-8 kernel", "CV C-8 kernel"]


def test_against_of_the_entry_is_the_default():
    runs = [a_run(C8, "kernel", 100.0), a_run(C8, "full", 80.0), a_run(C8, "best", 120.0, against="full")]
    assert judged(runs, {"row": "best", "figure": "sps"})[0].found == 1.5
    assert judged(runs, {"row": "best", "against": "kernel", "figure": "sps"})[0].found == 1.2


def test_loss_is_judged_by_the_noise_of_the_other_row():
    base = [a_run(C8, "kernel", loss=value, run_id=f"k{value}") for value in (2.00, 2.01, 2.02)]
    runs = [*base, a_run(C8, "near", loss=2.05), a_run(C8, "far", loss=2.07)]
    entry = {"figure": "loss", "within_noise": True}
    (near,), (far,) = (judged(runs, {"row": row, **entry}) for row in ("near", "far"))
    assert (near.verdict, near.found, near.noise_n) == ("met", pytest.approx(0.04), 3)
    assert near.noise == pytest.approx(4.302653 * 0.01 * (4 / 3) ** 0.5)
    assert far.verdict == "missed"
    assert expected_lines([near, far])[1:] == [
        "  met       NLP C-8 near: training loss +0.0400 relative to NLP C-8 kernel's (noise 0.0497, n 3): within noise",
        "  MISSED    NLP C-8 far: training loss +0.0600 relative to NLP C-8 kernel's (noise 0.0497, n 3): within noise",
    ]
    (alone,) = judged([base[0], runs[3]], {"row": "near", **entry})
    assert (alone.verdict, alone.found) == ("unknown", pytest.approx(0.05))
    assert alone.why == "noise unknown: NLP C-8 kernel has 1 run, and a standard deviation needs two"
    (unlimited,) = judged([base[0], runs[3]], {"row": "near", "figure": "loss"})
    assert unlimited.verdict == "told"
    assert expected_lines([unlimited])[0] == "Expected: 1 without a limit"
    assert expected_card([unlimited]) is None


def test_unjudgeable_expectation_is_unknown_with_the_reason():
    kernel, wan = a_run(C8, "kernel"), a_run(C8, "wan", 200.0)
    entry = {"row": "wan", "figure": "sps", "at_least": 1.4}

    def why(runs: list[OptionRun], **missing: str) -> str:
        (one,) = judged(runs, entry, **missing)
        assert (one.verdict, one.found, one.clear) == ("unknown", None, None)
        assert "1 unknown" in expected_lines([one])[0]
        return one.why

    busy = a_run(C8, "wan", 200.0, left_out="the host was too busy")
    assert why([kernel, busy]) == "the host was too busy"
    assert why([a_run(C8, "kernel", left_out="the host was too busy"), wan]) == (
        "NLP C-8 kernel: the host was too busy"
    )
    assert why([kernel], wan="not run yet") == f"{C8} wan: not run yet"
    assert why([wan], kernel="failed: no memory") == f"{C8} kernel: failed: no memory"
    assert why([kernel]) == "this study has no row 'wan'"  # --only
    assert why([wan]) == "this study has no row 'kernel'"
    lost = OptionRun("NLP C-8", "wan", "RoBERTaXLM", "w", {"sps": Measured(None)}, experiment=C8)
    assert why([kernel, lost]) == "unknown for w"
    assert why([a_run(C8, "kernel", 0.0), wan]) == "NLP C-8 kernel has the value 0"


def test_dropped_rounds_are_shown_with_the_verdict():
    runs = [a_run(C8, "kernel", dropped_rounds=3), a_run(C8, "wan", 200.0)]
    (one,) = judged(runs, {"row": "wan", "figure": "sps", "at_least": 1.4})
    assert (one.verdict, one.why) == ("met", "NLP C-8 kernel dropped 3 rounds")
    lost = [runs[0], a_run(C8, "wan", 200.0, dropped_rounds=1, left_out="the host was too busy")]
    (one,) = judged(lost, {"row": "wan", "figure": "sps", "at_least": 1.4})
    assert one.why == "the host was too busy; NLP C-8 kernel dropped 3 rounds"


def test_the_verdicts_in_json_on_the_page_and_as_a_card():
    runs = [a_run(C8, "kernel"), a_run(C8, "wan", 150.0)]
    entries = [{"at_least": 1.4}, {"at_least": 1.6}, {}]
    found = [one for limit in entries for one in judged(runs, {"row": "wan", "figure": "sps", **limit})]
    found += judged(runs, {"row": "x", "figure": "sps", "at_most": 1}, x="not run yet")
    whole = Gains("kernel", ("sps",), gains(runs, "kernel"), found)
    document = json.loads(json.dumps(gains_document(whole)))["expected"]
    assert [one["verdict"] for one in document] == ["met", "missed", "told", "unknown"]
    assert list(document[0]) == [
        "row", "against", "figure", "at_least", "at_most", "within", "times_lower", "within_noise", "found", "low", "high",
        "n_of", "noise", "noise_n", "verdict", "clear", "why",
    ]  # fmt: skip
    assert (document[0]["at_least"], document[0]["at_most"], document[0]["found"]) == (1.4, None, 1.5)
    assert expected_lines(found)[0] == "Expected: 1 of 3 met, 1 MISSED, 1 unknown; 1 without a limit"
    card = expected_card(found)
    assert card is not None
    assert (card.value, gain_cards(whole)[0]) == ("1 of 3", card)
    section = expected_section(found)
    assert section.html.count("<tr>") == 5
    assert "MISSED" in section.html
    assert (expected_lines([]), expected_card([])) == ([], None)
