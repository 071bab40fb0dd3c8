"""Disturbs swarms of digits peers, and says whether one hung, split, or left something behind.

    python -m benchmarks.robustness --seeds 20 -o robustness.jsonl

Eight peers on the emulated cloud (a namespace each, half of them across the Atlantic; on loopback where the machine
gives no namespaces: each line says which), without a controller. Each case and seed is a swarm of its own and one JSON
line; lines that are there already are not run again. `--together` runs the cases one after the other in one swarm.

- hang: an epoch of a peer that lives took longer than its steps and the quiet epochs' communication by more than the
  averaging time-out. The time in which a peer was stopped does not count for that peer, and does for the others.
- divergence: the peers' weights, downloaded from all of them at the end, differ by more than float16 rounds of the
  largest: a joiner gets its weights in float16, and the comparison does too.
- left: processes, network namespaces, sockets and shared memory of the swarm after its end.

Exit code 1 when any line failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.robust.store import serve_shards
from benchmarks.robust.swarm import Peer, Settings, StuckError, Swarm
from benchmarks.robust.verdict import Outage, expected_s, lateness_s, quiet_s

APART = 4.0  # float16 roundings: the joiner's own, then of both weights in the comparison; and Adam's answer to it
JOIN_S = 60.0
QUIET_EPOCHS = 2  # before the first disturbance
# Epochs of half the seconds, and only the disturbed one is waited for: what `make test` has time for.
QUICK = {
    "forward_s": 0.05,
    "backward_s": 0.1,
    "bytes_scale": 100.0,
    "matchmaking_time_s": 1.5,
    "calc_steps": 8,
    "epochs_after": 0,
}


class Disturbance:
    """What one case does to the swarm; returns the peers that are out for a while, and when."""

    def __init__(self, swarm: Swarm, chance: random.Random) -> None:
        self.swarm, self.chance = swarm, chance
        self.joined: list[Peer] = []

    def clean(self) -> list[Outage]:
        return []

    def kill_local(self) -> list[Outage]:
        self._into_calculation()
        return self._kill(self._one())

    def kill_matchmaking(self) -> list[Outage]:
        victim = self._one()
        self.swarm.wait_for_line(victim, "matchmaking", self._limit_s())
        self.swarm.rest(self.chance.uniform(0.0, 0.7) * self.swarm.settings.matchmaking_time_s)
        return self._kill(victim)

    def kill_averaging(self) -> list[Outage]:
        victim = self._one()
        self.swarm.wait_for_line(victim, "averaging", self._limit_s())
        self.swarm.rest(self.chance.uniform(0.05, 0.9))
        return self._kill(victim)

    def pause(self) -> list[Outage]:
        self._into_calculation(self.chance.uniform(0.0, 1.5))
        victim, began_s = self._one(), time.monotonic()
        self.swarm.pause(victim, self.swarm.settings.pause_s)
        return [Outage(victim.vm, began_s, time.monotonic())]

    def join(self) -> list[Outage]:
        """A new peer in the place of the one that is missing, or beside all."""
        alive = {peer.slot for peer in self.swarm.alive()}
        slots = [chr(ord("a") + i) for i in range(self.swarm.settings.peers + 1)]
        self._into_calculation()
        newcomer = self.swarm.start(next(slot for slot in slots if slot not in alive))
        self.joined.append(newcomer)
        self.swarm.wait(lambda: newcomer.phase == "training", JOIN_S, f"{newcomer.vm} to join")
        return []

    def _one(self) -> Peer:
        return self.chance.choice(self.swarm.alive())

    def _limit_s(self) -> float:
        settings = self.swarm.settings
        return 3.0 * settings.step_s * settings.calc_steps + 2.0 * settings.averaging_timeout_s

    def _into_calculation(self, share: float = -1.0) -> None:
        """Somewhere in the first half of an epoch's steps; `share` above 1 is in its round."""
        settings, first = self.swarm.settings, self.swarm.alive()[0]
        epoch = first.epoch
        self.swarm.wait(lambda: first.epoch > epoch, self._limit_s(), f"the next epoch of {first.vm}")
        share = self.chance.uniform(0.1, 0.5) if share < 0.0 else share
        self.swarm.rest(share * settings.step_s * settings.calc_steps)

    def _kill(self, victim: Peer) -> list[Outage]:
        self.swarm.kill(victim)
        return []


CASES: dict[str, Callable[[Disturbance], list[Outage]]] = {
    "clean": Disturbance.clean,
    "pause": Disturbance.pause,
    "kill-local": Disturbance.kill_local,
    "join": Disturbance.join,
    "kill-matchmaking": Disturbance.kill_matchmaking,
    "kill-averaging": Disturbance.kill_averaging,
}


