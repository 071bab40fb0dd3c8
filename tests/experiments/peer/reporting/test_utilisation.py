"""Utilisation: what is read from /proc and NVML, how readings are summarised, and what is published."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.peer.reporting.gpus import GpuReading, Gpus, open_gpus
from experiments.peer.reporting.utilisation import (
    PUBLISHED,
    READINGS,
    ProcReader,
    Reading,
    Scope,
    Utilisation,
    busy_ticks,
    default_interface,
    interface_bytes,
    process_ticks,
    summarise,
    watch_utilisation,
)

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t00000000\t010011AC\t0003\t0\t0\t50\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    7       1    0    0    0     0          0         0    7       1    0    0    0     0       0          0
  eth0: {received}   2 0 0 0 0 0 0 {sent} 3 0 0 0 0 0 0
"""
STAT = "cpu  {user} 1 2 900 50 3 4 77 0 0\ncpu0 1 2 3\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\n"


class Source:
    """Readings made up in advance."""

    scope: Scope = "vm"
    cores = 2
    memory_total_bytes: int | None = 1000

    def __init__(self, readings: Callable[[int], Reading]) -> None:
        self.begun: list[bool] = []
        self._readings = readings

    def read(self, begin: bool) -> Reading:
        self.begun.append(begin)
        return self._readings(len(self.begun) - 1)


def refused(key: str, text: str) -> None:
    raise AssertionError(f"{key}: {text}")


def test_what_the_kernel_says_is_read():
    assert default_interface(ROUTES) == "eth0"  # the lower metric
    assert default_interface(ROUTES.splitlines()[0]) is None
    assert interface_bytes(DEV.format(received=500, sent=900), "eth0") == (900, 500)
    assert interface_bytes(DEV, "eth") is None
    assert busy_ticks(STAT.format(user=100)) == 100 + 1 + 2 + 3 + 4  # neither idle, nor waiting, nor stolen
    assert process_ticks("7 (a) b (c) S " + " ".join(map(str, range(4, 40)))) == 14 + 15


def test_a_mean_is_over_the_time_and_a_peak_is_the_highest_second():
    gpus = [GpuReading(2, share, used, 4000) for share, used in ((0.9, 9), (0.5, 100), (0.7, 50))]
    rows = [
        Reading(0.0, 10.0, 0, 0, 300, gpus[0]),
        Reading(1.0, 12.0, 100, 7, 500, gpus[1]),
        Reading(3.0, 12.0, 1100, 7, None, gpus[2]),
    ]
    found = summarise("r-a-0", Source(rows.__getitem__), 5.0, rows)
    assert found is not None
    assert (found.began_s, found.wall_s, found.readings, found.scope, found.cores) == (5.0, 3.0, 2, "vm", 2)
    assert (found.cpu_mean, found.cpu_peak) == (0.3333, 1.0)
    assert (found.memory_bytes, found.memory_total_bytes) == (500, 1000)
    assert (found.sent_bytes, found.sent_peak_bytes_per_s) == (1100, 500.0)
    assert (found.received_bytes, found.received_peak_bytes_per_s) == (7, 7.0)
    assert (found.gpus, found.gpu_mean, found.gpu_peak) == (
        2,
        0.6,
        0.7,
    )  # the first reading ended the row before
    assert (found.gpu_memory_bytes, found.gpu_memory_total_bytes) == (100, 4000)


def test_what_was_not_read_is_unknown_and_a_reset_counter_is_left_out():
    rows = [Reading(0.0), Reading(1.0)]
    found = summarise("r-a-0", Source(rows.__getitem__), 5.0, rows)
    assert found is not None
    unknown = {name for name in found.__slots__ if getattr(found, name) is None}
    assert unknown == {n for n in found.__slots__ if n.startswith(("cpu", "sent", "received", "gpu"))} | {
        "memory_bytes"
    }
    rows = [Reading(0.0, sent_bytes=900), Reading(1.0, sent_bytes=5), Reading(2.0, sent_bytes=25)]
    found = summarise("r-a-0", Source(rows.__getitem__), 5.0, rows)
    assert found is not None
    assert (found.sent_bytes, found.sent_peak_bytes_per_s) == (20, 20.0)
    assert summarise("r-a-0", Source(rows.__getitem__), 5.0, rows[:1]) is None


def write_proc(proc: Path, *, user: int, sent: int, received: int) -> None:
    (proc / "net").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(STAT.format(user=user))
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "net" / "route").write_text(ROUTES)
    (proc / "net" / "dev").write_text(DEV.format(received=received, sent=sent))


def test_a_vm_is_read_as_a_whole(tmp_path: Path):
    write_proc(tmp_path, user=100, sent=5, received=6)
    reader = ProcReader(refused, own_machine=True, own_network=True, proc=tmp_path)
    first = reader.read(begin=True)
    assert (first.sent_bytes, first.received_bytes, first.memory_bytes) == (5, 6, 600 * 1024)
    assert reader.memory_total_bytes == 1000 * 1024
    write_proc(tmp_path, user=100 + os.sysconf("SC_CLK_TCK"), sent=9, received=6)
    later = reader.read(begin=False)
    assert later.cpu_s is not None
    assert first.cpu_s is not None
    assert later.cpu_s - first.cpu_s == pytest.approx(1.0)
    assert later.sent_bytes == 9


