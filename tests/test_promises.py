"""docs/promises.md names its proofs: each is a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text()


def proofs(text: str) -> list[tuple[str, str]]:
    """(file, test) as the page names them; `::test` goes on with the file named last."""
    found: list[tuple[str, str]] = []
    file = ""
    for named, test in re.findall(r"`(tests/[a-z0-9_/]+\.py)?(?:::)(test_[a-z0-9_]+)`", text):
        file = named or file
        found.append((file, test))
    return found


def test_every_proof_is_a_test():
    named = proofs(PAGE)
    assert len(named) > 30
    known: dict[str, set[str]] = {}
    missing = []
    for file, test in named:
        if file not in known:
            path = ROOT / file
            tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
            known[file] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        if test not in known[file]:
            missing.append(f"{file}::{test}")
    assert missing == []


def test_every_promise_has_a_proof():
    sections = PAGE.split("\n## ")[1:]
    assert [s.splitlines()[0] for s in sections] == [
        "No orphan", "Crash-safe", "Lost work", "Budget", "Blast radius and identity", "Clocks", "Closed swarm", "Secrets",
    ]  # fmt: skip
    assert all("*Proof.*" in section and proofs(section) for section in sections)
