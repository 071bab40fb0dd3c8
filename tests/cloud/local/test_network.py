"""The emulated network measured from inside, as root and as an ordinary user; and the embedded store in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from local_fixtures import EU, US, in_phase, left_of, limited_to, look, options, rent, wait_for

from cloud.local import LocalCloud, StoreOptions
from cloud.local.host.guardian import write_json
from cloud.local.network.links import tun_usable
from cloud.networks.windows import default_window_bytes, kernel_bytes_scale
from tests.ordinary_user import as_ordinary_user

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")]


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    folder = tmp_path / "run"
    begun: list[LocalCloud] = []

    def begin(**changes) -> LocalCloud:
        begun.append(LocalCloud.start(folder, options(mode="namespaces", **changes)))
        return begun[-1]

    yield begin
    for cloud in begun:
        cloud.close()
    assert left_of(folder) == []


def _interface_bytes(pid: int) -> tuple[int, int]:
    """(bytes, packets) sent through a process's wan0, as counted by the kernel."""
    line = next(x for x in Path(f"/proc/{pid}/net/dev").read_text().splitlines() if "wan0" in x)
    sent = line.split(":")[1].split()[8:10]
    return int(sent[0]), int(sent[1])


@pytest.mark.parametrize("link", ["tun", "veth"])
def test_round_trip_rate_both_ways_and_byte_counters(start, link):
    if link == "tun" and not tun_usable():
        pytest.skip("this user may not open /dev/net/tun")
    cloud = start(link=link)
    rent(cloud, "us", "cloud.local.check.probe:main", US, listen_address="")
    rent(cloud, "eu", "cloud.local.check.probe:main", EU, listen_address="")
    us, eu = in_phase(cloud, "us", "ready"), in_phase(cloud, "eu", "ready")
    at_s = time.time()
    tasks = [("rtt", "r", at_s), ("both", "b", at_s + 1.0)]
    plan = [{"at_s": t, "do": do, "to": eu.address, "key": key, "seconds": 5.0} for do, key, t in tasks]
    write_json(Path(cloud.collect("us")) / "plan.json", plan)
    found = {r["key"]: r for r in in_phase(cloud, "us", "done").status["results"]}
    assert found["r"]["rtt_s"] == pytest.approx(0.1031, rel=0.05)
    assert limited_to(210e6, found["b"]["bps"] * 100)
    assert limited_to(214.5e6, found["b"]["back_bps"] * 100)

    def counters_are_the_kernels() -> bool:
        sent = cloud.counters()["sent_bytes"]
        for name, pid in (("us", us.pid), ("eu", eu.pid)):
            kernel_bytes, kernel_packets = _interface_bytes(pid)
            ethernet = 14 * kernel_packets if link == "veth" else 0
            if sum(n for pair, n in sent.items() if pair.startswith(f"{name}>")) != kernel_bytes - ethernet:
                return False
        return True

    wait_for(counters_are_the_kernels, timeout_s=4)
    last = cloud.counters()
    assert last["dropped"] == 0
    assert last["packets"] == sum(last["late"].values()) > 1000
    assert last["nodes"] == {us.address: "us", eu.address: "eu"}


@pytest.mark.parametrize(
    ("tuning", "do", "mbps"),
    [("default", "both", default_window_bytes() * 8 / 0.1031 / 1e6), ("wan", "flow", 1100 * 1448 / 1500)],
)
def test_kernel_windows_limit_a_stream_and_a_tuned_one_reaches_the_vms_limit(start, tuning, do, mbps):
    scale = kernel_bytes_scale()
    cloud = start(windows="kernel", network_tuning=tuning, bytes_scale=scale)
    rent(cloud, "us", "cloud.local.check.probe:main", US, listen_address="")
    rent(cloud, "eu", "cloud.local.check.probe:main", EU, listen_address="")
    in_phase(cloud, "us", "ready")
    to = in_phase(cloud, "eu", "ready").address
    plan = [{"at_s": time.time(), "do": do, "to": to, "key": "k", "seconds": 4.0}]
    write_json(Path(cloud.collect("us")) / "plan.json", plan)
    (found,) = in_phase(cloud, "us", "done").status["results"]
    for key in ("bps", "back_bps") if do == "both" else ("bps",):
        assert limited_to(mbps, found[key] * scale / 1e6)
    assert cloud.counters()["dropped"] == 0