def test_an_interface_that_vms_share_is_unknown(tmp_path: Path):
    write_proc(tmp_path, user=100, sent=5, received=6)
    found = ProcReader(refused, own_machine=True, own_network=False, proc=tmp_path).read(begin=True)
    assert (found.sent_bytes, found.received_bytes) == (None, None)


def test_what_cannot_be_read_is_unknown_and_warned_of(tmp_path: Path):
    write_proc(tmp_path, user=100, sent=5, received=6)
    (tmp_path / "stat").write_text("cpu  none\n")
    (tmp_path / "net" / "dev").unlink()
    warnings: dict[str, str] = {}
    reader = ProcReader(warnings.__setitem__, own_machine=True, own_network=True, proc=tmp_path)
    found = reader.read(begin=True)
    assert (found.cpu_s, found.sent_bytes, found.memory_bytes) == (None, None, 600 * 1024)
    assert set(warnings) == {"utilisation CPU", "utilisation network"}
    assert warnings["utilisation CPU"].startswith("the CPU utilisation is unknown: ")


def test_where_vms_share_a_machine_the_peers_processes_are_counted():
    """A child that works is counted from when it was first seen, and one that ended loses nothing."""
    burn = "import time; print(flush=True); input()\nwhile time.process_time() < 5: pass"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        reader = ProcReader(refused, own_machine=False, own_network=True)
        first = reader.read(begin=True)
        child.stdin.write(b"\n")
        child.stdin.flush()
        deadline = time.monotonic() + 20.0
        while (found := reader.read(begin=False)).cpu_s is not None and found.cpu_s < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.kill()
        child.communicate()
    assert first.cpu_s == 0.0
    assert first.memory_bytes is not None
    assert 1e6 < first.memory_bytes < 1e11
    assert found.memory_bytes is None  # once a minute
    assert found.gpus is None
    ended = reader.read(begin=True)
    assert ended.cpu_s is not None
    assert found.cpu_s is not None
    assert ended.cpu_s >= found.cpu_s


def test_summaries_are_written_and_the_newest_are_published(tmp_path: Path):
    published: list[list[dict[str, Any]]] = []
    source = Source(lambda n: Reading(float(n), cpu_s=n / 2, memory_bytes=5))
    path = tmp_path / "utilisation.csv"
    watch = Utilisation("r-a-0", path, source, published.append, refused, lambda: 50.0, period_s=0.002)
    watch.start()
    deadline = time.monotonic() + 20.0
    while len(published) < PUBLISHED + 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watch.close()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == len(published)
    assert (rows[0]["vm"], rows[0]["wall_s"], rows[0]["cpu_mean"]) == ("r-a-0", "10.0", "0.25")
    assert rows[0]["sent_bytes"] == ""
    assert [len(newest) for newest in published] == [min(n + 1, PUBLISHED) for n in range(len(published))]
    assert published[-1][-1]["cpu_mean"] == float(rows[-1]["cpu_mean"])
    assert "vm" not in published[-1][-1]
    assert [n for n, begin in enumerate(source.begun) if begin][:3] == [0, READINGS, 2 * READINGS]


def test_a_file_that_cannot_be_written_does_not_end_the_readings(tmp_path: Path):
    published: list[Any] = []
    warnings: dict[str, str] = {}
    path = tmp_path / "missing" / "utilisation.csv"
    source = Source(lambda n: Reading(float(n)))
    watch = Utilisation(
        "v", path, source, published.append, warnings.__setitem__, lambda: 1.0, period_s=0.002
    )
    watch.start()
    deadline = time.monotonic() + 20.0
    while not published and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.close()
    assert published
    assert "utilisation.csv cannot be written" in warnings["utilisation"]


def test_reading_costs_little():
    """The bound is 0.2 % of a core at one reading a second; a minute's readings are taken here, as fast as possible."""
    spent: list[float] = []
    for own_machine in (True, False):
        reader = ProcReader(refused, own_machine=own_machine, own_network=True)
        began = time.thread_time()
        for n in range(60):
            reader.read(begin=n % READINGS == 0)
        spent.append((time.thread_time() - began) / 60)
    print(f"of a core: {spent[0]:.3%} for a VM, {spent[1]:.3%} for a peer's processes")
    assert max(spent) < 0.002


def test_watching_ends_when_it_is_closed(tmp_path: Path):
    close = watch_utilisation(
        "r-a-0", tmp_path, own_machine=True, own_network=True, publish=lambda _: None, warn=refused,
        unix_s=time.time,
    )  # fmt: skip
    close()
    assert (tmp_path / "utilisation.csv").read_text().startswith("vm,began_s,wall_s,readings,scope,cores,")


class Nvml:
    """The five functions of `pynvml` that are used, for two GPUs. This machine has none."""

    class NVMLError(Exception):
        """As pynvml's."""

    lost = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=(90, 40)[handle], memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1000, free=1, used=(700, 5)[handle])


def test_gpus_are_added_up():
    nvml = Nvml()
    gpus = Gpus(nvml)
    assert gpus.read() == GpuReading(2, 0.65, 705, 2000)
    nvml.lost = True
    with pytest.raises(OSError, match="NVML: GPU is lost"):
        gpus.read()


def test_without_a_gpu_there_is_nothing_to_read_and_no_warning():
    assert Path("/dev/nvidiactl").exists() or open_gpus(refused) is None
