"""Disturbances of a swarm, one method per case."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.robust.swarm import Peer, StuckError, Swarm
from benchmarks.robust.verdict import Outage

_JOIN_S = 60.0
_TRIES = 5  # rounds in which to catch a peer in the intended phase


class Disturbance:
    """Disturbances of a swarm. Each method returns the outages of peers that it caused."""

    def __init__(self, swarm: Swarm, chance: random.Random) -> None:
        self.swarm, self.chance = swarm, chance
        self.joined: list[Peer] = []
        self.hit = ""  # the phase in which the killed peer was

    def clean(self) -> list[Outage]:
        return []

    def kill_local(self) -> list[Outage]:
        calc_s = self.swarm.settings.step_s * self.swarm.settings.calc_steps
        return self._kill_in("calculation", 0.1 * calc_s, 0.5 * calc_s)

    def kill_matchmaking(self) -> list[Outage]:
        return self._kill_in("matchmaking", 0.0, 0.7 * self.swarm.settings.matchmaking_time_s)

    def kill_averaging(self) -> list[Outage]:
        return self._kill_in("averaging", 0.0, self.swarm.settings.averaging_s)

    def pause(self) -> list[Outage]:
        self._wait_into_calculation(self.chance.uniform(0.0, 1.5))
        victim, began_s = self._one(), time.monotonic()
        self.swarm.pause(victim, self.swarm.settings.pause_s)
        return [Outage(victim.vm, began_s, time.monotonic())]

    def join(self) -> list[Outage]:
        """Start a new peer, in a free slot or in an additional one."""
        alive = {peer.slot for peer in self.swarm.alive()}
        slots = [chr(ord("a") + i) for i in range(self.swarm.settings.peers + 1)]
        self._wait_into_calculation()
        newcomer = self.swarm.start(next(slot for slot in slots if slot not in alive))
        self.joined.append(newcomer)
        self.swarm.wait(lambda: newcomer.phase == "training", _JOIN_S, f"{newcomer.vm} to join")
        return []

    def _one(self) -> Peer:
        return self.chance.choice(self.swarm.alive())

    def _limit_s(self) -> float:
        settings = self.swarm.settings
        return 3.0 * settings.step_s * settings.calc_steps + 2.0 * settings.averaging_timeout_s

    def _wait_into_calculation(self, share: float = -1.0) -> None:
        """Wait until `share` of the next epoch's steps, by default in its first half; above 1 is in its averaging round."""
        settings, first = self.swarm.settings, self.swarm.alive()[0]
        epoch = first.epoch
        self.swarm.wait(lambda: first.epoch > epoch, self._limit_s(), f"the next epoch of {first.vm}")
        share = self.chance.uniform(0.1, 0.5) if share < 0.0 else share
        self.swarm.rest(share * settings.step_s * settings.calc_steps)

    def _kill_in(self, phase: str, soonest_s: float, latest_s: float) -> list[Outage]:
        """Kill a peer within the given delay after `phase` began; if the phase was over by then, retry in the next round."""
        victim = self._one()
        for _ in range(_TRIES):
            self.swarm.wait_for_phase(victim, phase, self._limit_s())
            self.swarm.rest(self.chance.uniform(soonest_s, latest_s))
            if self.swarm.kill(victim, phase):
                self.hit = self.swarm.phase_of(victim)
                return []
        raise StuckError(f"{victim.vm} could not be killed in {phase} within {_TRIES} rounds")


CASES: dict[str, Callable[[Disturbance], list[Outage]]] = {
    "clean": Disturbance.clean,
    "pause": Disturbance.pause,
    "kill-local": Disturbance.kill_local,
    "join": Disturbance.join,
    "kill-matchmaking": Disturbance.kill_matchmaking,
    "kill-averaging": Disturbance.kill_averaging,
}
