"""Peers with different machine clocks share the swarm's time: adopted when joining, monotonic afterwards."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hivemind_here import apart
from hypothesis import given
from hypothesis import strategies as st
from peer_rig import config_of

from cloud.clock import MAX_SKEW_S
from experiments.peer.swarm.clock import SwarmClock, controller_time, install_clock
from experiments.peer.swarm.dht_node import start_dht

NOW_S = 1_790_000_000.0


class Machine:
    """A machine with a clock that may be wrong and be set; `passed_s`: its true uptime."""

    def __init__(self, skew_s: float) -> None:
        self.skew_s, self.passed_s = skew_s, 0.0
        self.clock = SwarmClock(lambda: NOW_S + self.passed_s + self.skew_s, lambda: 77.0 + self.passed_s)

    def hears(self, theirs_s: float, trip_s: float, back_s: float) -> float | None:
        ticks = 77.0 + self.passed_s
        return self.clock.observe(theirs_s, ticks - trip_s - back_s, ticks)


@given(
    st.floats(-MAX_SKEW_S, MAX_SKEW_S), st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(-7200.0, 7200.0)
)
def test_joining_peer_adopts_the_swarm_time_and_ignores_jumps_of_its_own_clock(
    skew_s: float, trip_s: float, back_s: float, jump_s: float
) -> None:
    """The answer comes from a peer with the right time, `back_s` ago."""
    machine = Machine(skew_s * 0.99)
    assert machine.hears(NOW_S - back_s, trip_s, back_s) is None
    machine.skew_s += jump_s
    machine.passed_s = 1000.0
    assert abs(machine.clock.now_s() - (NOW_S + 1000.0)) <= (trip_s + back_s) / 2 + 1e-6


def test_later_responses_refine_the_clock_within_the_first_error_bounds() -> None:
    machine = Machine(-1000.0)
    assert not machine.clock.adopted
    machine.hears(NOW_S - 0.2, 1.8, 0.2)  # a slow way there: 0.8 s wrong, 1 s possible
    assert machine.clock.now_s() == pytest.approx(NOW_S + 0.8)
    machine.hears(NOW_S - 0.05, 0.05, 0.05)
    assert machine.clock.now_s() == pytest.approx(NOW_S, abs=1e-6)
    for liar_s in (NOW_S + 1000.0, NOW_S - 2.0, 0.0, 1e300, math.nan, -math.inf):
        machine.hears(liar_s, 0.0, 0.0)
    assert machine.clock.now_s() == pytest.approx(NOW_S, abs=1e-6)
    assert machine.clock.skew_s == pytest.approx(-1000.0, abs=1e-6)


@pytest.mark.parametrize("theirs_s", [NOW_S + 3700.0, NOW_S - 3700.0, 1.0, 1e300, math.nan, math.inf])
def test_clock_with_too_large_a_skew_is_not_adopted(theirs_s: float) -> None:
    machine = Machine(0.0)
    skew_s = machine.hears(theirs_s, 0.1, 0.1)
    assert skew_s is not None
    assert not abs(skew_s) <= MAX_SKEW_S
    assert not machine.clock.adopted
    assert machine.clock.now_s() == NOW_S


def test_clock_continues_from_the_time_passed_by_the_controller() -> None:
    now_s = controller_time("1790000000.25 12.5", lambda: 5.0, lambda: 20.0)
    assert now_s() == NOW_S + 0.25 + 7.5
    for text in ("", "x", "1790000000", "1790000000 1e9", "nan 1", "inf 1", "1 2 3", "1790000000 -1"):
        assert controller_time(text, lambda: 5.0, lambda: 20.0)() == 5.0


def _a_machine_off(by_s: float) -> Callable[[], float]:
    """Make Hivemind use the wrong clock of a machine; returns that clock."""
    from hivemind.utils import timed_storage

    original = timed_storage.get_dht_time

    def wrong_s() -> float:
        return time.time() + by_s

    for module in list(sys.modules.values()):
        if vars(module).get("get_dht_time") is original:
            module.get_dht_time = wrong_s  # type: ignore[attr-defined]
    return wrong_s


async def _times(_dht: Any, node: Any) -> float:
    """Return the time used by the DHT's storage. Runs in the DHT's process."""
    from hivemind.utils import timed_storage

    return timed_storage.get_dht_time()


def _three_nodes(folder: Path) -> list[tuple[float, dict[str, int]]]:
    first = config_of("a", "", ())
    clocks, nodes, maddrs = [], [], []
    for name, by_s in (("a", 0.0), ("b", -3500.0), ("c", 3500.0)):
        clock = SwarmClock(_a_machine_off(by_s))
        install_clock(clock)
        config = replace(
            first, initial_peers=tuple(maddrs[:1]), listen_port=config_of(name, "", ()).listen_port
        )
        if not (folder / f"{name}.key").exists():
            from experiments.wire.record_keys import generate_identity

            (folder / f"{name}.key").write_bytes(generate_identity()[0])
        dht, maddr = start_dht(config, folder / f"{name}.key")
        clocks.append(clock)
        nodes.append(dht)
        maddrs.append(maddr)
    for number, (dht, clock) in enumerate(zip(nodes, clocks, strict=True)):
        assert dht.store("records", subkey=f"{number}", value=number, expiration_time=clock.now_s() + 30.0)
    found = []
    for dht in nodes:
        at_s = dht.run_coroutine(_times) - time.time()
        records = dht.get("records", latest=True).value
        found.append((at_s, {key: entry.value for key, entry in records.items()}))
    return found


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_nodes_with_clocks_an_hour_apart_form_one_swarm() -> None:
    for off_s, records in apart(_three_nodes, 100.0):
        assert abs(off_s) < 3.0  # what Hivemind allows
        assert records == {"0": 0, "1": 1, "2": 2}
