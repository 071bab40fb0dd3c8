"""The emulated cloud against the provider's contract, and against kill -9 of each of its processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from local_fixtures import EU, US, in_phase, left_of, look, options, rent, wait_for

from cloud.local import LocalCloud, PreemptOptions, StoreOptions, reap
from cloud.provider import InvalidRequestError, NoCapacityError
from experiments.peer.shutdown.preemption_notices import instance_action

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a cloud in a run folder of the test's; afterwards it is closed and nothing may be left."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    folder = tmp_path / "run"
    begun: list[LocalCloud] = []

    def begin(**changes) -> LocalCloud:
        begun.append(LocalCloud.start(folder, options(**changes)))
        return begun[-1]

    yield begin
    for cloud in begun:
        cloud.close()
    assert left_of(folder) == []


@pytest.fixture(scope="module")
def temporary_folders():
    before = set(Path("/tmp").glob("orch-????????"))
    yield
    # other runs on this machine may come and go: only those that nobody holds are ours
    gone = {p for p in Path("/tmp").glob("orch-????????") if p not in before and not any(p.iterdir())}
    assert not gone


def processes_with(text: str) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if text in os.readlink(f"/proc/{entry}/cwd"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_request_observe_terminate_are_idempotent_and_names_are_not_reused(start):
    cloud = start()
    rent(cloud, "r-us-0-0", "leave")
    rent(cloud, "r-us-0-0", "leave")
    first = in_phase(cloud, "r-us-0-0", "training")
    assert (first.state, first.location) == ("running", US)
    assert Path(f"/proc/{first.pid}").exists()
    assert len(cloud.observe()) == 1
    cloud.terminate("nobody")
    cloud.terminate("r-us-0-0")
    cloud.terminate("r-us-0-0")
    ended = wait_for(lambda: look(cloud, "r-us-0-0").state == "terminated" and look(cloud, "r-us-0-0"))
    assert ended.ended_at_s >= ended.ready_at_s >= ended.requested_at_s
    rent(cloud, "r-us-0-0", "leave")
    assert look(cloud, "r-us-0-0").state == "terminated"
    rent(cloud, "r-us-0-1", "leave")
    assert look(cloud, "r-us-0-1").address != ended.address


def test_another_process_finds_the_cloud_by_its_folder_and_a_new_host_remembers(start, tmp_path):
    cloud = start()
    rent(cloud, "vm", "leave")
    other = LocalCloud(tmp_path / "run")
    assert in_phase(other, "vm", "training").state == "running"
    assert start().state()["pid"] == other.state()["pid"]  # one host a run
    other.close()
    other.close()
    assert look(cloud, "vm").state == "terminated"
    start()
    rent(cloud, "vm", "leave")
    assert look(cloud, "vm").state == "terminated"


def test_refusals(start):
    cloud = start(capacity={US: 1})
    rent(cloud, "a", "leave")
    with pytest.raises(NoCapacityError, match="1 of 1 in use"):
        rent(cloud, "b", "leave")
    rent(cloud, "monitor", "leave")  # no VM of the user's
    with pytest.raises(InvalidRequestError, match=r"c: .*gcp/us-west1"):
        rent(cloud, "c", "leave", location="gcp/us-west1/us-west1-b")
    with pytest.raises(InvalidRequestError, match="not a valid VM name"):
        rent(cloud, "../x", "leave")
    cloud.terminate("a")
    wait_for(lambda: look(cloud, "a").state == "terminated")
    rent(cloud, "b", "leave")
    assert {vm.vm: vm.state for vm in cloud.observe()} == {
        "a": "terminated",
        "monitor": "running",
        "b": "running",
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expected_peers": 100_000}, r"100000 peers need about 70000\.0 GB"),
        ({"network": "study-2023-4"}, "did you mean 'study-2023-04'"),
        ({"store": StoreOptions("forward", url="https://s3.example/")}, "http endpoint"),
    ],
)
def test_what_cannot_start_says_so_in_a_sentence(start, changes, says):
    with pytest.raises(InvalidRequestError, match=says):
        start(**changes)


def test_boot_takes_its_time_and_a_broken_program_is_a_failed_vm(start):
    cloud = start(boot_s=0.6)
    rent(cloud, "vm", "leave")
    rent(cloud, "broken", "crash")
    assert look(cloud, "vm").state == "pending"
    ready = in_phase(cloud, "vm", "training")
    assert 0.6 <= ready.ready_at_s - ready.requested_at_s < 2
    failed = wait_for(lambda: look(cloud, "broken").state == "failed" and look(cloud, "broken"))
    assert "exit code 1" in failed.cause
    assert "the program is broken" in (Path(cloud.collect("broken")) / "console.log").read_text()
    os.kill(ready.pid, signal.SIGKILL)
    assert "signal 9" in wait_for(lambda: look(cloud, "vm").state == "failed" and look(cloud, "vm")).cause


def test_a_preempted_vm_sends_no_fin_and_leaves_no_process(start):
    cloud = start()
    rent(cloud, "stays", "listen", EU)
    address = in_phase(cloud, "stays", "ready").address
    rent(cloud, "goes", "connect", to=address)
    rent(cloud, "sits", "sit")
    in_phase(cloud, "stays", "connected")
    temp = in_phase(cloud, "sits", "training").status["temp"]
    assert len(processes_with("/vms/sits")) == 2
    cloud.preempt("goes")
    cloud.preempt("sits")
    assert {look(cloud, vm).state for vm in ("goes", "sits")} == {"preempted"}
    assert in_phase(cloud, "stays", "done").status["heard"] == "nothing"
    assert processes_with("/vms/sits") == []
    assert not Path(temp).exists()  # a tmpfs of the host's own


def test_preemption_by_schedule_comes_with_notice(start):
    cloud = start(preempt=PreemptOptions(at_s=(1.0,), notice_s=0.5, seed=1))
    rent(cloud, "a", "leave")
    rent(cloud, "b", "leave")
    told = wait_for(lambda: [vm for vm in cloud.observe() if vm.notice_at_s])
    assert [vm.state for vm in told] == ["running"]
    wait_for(lambda: look(cloud, told[0].vm).state == "preempted")
    gone = look(cloud, told[0].vm)
    assert gone.ended_at_s == pytest.approx(gone.notice_at_s, abs=0.3)
    assert sorted(vm.state for vm in cloud.observe()) == ["preempted", "running"]


def test_a_vm_whose_program_leaves_after_the_notice_is_there_until_it_is_taken(start):
    cloud = start()
    rent(cloud, "a", "leave")
    pid = in_phase(cloud, "a", "training").pid
    assert Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") == "orch: run a"
    cloud.preempt("a", notice_s=3.0)
    told = wait_for(lambda: look(cloud, "a").notice_at_s)
    notice = instance_action((Path(cloud.collect("a")) / "notice.json").read_text())
    assert notice.action == "terminate"
    assert told <= notice.at_s < told + 1.0
    os.kill(pid, signal.SIGTERM)
    left = wait_for(lambda: look(cloud, "a").pid is None and look(cloud, "a"))
    assert (left.state, left.ended_at_s) == ("running", None)
    wait_for(lambda: look(cloud, "a").state == "preempted")
    assert look(cloud, "a").ended_at_s == pytest.approx(told, abs=0.5)


def test_a_monitor_that_died_has_its_folder_taken_over_by_the_next(start, tmp_path):
    cloud = start()
    rent(cloud, "monitor", "leave")
    first = in_phase(cloud, "monitor", "training")
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: look(cloud, "monitor").state == "failed")
    rent(cloud, "monitor-1", "sit")
    assert "monitor-1" not in [path.name for path in (tmp_path / "run" / "vms").glob("*")]
    second = look(cloud, "monitor-1")
    assert second.address != first.address
    assert {n for n in cloud.state()["nodes"]} == {"monitor"}
    wait_for(lambda: cloud.counters().get("nodes", {}).get(second.address) == "monitor")


def test_killing_sending_vms_does_not_affect_others(start):
    cloud = start()
    rent(cloud, "stays", "leave")
    for number in range(6):
        pair = [f"r-{name}-{number}" for name in "ab"]
        for vm in pair:
            rent(cloud, vm, "flood")
        for pid in [in_phase(cloud, vm, "training").pid for vm in pair]:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda pair=pair: {look(cloud, vm).state for vm in pair} == {"failed"})
    assert look(cloud, "stays").state == "running"


def test_preemption_by_rate(start):
    cloud = start(preempt=PreemptOptions(rate_per_h=36000, seed=3))
    rent(cloud, "a", "leave")
    wait_for(lambda: look(cloud, "a").state == "preempted")


@pytest.mark.usefixtures("temporary_folders")
@pytest.mark.parametrize("mode", ["namespaces", "loopback"])
def test_kill_9_of_the_host_ends_everything(start, tmp_path, mode):
    cloud = start(mode=mode)
    rent(cloud, "sits", "sit")
    in_phase(cloud, "sits", "training")
    os.kill(cloud.state()["pid"], signal.SIGKILL)
    wait_for(lambda: not cloud.alive)
    if mode == "namespaces":
        assert processes_with("/vms/sits") == []
        assert left_of(tmp_path / "run") == []
    with pytest.raises(InvalidRequestError, match=r"host process died .signal 9"):
        cloud.observe()
    for pid in processes_with("/vms/sits"):  # loopback: no PID namespace holds what went into another session
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes_with("/vms/sits") == [])


@pytest.mark.usefixtures("temporary_folders")
def test_kill_9_of_the_guardian_leaves_only_a_folder_and_reap_removes_it(start, tmp_path):
    cloud = start()
    rent(cloud, "sits", "sit")
    in_phase(cloud, "sits", "training")
    run = tmp_path / "run"
    assert not reap(run)
    middle = _parent(cloud.state()["pid"])
    os.kill(_parent(middle), signal.SIGKILL)
    wait_for(lambda: not processes_with("/vms/sits") and not cloud.alive)
    assert [what.split()[0] for what in left_of(run)] == ["folder"]
    assert reap(run)
    assert left_of(run) == []
    with pytest.raises(InvalidRequestError, match="was killed"):
        cloud.observe()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_kill_9_of_the_switch_ends_the_vms_and_is_reported(start):
    cloud = start()
    rent(cloud, "sits", "sit")
    in_phase(cloud, "sits", "training")
    os.kill(cloud.state()["switch_pid"], signal.SIGKILL)
    wait_for(lambda: cloud.fatal)
    with pytest.raises(InvalidRequestError, match="switch was killed by signal 9"):
        cloud.observe()
    assert processes_with("/vms/sits") == []
    with pytest.raises(InvalidRequestError, match="switch was killed"):
        rent(cloud, "next", "sit")


def test_cloud_ends_without_client_contact_for_the_lease(start):
    cloud = start(lease_s=1.0)
    wait_for(lambda: not cloud.alive)
    assert "no client contacted" in cloud.fatal


def test_loopback_runs_the_same_programs_without_distance(start):
    cloud = start(mode="loopback")
    assert cloud.mode == "loopback"
    rent(cloud, "stays", "listen", EU)
    rent(cloud, "goes", "connect", to=in_phase(cloud, "stays", "ready").address)
    in_phase(cloud, "stays", "connected")
    wait_for(lambda: cloud.counters().get("nodes"))
    assert sorted(cloud.counters()["nodes"].values()) == ["goes", "stays"]


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from outside")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_users_own_endpoint_is_reached_through_the_stores_node(start):
    with HTTPServer(("127.0.0.1", 0), _Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        cloud = start(store=StoreOptions("forward", location=EU, url=url))
        store = wait_for(lambda: cloud.store().get("state") == "ready" and cloud.store())
        rent(cloud, "vm", "fetch", url=store["endpoint"])
        assert in_phase(cloud, "vm", "done").status["body"] == "from outside"
        wait_for(lambda: cloud.counters().get("classes", {}).get("store", 0) > 500, timeout_s=3)
        assert cloud.counters()["sent_bytes"]["store>vm"] > 100
        os.kill(wait_for(lambda: processes_with("/cloud/store"))[0], signal.SIGKILL)
        time.sleep(0.2)
        rent(cloud, "again", "fetch", url=store["endpoint"])
        assert in_phase(cloud, "again", "done").status["body"] == "from outside"
        server.shutdown()
