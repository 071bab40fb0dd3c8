"""`orch check`: findings on fake machines; nothing is contacted without --online."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Generator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloud.vendors import RENTABLE
from orchestrator.checks import clouds, machine, online
from orchestrator.checks.credentials import cloud_access
from orchestrator.checks.findings import Finding, usable
from orchestrator.cli.app import run

TWIN = str(Path(__file__).parents[2] / "cloud_e2e" / "twin.yaml")
SECRET = "not-to-be-shown-7f3a"


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without credentials."""
    for name in (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",
        "AWS_ENDPOINT_URL", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "AZURE_CONFIG_DIR", "SKY_RUNTIME_DIR",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    return tmp_path / "nobody"


def write(home: Path, name: str, text: str) -> Mapping[str, str]:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return {"HOME": str(home)}


@pytest.mark.parametrize(
    ("cloud", "name", "text"),
    [
        ("aws", ".aws/credentials", f"[default]\naws_access_key_id = x\naws_secret_access_key = {SECRET}\n"),
        ("aws", ".aws/config", "[profile it]\nsso_session = it\n"),
        ("gcp", ".config/gcloud/application_default_credentials.json", f'{{"refresh_token": "{SECRET}"}}'),
        (
            "azure",
            ".azure/azureProfile.json",
            '\ufeff{"installationId": "x", "subscriptions": [{"id": "y"}]}',
        ),
        ("lambda", ".lambda_cloud/lambda_keys", f"api_key = {SECRET}\n"),
    ],
)
def test_credentials_are_found_and_never_shown(
    cloud: str, name: str, text: str, nobody: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.checks.credentials.package_there", lambda _: True)
    environ = write(nobody, name, text)
    access = cloud_access(RENTABLE[cloud], environ)
    assert (access.found, access.lacks) == (str(nobody / name), "")
    shown = repr(clouds.credentials(environ, wanted=True))
    assert SECRET not in shown
    assert all(
        cloud_access(other, environ).lacks == "no credentials"
        for other in RENTABLE.values()
        if other.name != cloud
    )
    assert usable(clouds.credentials(environ, wanted=True))  # one cloud is enough


@pytest.mark.parametrize(
    ("cloud", "name", "text"),
    [
        ("aws", ".aws/config", "[default]\nregion = us-west-2\n"),
        ("azure", ".azure/azureProfile.json", '{"subscriptions": []}'),
        ("lambda", ".lambda_cloud/lambda_keys", ""),
    ],
)
def test_file_without_credentials_does_not_count(cloud: str, name: str, text: str, nobody: Path):
    assert cloud_access(RENTABLE[cloud], write(nobody, name, text)).lacks == "no credentials"


def test_environment_keys_count_and_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch):
    environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": "/nonexistent"}
    assert cloud_access(RENTABLE["aws"], environ).lacks == ""
    monkeypatch.setattr("orchestrator.checks.credentials.package_there", lambda _: False)
    access = cloud_access(RENTABLE["aws"], environ)
    assert access.lacks == "package boto3 is not installed"
    assert "pip install" in access.next


def test_without_any_cloud_rented_vms_are_missing_and_local_ones_are_not():
    environ = {"HOME": "/nonexistent"}
    assert not usable(clouds.credentials(environ, wanted=True))
    assert usable(clouds.credentials(environ, wanted=False))
    assert all(finding.next for finding in clouds.credentials(environ, wanted=True))


def proc(folder: Path, listening: Mapping[int, tuple[int, str]]) -> Path:
    """A fake /proc with listening processes: port -> pid, command."""
    (folder / "net").mkdir(parents=True)
    lines = [
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    ]
    for inode, (port, (pid, command)) in enumerate(listening.items(), 1000):
        lines.append(f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 0 1000 0 {inode} 1 0 100 0 0 10 0")
        # a connection from the same port does not listen
        lines.append(
            f"   1: 0100007F:{port:04X} 0100007F:1F90 01 0:0 00:0 0 1000 0 9{inode} 1 0 100 0 0 10 0"
        )
        if pid:
            (folder / str(pid) / "fd").mkdir(parents=True, exist_ok=True)
            (folder / str(pid) / "fd" / str(inode)).symlink_to(f"socket:[{inode}]")
            (folder / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode())
    (folder / "net" / "tcp").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("listening", "states", "says"),
    [
        ({}, ["ok", "ok"], "free"),
        (
            {46580: (7, "python -m sky.server.server"), 50011: (8, "SkyPilot:executor:short")},
            ["ok", "ok"],
            "is running",
        ),
        ({50011: (8, "SkyPilot:executor:long")}, ["ok", "missing"], "left over from an API server that died"),
        ({46580: (9, "nginx")}, ["missing", "ok"], "kill 9"),
        (
            {46580: (9, "python3 -m http.server --directory skydiving")},
            ["missing", "ok"],
            "cannot use another one",
        ),
        ({46580: (0, "")}, ["missing", "ok"], "another user's process"),
        ({8080: (9, "nginx")}, ["ok", "ok"], "free"),
    ],
)
def test_ports_show_their_owner(
    listening: dict[int, tuple[int, str]],
    states: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    there = machine.listeners(proc(tmp_path / "proc", listening), {46580: "", 50011: ""})
    monkeypatch.setattr(machine, "listeners", lambda *_: there)
    found = machine.ports()
    assert [finding.state for finding in found] == states
    assert any(says in f"{finding.found} {finding.next}" for finding in found)


def test_listening_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (listener,) = machine.listeners(Path("/proc"), {port: ""}).values()
        assert "python" in listener.command or "pytest" in listener.command
    assert machine.listeners(Path("/proc"), {port: ""}) == {}


def test_catalogs_show_their_age(nobody: Path):
    folder = nobody / ".sky" / "catalogs" / "v8" / "lambda"
    folder.mkdir(parents=True)
    path = folder / "vms.csv"
    path.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
        "gpu_1x_a10,A10,1.0,30.0,200.0,0.75,us-west-1,x,\n"
    )
    by_cloud = {finding.check: finding for finding in clouds.catalogs({"HOME": str(nobody)})}
    assert by_cloud["catalog lambda"].state == "ok"
    assert "1 rows, 0 days old" in by_cloud["catalog lambda"].found
    assert by_cloud["catalog aws"].state == "warning"
    path.touch()
    os.utime(path, (0, 0))
    old = next(f for f in clouds.catalogs({"HOME": str(nobody)}) if f.check == "catalog lambda")
    assert (old.state, bool(old.next)) == ("warning", True)


class Answer(BaseHTTPRequestHandler):
    """A cloud that refuses requests, with its own clock."""

    def do_HEAD(self) -> None:
        self.send_response_only(403)
        self.send_header("Date", formatdate(self.server.time_s, usegmt=True))  # type: ignore[attr-defined]
        self.end_headers()

    def do_POST(self) -> None:
        """Service Quotas: the vCPUs that the test sets by code, an error for other codes."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        vcpus = self.server.vcpus.get(asked["QuotaCode"])  # type: ignore[attr-defined]
        body: dict[str, Any] = {"__type": "NoSuchResourceException", "message": "no such quota"}
        if vcpus is not None:
            body = {"Quota": {"QuotaCode": asked["QuotaCode"], "Value": vcpus}}
        text = json.dumps(body).encode()
        self.send_response_only(400 if vcpus is None else 200)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def cloud_at() -> Generator[HTTPServer, None, None]:
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("off_s", "state"), [(0, "ok"), (-3600, "missing"), (3600, "missing"), (30, "ok")])
def test_clock_is_compared_with_the_cloud(
    off_s: int, state: str, cloud_at: HTTPServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{cloud_at.server_address[1]}")
    cloud_at.time_s = time.time() + off_s  # type: ignore[attr-defined]
    finding = online.clock("aws")
    assert finding.state == state
    assert abs(int(finding.found.split()[0]) + off_s) <= 3  # a date has whole seconds


def test_available_quotas_are_reported(cloud_at: HTTPServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{cloud_at.server_address[1]}")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
    ):
        monkeypatch.setenv(name, value)
    cloud_at.vcpus = {"L-3819A6DF": 64.0, "L-DB2E81BA": 0.0}  # type: ignore[attr-defined]
    spot, on_demand, *others = online.quotas()
    assert (spot.state, spot.found) == ("ok", "64 vCPUs at a time")
    assert spot.check.startswith("quota aws eu-west-1 spot, G and VT")
    assert (on_demand.state, on_demand.next) == (
        "warning",
        "request an increase of L-DB2E81BA in AWS Service Quotas",
    )
    assert {finding.state for finding in others} == {"unknown"}
    assert all("no such quota" in finding.found for finding in others)


def test_clock_is_unknown_if_the_cloud_does_not_respond(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert online.clock("aws").state == "unknown"


def test_skypilot_reasons_are_passed_on(monkeypatch: pytest.MonkeyPatch):
    printed = """
import json
print('noise')
print('@' + json.dumps(['aws', True, '']))
print('@' + json.dumps(['gcp', False, 'no\\n  billing']))
"""
    monkeypatch.setattr(online, "_SKY_CHECK", printed)
    aws, gcp, azure = online.accepted(["aws", "gcp", "azure"])
    assert (aws.check, aws.state) == ("accepted aws", "ok")
    assert (gcp.state, gcp.found, gcp.next) == ("missing", "no billing", "run `sky check gcp` for details")
    assert azure.state == "unknown"


def test_offline_nothing_is_contacted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("contacted somebody")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(machine, "listeners", lambda *_: {})
    assert run(["check", "--on", "sky", "-o", "json"]) == 2  # there are no credentials
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["on"], document["usable"]) == (1, "sky", False)
    missing = {finding["check"] for finding in document["findings"] if finding["state"] == "missing"}
    assert missing >= {f"credentials {cloud}" for cloud in RENTABLE}
    assert all(
        finding["next"] for finding in document["findings"] if finding["state"] in ("missing", "warning")
    )


AWS_ONLY = [
    "emulation=null", "data.location=aws/us-east-1", "peers[0].resources.infra=aws/us-east-1/us-east-1a",
    "peers[1].resources.infra=aws/us-east-1/us-east-1b",
]  # fmt: skip


@pytest.fixture
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda name: "0.14.1")
    monkeypatch.setattr(machine, "listeners", lambda *_: {})
    monkeypatch.setattr(machine, "available_memory", lambda: 10**12)
    monkeypatch.setattr("orchestrator.checks.credentials.package_there", lambda _: True)
    monkeypatch.setattr("orchestrator.launch.machine_checks.package_there", lambda _: True)


@pytest.mark.usefixtures("everything_installed")
def test_the_verdict_is_the_last_line(nobody: Path, capsys: pytest.CaptureFixture[str]):
    def verdict(*arguments: str, code: int) -> str:
        assert run(["check", "--on", "sky", *arguments]) == code
        return capsys.readouterr().out.splitlines()[-1]

    assert verdict(code=2) == "missing: credentials of one of aws, gcp, azure, lambda"
    assert verdict("geo-b2", code=2) == "missing for geo-b2: credentials of gcp, 2 changes of the experiment"
    write(nobody, ".aws/credentials", f"[default]\naws_access_key_id = x\naws_secret_access_key = {SECRET}\n")
    assert verdict(code=0) == "AWS is ready"
    settings = [word for setting in AWS_ONLY for word in ("--set", setting)]
    assert verdict("geo-b2", *settings, code=0) == "AWS is ready; that is enough for geo-b2"
    both = [word for setting in AWS_ONLY[:3] for word in ("--set", setting)]
    assert (
        verdict("geo-b2", *both, code=2)
        == "AWS has credentials; missing for geo-b2: credentials of gcp, 1 change of the experiment"
    )
    secret = ["--set", "secrets.TOKEN=null"]
    assert verdict("geo-b2", *settings, *secret, code=2).endswith("missing for geo-b2: values of secrets")


@pytest.mark.usefixtures("everything_installed")
def test_only_what_the_experiment_needs_is_checked(nobody: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["check", "geo-b2", "--on", "sky", "-o", "json"]) == 2
    document = json.loads(capsys.readouterr().out)
    states = {finding["check"]: finding["state"] for finding in document["findings"]}
    assert [check for check in states if check.startswith("credentials")] == ["credentials gcp"]
    assert {check for check, state in states.items() if state == "missing"} == {
        "credentials gcp", "experiment store_unreachable", "experiment store_keys",
    }  # fmt: skip
    assert (document["experiment"], document["usable"]) == ("geo-b2", False)
    assert document["verdict"].startswith("missing for geo-b2: ")
    assert run(["check", "geo-b2"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "this machine is ready; that is enough for geo-b2"
    assert "credentials" not in shown


def test_settings_without_an_experiment_are_refused(capsys: pytest.CaptureFixture[str]):
    assert run(["check", "--set", "budget_usd=1"]) == 2
    assert "need an experiment" in capsys.readouterr().err


def test_owner_is_shown_and_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ORCH_OWNER", raising=False)
    assert clouds.owner(tmp_path) == Finding("owner", "ok", "generated at the first launch")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "owner").write_text("me-12345678\n")
    assert clouds.owner(tmp_path).found == "me-12345678, the VMs' label orch-owner"
    (tmp_path / "owner").write_text("Me!\n")
    assert clouds.owner(tmp_path).state == "missing"


def test_a_local_run_needs_no_cloud(capsys: pytest.CaptureFixture[str]):
    assert run(["check"]) == 0
    shown = capsys.readouterr().out
    assert f"version python{'':<12}" in shown
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in shown
    assert "-> run `aws configure`" in shown


def test_missing_package_or_disk_space_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from importlib.metadata import PackageNotFoundError

    def nothing(name: str) -> str:
        if name == "hivemind":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(machine, "version", nothing)
    (missing,) = [finding for finding in machine.versions("local") if finding.state == "missing"]
    assert missing.check == "version hivemind"
    assert missing.next == "`.venv/bin/python -m pip install -e '.[local]'` in a clone of orch"
    skypilot = next(f for f in machine.versions("sky") if f.check == "version skypilot")
    assert (skypilot.state, "0.14.x" in skypilot.next) == ("warning", True)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    assert machine.disk(tmp_path, "sky").state == "warning"


@pytest.mark.parametrize("home", ["/dev/null", "/dev/null/orch", "/proc/orch"])
def test_a_home_that_cannot_be_written_is_missing(home: str):
    finding = machine.disk(Path(home), "local")
    assert (finding.state, finding.next) == ("missing", "set ORCH_HOME to a folder you can write to")
    assert home in finding.found


def test_disk_check_leaves_nothing(tmp_path: Path):
    assert machine.disk(tmp_path / "not" / "yet", "local").state in ("ok", "warning")
    assert list(tmp_path.iterdir()) == []


def test_memory_is_reported_in_peers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    assert (machine.memory("local").state, machine.memory("sky").state) == ("missing", "warning")
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    assert machine.memory("local").state == "unknown"
    monkeypatch.setattr(machine, "available_memory", lambda: 10**12)
    assert machine.memory("local").found.endswith("peers")


def test_missing_namespaces_are_a_warning(monkeypatch: pytest.MonkeyPatch):
    assert machine.namespaces().state in ("ok", "warning")
    monkeypatch.setattr(machine, "_UNSHARE", "raise SystemExit('Operation not permitted')")
    finding = machine.namespaces()
    assert (finding.state, finding.found) == ("warning", "not allowed: Operation not permitted")
    assert usable([finding, Finding("x", "unknown", "")])


def test_the_aws_role_of_an_experiment_is_printed_for_an_administrator(capsys: pytest.CaptureFixture[str]):
    own = (
        "secrets={}",
        "data.endpoint=",
        "data.location=aws/us-west-2",
        "data.shards=s3://mine-{a,b}/{0..1}.tar",
    )
    assert run(["check", "--aws-role", TWIN, *(word for setting in own for word in ("--set", setting))]) == 0
    printed = capsys.readouterr()
    assert "ec2:TerminateInstances" in printed.out
    assert '"arn:aws:s3:::mine-a/*"' in printed.out
    assert '"arn:aws:s3:::mine-b/*"' in printed.out
    assert "put-user-policy --user-name YOUR-USER" in printed.out
    assert "iam:PassRole" in printed.out
    assert "replace YOUR-USER" in printed.err, "standard output has commands only"


def test_without_places_on_aws_there_is_no_role_to_print(capsys: pytest.CaptureFixture[str]):
    assert run(["check", "--aws-role", "geo-b2.yaml"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "geo-b2 has no places on AWS" in printed.err) == ("", True)
    assert run(["check", "--aws-role", "no-such.yaml"]) == 2
    assert "no such file" in capsys.readouterr().err
