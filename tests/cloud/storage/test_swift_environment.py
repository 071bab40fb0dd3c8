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

    def run(command, folder, log):
        calls.append(command)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/python").touch()
        if "install" in command:
            swift = folder / "lib/python3.11/site-packages/swift"
            swift.mkdir(parents=True)
            (swift / "__init__.py").touch()

    return run


def test_environment_is_created_once_by_concurrent_calls(own_home, monkeypatch):
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

    def interrupted(command, folder, log):
        installer(calls)(command, folder, log)
        if "install" in command:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swift_environment(print)
    monkeypatch.setattr(module, "_run", installer(calls))
    swift_environment(print)
    assert len(calls) == 4


def test_pip_failing_is_one_sentence_with_its_last_line_and_a_log(tmp_path):
    program = "import sys; print('Collecting swift', flush=True); sys.exit('ERROR: no index')"
    log = tmp_path / "venv.log"
    said = rf"ended with 1 \(ERROR: no index; full output in {log}\); fix pip's access"
    with pytest.raises(EmbeddedStoreError, match=said):
        module._run([sys.executable, "-c", program], tmp_path, log)
    assert log.read_text().splitlines() == ["Collecting swift", "ERROR: no index"]


def test_installation_prints_two_lines_without_pip_output(own_home, monkeypatch):
    def run(command, folder, log):
        log.write_text("Collecting swift\n")
        installer([])(command, folder, log)

    monkeypatch.setattr(module, "_run", run)
    lines = []
    swift_environment(lines.append)
    assert [line.partition(" ")[0] for line in lines] == ["installing", "Swift"]
    assert "usually under a minute" in lines[0]
    assert not list(own_home.glob("*.log"))


def test_a_given_folder_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    monkeypatch.setenv("ORCH_SWIFT_VENV", str(tmp_path / "precious"))
    with pytest.raises(EmbeddedStoreError, match="is not a virtual environment with swift installed"):
        swift_environment(print)
    assert (tmp_path / "precious/file").exists()
