"""The model of an experiment: a row of models.csv, or what orch found when it built the task. Pure."""

from __future__ import annotations

from dataclasses import replace

from cloud.datasets.sample_bytes import SAMPLE_BYTES
from experiments.catalog import Model, models
from experiments.schema.errors import SpecError
from experiments.schema.models import DIGITS, Data, ExperimentSpec, Task

_TASK = "task"


def is_resolved(spec: ExperimentSpec) -> bool:
    """Whether the model's size is known: a task must have been built for that (orchestrator/launch/task_facts.py)."""
    return spec.task is None or spec.task.facts is not None


def model_of(spec: ExperimentSpec) -> Model:
    """Return the model. Raises SpecError for a task that has not been built."""
    found = known_model(spec.model, spec.task, spec.data)
    if found is None:
        raise SpecError.of(spec.name, f"the size of the task {spec.trains} is unknown; `orch plan` builds it")
    return found


def known_model(model: str | None, task: Task | None, data: Data | None) -> Model | None:
    """Return the model of parts of an experiment. None: unknown, or a task that has not been built.

    `data.bytes_per_sample` replaces the size of samples. Without it, the samples of a task have the size of the embedded
    store's data set, and an unknown one in another store.
    """
    given = None if data is None else data.bytes_per_sample
    if task is None:
        row = None if model is None else models().get(model)
        return row if row is None or given is None else replace(row, bytes_per_sample=round(given))
    if task.facts is None:
        return None
    if given is None and data is not None and not data.endpoint:
        digits = data.dataset == DIGITS
        given = models()[DIGITS].bytes_per_sample if digits else SAMPLE_BYTES.get(data.dataset)
    return Model(
        name=task.title,
        parameters=task.facts.parameters,
        kind=_TASK,
        bytes_per_sample=None if given is None else round(given),
        source="the task, as orch built it",
        shapes=task.facts.shapes,
    )
