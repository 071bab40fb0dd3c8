"""A user's own task on rented VMs: her files and a package of hers reach every peer, also the replacement."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from fate import instances, preempt
from machine import clusters, in_ec2
from pure_wheel import wheel
from running import Running, orch

from cloud.sky import records
from cloud.sky.vm import ssh
from metrics.store.database import RunStore

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1500)]

OWN = Path(__file__).parents[1] / "experiments" / "tasks" / "own"
TWIN = Path(__file__).with_name("twin.yaml")


@pytest.fixture
def file(clean_home: Path) -> Path:
    """Experiment of the digits' own task, with a package in a folder of wheels: the twin's data, places and secrets."""
    folder = clean_home.parent / "user"
    shutil.copytree(OWN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    wheel(folder / "wheels", "orchtestonly")
    task = folder / "my_task.py"
    task.write_text(task.read_text().replace("import torch\n", "import orchtestonly\nimport torch\n", 1))
    twin, own = (yaml.safe_load(path.read_text()) for path in (TWIN, OWN / "mine.yaml"))
    kept = ("data", "peers", "secrets", "min_peers", "prices", "seed", "swarm")
    document = {
        **{key: twin[key] for key in kept},
        **{key: own[key] for key in ("name", "task", "code")},
        "requirements": ["--find-links wheels", "orchtestonly"],
        "measure": {"warmup_epochs": 1, "epochs": 19},
        "emulation": None,  # her own model, on the processor that the VM has
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(document))
    return folder / "mine.yaml"


@pytest.fixture
def run(file: Path, clean_home: Path) -> Iterator[Running]:
    begun = Running(clean_home, str(file), "--on", "sky")
    yield begun
    begun.close(600)


def test_her_files_and_her_package_reach_every_peer(run: Running, file: Path):
    assert find_spec("orchtestonly") is None, "the package must come from the wheels"
    run.wait_for_epoch(2, 600)
    (file.parent / "my_task.py").write_text("raise RuntimeError('edited during the run')\n")
    shutil.rmtree(file.parent / "wheels")
    first = living(run)
    assert len(first) == 2
    for vm in first:
        check_package(vm)
    (taken,) = [i for i in instances(up=True) if i["tags"].get("orch-slot") == "eu-0"]
    preempt(taken["id"])
    code, summary = run.finish(900)
    assert code == 0, run.stderr.read_text()
    assert summary["status"] == "done"
    assert {p["slot"]: p["vms"] for p in summary["peers"]} == {"us-0": 1, "eu-0": 2}, orch(
        "why", run.run_id, "eu-0"
    ).stdout
    assert summary["accuracy"] > 0.6
    assert "raise RuntimeError" not in (run.folder / "code" / "my_task.py").read_text()
    with RunStore.open_reader(run.folder / "run.db") as store:
        meta = store.run_meta()
        epochs = list(store.records("epochs"))
    assert meta.model is not None
    assert (meta.model.name, len(meta.model.sha256 or "")) == ("my_task:build", 64)
    newest = max((row.vm for row in epochs if "-eu-0-" in row.vm), key=lambda vm: int(vm.rpartition("-")[2]))
    assert not newest.endswith("-eu-0-0"), "the replacement trained nothing"
    assert (in_ec2(), clusters()) == ([], [])


def living(run: Running) -> list[Any]:
    """Records of the VMs that are up."""
    return [r for r in records.read_all(run.folder / "sky") if r.launched and not r.end_state]


def check_package(vm: Any) -> None:
    """The VM has her package, and the peer's own packages are those of this machine still."""
    said = ssh.run_on(
        vm.address, vm.ssh, "cd /; /opt/orch/env/bin/python -c 'import orchtestonly, numpy; print(numpy.__version__, "
        "orchtestonly.__file__)'", 20,
    )  # fmt: skip
    assert said is not None
    found, place = said.split()
    assert found == version("numpy")
    assert place.startswith("/opt/orch/env/lib/")
