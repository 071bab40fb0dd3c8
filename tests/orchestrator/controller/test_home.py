"""Run ids, the home folder, and exit codes of errors."""

import os
from datetime import UTC, datetime
from random import Random

import pytest

from cloud.provider import InvalidRequestError, NoCapacityError, TransientError
from metrics.store.database import FencedError, SchemaError, StoreError
from orchestrator import errors
from orchestrator.home import home_folder, list_runs, new_run_id, resolve_run, run_folder


def make(home, run_id, at_s):
    folder = run_folder(home, run_id)
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: x")
    os.utime(folder / "experiment.yaml", (at_s, at_s))


def test_ids_have_name_date_and_four_digits():
    at = datetime(2026, 11, 21, tzinfo=UTC)
    assert new_run_id("geo-b2", at, Random(1)) == new_run_id("geo-b2", at, Random(1))
    assert new_run_id("geo-b2", at, Random(1)).startswith("geo-b2-20261121-")
    assert len(new_run_id("geo-b2", at, Random(1))) == len("geo-b2-20261121-7f3a")


def test_a_unique_prefix_and_latest_find_a_run(tmp_path):
    make(tmp_path, "geo-b2-20261121-aaaa", 100)
    make(tmp_path, "geo-b2-20261121-bbbb", 50)
    assert list_runs(tmp_path) == ["geo-b2-20261121-aaaa", "geo-b2-20261121-bbbb"]
    assert resolve_run(tmp_path, "latest") == "geo-b2-20261121-aaaa"
    assert resolve_run(tmp_path, "geo-b2-20261121-b") == "geo-b2-20261121-bbbb"
    with pytest.raises(errors.UsageError, match="2 runs start with this"):
        resolve_run(tmp_path, "geo")
    for nothing in ("local", ""):
        with pytest.raises(errors.UsageError):
            resolve_run(tmp_path, nothing)


def test_without_runs_the_error_is_one_sentence(tmp_path):
    with pytest.raises(errors.UsageError, match="no run yet"):
        resolve_run(tmp_path, "latest")


def test_home_follows_the_environment(tmp_path):
    assert home_folder({"ORCH_HOME": str(tmp_path)}) == tmp_path
    assert home_folder({}).name == "orch"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunFailedError(), 1),
        (errors.UsageError(), 2),
        (errors.RefusedError(), 3),
        (errors.CapacityError(), 4),
        (errors.TeardownError("left", ["vm"]), 5),
        (errors.HeldError(), 6),
        (FencedError(), 6),
        (errors.StalePlanError(), 7),
        (SchemaError(), 2),
        (StoreError(), 1),
        (NoCapacityError(), 4),
        (InvalidRequestError(), 2),
        (TransientError(), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
    ],
)
def test_one_table_of_exit_codes(error, code):
    assert errors.exit_code(error) == code
