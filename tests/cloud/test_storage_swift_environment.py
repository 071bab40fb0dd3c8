"""Making the embedded store's environment: once, whole, and with a sentence when pip cannot."""

from __future__ import annotations

import sys
import threading

import pytest

from cloud.storage import swift_environment as module
from cloud.storage.errors import EmbeddedStoreError
from cloud.storage.swift_environment import SWIFT_VERSION, swift_environment


@pytest.fixture(autouse=True)
def default_place(monkeypatch):
    monkeypatch.delenv("ORCH_SWIFT_VENV", raising=False)


def installer(calls):
    """Stands for venv and pip: makes what they make."""

    def run(command, folder, say):
        calls.append(command)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/python").touch()
        if "install" in command:
            swift = folder / "lib/python3.11/site-packages/swift"
            swift.mkdir(parents=True)
            (swift / "__init__.py").touch()

    return run


def test_is_made_once_in_orchs_home_even_by_two_at_a_time(own_home, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "_run", installer(calls))
    made = []
    threads = [threading.Thread(target=lambda: made.append(swift_environment(print))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [own_home / f"swift-venv-{SWIFT_VERSION}"] * 2
    assert len(calls) == 2  # venv, pip
    assert calls[1][-1] == f"swift=={SWIFT_VERSION}"


def test_an_installation_that_was_interrupted_is_made_again(own_home, monkeypatch):
    calls = []

    def interrupted(command, folder, say):
        installer(calls)(command, folder, say)
        if "install" in command:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swift_environment(print)
    monkeypatch.setattr(module, "_run", installer(calls))
    swift_environment(print)
    assert len(calls) == 4


def test_pip_failing_is_one_sentence_with_its_last_line(tmp_path):
    lines = []
    program = "import sys; print('Collecting swift'); print('ERROR: no index', file=sys.stderr); sys.exit(1)"
    with pytest.raises(EmbeddedStoreError, match=r"ended with 1 \(ERROR: no index\); mend pip's access"):
        module._run([sys.executable, "-c", program], tmp_path, lines.append)
    assert lines == ["  Collecting swift", "  ERROR: no index"]


def test_a_given_folder_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    monkeypatch.setenv("ORCH_SWIFT_VENV", str(tmp_path / "precious"))
    with pytest.raises(EmbeddedStoreError, match="is no virtual environment with swift in it"):
        swift_environment(print)
    assert (tmp_path / "precious/file").exists()
