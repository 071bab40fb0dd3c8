"""Generate docs/yaml.md, the reference of the experiment file, from the models."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from experiments.schema import models as schema
from experiments.schema.checkpoint import Checkpoint
from experiments.schema.limits import Limits
from experiments.schema.tracking import Tracking, WandbTracking
from experiments.schema.train import Train, Until, UntilMetric

_HEAD = """# The experiment file

An experiment file is YAML. Keys have SkyPilot's names where the meaning is the same. Examples are in
`experiments/library/`; `orch experiments` lists them.

- `orch validate FILE` checks a file offline and reports all problems with file:line:column.
- `orch show FILE` prints a file with all defaults.
- `orch schema` prints the JSON Schema for editors.
- `--set swarm.target_batch_size=8192` or `--set peers.us.count=2` overrides a key, with the same checks.

This page is generated from `experiments/schema/models.py` by
`python -m experiments.schema.reference > docs/yaml.md`; a test compares them.
"""

_MATRIX = """
## `matrix`

Defines several experiments in one file, at most 256, by the rules of GitHub Actions:

- The combinations are the product of the axes, without those that an entry of `exclude` matches. Each entry of
  `include` extends the combinations that it does not contradict, or adds one.
- `${matrix.x}` in any string is replaced by the value of the combination. If the string contains nothing else, the
  result has the type of the value.
- Each experiment needs a name of its own.

It is stricter than GitHub Actions: values are text, numbers, true or false (no mappings, no null). An entry of `exclude`
that matches nothing is an error (`"4"` is not `4`), and so is a placeholder in a key or in the matrix itself. A shell's
own `${matrix}`, without a dot, is left alone.

```yaml
name: mine-${matrix.n}${matrix.suffix}
matrix:
  n: [1, 2, 4, 8]
  model: [ConvNextLarge, RoBERTaXLM]
  include:
    - {model: ConvNextLarge, suffix: ""}
    - {model: RoBERTaXLM, suffix: -nlp}
model: ${matrix.model}
```

`orch validate FILE` checks all of them and `orch show FILE` lists them. Commands that run or plan one take `--matrix n=4`
(repeatable) or `--matrix mine-4-nlp`. Experiments of the library are selected by name.
"""

_SECTIONS: tuple[tuple[str, type[Any]], ...] = (
    ("", schema.ExperimentSpec),
    ("task", schema.Task),
    ("task.facts", schema.TaskFacts),
    ("data", schema.Data),
    ("data.workers", schema.Workers),
    ("swarm", schema.Swarm),
    ("swarm.optimizer", schema.Optimizer),
    ("swarm.schedule", schema.RateSchedule),
    ("peers[]", schema.PeerGroup),
    ("peers[].resources, peers[].any_of[]", schema.Resources),
    ("peers[].replace", schema.Replace),
    ("measure", schema.Measure),
    ("checkpoint", Checkpoint),
    ("train", Train),
    ("train.until", Until),
    ("train.until.metric", UntilMetric),
    ("tracking", Tracking),
    ("tracking.wandb", WandbTracking),
    ("limits", Limits),
    ("emulation", schema.Emulation),
    ("emulation.preempt", schema.Preempt),
)


def markdown() -> str:
    """Return the whole page."""
    return _HEAD + "".join(_section(path, model) for path, model in _SECTIONS) + _MATRIX


def _section(path: str, model: type[Any]) -> str:
    title = f"`{path}`" if path else "Top level"
    text = f"\n## {title}\n\n{(model.__doc__ or '').strip()}\n\n| key | default | meaning |\n|---|---|---|\n"
    for name, field in schema.keys_of(model).items():
        meaning = (field.description or "See the section below.") + _choices(field)
        meaning = meaning.replace("|", "\\|")
        text += f"| `{name}` | {_default(field.default, field.default_factory)} | {meaning} |\n"
    return text


def _choices(field: FieldInfo) -> str:
    """List the values of a Literal field, unless its description names them all."""
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if not words or all(word in (field.description or "") for word in words):
        return ""
    return f" One of {', '.join(f'`{word}`' for word in words)}."


def _default(value: Any, factory: Any) -> str:
    if factory is not None:
        return "see below" if factory() else "empty"
    if value is PydanticUndefined:
        return "required"
    return "none" if value is None else "empty" if value in ("", ()) else f"`{value}`"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
