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
    assert {*get_args(EgressClass), "store", "checkpoint", "control", "unknown"} == CLASS_WORDS.keys()


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


def evaluated(folder: Path, evaluations: list[dict], **meta: object) -> dict:
    """The summary of a run of two peers with these evaluations."""
    write_run(folder, peers=2, epochs=4)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("evaluations", evaluations)
        for key, value in meta.items():
            store.set_meta(key, value)
        return summarise(store)


def rows_of(epoch: int, loss: float, **metrics: float) -> list[dict]:
    return [
        {
            "vm": vm,
            "epoch": epoch,
            "at_s": 9.0,
            "accuracy": None,
            "loss": loss,
            "samples": 90,
            "metrics": metrics,
        }
        for vm in ("a", "b")
    ]


def test_held_out_figures_of_a_task_without_accuracy(tmp_path: Path):
    rows = [*rows_of(2, 1.4, nats_per_byte=1.3, mine=8.0), *rows_of(4, 1.52, nats_per_byte=1.2, mine=9.0)]
    summary = evaluated(tmp_path, rows)
    assert summary["accuracy"] is None
    assert summary["evaluation"] == {"loss": 1.52, "nats_per_byte": 1.2, "mine": 9.0}
    assert summary["evaluation_best"] == {
        "loss": {"value": 1.4, "epoch": 2}, "nats_per_byte": {"value": 1.2, "epoch": 4}, "mine": None,
    }  # fmt: skip
    assert [(e["epoch"], e["raw_trained_samples"], e["peers"]) for e in summary["evaluations"]] == [
        (2, 2 * 4096.0, 2), (4, 4 * 4096.0, 2),
    ]  # fmt: skip
    cards = {card.name: card for card in content.cards(summary)}
    assert "Held-out accuracy" not in cards
    assert (cards["Held-out loss"].value, cards["Held-out loss"].more) == (
        "1.52", "at the end of the run; best 1.4 after epoch 2",
    )  # fmt: skip
    assert cards["Held-out mine"].more == "at the end of the run"
    assert content.learning_lead(summary).endswith(
        "on held-out samples at the end: loss 1.52, nats_per_byte 1.2, mine 9."
    )
    table = {row["figure"]: row for row in content.evaluation_table(summary)}
    assert (table["loss"]["last"], table["loss"]["best"], table["loss"]["best after epoch"]) == (
        "1.52",
        "1.4",
        2,
    )
    assert (table["mine"]["best"], table["mine"]["better is"]) == ("-", "unknown")


def test_the_accuracy_of_a_run_is_shown_as_before(run: RunNumbers):
    summary = summarise(run)
    cards = {card.name: card for card in content.cards(summary)}
    assert (cards["Held-out accuracy"].value, cards["Held-out accuracy"].more) == (
        "93.4%",
        "at the end of the run",
    )
    assert cards["Held-out loss"].value == "0.2"
    assert content.learning_lead(summary).endswith("the accuracy on held-out samples: 93.4%.")
    assert summary["evaluation"] == {"loss": 0.2, "accuracy": 0.934}


def test_the_task_is_named_with_its_settings_and_whose_step_times_these_are(tmp_path: Path):
    sha256 = "cee7" * 16
    task = {
        "name": None,
        "python": "/home/me/my_task.py:build",
        "with": {"width": 16},
        "facts": {"sha256": sha256},
    }
    model = {
        "name": "my_task:build",
        "parameters": 1210,
        "bytes_per_sample": 2060,
        "ran": "my_task:build",
        "sha256": sha256,
    }
    summary = evaluated(
        tmp_path,
        [],
        experiment={"name": "mine", "task": task},
        model=model,
        emulation={"accelerators": "host"},
    )
    assert summary["task"] == {"call": "my_task:build", "with": {"width": 16}, "sha256": sha256}
    assert {row["what"]: row["value"] for row in content.task_table(summary)} == {
        "task": "my_task:build",
        "settings": '{"width": 16}',
        "parameters": "1,210",
        "SHA-256 of code, requirements and settings": sha256,
    }
    assert "those of this machine's CPU, not of the accelerators" in content.task_lead(summary)
    assert "padded" in content.task_lead({**summary, "accelerators": "padded"})
    assert "the VMs' accelerators" in content.task_lead(
        {**summary, "accelerators": "real", "emulated": False}
    )
    assert summary["evaluation"] is None  # without an evaluation, unknown


def test_a_model_of_the_catalogue_has_no_task(run: RunNumbers):
    assert summarise(run)["task"] is None
    assert content.task_table(summarise(run)) == []


def test_a_target_that_was_not_reached_or_whose_dollars_are_unknown(tmp_path: Path):
    rows = [*rows_of(2, 1.4), *rows_of(4, 1.2)]
    train = {"name": "mine", "train": {"until": {"metric": {"name": "loss", "at_most": 1.3}}}}
    summary = evaluated(tmp_path, rows, experiment=train, price_book=None)
    line = content.target_line(summary)
    assert line.startswith(" The target, loss of at most 1.3, was reached after epoch 4: 131,072 samples, ")
    assert line.endswith("dollars unknown (no price book).")
    assert content.curve_note(summary).endswith(" Dollars are unknown: no price book.")
    cards = {card.name: card for card in content.cards(summary)}
    assert cards["Time to reach the target"].more == "dollars unknown; loss of at most 1.3, after epoch 4"
    (tmp_path / "other").mkdir()
    train["train"]["until"]["metric"] = {"name": "wer", "at_least": 0.5}
    summary = evaluated(tmp_path / "other", rows, experiment=train)
    assert content.target_line(summary) == " The target, wer of at least 0.5, was not reached."
    assert {card.name: card.value for card in content.cards(summary)}["Target"] == "not reached"
