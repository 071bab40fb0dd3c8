"""The kernel's counters against the interface's, in a network namespace of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

# Runs inside `unshare`: real TCP over lo, one address that is not loopback, segments of 1500 bytes.
_PROGRAM = """
import json, socket, subprocess, threading, time
from experiments.peer.reporting.egress_meter import EgressMeter

for command in ("link set lo up mtu 1500 gso_max_segs 1", "addr add 10.9.0.1/32 dev lo"):
    subprocess.run(["ip", *command.split()], check=True)

def interface():
    line = next(text for text in open("/proc/net/dev") if text.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])

server = socket.create_server(("10.9.0.1", 0))

def answer(connection):
    while connection.recv(1 << 16):
        pass
    connection.sendall(b"x" * 10_000)
    connection.close()

def serve():
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

def talk(count, live_s=0.0):
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"y" * count)
        time.sleep(live_s)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass

threading.Thread(target=serve, daemon=True).start()
meter = EgressMeter(period_s=60)  # no periodic reading in between: only closed sockets count
out = {"tail": meter.tail}
for name, count, live_s, times in (("long", 3_000_000, 0.0, 1), ("short", 200_000, 0.05, 1), ("many", 20_000, 0.0, 50)):
    before, counted = interface(), sum(meter.snapshot().values())
    for _ in range(times):
        talk(count, live_s)
    time.sleep(0.3)  # the kernel sends its notices from a work queue
    out[name] = [interface() - before, sum(meter.snapshot().values()) - counted]
held = socket.create_connection(server.getsockname())
before, counted = interface(), sum(meter.snapshot().values())
held.sendall(b"z" * 500_000)
time.sleep(0.2)
out["open"] = [interface() - before, sum(meter.snapshot().values()) - counted]
loopback = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(loopback.getsockname()) as client:
    client.sendall(b"local")
out["destinations"] = sorted(meter.snapshot())
out["warnings"] = meter.warnings
meter.close()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def counted():
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urn", "true"], capture_output=True).returncode:
        pytest.skip("this host lets nobody make a network namespace")
    done = subprocess.run(
        [unshare, "-Urn", sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["long", "short", "many", "open"])
def test_agrees_with_the_interface_within_one_percent(counted, name):
    """`short` exists for 50 ms, `many` are 50 sockets of a millisecond each: all between two readings."""
    on_the_wire, by_sockets = counted[name]
    assert on_the_wire > 100_000
    assert by_sockets == pytest.approx(on_the_wire, rel=0.01)


def test_no_socket_is_left_open(counted):
    assert counted["tail"] == "counted"
    assert counted["warnings"] == []
    assert counted["destinations"] == ["10.9.0.1"]  # 127.0.0.1 is no egress
