"""What a VM's folder holds before its program starts."""

from __future__ import annotations

from pathlib import Path

from cloud.local.host.vms import write_vm_folder


def test_folders_are_copied_beside_the_files(tmp_path: Path):
    (tmp_path / "run" / "code" / "package").mkdir(parents=True)
    (tmp_path / "run" / "code" / "package" / "task.py").write_text("x = 1\n")
    folders = {"code": str(tmp_path / "run" / "code")}
    for _ in range(2):  # a monitor's folder is used again
        write_vm_folder(tmp_path / "vm", {"config.json": b"{}"}, folders)
    assert (tmp_path / "vm" / "code" / "package" / "task.py").read_text() == "x = 1\n"
    assert (tmp_path / "vm" / "config.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "vm" / "code" / "package" / "task.py").write_text("x = 2\n")
    assert (tmp_path / "run" / "code" / "package" / "task.py").read_text() == "x = 1\n", (
        "a copy, not the run's own"
    )
