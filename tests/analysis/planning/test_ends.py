"""What a plan says about how the run ends: goals that cannot be reached, and what is kept."""

from __future__ import annotations

from analysis.planning.ends import goal_notes, kept_notes
from analysis.planning.plan import plan_of
from cloud.prices.book import load as load_book
from experiments.parse.load import load
from experiments.schema.checkpoint import Checkpoint
from experiments.schema.models import Task


def test_goals_that_cannot_be_reached_are_named():
    sets = ("swarm.target_batch_size=1000", "measure={warmup_epochs: 1, epochs: 9}")
    spec = load("local-2", [*sets, "swarm.batch_size=50", "train.until={samples: 10000, usd: 2}"])
    [ends] = goal_notes(spec, priced=True)
    assert ends == "the run ends earlier once a goal of train.until is reached: samples 10,000, usd 2"
    assert "train.until.usd cannot be reached" in goal_notes(spec, priced=False)[1]
    spec = load("local-2", [*sets, "swarm.batch_size=50", "train.until={samples: 10001}"])
    assert goal_notes(spec, priced=True)[1] == (
        "train.until.samples cannot be reached: the 10 epochs of measure train on about 10,000 samples; set measure.epochs "
        "to 10 or more"
    )


def test_the_plan_knows_whether_prices_are_missing():
    spec = load("geo-b2", ["train.until.usd=2", "emulation=null"])
    known = plan_of(spec, load_book("study-2023-04"), None, on="sky")
    other = spec.peers[0].model_copy(
        update={"resources": spec.peers[0].alternatives[0].model_copy(update={"accelerators": "H100:1"})}
    )
    spec = spec.model_copy(update={"peers": (other, *spec.peers[1:])})
    unknown = plan_of(spec, load_book("study-2023-04"), None, on="sky")
    assert [any("train.until.usd cannot" in note for note in plan.notes) for plan in (known, unknown)] == [
        False,
        True,
    ]


def test_a_task_on_rented_vms_without_checkpoints_is_warned_of():
    model = load("local-2")
    task = model.model_copy(update={"model": None, "task": Task(name="image-classification")})
    [note] = kept_notes(task, rented=True)
    assert note.startswith("no checkpoints: the model is not kept")
    kept = task.model_copy(update={"checkpoint": Checkpoint(every_s=600.0)})
    assert (
        kept_notes(task, rented=False)
        == kept_notes(kept, rented=True)
        == kept_notes(model, rented=True)
        == []
    )
