"""Runs of one's own against each other: the configuration, the noise between epochs, losses after equal samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_run import write_run
from rows_to_compare import ran

from analysis.charts.lines import curves
from analysis.charts.style import figure_style
from analysis.compare.configuration import Configuration, configuration, differing, flat, same_keys
from analysis.compare.differences import (
    ComparedFigure,
    Differences,
    HeldOutFigures,
    OwnRun,
    differences_document,
    equal_samples,
    own_run,
)
from analysis.compare.option_figures import Learned
from analysis.replay import read_folder
from analysis.report.study.differences import (
    against_rows,
    configuration_line,
    configuration_table,
    difference_cards,
    figure_notes,
    figure_table,
    held_out_notes,
    held_out_table,
    loss_notes,
    loss_table,
    ranking_lines,
)
from metrics.learning_curve import Target
from metrics.provenance import RanOn
from metrics.stats import Estimate, mean_interval, quotient_spread, ratio_interval, ratio_values
from metrics.summary import summarise


def a_run(run_id: str, sps: Sequence[float] = (), busy: bool = False, **changes: object) -> OwnRun:
    """A run whose throughput in each epoch is `sps`."""
    estimate = mean_interval(sps)
    figures = {"sps": ComparedFigure(estimate, tuple(sps))} if estimate else {}
    ran_on = RanOn("local", True, None, busy)
    run = OwnRun(
        run_id, "mine", "digits", "done", 2, len(sps), ran_on, Configuration({}), figures, target_batch=100.0
    )
    return replace(run, **changes)


def losses(*points: tuple[float, float]) -> Mapping[str, Sequence[Learned]]:
    """A training loss: (samples, loss)."""
    return {"loss": tuple(Learned(*point) for point in points)}


def test_a_difference_is_beyond_noise_if_its_welch_interval_excludes_equality():
    slow, fast = [100.0, 102.0, 98.0, 101.0], [110.0, 112.0, 109.0, 111.0]
    near = [99.0, 104.0, 101.0, 103.0]
    runs = Differences((a_run("a", slow), a_run("b", fast), a_run("c", near)))
    found = runs.figure("sps", runs.runs[1])
    spread = quotient_spread(fast, slow)
    assert spread is not None
    assert found.ratio == pytest.approx(110.5 / 100.25)
    assert found.low == pytest.approx(110.5 / 100.25 / 2.718281828459045**spread)
    assert found.beyond_noise is True
    assert runs.figure("sps", runs.runs[2]).beyond_noise is False
    assert runs.figure("sps", runs.first).ratio is None
    assert [card.more for card in difference_cards(runs)[:1]] == ["b: +10.2% from a, beyond noise"]


def with_granularity(run_id: str, comm_s: Sequence[float]) -> OwnRun:
    """A run with 3 s of calculation and so much communication in each epoch."""
    calc_s = [3.0] * len(comm_s)
    ratio, ratios = ratio_interval(calc_s, comm_s), [3.0 / one for one in comm_s]
    mean = mean_interval(ratios)
    assert ratio is not None
    assert mean is not None
    figures = {
        "granularity_of_means": ComparedFigure(ratio, tuple(ratio_values(calc_s, comm_s))),
        "granularity": ComparedFigure(mean, tuple(ratios)),
    }
    return a_run(run_id, figures=figures)


def test_granularity_is_the_ratio_of_the_means_and_the_mean_of_ratios_has_its_own_name():
    """One epoch with hardly any communication doubles the mean of ratios."""
    one, other = (
        with_granularity("a", [1.2, 1.1, 1.3, 1.2, 0.1]),
        with_granularity("b", [2.4, 2.2, 2.6, 2.3, 2.5]),
    )
    rows = {row["figure"]: row for row in figure_table(Differences((one, other)), (other,))}
    assert list(rows) == ["granularity", "granularity, mean of the epochs' ratios"]
    assert rows["granularity"]["a"].startswith("3.061 ")  # 15 / 4.9
    assert rows["granularity, mean of the epochs' ratios"]["a"].startswith("8.007 ")
    assert (rows["granularity"]["difference"], rows["granularity"]["noise"]) == ("-59.2%", "beyond")


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (a_run("a", [100.0, 101.0]), a_run("b", [120.0]), "b has fewer than two measured epochs"),
        (a_run("a", [100.0, 100.0]), a_run("b", [120.0, 120.0]), "the epochs do not vary"),
        (a_run("a", [0.0, 0.0]), a_run("b", [120.0, 121.0]), "a has 0, so there is no ratio"),
        (a_run("a"), a_run("b", [120.0, 121.0]), "unknown for a"),
        (a_run("a", [100.0, 101.0]), a_run("b", [120.0, 121.0], busy=True), "the host of b was too busy"),
    ],
)
def test_noise_is_unknown_with_the_reason(first: OwnRun, second: OwnRun, why: str):
    runs = Differences((first, second))
    found = runs.figure("sps", second)
    assert (found.beyond_noise, found.why) == (None, why)
    assert f"Not judged: throughput: {why}." in figure_notes(runs)


def test_a_busy_host_counts_if_the_user_says_so():
    runs = Differences((a_run("a", [100.0, 101.0]), a_run("b", [150.0, 151.0], busy=True, host_counts=True)))
    assert runs.figure("sps", runs.runs[1]).beyond_noise is True


def test_nested_keys_are_flat_and_named_items_have_their_name():
    document = {
        "swarm": {"plain": False, "capacity": {}},
        "peers": [{"name": "us", "count": 2}],
        "tags": ["x"],
        "no": [],
    }
    assert flat(document) == {"swarm.plain": False, "peers.us.count": 2, "tags": ["x"]}


def test_only_keys_that_differ_are_shown_and_a_missing_group_once():
    one = Configuration(
        {"lr": 0.1, "x": None, "scales.time": 1, "peers.us.count": 2}, {"us": "2 x T4:1 in a"}
    )
    two = Configuration(
        {"lr": 0.2, "x": None, "scales.time": 1.0, "peers.eu.count": 2}, {"eu": "2 x T4:1 in b"}
    )
    runs = Differences((a_run("a", configuration=one), a_run("b", configuration=two)))
    assert configuration_table(runs) == [
        {"key": "peers.us", "a": "2 x T4:1 in a", "b": "-"},
        {"key": "peers.eu", "a": "-", "b": "2 x T4:1 in b"},
        {"key": "lr", "a": "0.1", "b": "0.2"},
    ]
    assert same_keys([one, two]) == 2
    assert configuration_line(runs) == "Configuration: 3 keys differ, 2 with the same value in all."


def test_a_run_without_its_experiment_has_unknown_keys_and_no_differences_from_them():
    whole, part = Configuration({"lr": 0.1, "model": "M"}), Configuration({"model": "N"}, whole=False)
    (row,) = differing([whole, part])
    assert (row.key, row.values) == ("model", ("M", "N"))
    third = Configuration({"lr": 0.2, "model": "M"})
    runs = Differences(tuple(a_run(n, configuration=c) for n, c in (("a", whole), ("b", part), ("c", third))))
    assert configuration_table(runs)[0] == {"key": "lr", "a": "0.1", "b": "unknown", "c": "0.2"}
    assert configuration_line(runs) == (
        "Configuration: 2 known keys differ, 0 with the same value in all. "
        "No complete experiment is stored with b: whether other keys differ is unknown."
    )
    (card,) = difference_cards(runs)
    assert (card.name, card.value) == ("Known keys that differ", "2")
    assert card.more == "0 have the same value; the other keys of b are unknown"
    document = differences_document(runs)
    assert document is not None
    assert [v["present"] for v in document["configuration"][0]["values"]] == [True, None, True]


def test_losses_are_compared_after_the_last_equal_count_of_samples():
    small = [Learned(100.0 * k, 2.0 - 0.1 * k) for k in range(1, 10)]
    large = [Learned(200.0 * k + 5, 2.0 - 0.2 * k) for k in range(1, 8)]
    assert equal_samples(large, small, 10.0) == (large[3], small[7])  # 805 and 800
    assert equal_samples(large, small, 4.0) is None


def test_losses_show_both_counts_or_why_they_are_not_compared():
    first = a_run("a", learned=losses((100, 1.0), (200, 0.5)))
    near = a_run("b", learned=losses((105, 0.9), (205, 0.4)))
    far = a_run("c", learned=losses((150, 0.9)), target_batch=150.0)
    none, other = a_run("d"), a_run("e", learned=losses((200, 0.1)), model="another")
    runs = Differences((first, near, far, none, other))
    rows = {row["run"]: row for row in loss_table(runs)}
    assert (rows["b"]["its loss"], rows["b"]["loss of the first run"], rows["b"]["difference"]) == (
        "0.4000", "0.5000", "-0.1000",
    )  # fmt: skip
    assert (rows["b"]["after samples"], rows["b"]["note"]) == ("205", "the first run after 200")
    assert rows["c"]["note"].startswith(
        "no two records after equally many samples; the last: 0.9000 after 150"
    )
    assert rows["d"]["note"] == "d recorded none"
    uncounted = frozenset({"loss"})
    (row,) = loss_table(Differences((a_run("f", uncounted=uncounted), near)))
    assert row["note"] == "the number of samples before the losses of f is unknown"
    assert rows["e"]["note"] == "another model: another and digits"
    assert any("step after different numbers of samples" in note for note in loss_notes(runs))
    assert len(loss_notes(Differences((first, near)))) == 1


def evaluated(
    run_id: str, shards: str = "s3://b/h.tar", samples: int = 90, model: str = "m", **figures: float
) -> OwnRun:
    """A run with the figures of its last evaluation."""
    return a_run(run_id, model=model, held_out=HeldOutFigures(figures, 3, 1200.0, samples, shards))


def test_held_out_figures_that_both_runs_have_are_judged_by_what_their_names_mean():
    first = evaluated(
        "a", loss=2.0, accuracy=0.5, perplexity=7.0, wer=0.4, nats_per_byte=1.5, mine=1.0, only_a=1.0
    )
    second = evaluated(
        "b", loss=1.5, accuracy=0.4, perplexity=9.0, wer=0.3, nats_per_byte=1.5, mine=0.5, only_b=1.0
    )
    runs = Differences((first, second, a_run("c")))  # c was not evaluated
    better = {one.figure: one.better for one in runs.held_out()}
    assert better == {
        "loss": True, "accuracy": False, "perplexity": False, "wer": True, "nats_per_byte": None, "mine": None,
    }  # fmt: skip
    rows = {row["held-out"]: row for row in held_out_table(runs)}
    assert rows["loss"] == {
        "held-out": "loss", "run": "b", "its value": "1.5", "of the first run": "2", "difference": "-0.5", "better": "b",
        "after samples": "1,200 and 1,200",
    }  # fmt: skip
    assert (rows["accuracy"]["its value"], rows["accuracy"]["difference"]) == ("40.0%", "-10.0 points")
    assert (rows["accuracy"]["better"], rows["mine"]["better"]) == ("a", "-")
    document = differences_document(runs)
    assert document is not None
    assert document["evaluation"][0] == {
        "figure": "loss", "run_id": "b", "value": 1.5, "against": 2.0, "difference": -0.5, "better": True, "why": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "judged", "why"),
    [
        ({"shards": "s3://b/i.tar"}, set(), "other held-out shards: s3://b/i.tar and s3://b/h.tar"),
        ({"samples": 80}, set(), "other held-out samples: 80 and 90 of them"),
        (
            {"model": "n"},
            {"nats_per_byte", "wer"},
            "another model: n and m",
        ),  # these do not depend on the tokenizer
    ],
)
def test_held_out_figures_of_other_data_or_other_tokens_are_not_judged(
    changes: dict, judged: set[str], why: str
):
    figures = {"loss": 2.0, "perplexity": 7.0, "nats_per_byte": 1.5, "wer": 0.4}
    other = evaluated("b", **{name: value - 0.1 for name, value in figures.items()}, **changes)
    runs = Differences((evaluated("a", **figures), other))
    assert {one.figure for one in runs.held_out() if one.better is not None} == judged
    assert {one.why for one in runs.held_out() if one.better is None} == {why}
    assert why in {row["note"] for row in held_out_table(runs)}


def test_runs_without_an_evaluation_have_no_held_out_table():
    runs = Differences((a_run("a"), evaluated("b", loss=1.0)))
    assert held_out_table(runs) == []
    assert held_out_notes(runs) == ["Not compared: a: no evaluation on held-out data."]
    assert held_out_notes(Differences((a_run("a"), a_run("b")))) == []
    some = Differences((evaluated("a", loss=1.0, wer=0.3), evaluated("b", loss=2.0, mine=1.0), a_run("c")))
    assert some.unevaluated() == [
        ("c", "no evaluation on held-out data"),
        ("b", "no held-out wer"),
        ("a", "no held-out mine"),
    ]


@pytest.mark.parametrize("name", ["difference", "figure", "noise", "key"])
def test_a_run_named_like_a_column_has_a_column_of_its_own(name: str):
    other = a_run("b", [110.9, 111.1], configuration=Configuration({"lr": 1}))
    first = a_run("a", [100.9, 101.1], experiment=name, configuration=Configuration({"lr": 2}))
    runs = Differences((first, other))
    (row,) = figure_table(runs, runs.others)
    assert (row["figure"], row["difference"], row["noise"]) == ("throughput, samples/s", "+9.9%", "beyond")
    assert row[f"run {name}"].startswith("101 ")
    assert configuration_table(runs) == [{"key": "lr", f"run {name}": "2", "mine": "1"}]


def test_rows_against_the_first_run_have_figures_losses_and_evaluations():
    first = replace(evaluated("a", loss=1.0), **vars_of("sps", [100.9, 101.1]), learned=losses((90.0, 2.0)))
    other = replace(evaluated("b", loss=0.5), **vars_of("sps", [111.0, 112.0]), learned=losses((95.0, 1.5)))
    rows = against_rows(Differences((first, other)))
    assert [
        (r["of"], r["figure"], r["run_id"], r["against"], r["value"], r["against_value"]) for r in rows
    ] == [
        ("figure", "sps", "b", "a", 111.5, 101.0),
        ("loss", "loss", "b", "a", 1.5, 2.0),
        ("evaluation", "loss", "b", "a", 0.5, 1.0),
    ]
    assert (rows[0]["beyond_noise"], rows[1]["samples"], rows[2]["better"]) == (True, 95.0, True)


def vars_of(key: str, values: Sequence[float]) -> dict[str, Mapping[str, ComparedFigure]]:
    estimate = mean_interval(values)
    assert estimate is not None
    return {"figures": {key: ComparedFigure(estimate, tuple(values))}}


@pytest.mark.slow
def test_figures_are_those_of_the_report(tmp_path: Path):
    read = read_folder(ran(tmp_path, "swarm.target_batch_size=16384"))
    run, summary = own_run(read), summarise(read.run)
    assert run.figures["sps"].estimate.to_json() == summary["sps"]
    assert run.figures["sps_epoch_mean"].estimate.to_json() == summary["sps_epoch_mean"]
    granularity = run.figures["granularity_of_means"]
    assert granularity.estimate.to_json() == summary["granularity_of_means"]
    values = mean_interval(granularity.by_epoch)
    assert values is not None
    assert (values.value, values.n) == (pytest.approx(granularity.estimate.value), granularity.estimate.n)
    rate = mean_interval(run.figures["sps"].by_epoch)
    assert rate is not None
    assert (rate.value, rate.low) == pytest.approx((summary["sps"]["value"], summary["sps"]["low"]))
    assert run.figures["total_usd"].estimate.value == pytest.approx(summary["cost"]["total_usd"], abs=1e-6)
    assert run.figures["usd_per_1m"].estimate.n == 4
    assert run.figures["preemptions"].estimate.value == summary["preemptions"]["count"]
    assert run.figures["accuracy"].estimate.value == summary["accuracy"]
    assert run.held_out is not None
    assert run.held_out.figures == summary["evaluation"]
    assert run.configuration.whole
    assert run.configuration.values["swarm.target_batch_size"] == 16384
    assert run.configuration.values["peers.us.resources.infra"] == "gcp/us-central1/us-central1-a"
    assert run.configuration.groups["us"] == "2 x T4:1 in gcp/us-central1/us-central1-a"


@pytest.mark.slow
def test_a_run_of_which_little_is_known_has_what_its_meta_says(tmp_path: Path):
    write_run(tmp_path)
    found = configuration(read_folder(tmp_path).run.meta)
    assert not found.whole
    assert (found.values["model"], found.values["swarm.target_batch_size"]) == ("ConvNextLarge", 32768)
    assert found.values["scales.samples"] == 8


def test_tables_of_two_runs_have_intervals_and_of_more_have_marks():
    runs = Differences((a_run("a", [100.0, 102.0]), a_run("b", [300.0, 301.0]), a_run("c", [101.0, 102.0])))
    (pair,) = figure_table(runs, runs.runs[1:2])
    assert pair == {
        "figure": "throughput, samples/s", "a": "101 ±13 (n 2)", "b": "300.5 ±6.4 (n 2)", "difference": "+197.5%",
        "95 % interval": "+161.9% to +238.0%", "noise": "beyond",
    }  # fmt: skip
    (several,) = figure_table(runs, runs.others)
    assert several == {
        "figure": "throughput, samples/s",
        "a": "101",
        "b": "300.5 (+197.5% *)",
        "c": "101.5 (+0.5%)",
    }


def test_a_difference_without_a_ratio_is_in_the_unit_of_its_row_and_the_documents_unit_is_its_values():
    def sends(run_id: str, gigabytes: float) -> OwnRun:
        values = (gigabytes * 1e9, gigabytes * 1e9)
        figures = {"intercontinental_bytes": ComparedFigure(mean_interval(values), values)}
        return a_run(run_id, figures=figures)

    runs = Differences((sends("a", 0.0), sends("b", 1.6)))
    (row,) = figure_table(runs, runs.others)
    assert (row["figure"], row["difference"]) == ("intercontinental egress, GB per epoch", "+1.600")
    (figure,) = differences_document(runs)["figures"]
    assert (figure["unit"], figure["values"][1]["value"]) == ("bytes per epoch", 1.6e9)


def test_curves_have_a_panel_for_each_loss_and_rate_and_a_line_for_each_run():
    first = a_run(
        "a",
        learned=losses((100, 1.0), (200, 0.5), (300, float("inf"))),
        curves={"sps": ((2, 10.0), (3, 11.0))},
    )
    runs = Differences((first, replace(first, run_id="b")))
    with figure_style():
        axes = curves(runs.curve_rows()).axes
    assert [one.get_ylabel() for one in axes] == ["training loss", "throughput (samples/s)"]
    assert [one.get_xlabel() for one in axes] == ["samples trained on", "epoch"]
    assert [[np.asarray(line.get_xdata()).tolist() for line in one.lines] for one in axes] == [
        [[100, 200]] * 2,
        [[2, 3]] * 2,
    ]


LOSS = Target("loss", at_most=1.5)


def to_target(run_id: str, seconds: float | None, usd: float | None, **changes: object) -> OwnRun:
    """A run that reached the target after so many seconds and dollars. None: unknown."""
    values = {"time_to_target_s": seconds, "usd_to_target": usd}
    figures = {key: ComparedFigure(Estimate(v, None, None, 1)) for key, v in values.items() if v is not None}
    end = HeldOutFigures({"loss": 1.4}, 9, 900.0, 90, "s3://b/h.tar")
    known = {"experiment": run_id, "figures": figures, "goal": LOSS, "held_out": end}
    return a_run(run_id, **known | changes)


def test_runs_with_the_same_target_are_ranked_by_what_it_took_to_reach_it():
    runs = Differences(
        (
            to_target("a", 90.0, 3.0),
            to_target("b", 60.0, 5.0),
            to_target("c", None, None),
            to_target("d", 70.0, None),
        )
    )
    assert ranking_lines(runs) == [
        "By dollars to reach loss of at most 1.5: 1. a ($3.00), 2. b ($5.00).",
        "By time to reach loss of at most 1.5: 1. b (1 min), 2. d (1 min 10 s), 3. a (1 min 30 s).",
        "The target, loss of at most 1.5, was not reached by c.",
        "Dollars to reach the target are unknown: d.",
    ]
    rows = {row["figure"]: row for row in figure_table(runs, runs.others)}
    assert rows["cost to reach the target, $"]["b"] == "5 (+66.7% ?)"
    assert rows["time to reach the target, s"]["c"] == "unknown"
    cards = {card.name: card.value for card in difference_cards(runs)}
    assert cards["First to reach the target"] == "60 s"
    assert cards["Cheapest to reach the target"] == "$3"
    document = differences_document(runs)
    assert document is not None
    assert document["target"] == {
        "name": "loss", "at_most": 1.5, "at_least": None,
        "time_to_target_s": ["b", "d", "a"], "usd_to_target": ["a", "b"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"goal": Target("loss", at_most=1.4)}, "the runs have different targets (train.until.metric)"),
        ({"goal": None}, "the runs have different targets (train.until.metric)"),
        (
            {"held_out": HeldOutFigures({"loss": 1.4}, 9, 900.0, 80, "s3://b/h.tar")},
            "b: other held-out samples: 80 and 90 of them",
        ),
        ({"model": "another"}, "b: another model: another and digits"),
    ],
)
def test_runs_are_not_ranked_by_different_targets(changes: dict[str, object], why: str):
    runs = Differences((to_target("a", 90.0, 3.0), to_target("b", 60.0, 5.0, **changes)))
    assert ranking_lines(runs) == [f"Not ranked by what it took to reach a target: {why}."]
    assert runs.figures == ()
    assert runs.ranking("usd_to_target") == ()
    document = differences_document(runs)
    assert document is not None
    assert document["target"] is None


def test_runs_without_a_target_are_not_ranked():
    runs = Differences((to_target("a", None, None, goal=None), to_target("b", None, None, goal=None)))
    assert ranking_lines(runs) == []
