"""orch validate, show, schema, experiments."""

import json
import subprocess
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner

from experiments.parse import json_schema, load, to_document
from orchestrator.cli.commands.spec import register

runner = CliRunner()
app = typer.Typer()
register(app)


@pytest.fixture
def wrong(tmp_path):
    document = to_document(load("geo-b2"))
    document |= {"modle": 1, "seed": -1, "prices": "x", "budget_usd": 0, "name": "A B"}
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def test_validate_prints_five_errors_with_lines(wrong):
    result = runner.invoke(app, ["validate", str(wrong), "geo-b2"])
    assert result.exit_code == 2
    verdict = "can be launched on this machine; cannot be launched on rented VMs as it is: 2 obstacles"
    assert result.stdout == f"geo-b2: ok (geo-b2, 2 peers); {verdict}\n"
    lines = result.stderr.splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"{wrong}:") and line.split(":")[1].isdigit() for line in lines)


def test_validate_json(wrong):
    result = runner.invoke(app, ["validate", str(wrong), "no-such", "geo-b2", "-o", "json"])
    assert result.exit_code == 2
    bad, missing, good = json.loads(result.stdout)["files"]
    assert (bad["ok"], missing["ok"], good["ok"]) == (False, False, True)
    assert [p["path"] for p in bad["problems"]] == ["name", "budget_usd", "prices", "seed", "modle"]
    assert missing["problems"][0]["line"] is None
    assert (good["problems"], good["peers"]) == ([], 2)


def test_show_prints_what_loads_to_the_same(tmp_path):
    result = runner.invoke(app, ["show", "geo-b2", "--set", "seed=9"])
    assert result.exit_code == 0
    file = tmp_path / "again.yaml"
    file.write_text(result.stdout)
    assert load(str(file)) == load("geo-b2", ["seed=9"])
    result = runner.invoke(app, ["show", "geo-b2", "--set", "seed=9", "-o", "json"])
    assert json.loads(result.stdout) == to_document(load("geo-b2", ["seed=9"]))


def test_show_reports_the_same_errors():
    result = runner.invoke(app, ["show", "geo-b2", "--set", "seed=x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "--set seed=x: seed: found 'x'; must be a whole number\n"


def test_schema_and_experiments():
    assert json.loads(runner.invoke(app, ["schema"]).stdout) == json_schema()
    listed = runner.invoke(app, ["experiments"])
    assert listed.stdout.splitlines()[0].split() == ["NAME", "MODEL", "PEERS", "DESCRIPTION"]
    names = [
        row["name"]
        for row in json.loads(runner.invoke(app, ["experiments", "-o", "json"]).stdout)["experiments"]
    ]
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == names


def test_nothing_heavy_is_imported():
    code = (
        "import sys; import orchestrator.cli.commands.spec, experiments.emulation.scales; "
        "print([m for m in ('torch','ray','hivemind','sky','pandas','matplotlib','numpy','boto3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
