"""The five rooms and their facade as a whole: public names, imports that must not happen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.local.options import LocalOptions
from orchestrator.cli.app import run

ROOT = Path(__file__).parents[1]
PACKAGES = ("orch", "orchestrator", "experiments", "cloud", "metrics", "analysis")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
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


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_in_the_pages_leads_somewhere():
    links = [(p, t) for p in PAGES for t in re.findall(r"\]\(([^)\s]+)\)", p.read_text())]
    assert len(links) > 8
    local = [(p, *t.partition("#")[::2]) for p, t in links if not t.startswith(("http:", "https:"))]
    pages = [(p, p.parent / target if target else p, anchor) for p, target, anchor in local]
    assert [f"{p.name}: {target}" for p, target, _ in pages if not target.exists()] == []
    assert [
        f"{p.name}: {to.name}#{anchor}" for p, to, anchor in pages if anchor and anchor not in _anchors(to)
    ] == []


def test_every_source_file_named_in_the_pages_exists_and_has_the_name():
    """`path/of/file.py` is from the repository's root; `path/of/file.py: name` is a name in that file."""
    named = [
        (page, *found)
        for page in PAGES
        if page.name not in ("design.md", "CHANGELOG.md")
        for found in re.findall(
            r"`([\w-]+(?:/[\w-]+)+\.(?:py|sh))(?:: (\w+))?`", re.sub(r"\s+", " ", page.read_text())
        )
    ]
    assert len(named) > 80
    assert [f"{page.name}: {path}" for page, path, _ in named if not (ROOT / path).exists()] == []
    assert [
        f"{page.name}: {path}: {name}"
        for page, path, name in named
        if name
        and not re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    ] == []


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


def test_the_readmes_experiment_can_be_launched_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "first.yaml"
    file.write_text((ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0])
    assert run(["validate", str(file)]) == 0
    assert run(["launch", str(file), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "first: digits, 2 peers" in plan
    assert "cannot be launched" not in plan


def test_commands_of_the_readme_fit_on_a_line():
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 100 or line.endswith("\\")] == []
