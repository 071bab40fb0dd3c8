"""docs/yaml.md: the reference of the experiment file, written from the models so that it cannot drift."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from experiments.schema import models as schema
from experiments.schema.limits import Limits

_HEAD = """# The experiment file

Written from the models in `experiments/schema/models.py` by `python -m experiments.schema.reference > docs/yaml.md`; a
test compares. SkyPilot's key names are used where the meaning is equal. `orch validate FILE` checks a file offline and
names every problem at once with file:line:column; `orch show FILE` prints it with all defaults; `orch schema` prints the
JSON Schema for editors; `--set swarm.target_batch_size=8192` or `--set peers.us.count=2` overrides a key and is checked
the same way. Examples: `experiments/library/`, and `orch experiments`.
"""

_MATRIX = """
## `matrix`

Several experiments in one file, by the rules of GitHub Actions: the axes' product, less what an entry of `exclude` matches,
and `include`, whose entries join the combinations they do not contradict or are one more; at most 256. `${matrix.x}` stands for
a combination's value in any string, and takes its type where the string is nothing else. Each has a name of its own. Stricter
than there: values are text, numbers, true or false (no mappings, no null), an entry of `exclude` that matches nothing is wrong
(`"4"` is not `4`), and so is a placeholder in a key or in the matrix itself. A shell's own `${matrix}`, without a dot, stays.

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

`orch validate FILE` checks all of them and `orch show FILE` lists them; what runs or plans one takes `--matrix n=4`
(repeatable) or `--matrix mine-4-nlp`, and one of the library goes by its own name.
"""

_SECTIONS: tuple[tuple[str, type[Any]], ...] = (
    ("", schema.ExperimentSpec),
    ("data", schema.Data),
    ("swarm", schema.Swarm),
    ("swarm.optimizer", schema.Optimizer),
    ("peers[]", schema.PeerGroup),
    ("peers[].resources, peers[].any_of[]", schema.Resources),
    ("peers[].replace", schema.Replace),
    ("measure", schema.Measure),
    ("limits", Limits),
    ("emulation", schema.Emulation),
    ("emulation.preempt", schema.Preempt),
)


def markdown() -> str:
    """The whole page."""
    return _HEAD + "".join(_section(path, model) for path, model in _SECTIONS) + _MATRIX


def _section(path: str, model: type[Any]) -> str:
    title = f"`{path}`" if path else "Top level"
    text = f"\n## {title}\n\n{(model.__doc__ or '').strip()}\n\n| key | default | meaning |\n|---|---|---|\n"
    for name, field in schema.keys_of(model).items():
        meaning = (field.description or "A section of its own, below.") + _choices(field)
        meaning = meaning.replace("|", "\\|")
        text += f"| `{name}` | {_default(field.default, field.default_factory)} | {meaning} |\n"
    return text


def _choices(field: FieldInfo) -> str:
    """The words a key may have, where they are few and its description does not name them all."""
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if not words or all(word in (field.description or "") for word in words):
        return ""
    return f" One of {', '.join(f'`{word}`' for word in words)}."


def _default(value: Any, factory: Any) -> str:
    if factory is not None:
        return "see below" if factory() else "empty"
    if value is PydanticUndefined:
        return "required"
    return "none" if value is None else "empty" if value == "" else f"`{value}`"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
