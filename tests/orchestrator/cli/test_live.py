"""A snapshot rendered as a view and as lines."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from metrics.events.bad_samples import BadSamples, LeftOut
from orchestrator.cli.follow import LineScreen
from orchestrator.cli.render import live
from tests.orchestrator.cli_snapshots import event, snapshot

VIEW = """\
geo-b2-20261121-7f3a: running, 1 min 35 s since start
Emulated cloud: real peers in network namespaces on this machine; scaled: bytes 1/100, samples 1/32
place               slot  VM         state     epoch  calc. samples/s  lost
gcp/europe-west1-b  eu-0  T4:1 spot  WAITING       -                -  1 x
gcp/us-central1-a   us-0  T4:1 spot  TRAINING      2             35.5
  eu-0: preempted; [next try in 10 s]
epoch 2 of 5 ━━━━━━━━━━━━━━━                 50%, averaging in 7 s
throughput 61.2 samples/s, 70.2 samples/s while calculating, granularity 25.4, $0.0961 so far, $0.36/h
00:01:30  eu-0: WAITING: preempted
"""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def drawn(shown: dict, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False)
    console.print(live.view(shown))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_view():
    assert drawn(snapshot()) == VIEW


def test_view_fits_eighty_columns():
    lines = drawn(snapshot(), width=80).splitlines()
    assert "gcp/europe-west1-b  eu-0  T4:1 spot  WAITING       -                -  1 x" in lines
    assert max(map(len, lines)) <= 80


def test_view_of_a_run_without_data():
    text = drawn(
        snapshot(
            peers=[],
            epoch={},
            cost={},
            granularity=None,
            throughput_sps=None,
            events=[],
            elapsed_s=None,
            scales=None,
        )
    )
    assert "no epoch yet" in text
    assert "unknown" not in text.replace("scales unknown", "")
    assert text.endswith("0%\n")  # and no empty line for the numbers


FIRST_EPOCH = {"current": 1, "completed": 0, "samples": 128}


def first_epoch(**changes: Any) -> dict[str, Any]:
    """The snapshot before any epoch has ended."""
    shown = snapshot(granularity=None, throughput_sps=None)
    return {**shown, "epoch": {**shown["epoch"], **FIRST_EPOCH, **changes}}


def test_the_first_epoch_has_no_granularity_yet():
    shown = first_epoch()
    printed = "70.2 samples/s while calculating, $0.0961 so far, $0.36/h"
    assert f"\n{printed}\n" in drawn(shown)
    assert live.progress_line(shown) == f"00:01:35  epoch 1 of 5 (warm-up), 1 of 2 peers training, {printed}"
    later = {**snapshot(), "at_s": 97.0}
    assert "granularity 25.4" in live.lines(shown, later)[-1]


def test_unreported_throughput_is_omitted():
    shown = first_epoch(sps=None)
    assert "samples/s while" not in drawn(shown)
    assert live.progress_line(shown).endswith("1 of 2 peers training, $0.0961 so far, $0.36/h")


def test_progress_line_of_a_run_without_data_ends_with_its_peers():
    shown = snapshot(peers=[], epoch={}, cost={}, granularity=None, throughput_sps=None)
    assert live.progress_line(shown) == "00:01:35  no epoch yet, 0 of 0 peers training"


def test_rates_while_calculating_are_at_full_scale():
    shown = snapshot(scales={"bytes": 1.0, "time": 2.0, "samples": 1.0})
    assert "throughput 61.2 samples/s, 35.1 samples/s while calculating" in drawn(shown)
    assert [row["calc. samples/s"] for row in live.peer_rows(shown)] == ["17.8", "-"]


def test_unknown_price_stays_unknown():
    text = drawn(snapshot(cost={"spent_usd": None, "usd_per_h": None, "budget_usd": None}))
    assert "granularity 25.4, unknown so far, unknown/h" in text


def test_view_shows_dropped_rounds_and_warnings():
    text = drawn(
        snapshot(dropped_rounds=2, warnings=["the host was too busy"], target="loopback", error="no TUN")
    )
    for printed in (
        "DROPPED ROUNDS 2",
        "warning: the host was too busy",
        "WITHOUT network distance",
        "no TUN",
    ):
        assert printed in text


def test_view_without_controller_names_attach():
    assert "`orch attach geo-b2-20261121-7f3a`" in drawn(snapshot(controller="none"))


def test_lines_show_only_news():
    first = snapshot()
    head = live.lines(None, first)
    assert head[0].startswith("geo-b2-20261121-7f3a: running")
    assert head[-1] == "00:01:30  eu-0: WAITING: preempted"
    assert live.lines(first, first) == []
    later = snapshot(
        events=[*first["events"], event(96.0, "eu-0", "BOOTING: requested")],
        warnings=["late"],
        epoch={**first["epoch"], "current": 3},
        at_s=97.0,
    )
    assert live.lines(first, later) == [
        "00:01:36  eu-0: BOOTING: requested",
        "warning: late",
        "00:01:37  epoch 3 of 5, 1 of 2 peers training, throughput 61.2 samples/s, "
        "70.2 samples/s while calculating, granularity 25.4, $0.0961 so far, $0.36/h",
    ]


def test_a_burst_of_events_is_cut():
    many = snapshot(events=[event(float(n), "us-0", f"n{n}") for n in range(20)])
    fresh = live.lines(snapshot(), many)
    assert fresh[0] == "... 8 more events: `orch why geo-b2-20261121-7f3a`"
    assert len(fresh) == 13
    assert fresh[-1].endswith("n19")


def test_lines_come_at_most_every_period():
    now, written = [0.0], []
    screen = LineScreen(written.append, period_s=10.0, now=lambda: now[0])
    for second in range(31):
        now[0] = float(second)
        screen.show(snapshot(at_s=95.0 + second))
    assert len(written) == len(live.lines(None, snapshot())) + 3


def test_the_last_evaluation_is_in_the_view_and_in_the_progress_line():
    shown = snapshot(evaluation={"loss": 1.52, "nats_per_byte": 1.48}, evaluated_epoch=3)
    words = "held-out loss 1.52, nats_per_byte 1.48"
    assert words in live.progress_line(shown)
    assert words in drawn(shown, width=200)
    assert "held-out" not in live.progress_line(snapshot(evaluation=None, evaluated_epoch=None))


def test_a_growing_count_of_bad_samples_is_told_once_and_again_for_held_out_ones():
    def shown(training: int, heldout: int) -> dict[str, Any]:
        found = BadSamples(
            (LeftOut("r-a-0", "us-0", training, heldout, "s3://b/a.tar: sample a003: it is bad"),)
        )
        warnings = [found.sentence] if found.sentence else []
        return snapshot(bad_samples=found.to_json(), warnings=warnings)

    def told(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
        return [line.split(" were")[0] for line in live.lines(before, now) if line.startswith("warning: ")]

    none, few, many, held = shown(0, 0), shown(3, 0), shown(900, 0), shown(900, 2)
    assert told(snapshot(), few) == ["warning: 3 bad training samples (us-0 3)"]
    assert told(none, few) == ["warning: 3 bad training samples (us-0 3)"]
    assert told(few, many) == []
    assert told(many, held) == ["warning: 900 bad training samples (us-0 900) and 2 bad held-out samples"]


def test_the_table_of_peers_has_cpu_and_gpu_where_they_are_known():
    peers = snapshot()["peers"]
    assert live.peer_columns(snapshot()) == live.PEERS
    peers[0]["utilisation"] = {"cpu_mean": 0.456, "gpu_mean": None}
    shown = snapshot(peers=peers)
    assert live.peer_columns(shown) == (*live.PEERS[:7], "CPU", *live.PEERS[7:])
    assert [row["CPU"] for row in live.peer_rows(shown)] == ["46%", "-"]
    peers[1]["utilisation"] = {"cpu_mean": None, "gpu_mean": 0.0}
    assert live.peer_columns(snapshot(peers=peers))[7:9] == ("CPU", "GPU")
