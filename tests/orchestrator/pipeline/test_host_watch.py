"""Reading the host: a made-up /proc, and the thread that watches it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.pipeline.host_load import HostReading
from orchestrator.pipeline.host_watch import HostReader, HostWatch

FILES = {
    "stat": "cpu  100 0 50 900 7 3 2 0 0 0\ncpu0 100 0 50 900 7 3 2 0 0 0\nctxt 4711\nbtime 1\n",
    "vmstat": "nr_free_pages 1\npgpgin 20\npgpgout 30\npswpin 4\n",
    "net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask\neth0 00000000 0102 3 0 0 0 00000000 0 0 0\n",
    "net/dev": "Inter-|\n face |\n lo: 9 0 0 0 0 0 0 0 9 0\n eth0: 600 1 0 0 0 0 0 0 70 1\n",
}


def made_up(folder: Path, *names: str) -> HostReader:
    (folder / "net").mkdir()
    for name in names:
        (folder / name).write_text(FILES[name])
    return HostReader(folder)


def test_counters_of_proc(tmp_path: Path):
    found = made_up(tmp_path, *FILES).read()
    assert found.cpu_s == pytest.approx((100 + 50 + 3 + 2) / os.sysconf("SC_CLK_TCK"))
    assert replace(found, at_s=0.0, cpu_s=None) == HostReading(0.0, None, 20 * 1024, 30 * 1024, 600, 70, 4711)


@pytest.mark.parametrize("missing", FILES)
def test_what_proc_does_not_say_is_unknown(missing: str, tmp_path: Path):
    found = made_up(tmp_path, *(name for name in FILES if name != missing)).read()
    unknown = {
        "stat": {"cpu_s", "context_switches"},
        "vmstat": {"disk_read_bytes", "disk_write_bytes"},
        "net/route": {"net_received_bytes", "net_sent_bytes"},
        "net/dev": {"net_received_bytes", "net_sent_bytes"},
    }[missing]
    assert {name for name in found.__slots__ if getattr(found, name) is None} == unknown


class Steps(HostReader):
    """Counts its readings; each is one second and ten context switches after the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.read_again = threading.Semaphore(0)

    def read(self) -> HostReading:
        self.readings += 1
        self.read_again.release()
        return HostReading(float(self.readings), context_switches=10 * self.readings)


def test_samples_belong_to_the_strategy_that_ran():
    reader = Steps()
    with HostWatch(reader, period_s=3600) as watch, watch.of("one"):
        pass
    # readings: construction, begin, begin and end of the strategy, end
    assert [(one.time_s, one.strategy, one.context_switches) for one in watch.samples] == [
        (1.0, "", 10),
        (2.0, "one", 10),
        (3.0, "", 10),
    ]
    assert watch.loads["one"].seconds == 1.0
    assert watch.loads["one"].context_switches_per_s == 10.0
    assert watch.loads["one"].cpu_share is None


def test_it_reads_periodically_and_ends():
    reader = Steps()
    with HostWatch(reader, period_s=0.01) as watch:
        for _ in range(6):
            assert reader.read_again.acquire(timeout=60)
    assert len(watch.samples) >= 4
    assert not any(thread.name == "host" for thread in threading.enumerate())
