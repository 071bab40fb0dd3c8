"""Texts and tables of a run's report: units that fit, words instead of codes, and what a reader would wonder about."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from made_up_run import write_run

from analysis.report import content
from cloud.prices.classes import EgressClass
from metrics import tables
from metrics.events.evaluation import accuracy_words, heldout_given
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise
from metrics.traffic import CLASS_WORDS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunNumbers:
    folder: Path = tmp_path_factory.mktemp("run")
    write_run(folder)
    with RunStore.open_reader(folder / "run.db") as store:
        return RunNumbers.of(store)


def test_granularity_card_is_the_ratio_of_the_cards_after_it_with_the_epochs_beside_it(run: RunNumbers):
    summary = summarise(run)
    ratio = summary["calc_s"]["value"] / summary["comm_s"]["value"]
    assert summary["granularity_of_means"]["value"] == pytest.approx(ratio)
    (card,) = [card for card in content.cards(summary) if card.name == "Granularity"]
    assert float(card.value) == pytest.approx(ratio, rel=1e-3)
    least, most, median = (f"{summary['granularity_epochs'][key]:.4g}" for key in ("least", "most", "median"))
    assert card.more.endswith(f"; epochs from {least} to {most}, median {median}")


def test_every_class_of_traffic_has_words():
    assert {*get_args(EgressClass), "store", "control", "unknown"} == CLASS_WORDS.keys()


def test_tables_have_words_and_units(run: RunNumbers):
    traffic = content.traffic_table(tables.traffic(run))
    assert {row["egress"] for row in traffic} <= {*CLASS_WORDS.values()}
    assert all(row["sent"].split()[1] in ("GB", "MB", "kB", "B") for row in traffic)
    bill = content.bill_table(tables.cost_lines(run))
    assert {"egress between continents", "egress to or from Oceania"} <= {row["what"] for row in bill}
    assert all(row["cost"].startswith(("$", "< $")) for row in bill)
    (vm, *_) = [row for row in bill if row["kind"] == "vm"]
    assert vm["quantity"].endswith(" s")
    kinds = [row["what"] for row in content.cost_rows(tables.cost_lines(run))]
    assert "egress between continents" in kinds
    assert not [kind for kind in kinds if "_" in kind]


def test_a_cell_from_a_slot_to_itself_is_explained_only_where_it_is():
    apart, same = {"src": "a", "dst": "b"}, {"src": "a", "dst": "a"}
    assert content.traffic_note([apart]) == ""
    assert "from a slot to itself" in content.traffic_note([apart, same])


def test_samples_above_the_target_are_explained_only_where_they_are():
    assert content.samples_note([{"samples": 4096.0}, {"samples": 4000.0}], 4096) == ""
    assert content.samples_note([{"samples": 4096.0}], None) == ""
    assert "4,096 samples, the target batch size" in content.samples_note([{"samples": 4160.0}], 4096)


def test_accuracy_says_whether_there_was_anything_to_evaluate():
    assert accuracy_words(0.934, None) == "93.4%"
    assert accuracy_words(None, heldout_given({"data": {"heldout": None}})) == "no held-out data given"
    assert accuracy_words(None, heldout_given({"data": {"heldout": "s3://b/h.tar"}})) == "unknown"
    assert accuracy_words(None, heldout_given({"name": "imported"})) == "unknown"
