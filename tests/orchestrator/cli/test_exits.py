"""Exit codes and messages of errors."""

from __future__ import annotations

import errno
from importlib import import_module

import pytest

from cloud.provider import CredentialsError, NoCapacityError, QuotaError, TransientError
from cloud.storage.errors import BucketMissingError, PortTakenError
from experiments.schema.errors import Problem, SpecError
from metrics.store.database import FencedError, SchemaError
from orchestrator.cli.exits import BY_NAME, verdict
from orchestrator.errors import (
    CapacityError,
    HeldError,
    RefusedError,
    StalePlanError,
    TeardownError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (RefusedError("x"), 3),
        (CapacityError("x"), 4),
        (TeardownError("x", ["vm"]), 5),
        (HeldError("x"), 6),
        (StalePlanError("x"), 7),
        (FencedError("x"), 6),
        (SchemaError("x"), 2),
        (NoCapacityError("x"), 4),
        (QuotaError("x"), 4),
        (CredentialsError("x"), 2),
        (TransientError("x"), 1),
        (BucketMissingError("x"), 2),
        (PortTakenError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_codes(error: BaseException, code: int):
    found = verdict(error)
    assert found.code == code
    assert found.sentence


def test_class_names_of_the_table_exist():
    for name in BY_NAME:
        module, _, kind = name.rpartition(".")
        assert issubclass(getattr(import_module(module), kind), Exception)


def test_spec_error_starts_with_file_and_line():
    error = SpecError([Problem("a.yaml", 3, 5, "peers", "found 1; must be a list")])
    assert verdict(error) == (2, "a.yaml:3:5: peers: found 1; must be a list", True)


def test_a_full_disk_says_where():
    found = verdict(OSError(errno.ENOSPC, "No space left on device", "/runs/x/run.db"))
    assert found.code == 1
    assert found.sentence is not None
    assert "/runs/x/run.db" in found.sentence


def test_uncreatable_home_is_a_user_error_and_other_missing_files_are_internal(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ORCH_HOME", "/proc/x")
    for path in ("/proc/x", "/proc/x/ray.lock"):
        found = verdict(FileNotFoundError(errno.ENOENT, "No such file or directory", path))
        assert found.code == 2
        assert "set ORCH_HOME to " in (found.sentence or "")
    assert verdict(FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere/a")).sentence is None


def test_a_missing_package_says_how_to_get_it():
    found = verdict(ModuleNotFoundError("no ray", name="ray.util"))
    assert found.code == 2
    assert found.sentence is not None
    assert "pip install -e '.[local]'` in a clone of orch" in found.sentence, "PyPI's orch is somebody else's"
    assert verdict(ModuleNotFoundError("ours", name="metrics.gone")).sentence is None


def test_unknown_error_has_no_message():
    assert verdict(ValueError("?")) == (1, None, False)
