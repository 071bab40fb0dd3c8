"""The pure parts of the SkyPilot provider: names, errors, states, what is shipped, the script's text."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud import provider as contract
from cloud.provider import LaunchRequest, Offer
from cloud.sky.names import CLUSTER_NAME_MAX, cluster_name, label_value, labels_of
from cloud.sky.records import VmRecord, read, read_all, update, write
from cloud.sky.skypilot.errors import (
    cloud_message,
    is_gone,
    is_server_lost,
    is_unexplained,
    translate,
)
from cloud.sky.skypilot.identity import settings
from cloud.sky.state import Listed, absent, after_peek, gone, observed, parse_peek
from cloud.sky.vm.bootstrap import CHECK, peek_command, run_script
from cloud.sky.vm.secrets import KEY_VARIABLE, open_sealed, seal
from cloud.sky.vm.wheel import build_wheel, requirements, ship_folder

NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}-[a-z][a-z0-9]{0,20}-[0-9]-[0-9]{1,3}", fullmatch=True)
VALID = r"[a-z]([-a-z0-9]*[a-z0-9])?"


@given(st.sets(NAMES, max_size=30))
def test_every_vm_has_a_cluster_of_its_own_within_the_shortest_limit(names: set[str]):
    import re

    clusters = {cluster_name(name) for name in names}
    assert len(clusters) == len(names)
    for cluster in clusters:
        assert len(cluster) <= CLUSTER_NAME_MAX
        assert re.fullmatch(VALID, cluster)


def test_short_names_are_kept_and_long_ones_stay_distinct():
    assert cluster_name("geo-1a2b-us-0-3") == "geo-1a2b-us-0-3"
    long = "an-experiment-with-a-long-name-20261121-1a2b-us-0-"
    assert cluster_name(long + "1") != cluster_name(long + "11")
    assert cluster_name(long + "1") == cluster_name(long + "1")


@given(st.text(max_size=120))
def test_labels_are_what_every_cloud_takes(text: str):
    import re

    assert re.fullmatch(r"[a-z0-9_-]{0,63}", label_value(text))


def test_labels_that_differ_stay_different():
    assert label_value("A") != label_value("a")
    assert label_value("x" * 70) != label_value("x" * 71)
    assert labels_of("r-a-0", {"orch-run": "r"}) == {"orch-run": "r", "orch-vm": "r-a-0"}


def sky_error(name: str, text: str = "it went wrong", history: tuple[Exception, ...] = ()) -> Exception:
    error = type(name, (Exception,), {})(text)
    error.failover_history = history  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sky_error("ResourcesUnavailableError", "No resource satisfying"), "NoCapacityError"),
        (
            sky_error(
                "ResourcesUnavailableError",
                history=(Exception("VcpuLimitExceeded: You have requested more vCPU capacity"),),
            ),
            "QuotaError",
        ),
        (
            sky_error("ResourcesUnavailableError", history=(Exception("MaxSpotInstanceCountExceeded"),)),
            "QuotaError",
        ),
        (
            sky_error(
                "ResourcesUnavailableError",
                history=(Exception("RequestLimitExceeded: Request limit exceeded."),),
            ),
            "TransientError",
        ),
        (
            sky_error(
                "ResourcesUnavailableError", history=(Exception("ThrottlingException: Rate exceeded"),)
            ),
            "TransientError",
        ),
        (
            sky_error("ResourcesUnavailableError", history=(Exception("AuthFailure: not able to"),)),
            "CredentialsError",
        ),
        (sky_error("NoCloudAccessError"), "CredentialsError"),
        (sky_error("InvalidClusterNameError"), "InvalidRequestError"),
        (ValueError("no such zone"), "InvalidRequestError"),
        (sky_error("ApiServerConnectionError"), "TransientError"),
        (sky_error("RequestCancelled"), "TransientError"),
        (RuntimeError("Failed to run setup commands on an instance. (exit code 255)"), "TransientError"),
        (sky_error("SomethingNew"), "TransientError"),
    ],
)
def test_each_of_skypilots_errors_is_one_of_ours(error: Exception, kind: str):
    ours = translate(error, "r-a-0 at aws/us-west-2")
    assert type(ours).__name__ == kind
    assert str(ours).startswith("r-a-0 at aws/us-west-2: ")
    assert "\n" not in str(ours)


def test_error_has_the_clouds_message_without_ansi_codes():
    history = (Exception("\x1b[31mus-west-2a:\nInsufficientInstanceCapacity: no capacity left\x1b[0m"),)
    said = str(translate(sky_error("ResourcesUnavailableError", "Failed", history), "x"))
    assert said == "x: InsufficientInstanceCapacity: no capacity left"


def test_a_refusal_without_the_clouds_words_says_skypilots_and_not_the_request_again():
    asked = "Failed to provision all possible launchable resources. Relax the task's resource requirements: 1x AWS"
    assert str(translate(sky_error("ResourcesUnavailableError", asked), "x")) == (
        "x: Failed to provision all possible launchable resources"
    )
    zone = (Exception("Failed to acquire resources in us-west-2c for {AWS([Spot])}."),)
    assert str(translate(sky_error("ResourcesUnavailableError", asked, zone), "x")) == (
        "x: Failed to acquire resources in us-west-2c"
    )


def test_log_of_a_launch_tells_what_its_error_does_not():
    """As SkyPilot 0.13 writes it; its error only says that no resources could be acquired."""
    begin = "D 11-27 16:43:33.523 PID=229 provisioner.py:361] "
    quota = "An error occurred (VcpuLimitExceeded) when calling the RunInstances operation: You have requested more"
    traceback = ("    raise error_class(parsed)", f"botocore.exceptions.ClientError: {quota}", "")
    log = "\n".join(["I 11-27 quota of the region", *(begin + line for line in traceback)])
    error = sky_error("ResourcesUnavailableError", "Failed to acquire resources in us-west-2c")
    assert cloud_message(log) == quota
    assert cloud_message("I 11-27 16:43 x.py:1] All is well: no Error\n") == ""
    assert is_unexplained(error)
    assert not is_unexplained(RuntimeError("Failed"))
    ours = translate(error, "x", cloud_message(log))
    assert (type(ours).__name__, str(ours)) == ("QuotaError", f"x: over the account's quota: {quota}")
    assert not is_unexplained(sky_error("ResourcesUnavailableError", history=(Exception(quota),)))


def test_error_in_its_own_history_is_reported_once():
    error = sky_error("ResourcesUnavailableError", "Failed to acquire resources")
    error.failover_history = [error]  # type: ignore[attr-defined]
    assert str(translate(error, "x")) == "x: Failed to acquire resources"


def test_provider_errors_pass_and_lost_servers_and_gone_clusters_are_recognized():
    ours = contract.QuotaError("q")
    assert translate(ours, "x") is ours
    assert is_server_lost(RuntimeError("Request abc not found: 404"))
    assert not is_server_lost(RuntimeError("boom"))
    assert is_gone(sky_error("ClusterDoesNotExist"))


RECORD = VmRecord("r-a-0", "r-a-0", "aws/us-west-2/us-west-2a", "T4:1", True, 100.0, launched=True)
UP = Listed("r-a-0", "UP", "198.18.2.2")


def state(record: VmRecord, listed: Listed | None = UP, now_s: float = 200.0) -> str:
    return observed(record, listed, now_s).state


def test_a_vm_is_pending_until_its_program_runs():
    assert state(replace(RECORD, launched=False), None) == "pending"
    assert state(RECORD) == "pending"
    running = after_peek(RECORD, ({"phase": "running", "at_s": 150.0}, {"phase": "training"}), 200.0)
    assert (state(running), running.ready_at_s) == ("running", 150.0)


def test_a_program_that_ended_has_failed_and_is_still_billed_unless_it_was_done():
    ended = {"phase": "ended", "exit_code": 1, "error": "its program ended with exit code 1"}
    failed = observed(after_peek(RECORD, (ended, {"phase": "failed"}), 200.0), UP, 200.0)
    assert (failed.state, failed.ended_at_s, failed.cause) == ("failed", None, ended["error"])
    done = after_peek(RECORD, ({**ended, "exit_code": 0}, {"phase": "done"}), 200.0)
    assert state(done) == "running"


def test_vanished_vm_was_preempted_unless_ended_or_finished():
    running = replace(RECORD, ready_at_s=150.0)
    assert gone(running, 200.0, "").end_state == "preempted"
    assert gone(replace(running, ending=True), 200.0, "").end_state == "terminated"
    assert gone(replace(running, use_spot=False), 200.0, "").end_state == "failed"
    assert gone(replace(running, job={"phase": "ended"}), 200.0, "").end_state == "terminated"
    once = gone(running, 200.0, "Server.SpotInstanceTermination")
    assert gone(replace(once, ending=True), 300.0, "") == replace(once, ending=True)
    shown = observed(once, None, 300.0)
    assert (shown.state, shown.ended_at_s, shown.cause) == (
        "preempted",
        200.0,
        "Server.SpotInstanceTermination",
    )


def test_vm_is_gone_after_three_lists_without_it():
    once = absent(replace(RECORD, launched=True), 100.0)
    assert not once.end_state
    assert after_peek(once, ({}, {}), 101.0).absent_reads == 0
    thrice = absent(absent(once, 104.0), 108.0)
    assert (thrice.end_state, thrice.ended_at_s) == ("preempted", 108.0)


def test_ready_time_is_within_controller_observations():
    for theirs_s, ours_s in ((RECORD.requested_at_s - 60, RECORD.requested_at_s), (1e9, 200.0)):
        running = after_peek(RECORD, ({"phase": "running", "at_s": theirs_s}, {}), 200.0)
        assert running.ready_at_s == ours_s


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure", "lambda"])
def test_a_vm_gets_its_own_clouds_role_and_no_file_of_another(cloud: str):
    told = {name: part["remote_identity"] for name, part in settings(cloud, "ours").items()}
    own = told.pop(cloud, None)
    assert own == {"aws": "ours", "gcp": "SERVICE_ACCOUNT"}.get(cloud)
    assert set(told.values()) == {"NO_UPLOAD"}
    assert {"aws", "gcp", "azure", "kubernetes"} - {cloud} <= told.keys()


def test_silent_vm_is_reported_but_not_ended():
    silent = after_peek(after_peek(replace(RECORD, ready_at_s=1.0), None, 100.0), None, 110.0)
    assert silent.unreached_since_s == 100.0
    shown = observed(silent, UP, 160.0)
    assert (shown.state, shown.cause) == ("running", "it has not answered for 60 s")
    assert after_peek(silent, ({}, {}), 170.0).unreached_since_s is None


def test_truncated_peek_omits_missing_parts():
    assert parse_peek(None) is None
    assert parse_peek("") == ({}, {})
    assert parse_peek('{"phase": "running"}\n{"phase": "tra') == ({"phase": "running"}, {})
    kept = after_peek(replace(RECORD, status={"phase": "training"}), ({}, {}), 1.0)
    assert kept.status == {"phase": "training"}


def test_a_record_is_whole_or_not_there(tmp_path: Path):
    assert read(tmp_path, "r-a-0") is None
    write(tmp_path, RECORD)
    assert update(tmp_path, "r-a-0", cause="x") == replace(RECORD, cause="x")
    assert read_all(tmp_path) == [replace(RECORD, cause="x")]
    with pytest.raises(KeyError):
        update(tmp_path, "r-b-0", cause="x")


def test_secrets_are_sealed_and_opened_on_the_vm_only_with_the_key(tmp_path: Path):
    from cryptography.fernet import Fernet, InvalidToken

    key, sealed = seal({"AWS_SECRET_ACCESS_KEY": "canary"}, {"record.key": b"canary too"})
    assert b"canary" not in sealed
    (tmp_path / "sealed").write_bytes(sealed)
    (tmp_path / "config.json").write_text('{"environment": {"AWS_SECRET_ACCESS_KEY": "sealed"}, "vm": "v"}')
    with pytest.raises(InvalidToken):
        open_sealed(tmp_path / "sealed", Fernet.generate_key().decode(), tmp_path / "config.json")
    open_sealed(tmp_path / "sealed", key, tmp_path / "config.json")
    opened = json.loads((tmp_path / "config.json").read_text())
    assert opened == {"environment": {"AWS_SECRET_ACCESS_KEY": "canary"}, "vm": "v"}
    assert (tmp_path / "record.key").read_bytes() == b"canary too"
    assert {(tmp_path / n).stat().st_mode & 0o777 for n in ("record.key", "config.json")} == {0o600}


def request(**changes: object) -> LaunchRequest:
    offer = Offer("aws/us-west-2/us-west-2a", "g4dn.xlarge", "T4:1", True, Decimal("0.2"), "")
    made = LaunchRequest(
        "r-a-0",
        offer,
        "experiments.peer.main:main",
        {"listen_address": "", "environment": {"S": "canary one"}},
        {"identity.key": b"canary two"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_shipped_holds_no_secret(tmp_path: Path):
    made, key = ship_folder(tmp_path / "sky", tmp_path / "home", request())
    everything = b"".join(path.read_bytes() for path in made.iterdir())
    assert b"canary" not in everything
    assert key.encode() not in everything
    config = json.loads((made / "config.json").read_text())
    assert config == {"listen_address": "0.0.0.0", "environment": {"S": "sealed"}}
    assert "canary" not in repr(request())


def test_the_wheel_is_built_once_and_has_what_a_peer_imports(tmp_path: Path):
    wheel = build_wheel(tmp_path)
    stamp = wheel.stat().st_mtime_ns
    assert build_wheel(tmp_path) == wheel
    assert wheel.stat().st_mtime_ns == stamp
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {
        "experiments/peer/main.py",
        "metrics/records.py",
        "cloud/sky/vm/secrets.py",
        "cloud/places.csv",
    } <= set(names)
    assert not [n for n in names if n.startswith(("orchestrator/", "analysis/", "tests/"))]


def test_many_launches_at_once_build_one_wheel(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        built = {*pool.map(build_wheel, [tmp_path] * 8)}
    (wheel,) = built
    assert [*wheel.parent.iterdir()] == [wheel]
    assert zipfile.ZipFile(wheel).testzip() is None


def test_other_content_is_another_wheel(tmp_path: Path):
    for room in ("cloud", "experiments", "metrics"):
        (tmp_path / "src" / room).mkdir(parents=True)
        (tmp_path / "src" / room / "__init__.py").write_text("")
    first = build_wheel(tmp_path / "home", tmp_path / "src")
    (tmp_path / "src" / "cloud" / "__init__.py").write_text("x = 1\n")
    assert build_wheel(tmp_path / "home", tmp_path / "src") != first


def test_requirements_are_pinned_to_the_controllers_own_versions():
    from importlib.metadata import version

    pins = dict(line.split("==") for line in requirements().splitlines())
    assert pins["hivemind"] == version("hivemind")
    assert pins["torch"] == version("torch").partition("+")[0]
    assert not [
        name
        for name in pins.keys() - {"nvidia-ml-py"}
        if name.startswith("nvidia") or name in ("ray", "skypilot")
    ]


def test_a_vm_gets_every_package_that_its_program_imports():
    """Imports inside functions count too: they fail on the VM only, when a sample is read."""
    from importlib.metadata import packages_distributions

    root = Path(__file__).parents[3]
    makes_data_only = {"sklearn", "platformdirs"}  # on the user's machine
    sources = [*root.glob("experiments/peer/**/*.py"), *root.glob("experiments/wire/**/*.py")]
    for room in ("experiments/pipeline", "experiments/tasks", "cloud/storage"):
        sources += root.glob(f"{room}/**/*.py")
    named: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named.add(node.module.partition(".")[0])
    others = named - sys.stdlib_module_names - {"cloud", "experiments", "metrics", "swift"} - makes_data_only
    distributions = packages_distributions()
    pins = {line.split("==")[0] for line in requirements().splitlines()}
    lacking = {name for name in others if not {d.lower() for d in distributions.get(name, [])} & pins}
    assert {"PIL", "hivemind", "soundfile", "scipy"} <= others
    assert lacking == set()


def test_no_file_of_a_task_may_replace_a_package_of_the_peer():
    from importlib.metadata import packages_distributions

    from packaging.utils import canonicalize_name

    from experiments.parse.task_files import _RESERVED

    pins = {line.split("==")[0] for line in requirements().splitlines()}
    provided = packages_distributions().items()
    modules = {module for module, names in provided if pins.intersection(map(canonicalize_name, names))}
    assert len(modules) > 50
    named = {module for module in modules if module.isidentifier() and not module.startswith("_")}
    assert named - _RESERVED == {"example"} & named  # that of nvidia-ml-py: nothing imports it


@pytest.mark.parametrize(("accelerator", "gpu"), [("T4:1", "GPU=T4"), ("CPU:4", "GPU=no")])
def test_the_script_is_bash_and_looks_for_a_gpu_where_there_should_be_one(accelerator: str, gpu: str):
    made = request(offer=replace(request().offer, accelerator=accelerator), max_life_s=3600.0)
    script = run_script(made, "orch-0-py3-none-any.whl", "0" * 64)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert gpu in script.splitlines()
    assert "LIFE=3600" in script
    assert f"unset {KEY_VARIABLE}" in script
    assert "canary" not in script


@pytest.mark.parametrize(
    ("config", "asked"), [({"emulated": False}, True), ({"emulated": True}, False), ({}, False)]
)
def test_an_image_must_have_what_builds_the_model_where_the_model_is_built(config: dict, asked: bool):
    script = run_script(request(config=config), "orch-0-py3-none-any.whl", "0" * 64)
    (line,) = (line for line in script.splitlines() if "check_versions.py requirements.txt" in line)
    assert "requirements.txt hivemind torch " in line
    assert ("transformers" in line) == asked


def test_versions_that_differ_are_named(tmp_path: Path):
    import sys

    (tmp_path / "check.py").write_text(CHECK)
    (tmp_path / "requirements.txt").write_text("numpy==0.1\nsix==0\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "check.py", tmp_path / "requirements.txt", "numpy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("numpy ")
    assert "instead of 0.1" in done.stdout


def test_a_peek_leaves_the_address_and_prints_two_lines(tmp_path: Path):
    folder = tmp_path / "orch-vm"
    folder.mkdir()
    (folder / "status.json").write_text('{\n "phase": "ready"\n}')
    done = subprocess.run(
        ["bash", "-c", peek_command("198.18.2.2")],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert parse_peek(done.stdout) == ({}, {"phase": "ready"})
    assert (folder / "address").read_text() == "198.18.2.2\n"


def test_code_and_wheels_are_shipped_beside_the_config(tmp_path: Path):
    for name in ("code/package/task.py", "wheels/mine-1-py3-none-any.whl"):
        (tmp_path / "run" / name).parent.mkdir(parents=True)
        (tmp_path / "run" / name).write_text(name)
    folders = {name: str(tmp_path / "run" / name) for name in ("code", "wheels")}
    made, _ = ship_folder(
        tmp_path / "sky",
        tmp_path / "home",
        request(folders=folders, requirements=("--find-links wheels", "mine")),
    )
    assert (made / "code" / "package" / "task.py").read_text() == "code/package/task.py"
    assert (made / "wheels" / "mine-1-py3-none-any.whl").exists()
    assert (made / "more_requirements.txt").read_text() == "--find-links wheels\nmine\n"
    again, _ = ship_folder(tmp_path / "sky", tmp_path / "home", request(vm="r-a-0"))
    assert not {"code", "wheels", "more_requirements.txt"} & {path.name for path in again.iterdir()}


def test_requirements_of_a_task_cannot_replace_those_of_the_peer():
    plain = run_script(request(), "orch-0-py3-none-any.whl", "0" * 64)
    assert "more_requirements.txt" not in plain
    assert "if ready /opt/orch/env; then ENV=/opt/orch/env" in plain.splitlines()
    script = run_script(request(requirements=("mine",)), "orch-0-py3-none-any.whl", "0" * 64)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    lines = script.splitlines()
    assert "if [ -w /opt/orch/env/bin ] && ready /opt/orch/env; then ENV=/opt/orch/env" in lines
    assert script.count("-r more_requirements.txt -c requirements.txt") == 1  # by pip or uv
    own = next(
        n
        for n, line in enumerate(lines)
        if 'requirements.sha256"' in line and line.strip().startswith("echo")
    )
    assert own < next(n for n, line in enumerate(lines) if "more_requirements.txt" in line)
