"""Differences of a host's counters, by hand."""

from __future__ import annotations

from analysis.pipeline.host_load import HostLoad, HostReading, HostSample, load, sample, to_csv


def test_differences_by_hand():
    before = HostReading(10.0, 5.0, 1000, 2000, 3000, 4000, 50)
    after = HostReading(12.0, 6.0, 5096, 2000, 3600, 4010, 250)
    assert sample(before, after, 3.0, strategy="0-none", cores=2) == HostSample(
        9.0, "0-none", 0.25, 4096, 0, 600, 10, 200
    )
    assert load(before, after, 2) == HostLoad(2.0, 0.25, 2048.0, 0.0, 300.0, 5.0, 100.0)


def test_what_is_unknown_stays_unknown():
    silent, reset = HostReading(1.0), HostReading(2.0, 0.5, 10, 10, 10, 10, 10)
    for before in (silent, HostReading(1.0, 7.0, 11, 11, 11, 11, 11)):
        assert load(before, reset, 1) == HostLoad(1.0, None, None, None, None, None, None)
    found = sample(silent, reset, 0.0, strategy="", cores=1)
    assert to_csv([found]).splitlines() == [
        "time_s,strategy,cpu_share,disk_read_bytes,disk_write_bytes,net_received_bytes,net_sent_bytes,context_switches",
        "2.0,,unknown,unknown,unknown,unknown,unknown,unknown",
    ]


def test_a_share_is_at_most_one_and_unknown_for_a_few_ticks():
    assert load(HostReading(0.0, 0.0), HostReading(1.0, 1.02), 1).cpu_share == 1.0
    assert load(HostReading(0.0, 0.0), HostReading(0.05, 0.01), 1).cpu_share is None
