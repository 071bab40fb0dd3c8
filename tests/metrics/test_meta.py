"""A run's meta as a record: nothing is lost, absent keys have defaults, and every key is known and described."""

import ast
import gzip
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from metrics.store.database import RunStore
from metrics.store.meta import EgressCeiling, EmulationMeta, HostMeta, RunMeta, RunScales

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "tests" / "golden" / "runs").glob("*.sql.gz"))
CODE = [
    p
    for room in ("orchestrator", "analysis", "metrics", "orch", "benchmarks")
    for p in (ROOT / room).rglob("*.py")
]


def _stored(dump: Path, folder: Path) -> RunStore:
    connection = sqlite3.connect(folder / "run.db")
    connection.executescript(gzip.decompress(dump.read_bytes()).decode())
    connection.close()
    return RunStore.open_reader(folder / "run.db")


@pytest.mark.parametrize("dump", RUNS, ids=lambda path: path.name.removesuffix(".sql.gz"))
def test_a_finished_run_is_read_and_written_unchanged(dump: Path, tmp_path: Path):
    with _stored(dump, tmp_path) as store:
        meta, stored = store.run_meta(), store.all_meta()
    assert meta.to_json() == stored
    assert list(meta.to_json()) == list(stored)  # what is printed keeps its order
    assert set(stored) <= set(RunMeta.key_names())
    assert meta.status == stored["status"]


def test_unknown_keys_and_nulls_are_kept_and_a_changed_field_is_written():
    stored = {
        "status": "running",
        "of_a_newer_orch": [1],
        "label": None,
        "host": {"contended": True, "new": 1},
    }
    meta = RunMeta.from_json(stored)
    assert meta.to_json() == stored
    ended = replace(meta, status="done", warnings=["late"], host=HostMeta(contended=False))
    assert ended.to_json()["status"] == "done"
    assert ended.to_json()["of_a_newer_orch"] == [1]
    assert ended.to_json()["warnings"] == ["late"]
    assert ended.to_json()["host"]["contended"] is False


def test_a_run_without_a_key_has_its_default():
    for meta in (RunMeta.from_json({}), RunMeta.from_json(dict.fromkeys(RunMeta.key_names()))):
        assert meta == RunMeta()
        assert (meta.warmup_epochs, meta.warnings, meta.addresses) == (0, (), {})
        assert (meta.status, meta.host_contended, meta.scales) == (None, None, None)
        assert meta.document == {"name": None}
        assert meta.logs.nic is None


def test_an_older_run_keeps_one_number_of_steps_for_all():
    assert EmulationMeta(coalesce=20).steps_per_report("T4:1") == 20
    assert EmulationMeta(coalesce={"T4:1": 4, "V100:8": 37}).steps_per_report("T4:1") == 4


def test_new_record_writes_the_keys_of_a_launch():
    made = RunMeta(
        run_id="r", scales=RunScales(bytes=40.0), egress_ceiling=EgressCeiling(usd="0.5", raw_epoch_s=7.0)
    )
    stored = made.to_json()
    assert stored["scales"] == {"bytes": 40.0, "time": 1.0, "samples": 1.0}
    assert stored["egress_ceiling"] == {"usd": "0.5", "raw_epoch_s": 7.0}
    assert set(stored) == {"run_id", "scales"} | RunMeta.ALWAYS
    assert RunMeta.from_json(stored) == made


def test_every_key_that_code_reads_or_writes_is_a_field():
    used: dict[str, str] = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("meta", "set_meta")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                used[str(node.args[0].value)] = path.name
    assert {"status", "prometheus", "price_changes"} <= set(used)
    assert {key: name for key, name in used.items() if key not in RunMeta.key_names()} == {}


def test_the_design_page_lists_exactly_these_keys():
    page = (ROOT / "docs" / "design.md").read_text()
    (paragraph,) = re.findall(r"\*\*meta in run\.db\*\*.*?\n\n", page, re.DOTALL)
    listed = re.findall(r"`(\w+)`", paragraph)
    assert sorted(listed) == sorted(RunMeta.key_names())
