"""The entry point: imports, error handling and the list of commands."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from orchestrator.cli.app import COMMANDS, build_app, run

HEAVY = {"ray", "torch", "hivemind", "sky", "pandas", "matplotlib", "transformers", "webdataset"}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["validate", "--help"], ["report", "--help"], ["try", "--help"], ["ls"], ["--version"]],
)
def test_light_commands_import_nothing_heavy(arguments: list[str]):
    code = (
        "import sys; from orchestrator.cli.app import run; code = run(sys.argv[1:]); "
        "print(code, *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    exit_code, *modules = done.stderr.split()
    assert exit_code == "0"
    assert not HEAVY & set(modules)


def test_help_loads_no_command_module_and_no_rich():
    code = (
        "import sys; from orchestrator.cli.app import run; run(['--help']); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not {f"orchestrator.cli.commands.{module}" for module, _ in COMMANDS.values()} & loaded
    assert not {"rich", "pydantic", "yaml"} & loaded


def test_command_table_matches_module_help():
    for module in {module for module, _ in COMMANDS.values()}:
        app = typer.Typer()
        import_module(f"orchestrator.cli.commands.{module}").register(app)
        found = {name: command.help or "" for name, command in typer.main.get_group(app).commands.items()}
        stated = {name: text for name, (owner, text) in COMMANDS.items() if owner == module}
        assert found.keys() == stated.keys()
        for name, text in stated.items():
            first = " ".join(found[name].partition("\n\n")[0].split())
            assert first == text, name


def test_only_the_invoked_module_is_registered():
    loaded = [c.callback.__module__ for c in build_app(["--set", "status"]).registered_commands if c.callback]
    assert set(loaded) == {"orchestrator.cli.app", "orchestrator.cli.commands.look"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lanch"], "Did you mean 'launch'"),
        (["launch"], "Missing argument"),
        (["ls", "-o", "xml"], "'xml'"),
        (["status", "no-such-run"], "orch ls"),
        (["status", ""], "no such run"),
        (["down", "../.."], "no such run"),
        (["launch", "no-such-file.yaml", "--yes"], "no such file"),
        (["launch", "geo-b2", "--set", "swarm.batch_siz=1", "--yes"], "did you mean 'batch_size'?"),
        (["launch", "geo-b2", "--yes", "--run-id", "../x"], "--run-id"),
        (["status", "latest", "-w", "-o", "json"], "orch launch"),
    ],
)
def test_invalid_commands_exit_with_2_and_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], own_home: Path
):
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert not own_home.exists()


def test_internal_error_writes_traceback_to_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_home: Path
):
    def broken(home: Path) -> list[str]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("orchestrator.home.list_runs", broken)
    assert run(["ls"]) == 1
    printed = capsys.readouterr().err
    (written,) = (own_home / "faults").iterdir()
    assert printed.count("\n") == 1
    assert str(written) in printed
    assert "ZeroDivisionError" in written.read_text()
    monkeypatch.setenv("ORCH_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["ls"])


def test_version(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("orch ")
