"""Messages of peers name the user's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launch.own_paths import OwnPaths

COPIES = {
    "code/my_task.py": Path("/home/u/exp/my_task.py"),
    "code/helpers": Path("/home/u/lib/helpers"),
    "code/vocab.json": Path("/data/vocab.json"),
}
OWN = OwnPaths.of_run(COPIES, Path("/home/u/.orch runs/geo-1"))
VM = "/home/u/.orch runs/geo-1/vms/geo-1-a-0"


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (f"{VM}/code/my_task.py:7: ValueError: x", "/home/u/exp/my_task.py:7: ValueError: x"),
        ("/root/orch-vm/code/helpers/ops.py:3: x", "/home/u/lib/helpers/ops.py:3: x"),
        ("(/home/ubuntu/orch-vm/code/my_task.py:7)", "(/home/u/exp/my_task.py:7)"),
        (f"'{VM}/code/vocab.json' has no pad", "'/data/vocab.json' has no pad"),
        (f"{VM}/code/my_task.pyc", f"{VM}/code/my_task.pyc"),
        (f"{VM}/code/other.py:1", f"{VM}/code/other.py:1"),
        ("/home/u/code/my_task.py:7", "/home/u/code/my_task.py:7"),
        ("s3://bucket/code/my_task.py", "s3://bucket/code/my_task.py"),
    ],
)
def test_paths_of_copies_become_those_of_the_users_files(reported: str, shown: str):
    assert OWN.in_text(reported) == shown
    assert OWN.in_values({"a": [{"b": reported}], "n": 1}) == {"a": [{"b": shown}], "n": 1}


def test_a_run_without_a_task_has_no_copies():
    assert OwnPaths.of_run({}, Path("/r")).in_text("/r/vms/a/code/x.py") == "/r/vms/a/code/x.py"
