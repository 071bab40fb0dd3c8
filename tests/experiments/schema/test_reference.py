"""docs/yaml.md is what the models say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args, get_origin

from experiments.schema.models import Data, Replace, Swarm
from experiments.schema.reference import markdown


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[3] / "docs" / "yaml.md"
    assert page.read_text() == markdown(), "run: python -m experiments.schema.reference > docs/yaml.md"


def test_reference_lists_all_values_of_a_key():
    page = markdown()
    for section in Swarm, Replace, Data:
        for name, field in section.model_fields.items():
            words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`")) if words else ""
            assert all(word in row for word in words), name
    assert "`cheapest_place`, `any_place_up`, `wait`, `never`" in page
