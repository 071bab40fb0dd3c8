"""The study report's rows compared with numbers computed by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from analysis.compare.paper import (
    ONE_CLOCK,
    PAPER_BASIS,
    printed_runs,
    published_costs,
    references,
    single_gpu_sps,
)
from analysis.compare.rows import (
    cost_rows,
    difference_rows,
    difference_table,
    link_rows,
    pareto,
    peer_rows,
    phase_rows,
    place_rows,
    place_table,
    scatter_rows,
    unknown_rows,
)
from analysis.compare.run_figures import Link, StudyRun, distinct, series_of, spread_of
from analysis.report.study.held_out import evaluation_rows, evaluation_section
from cloud.prices.book import PriceBook, load
from experiments.catalog import published_runs
from metrics.stats import Estimate


def a_run(name: str = "CV A-2", peers: int = 2, sps: float = 100.0, **changes: object) -> StudyRun:
    """Two GPUs that train 100 samples/s, 90 to 110, for 0.36 $/h without the data."""
    values: dict[str, object] = {
        "run_id": name.replace(" ", "-"),
        "name": name,
        "series": series_of(name),
        "spread": "US",
        "model": "ConvNextLarge",
        "accelerator": "T4",
        "peers": peers,
        "origin": "log",
        "baseline": False,
        "figures": {
            "sps": Estimate(sps, 0.9 * sps, 1.1 * sps, 2),
            "sps_epoch_mean": Estimate(1.01 * sps, None, None, 2),
            "calc_s": Estimate(90.0, 80.0, 100.0, 2),
            "comm_s": Estimate(10.0, 5.0, 15.0, 2),
        },
        "usd_per_vm_h": {"vm": Decimal("0.17"), "inside": Decimal("0.01"), "data": Decimal("0.5")},
    }
    return StudyRun(**(values | changes))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def book() -> PriceBook:
    return load("study-2023-04")


def test_dollars_per_million_and_their_interval_follow_from_the_rate():
    (row,) = scatter_rows([a_run()], [], ONE_CLOCK)
    assert row["usd_per_h"] == pytest.approx(0.36)  # 2 x (0.17 + 0.01); the data is left out
    assert row["usd_per_1m"] == pytest.approx(1.0)
    assert row["usd_per_1m_low"] == pytest.approx(1 / 1.1)
    assert row["usd_per_1m_high"] == pytest.approx(1 / 0.9)
    assert (row["sps"], row["n"], row["n_of"], row["clock"]) == (100.0, 2, "epochs", "wall")


def test_interval_that_reaches_zero_has_no_upper_cost():
    run = a_run(figures={"sps": Estimate(100.0, -20.0, 220.0, 2)})
    (row,) = scatter_rows([run], [], ONE_CLOCK)
    assert row["usd_per_1m_high"] is None
    assert row["usd_per_1m_low"] == pytest.approx(1 / 2.2)


def test_an_unknown_kind_of_dollars_makes_the_cost_unknown_and_is_listed():
    run = a_run(
        usd_per_vm_h={"vm": Decimal("0.1"), "oceania": None}, cost_unknown=("no price for oceania egress",)
    )
    (row,) = scatter_rows([run], [], ONE_CLOCK)
    assert row["usd_per_h"] is None
    assert row["usd_per_1m"] is None
    assert row["front"] is False
    assert [c["usd_per_vm_h"] for c in cost_rows([run])] == [0.1, None]
    assert {"run": "CV A-2", "what": "dollars", "why": "no price for oceania egress"} in unknown_rows([run])


def test_what_was_not_measured_is_listed_with_the_reason():
    run = a_run(
        figures={"sps": Estimate(1.0, None, None, 1)},
        warnings=("comm_s and granularity are null: no VM's log",),
    )
    why = {row["what"]: row["why"] for row in unknown_rows([run])}
    assert why == dict.fromkeys(
        ("granularity", "communication time"), "comm_s and granularity are null: no VM's log"
    )
    assert phase_rows([run]) == []


def test_held_out_figures_of_any_name_are_in_the_report_of_a_study():
    text = {
        "epoch": 3,
        "raw_trained_samples": 1200.0,
        "samples": 64,
        "figures": {"loss": 1.5, "nats_per_byte": 1.4},
    }
    sound = {"epoch": 2, "raw_trained_samples": None, "samples": None, "figures": {"loss": 0.5, "wer": 0.25}}
    runs = [
        a_run("CV A-2", evaluation=text),
        a_run("CV A-3", evaluation=sound),
        a_run("CV A-4", origin="own"),
        a_run("CV A-5", origin="log"),
    ]
    section = evaluation_section(runs)
    assert section is not None
    assert section.lead.endswith("Not evaluated: CV A-4.")
    assert "<td>1,200</td><td>64</td><td>1.5</td><td>1.4</td><td>-</td></tr>" in section.html
    assert "<td>unknown</td><td>unknown</td><td>0.5</td><td>-</td><td>0.25</td></tr>" in section.html
    assert [(row["name"], row["figure"], row["value"]) for row in evaluation_rows(runs)] == [
        ("CV A-2", "loss", 1.5), ("CV A-2", "nats_per_byte", 1.4), ("CV A-3", "loss", 0.5), ("CV A-3", "wer", 0.25),
    ]  # fmt: skip
    assert evaluation_section(runs[2:]) is None


def test_granularity_beside_calculation_and_communication_is_their_ratio():
    figures = {"calc_s": 30.0, "comm_s": 10.0, "granularity": 4.0}
    run = a_run(figures={key: Estimate(value, None, None, 1) for key, value in figures.items()})
    (row,) = phase_rows([run])
    assert row["granularity"] == 3.0


def test_references_reproduce_the_printed_dollars():
    printed = {("1xT4", "ConvNextLarge", PAPER_BASIS): 0.619, ("1xT4", "RoBERTaXLM", PAPER_BASIS): 0.239,
               ("DGX-2 spot", "ConvNextLarge", PAPER_BASIS): 4.237, ("DGX-2 spot", "RoBERTaXLM", PAPER_BASIS): 0.966,
               ("8xT4", "ConvNextLarge", PAPER_BASIS): 1.773, ("8xT4", "RoBERTaXLM", PAPER_BASIS): 1.434,
               ("8xA10", "ConvNextLarge", PAPER_BASIS): 2.147, ("8xA10", "RoBERTaXLM", PAPER_BASIS): 1.258,
               ("4xT4 DDP", "ConvNextLarge", PAPER_BASIS): 0.966, ("1xT4", "ConvNextLarge", ONE_CLOCK): 1.36,
               ("1xT4", "RoBERTaXLM", ONE_CLOCK): 0.36, ("8xT4", "ConvNextLarge", ONE_CLOCK): 3.09,
               ("8xT4", "RoBERTaXLM", ONE_CLOCK): 4.44}  # fmt: skip
    found = {(r.name, r.model, r.basis): r.usd_per_1m for r in references()}
    for key, usd in printed.items():
        places = 3 if key[2] == PAPER_BASIS else 2
        assert round(float(found[key]), places) == pytest.approx(usd), key


def test_only_wall_clock_rates_are_compared_on_the_one_clock():
    beside = [r for r in references() if r.model == "ConvNextLarge"]
    rows = {row["name"]: row for row in scatter_rows([], beside, ONE_CLOCK)}
    assert rows["1xT4"]["sps"] == 36.8
    assert rows["8xT4"]["usd_per_1m"] == pytest.approx(3.091, abs=1e-3)
    assert rows["8xA10"]["front"]
    assert rows["DGX-2 spot"]["clock"] == "phase-timed"
    assert not rows["4xT4 DDP"]["front"]  # it would dominate 8xA10's price, but its clock is not stated
    assert {row["name"]: row["sps"] for row in scatter_rows([], beside, PAPER_BASIS)}["1xT4"] == 80.8


def test_own_single_gpu_replaces_the_printed_one():
    run = a_run("CV A-1", 1, 36.8, baseline=True, usd_per_vm_h={"vm": Decimal("0.18")})
    names = [
        row["name"] for row in scatter_rows([run], references(), ONE_CLOCK) if row["panel"] == "ConvNextLarge"
    ]
    assert "CV A-1" in names
    assert "1xT4" not in names


def test_pareto_front():
    points = [(100.0, 1.0), (200.0, 2.0), (150.0, 3.0), (200.0, 2.0), (None, 0.1), (50.0, None)]
    assert pareto(points) == [True, True, False, True, False, False]


def test_places_are_compared_at_equal_peers_only():
    runs = [a_run("CV A-2", 2, 100.0), a_run("CV B-2", 2, 90.0, spread="US+EU"), a_run("CV A-3", 3, 150.0)]
    rows = place_rows(runs)
    assert [(row["name"], row["relative"], row["relative_to"]) for row in rows] == [
        ("CV A-2", 0.0, "CV A-2"),
        ("CV B-2", pytest.approx(-0.1), "CV A-2"),
    ]


def test_links_add_up_and_an_unknown_price_makes_the_sum_unknown():
    one = a_run(links=(Link("x", "y", "oceania", 1e9, Decimal("0.1")), Link("y", "x", "oceania", 2e9, None)))
    two = a_run("CV A-4", links=(Link("x", "y", "oceania", 3e9, Decimal("0.3")),))
    rows = link_rows([one, two])
    assert [(r["src"], r["runs"], r["bytes"]) for r in rows] == [("x", 2, 4e9), ("y", 1, 2e9)]
    assert rows[0]["usd"] == pytest.approx(0.4)
    assert rows[1]["usd"] is None


def test_differences_are_on_the_published_basis():
    run = a_run(published={"sps": "100", "comm_s": "8", "granularity_paper": "5"})
    rows = {row["figure"]: row for row in difference_rows([run])}
    assert rows["mean of epoch rates (samples/s)"]["difference"] == pytest.approx(0.01)
    assert rows["communication (s)"]["difference"] == pytest.approx(0.25)
    assert rows["granularity, phase-timed"]["ours"] is None
    own = difference_rows([a_run(origin="emulated", published={"granularity_paper": 5})])
    assert own == []


def test_the_tables_on_the_page_have_one_row_a_run_and_a_number_of_peers():
    run = a_run(published={"sps": "100", "comm_s": "8", "granularity_paper": "5"})
    assert difference_table(difference_rows([run])) == [
        {
            "run": "CV A-2",
            "mean of epoch rates (samples/s)": "100 | 101 (+1.0%)",
            "communication (s)": "8 | 10 (+25.0%)",
            "granularity, phase-timed": "5 | unknown",
        }
    ]
    runs = [a_run("CV A-2", 2, 100.0), a_run("CV B-2", 2, 90.0), a_run("CV B-2", 2, 80.0)]
    (row,) = place_table(place_rows(runs))
    assert row == {"model": "ConvNextLarge", "peers": 2, "A": "100", "B": "90 (-10.0%); 80 (-20.0%)"}


def test_single_gpu_is_compared_on_both_clocks():
    figures = {"sps": Estimate(36.8, None, None, 10), "sps_phase_timed": Estimate(40.4, None, None, 300)}
    rows = difference_rows([a_run("CV A-1", 1, baseline=True, figures=figures)])
    assert [(row["study"], row["difference"]) for row in rows] == [(36.8, 0.0), (80.8, -0.5)]


def test_single_gpu_uses_its_own_figure():
    single = a_run("CV A-1", 1, baseline=True, figures={"sps": Estimate(36.8, 36.0, 37.6, 10)})
    rows = peer_rows([a_run(), single], "sps", ONE_CLOCK, "sps")
    assert [(row["peers"], row["n_of"]) for row in rows] == [(1, "parts of the log"), (2, "epochs")]
    assert peer_rows([single], "granularity", ONE_CLOCK) == []


def test_paper_costs_are_reproduced_to_a_tenth_of_a_cent():
    sums: dict[tuple[str, str], Decimal] = {}
    for part in published_costs():
        sums[part.bar, part.basis] = sums.get((part.bar, part.basis), Decimal(0)) + part.usd_per_h
    assert round(sums["NLP C-8, GC VM", PAPER_BASIS], 3) == Decimal("4.804")
    assert round(sums["NLP C-8, GC VM", "measured split"], 2) == Decimal("6.50")
    assert round(sums["CV D-2/D-3, GC VM", PAPER_BASIS], 4) == Decimal("0.4103")


def test_printed_runs_are_added_only_without_logs(book: PriceBook):
    places = ("gcp/europe-west1", "gcp/us-central1")
    unnamed = a_run("hivemind-348", places=places, tbs=32768)
    runs = {run.name: run for run in printed_runs(book, [a_run("CV A-2"), unnamed])}
    assert len(runs) == 26  # 26 swarms, without 2 single GPUs
    assert not {"CV A-2", "CV B-2"} & runs.keys()
    c8 = runs["NLP C-8"]
    assert (c8.series, c8.spread, c8.peers, c8.origin) == ("C", "US+EU+ASIA+AUS", 8, "printed")
    assert c8.value("speedup") == pytest.approx(340.7 / 139.2)
    assert c8.value("speedup_phase_timed") == pytest.approx(340.7 / 208.8)
    assert c8.figures["sps"].low == pytest.approx(340.7 - 12.7062 * 12.45, abs=0.2)  # 328.2 and 353.1
    assert round(sum(c8.paper_usd_per_vm_h.values(), Decimal(0)), 3) == Decimal("4.804")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert runs["CV C-8"].figures["sps"].low is None  # its epochs are not printed


def test_printed_egress_is_split_equally(book: PriceBook):
    c8 = next(run for run in printed_runs(book) if run.name == "NLP C-8")
    gib_per_h = 1.99e9 * 3600 / 96.7 / 2**30
    assert c8.usd_per_vm_h["inside"] == pytest.approx(Decimal(gib_per_h * 0.01 / 7), rel=Decimal("1e-6"))
    assert c8.usd_per_vm_h["between"] == pytest.approx(Decimal(gib_per_h * 0.08 * 3 / 7), rel=Decimal("1e-6"))
    assert c8.usd_per_vm_h["oceania"] == pytest.approx(Decimal(gib_per_h * 0.15 * 3 / 7), rel=Decimal("1e-6"))


def test_published_single_gpu_rates_agree():
    """The rates are in `references.csv` (with dollars) and in `published.csv` (as run A-1)."""
    for name, model in (("geo-a1", "ConvNextLarge"), ("geo-a1-nlp", "RoBERTaXLM")):
        row = published_runs()[name]
        assert single_gpu_sps(model) == {PAPER_BASIS: row.sps_phase_timed, ONE_CLOCK: row.sps}
    eight = {r.model: r.sps for r in references() if r.gpus == "8 A10"}
    for model, name in (("ConvNextLarge", "a10-8-conv"), ("RoBERTaXLM", "a10-8-rxlm")):
        assert eight[model] == pytest.approx(published_runs()[name].sps, abs=0.5)  # printed whole there


@pytest.mark.parametrize(
    ("label", "series"),
    [
        ("CV A-2", "A"),
        ("C-8 NLP", "C"),
        ("E-B-4", "E-B"),
        ("geo-c8-nlp", "C"),
        ("geo-e-b-4-nlp", "E-B"),
        ("geo-d3", "D"),
        ("local-2", ""),
        ("hivemind-81", ""),
    ],
)
def test_the_series_is_read_from_the_label(label: str, series: str):
    assert series_of(label) == series


def test_spread_of_places():
    assert spread_of(["gcp/europe-west1", "gcp/us-central1"]) == "US+EU"
    assert spread_of(["gcp/us-central1", "aws/us-east-1"]) == "US (aws+gcp)"
    assert spread_of(["somewhere"]) == "unknown place"


def test_equal_names_get_their_run_ids_in_natural_order():
    runs = [a_run("CV A-10", run_id="x"), a_run("CV A-2", run_id="b"), a_run("CV A-2", run_id="a")]
    assert [run.name for run in distinct(runs)] == ["CV A-10", "a", "b"]
    assert [run.name for run in distinct([a_run("CV A-10"), a_run("CV A-2")])] == ["CV A-2", "CV A-10"]


def test_one_gpu_alone_on_both_clocks():
    assert single_gpu_sps("RoBERTaXLM") == {PAPER_BASIS: 208.8, ONE_CLOCK: 139.2}
    assert single_gpu_sps("ResNet18") == {}
