"""docs/yaml.md is what the models say."""

from __future__ import annotations

from pathlib import Path

from experiments.spec.reference import markdown


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "yaml.md"
    assert page.read_text() == markdown(), "run: python -m experiments.spec.reference > docs/yaml.md"