def _retransmitted(pid: int) -> int:
    """TCP segments that were sent again in a process's namespace."""
    names, values = (
        x.split() for x in Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if x.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def test_kernel_windows_lose_nothing_where_streams_both_ways_queue_for_the_vms_limit(start):
    """Six connections of two VMs in one zone: data wait longer than it takes to acknowledge a window."""
    cloud = start(windows="kernel", bytes_scale=kernel_bytes_scale())
    names = [f"us-{k}" for k in range(6)]
    for name in ("hub", *names):
        rent(cloud, name, "cloud.local.check.probe:main", US, listen_address="")
    hub = in_phase(cloud, "hub", "ready")
    at_s = time.time() + 1.0
    for name in names:
        in_phase(cloud, name, "ready")
        plan = [{"at_s": at_s, "do": "both", "to": hub.address, "key": name, "seconds": 5.0}]
        write_json(Path(cloud.collect(name)) / "plan.json", plan)
    found = [in_phase(cloud, name, "done").status["results"][0] for name in names]
    limit_bps = 1100e6 * 1448 / 1500
    assert limited_to(limit_bps, sum(r["back_bps"] for r in found) * kernel_bytes_scale())
    assert _retransmitted(hub.pid) < 5  # now and then a probe for a lost tail


_AS_USER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from local_fixtures import EU, US, in_phase, options, rent
from cloud.local import LocalCloud
run = Path({run!r})
cloud = LocalCloud.start(run, options(mode="namespaces", link={link!r}, windows="kernel"))
rent(cloud, "stays", "listen", EU)
rent(cloud, "goes", "connect", US, to=in_phase(cloud, "stays", "ready").address)
in_phase(cloud, "stays", "connected")
import os
print("user", os.getuid(), cloud.mode, cloud.state()["link"])
cloud.close()
"""


def _tun_for_all() -> bool:
    return Path("/dev/net/tun").exists() and Path("/dev/net/tun").stat().st_mode & 0o006 == 0o006


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.parametrize("link", ["veth", *(["tun"] if _tun_for_all() else [])])
def test_an_ordinary_user_may_start_it(link):
    """As uid 65534 without any capability."""
    with (
        tempfile.TemporaryDirectory(prefix="orch-user-") as folder,
        tempfile.TemporaryDirectory(prefix="orch-kept-") as scratch,
    ):
        os.chown(folder, 65534, 65534)
        here = Path(__file__).parents[1]
        code = _AS_USER.format(path=[str(here), str(here.parents[1])], run=f"{folder}/run", link=link)
        done = subprocess.run(
            as_ordinary_user([sys.executable, "-c", code], Path(scratch)),
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(here), "HOME": folder},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.splitlines() == [f"user 65534 namespaces {link}"], done.stderr
        assert left_of(Path(folder) / "run") == []


def test_the_embedded_store_comes_back_from_kill_9(start, tmp_path):
    cloud = start(store=StoreOptions("swift", location=US))
    store = wait_for(lambda: cloud.store().get("state") == "ready" and cloud.store(), timeout_s=60)
    url = f"{store['endpoint']}/healthcheck"
    rent(cloud, "vm", "fetch", EU, url=url)
    assert in_phase(cloud, "vm", "done").status["body"] == "OK"
    servers = [pid for pid, line in _commands() if str(tmp_path) in line and "serve" in line]
    assert len(servers) >= 4
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: cloud.store()["restarts"] >= 4, timeout_s=30)
    rent(cloud, "again", "fetch", EU, url=url)
    assert wait_for(lambda: look(cloud, "again").status.get("body"), timeout_s=30) == "OK"
    cache = tmp_path / "run/vms/vm/cache"
    cache.mkdir()
    secret = json.loads((tmp_path / "run/cloud/swift/credentials.json").read_text())["secret_key"]
    cloud.close()
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in everything if secret.encode() in path.read_bytes()] == []
    assert not cache.exists()


def _commands() -> list[tuple[int, str]]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append((int(entry), Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ")))
        except OSError:
            continue
    return found
