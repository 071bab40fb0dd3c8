"""What a VM's folder holds before its program starts."""

from __future__ import annotations

from pathlib import Path

from cloud.local.host.vms import remove_disks, write_vm_folder


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


def test_only_logs_and_the_runs_own_copy_remain_after_a_run(tmp_path: Path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "task.py").write_text("x = 1\n")
    for vm in ("r-a-0", "r-a-1"):
        write_vm_folder(tmp_path / "vms" / vm, {"peer.log": b""}, {"code": str(tmp_path / "code")})
        (tmp_path / "vms" / vm / "cache").mkdir()
    remove_disks(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["code/task.py", "vms/r-a-0/peer.log", "vms/r-a-1/peer.log"]
    assert not list(tmp_path.glob("vms/*/*/"))
