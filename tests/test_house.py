"""The five rooms and their facade as a whole: public names, imports that must not happen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.local.options import LocalOptions
from cloud.targets import SKY
from experiments.catalog import models
from experiments.schema.models import Data
from orchestrator.cli.app import run
from orchestrator.launch.local_store import READABLE

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


# Names of sentences written for people.
SENTENCES = {
    *(
        "cause",
        "causes",
        "end_cause",
        "stop_cause",
        "reason",
        "reasons",
        "why",
        "held_back",
        "disturbed",
        "error",
    ),
    *("note", "notes", "warning", "warnings", "sentence", "sentences", "message", "messages"),
}
# Where one is read all the same, by file and function.
READERS = {
    # messages of other programs
    ("cloud/sky/skypilot/errors.py", "translate"),
    ("cloud/sky/skypilot/server.py", "_start"),
    ("experiments/peer/reporting/loss_log.py", "loss_reason"),
    ("experiments/peer/training/task.py", "_is_out_of_memory"),
    # rows of journals written before they had codes
    ("orchestrator/core/journal.py", "preempted_vm"),
    ("orchestrator/study/journal.py", "_disturbances"),
    # codes that look like words: of columns and records that stay as they are, or that never leave the program
    ("analysis/export/bill.py", "_warnings"),
    ("analysis/export/focus.py", "line_place"),
    ("experiments/monitor/acceptance.py", "roster_changed"),
    ("experiments/monitor/progress.py", "roster_changed"),
    ("experiments/peer/swarm/membership.py", "others_expected"),
    ("metrics/records.py", "fell_out_of_sync"),
    ("orchestrator/cli/render/study_plan.py", "study_plan_lines"),
}


def _subject(node: ast.expr) -> str:
    """The name of what is looked at: `o.cause`, `row["cause"]`, `str(error)`, `cause.lower()`."""
    match node:
        case (
            ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[inner]) | ast.Call(func=ast.Attribute(value=inner)):
            return _subject(inner)
    return ""


def _is_prose(node: ast.expr, constants: dict[str, str]) -> bool:
    """Whether a literal, or a constant of the module, has two words or more."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(re.search(r"[a-z]{2} [a-z]{2}", text))
        case ast.Name(id=name):
            return bool(re.search(r"[a-z]{2} [a-z]{2}", constants.get(name, "")))
        case ast.Tuple(elts=parts) | ast.JoinedStr(values=parts):
            return any(_is_prose(part, constants) for part in parts)
    return False


def _sentences_read(tree: ast.Module) -> list[tuple[str, int]]:
    """(function, line) where the words of a sentence decide: startswith, `in`, == and the functions of `re`."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: list[tuple[str, int]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        looked: list[ast.expr] = []
        words: list[ast.expr] = []
        match node:
            case ast.Call(
                func=ast.Attribute(value=subject, attr="startswith" | "endswith" | "find"), args=words
            ):
                looked = [subject]
            case ast.Call(func=ast.Attribute(attr="match" | "search" | "fullmatch" | "findall"), args=looked):
                pass
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                text = isinstance(left, ast.Constant | ast.JoinedStr)
                looked, words = [right] if text else [], [left] if text else []
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                text = isinstance(right, ast.Constant) and isinstance(right.value, str) and right.value
                looked, words = [left] if text else [], [right]
        if any(_subject(n) in SENTENCES for n in looked) or any(_is_prose(n, constants) for n in words):
            found.append((function, node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


@pytest.mark.parametrize(
    "code",
    [
        'row.end_cause.startswith("preempted")',
        "note.startswith(CANNOT)",
        "text.startswith(CANNOT)",
        'vm.cause == "terminating"',
        '"preempt" in str(row["end_cause"])',
        '"matrix" in problem.message',
        "str(error).startswith(path)",
        'emulation.endswith("not scaled")',
        're.match("x", warning)',
    ],
)
def test_a_sentence_that_decides_is_found(code: str):
    assert _sentences_read(ast.parse(f'CANNOT = "cannot be launched"\ndef f():\n    return {code}')) == [
        ("f", 3)
    ]


@pytest.mark.parametrize(
    "code",
    ["row.end is VmEnd.PREEMPTED", "limit is not None", 'name.startswith("orch-")', "new.cause != old.cause"],
)
def test_a_code_that_decides_is_not(code: str):
    assert _sentences_read(ast.parse(code)) == []


def test_no_sentence_decides():
    """A cause, a warning or an error is written for people: decisions use a code beside it.

    Found are sentences by their name or by their words; one under another name, looked at for one word, is not.
    """
    found = [
        (_name(path), function, line)
        for path in MODULES
        for function, line in _sentences_read(ast.parse(path.read_text()))
    ]
    assert [place for place in found if place[:2] not in READERS] == []
    assert set(READERS) == {place[:2] for place in found}, "no longer read there"


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
    assert run(["validate", str(file), "--on", "local"]) == 0
    assert run(["launch", str(file), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "first: digits, 2 peers" in plan
    assert "first can be launched on this machine" in plan


def test_there_is_one_install_line():
    for page in ("README.md", "docs/sky.md"):
        assert SKY.install in (ROOT / page).read_text(), page
    lines = [(path, line) for path in (*PAGES, *MODULES) for line in path.read_text().splitlines()]
    commands = [(path, line) for path, line in lines if "pip install" in line and "skypilot" in line]
    assert [(path, line) for path, line in commands if SKY.install not in line] == []


def test_what_the_readme_says_orch_does_not_do_is_still_so():
    readme = (ROOT / "README.md").read_text()
    box = re.sub(r"\n>? *", " ", readme.partition("## What orch does not do\n\n")[2].partition("\n\n")[0])
    assert "RoBERTa and Whisper are emulated there, or trained as a `task`" in box
    assert READABLE["image-classification"][0] == Data.model_fields["dataset"].default == "digits"
    untrained = [name for name, model in models().items() if model.kind not in ("vision", "digits")]
    assert untrained
    assert all(name.startswith(("RoBERTa", "Whisper")) for name in untrained)
    assert "*Split a model.*" in box
    peer = [path.read_text() for path in (ROOT / "experiments" / "peer").rglob("*.py")]
    assert peer
    assert not [
        text for text in peer if "FullyShardedDataParallel" in text or "torch.distributed.pipelining" in text
    ]


def test_commands_of_the_readme_fit_on_a_line():
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 100 or line.endswith("\\")] == []