def disturb(swarm: Swarm, case: str, chance: random.Random, quiet: float) -> dict[str, Any]:
    """One disturbance and `epochs_after` whole epochs after it. `quiet`: an undisturbed round's seconds."""
    settings, began_s = swarm.settings, time.monotonic()
    line: dict[str, Any] = {"case": case, "hang": "", "late_s": None, "epoch": swarm.alive()[0].epoch}
    try:
        disturbance = Disturbance(swarm, chance)
        outages = CASES[case](disturbance)
        alive = swarm.alive()
        target = max(peer.epoch for peer in alive) + 1 + settings.epochs_after
        due_s = expected_s(
            settings.target_batch_size,
            settings.batch_size * settings.coalesce,
            settings.step_s,
            len(alive),
            quiet,
        )
        limit_s = (1 + settings.epochs_after) * (due_s + settings.averaging_timeout_s) + settings.pause_s
        swarm.wait(lambda: all(peer.epoch >= target for peer in alive), limit_s, f"epoch {target} of all")
        ends = {peer.vm: peer.ends for peer in alive}
        late_s = lateness_s(ends, list(ends), began_s, due_s, outages)
        line["late_s"] = round(late_s, 2)
        if late_s > settings.averaging_timeout_s:
            line["hang"] = f"an epoch was {late_s:.1f} s late"
    except StuckError as error:
        line["hang"] = str(error)
    line["seconds"] = round(time.monotonic() - began_s, 1)
    return line


def swarm_of(
    cases: list[str], seed: int, settings: Settings, mode: str, keep: Path | None
) -> list[dict[str, Any]]:
    """The cases one after the other in one swarm: a line each."""
    folder = Path(tempfile.mkdtemp(prefix="orb-", dir=keep or "/tmp"))
    chance = random.Random(f"{seed}/{'/'.join(cases)}")
    lines: list[dict[str, Any]] = []
    common: dict[str, Any] = {"seed": seed, "peers": settings.peers, "mode": "", "apart": None}
    swarm = Swarm(folder / "run", settings, seed, mode)
    began_s = time.monotonic()
    try:
        with serve_shards(folder / "shards") as (endpoint, shards), swarm.running(endpoint, shards):
            common["mode"], common["start_s"] = swarm.mode, round(time.monotonic() - began_s, 1)
            due_s = expected_s(
                settings.target_batch_size,
                settings.batch_size * settings.coalesce,
                settings.step_s,
                settings.peers,
                0.0,
            )
            limit_s = (1 + QUIET_EPOCHS) * (due_s + settings.averaging_timeout_s)
            swarm.wait(
                lambda: all(p.epoch > QUIET_EPOCHS for p in swarm.alive()), limit_s, "the first epochs"
            )
            ends = {peer.vm: peer.ends for peer in swarm.alive()}
            quiet = quiet_s(ends, range(2, 2 + QUIET_EPOCHS)) or 0.0
            common["quiet_epoch_s"] = round(quiet, 2)
            round_s = max(0.0, quiet - due_s + settings.step_s)
            for case in cases:
                lines.append(disturb(swarm, case, chance, round_s))
                if lines[-1]["hang"]:
                    break
            common |= weights_of(swarm)
    except StuckError as error:
        lines.append(
            {"case": cases[len(lines)] if len(lines) < len(cases) else cases[-1], "hang": str(error)}
        )
    left = swarm.left()
    failed = bool(left) or any(line["hang"] for line in lines) or (common["apart"] or 0.0) > APART
    for line in lines:
        line |= {**common, "left": left}
        line["ok"] = not line["hang"] and not left and line["apart"] is not None and line["apart"] <= APART
        if failed and keep is not None:
            line["folder"] = str(folder)
    for case in cases[len(lines) :]:
        lines.append({"case": case, **common, "hang": "not reached", "left": left, "ok": False})
    if not failed or keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def weights_of(swarm: Swarm) -> dict[str, Any]:
    """How far the weights of all that live are apart, at one epoch of all."""
    found: dict[str, Any] = {}
    for _ in range(5):
        peers = swarm.alive()
        epoch = max(peer.epoch for peer in peers)
        with contextlib.suppress(StuckError):
            swarm.wait(lambda e=epoch, all_=peers: all(p.epoch >= e for p in all_), 60.0, "one epoch of all")
        found = swarm.compare(peers)
        if not found["errors"] and len(set(found["epochs"].values())) == 1:
            return {"apart": found["apart"], "identical": all(found["equal_to_first"].values())}
    return {"apart": None, "identical": None, "why": f"never at one epoch: {found}"}


def main() -> int:
    """Run what is not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--together", action="store_true", help="the cases one after the other in one swarm")
    parser.add_argument("--overlap", default="none", choices=("none", "delayed"), help="an own --output")
    parser.add_argument("--mode", default="auto", choices=("auto", "namespaces", "loopback"))
    parser.add_argument("--keep", type=Path, help="folder for the files of swarms that failed")
    parser.add_argument("-o", "--output", type=Path, help="JSON lines are appended to it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the swarm is ended too
    settings = Settings(peers=arguments.peers, overlap=arguments.overlap)
    if arguments.together:
        settings = replace(settings, **QUICK)
    done = _done(arguments.output, arguments.peers)
    failed = sum(not ok for ok in done.values())
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        missing = [case for case in arguments.cases if (case, seed) not in done]
        for cases in [missing] if arguments.together and missing else [[case] for case in missing]:
            for line in swarm_of(cases, seed, settings, arguments.mode, arguments.keep):
                failed += not line["ok"]
                text = json.dumps(line)
                print(text, flush=True)
                if arguments.output is not None:
                    with arguments.output.open("a") as file:
                        file.write(text + "\n")
    return 1 if failed else 0


def _done(output: Path | None, peers: int) -> dict[tuple[str, int], bool]:
    if output is None or not output.exists():
        return {}
    rows = [json.loads(text) for text in output.read_text().splitlines()]
    return {(row["case"], row["seed"]): row["ok"] for row in rows if row["peers"] == peers}


if __name__ == "__main__":
    sys.exit(main())
