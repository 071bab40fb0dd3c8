"""The five rooms and their facade as a whole: public names, imports that must not happen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.local.options import LocalOptions

ROOT = Path(__file__).parents[1]
PACKAGES = ("orch", "orchestrator", "experiments", "cloud", "metrics", "analysis")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Names a module binds at its top level, also under `if` and `try`."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(a.asname or a.name).partition(".")[0] for a in names}
            case ast.If(body=inner, orelse=other):
                found |= _assigned(inner) | _assigned(other)
            case ast.Try(body=inner, handlers=handlers, orelse=other):
                found |= _assigned([*inner, *other, *(n for h in handlers for n in h.body)])
    return found


def _public_list(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == [
            "__all__"
        ]:
            return ast.literal_eval(node.value)
    return None


def test_there_are_modules():
    assert len(MODULES) > 100


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_public_names_are_listed_on_faces_only_and_exist(path: Path):
    tree = ast.parse(path.read_text())
    public = _public_list(tree)
    assert ast.get_docstring(tree), "no docstring"
    if public is not None:
        assert len(public) == len(set(public))
        assert not set(public) - _assigned(tree.body), "names that are not there"


@pytest.mark.parametrize(
    "module", ["orchestrator.core.machine", "metrics.summary", "experiments.parse", "analysis.planning.plan"]
)
def test_what_is_pure_imports_nothing_that_runs(module: str):
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"ray", "torch", "hivemind", "sky", "boto3", "webdataset"} & set(done.stdout.split())


def test_every_link_in_the_pages_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    links = [(p, t) for p in pages for t in re.findall(r"\]\(([^)\s]+)\)", p.read_text())]
    assert len(links) > 8
    local = [(p, t.partition("#")[0]) for p, t in links if not t.startswith(("http:", "https:", "#"))]
    assert [f"{p.name}: {t}" for p, t in local if not (p.parent / t).exists()] == []


def test_the_readme_says_what_two_and_eight_peers_need():
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head = ["run", "peers", "memory", "cores", "minutes"]
    assert head in rows
    found = [row for row in rows[rows.index(head) + 2 :] if len(row) == len(head)]
    assert {"2", "8"} <= {row[1] for row in found}
    for row in found:
        assert all(row)
        name = re.findall(r"`([^`]+)`", row[0])[0]
        folder = "studies" if row[0].startswith("study") else "library"
        assert (ROOT / "experiments" / folder / f"{name}.yaml").exists()
    text = "\n".join(lines)
    assert f"less free memory than {LocalOptions().peer_memory_bytes / 1e9:.1f} GB a peer" in text
