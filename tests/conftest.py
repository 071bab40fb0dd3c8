"""What all tests share: a home of their own, and nothing of the user's."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's matter: a busy one must not fail a test.
settings.register_profile("orch", deadline=None)
settings.load_profile("orch")


def pytest_configure() -> None:
    """Restore SIGINT where it is ignored, as it is in jobs that a shell starts in the background.

    Programs started by the tests would inherit that, and tests that interrupt them would hang.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nothing may be skipped: what is not run there is not known."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI=true: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own ORCH_HOME; the Swift environment is shared, being slow to make."""
    home = tmp_path / "home"
    if "ORCH_SWIFT_VENV" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
        monkeypatch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
    monkeypatch.setenv("ORCH_HOME", str(home))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return home


@pytest.fixture
def paper_traces() -> Path:
    """The folder with the authors' logs."""
    return _third_party("paper-traces/INDEX.csv", "github.com/cirquit/hivemind-multi-cloud, artifacts/wandb")


@pytest.fixture
def spot_histories() -> Path:
    """The folder with published spot histories."""
    return _third_party(
        "spot-histories/README.md",
        "github.com/uclasystem/bamboo, traces/, as bamboo/, and in github.com/JF-D/Parcae, aws/traces/, as parcae/",
    )


@pytest.fixture
def sophon_sizes() -> Path:
    """The sizes by operation of 20,000 of OpenImages' samples that SOPHON's authors publish."""
    folder = _third_party(
        "sophon-openimages/README.md", "github.com/mengwanguc/sophon, as sophon-openimages/"
    )
    return folder / "openimages-sizes-even.csv.gz"


def _third_party(file: str, where: str) -> Path:
    """The folder of a file that is never in this repository. Skips the test if it is not on this machine."""
    shared = Path(os.environ.get("ORCH_SHARED") or Path(__file__).parents[2] / "shared")
    if not (shared / file).is_file():
        pytest.skip(f"{shared / file} is not there: get its folder from {where}")
    return (shared / file).parent
