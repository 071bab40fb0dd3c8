"""Disturb swarms of digits peers and check whether they hang, split or leave anything behind.

    python -m benchmarks.robustness --seeds 20 -o robustness.jsonl

Runs eight peers on the emulated cloud without a controller: one network namespace each, half of them across the
Atlantic, or on loopback if the machine has no namespaces (see `mode` of each line). Each case and seed is a separate
swarm and one JSON line; lines that already exist are not run again. `--together` runs the cases in one swarm, one
after the other.

- hang: an epoch of a running peer exceeded its steps plus the communication of quiet epochs by more than the averaging
  timeout. The time during which a peer was stopped is excluded for that peer, but not for the others.
- divergence: the peers' weights, downloaded from all of them at the end, differ by more than the float16 rounding of
  the largest weight allows (joining peers and the comparison receive weights in float16). `split`: after a case, the
  peers' lineages, according to their logs, differ. `forked`: epochs in which they differed temporarily.
- left: processes, network namespaces, sockets and shared memory left after the end of the swarm.

Exits with 1 if any line failed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.robust.cases import CASES, Disturbance
from benchmarks.robust.store import serve_shards
from benchmarks.robust.swarm import Settings, StuckError, Swarm
from benchmarks.robust.verdict import expected_s, lateness_s, quiet_s
from cloud.provider import ProviderError
from experiments.averaging.methods import EXCHANGES, OVERLAPS

APART = 4.0  # float16 roundings: of the joining peer, of both weights in the comparison, and their effect through Adam
QUIET_EPOCHS = 2  # before the first disturbance
# Shorter epochs, waiting only for the disturbed one, to fit into `make test`.
QUICK = {
    "forward_s": 0.05,
    "backward_s": 0.1,
    "bytes_scale": 100.0,
    "matchmaking_time_s": 1.5,
    "calc_steps": 8,
    "epochs_after": 0,
    "averaging_s": 0.4,
    "next_chunk_timeout_s": 5.0,
}


def disturb(swarm: Swarm, case: str, chance: random.Random, quiet: float) -> dict[str, Any]:
    """Run a disturbance and `epochs_after` complete epochs after it. `quiet`: seconds of an undisturbed round."""
    settings, began_s = swarm.settings, time.monotonic()
    line: dict[str, Any] = {
        "case": case,
        "hang": "",
        "split": "",
        "late_s": None,
        "epoch": swarm.alive()[0].epoch,
        "hit": "",
    }
    disturbance, given_up = Disturbance(swarm, chance), swarm.given_up()
    try:
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
        ever = {epoch: swarm.lineages(alive, epoch) for epoch in range(line["epoch"] + 1, target + 1)}
        line["forked"] = sum(len(lineages) > 1 for lineages, _ in ever.values())
        if len(now := ever[target][1]) != 1:
            line["split"] = f"{len(now)} lineages at epoch {target}"
    except StuckError as error:
        line["hang"] = str(error)
    line["hit"], line["given_up"] = disturbance.hit, swarm.given_up() - given_up
    line["seconds"] = round(time.monotonic() - began_s, 1)
    return line


def swarm_of(
    cases: list[str], seed: int, settings: Settings, mode: str, keep: Path | None
) -> list[dict[str, Any]]:
    """Run the cases one after the other in one swarm; return one line per case."""
    folder = Path(tempfile.mkdtemp(prefix="orb-", dir=keep or "/tmp"))
    chance = random.Random(f"{seed}/{'/'.join(cases)}")
    lines: list[dict[str, Any]] = []
    common: dict[str, Any] = {"seed": seed, **_swarm_fields(settings), "mode": "", "apart": None}
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
            late_s = lateness_s(ends, list(ends), 0.0, due_s + round_s)
            common["start_late_s"] = round(late_s, 2)
            if late_s > settings.averaging_timeout_s:
                raise StuckError(f"one of the first epochs was {late_s:.1f} s late")
            for case in cases:
                lines.append(disturb(swarm, case, chance, round_s))
                if lines[-1]["hang"]:
                    break
            else:
                common |= weights_of(swarm)
    except (StuckError, ProviderError, OSError) as error:
        if len(lines) < len(cases):
            lines.append({"case": cases[len(lines)]})
        lines[-1]["hang"] = lines[-1].get("hang") or str(error) or repr(error)
    left = swarm.left()
    failed = (
        bool(left)
        or any(line["hang"] or line.get("split") for line in lines)
        or (common["apart"] or 0.0) > APART
    )
    for line in lines:
        line |= {**common, "left": left}
        same = not line.get("split") and line["apart"] is not None and line["apart"] <= APART
        line["ok"] = same and not line["hang"] and not left
        if failed and keep is not None:
            line["folder"] = str(folder)
    for case in cases[len(lines) :]:
        lines.append({"case": case, **common, "hang": "not reached", "left": left, "ok": False})
    if not failed or keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def weights_of(swarm: Swarm) -> dict[str, Any]:
    """Compare the weights of all running peers at a common epoch."""
    found: dict[str, Any] = {}
    for _ in range(5):
        peers = swarm.alive()
        epoch = max(peer.epoch for peer in peers)
        try:
            swarm.wait(lambda e=epoch, all_=peers: all(p.epoch >= e for p in all_), 60.0, "one epoch of all")
            found = swarm.compare(peers)
        except StuckError as error:
            found = {"errors": str(error)}
            continue
        if not found["errors"] and len(set(found["epochs"].values())) == 1:
            return {"apart": found["apart"], "identical": all(found["equal_to_first"].values())}
    return {"apart": None, "identical": None, "why": f"never at one epoch: {found}"}


def main() -> int:
    """Run the cases and seeds that are missing in the output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument(
        "--together", action="store_true", help="run the cases one after the other in one swarm"
    )
    parser.add_argument("--quick", action="store_true", help="short epochs, and none after the disturbed one")
    parser.add_argument("--overlap", default="none", choices=[record.name for record in OVERLAPS])
    parser.add_argument("--averaging", default="flat", choices=[record.name for record in EXCHANGES])
    parser.add_argument("--compression", default="float16", help="as swarm.compression in an experiment")
    parser.add_argument("--mode", default="auto", choices=("auto", "namespaces", "loopback"))
    parser.add_argument("--keep", type=Path, help="folder for the files of failed swarms")
    parser.add_argument("-o", "--output", type=Path, help="file to which JSON lines are appended")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the swarm is ended, too
    settings = Settings(
        peers=arguments.peers,
        overlap=arguments.overlap,
        averaging=arguments.averaging,
        compression=arguments.compression,
    )
    if arguments.quick:
        settings = replace(settings, **QUICK)
    done = _done(arguments.output, settings)
    wanted = [(case, seed) for seed in _seeds(arguments) for case in arguments.cases]
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    for seed in _seeds(arguments):
        missing = [case for case in arguments.cases if (case, seed) not in done]
        for cases in [missing] if arguments.together and missing else [[case] for case in missing]:
            for line in swarm_of(cases, seed, settings, arguments.mode, arguments.keep):
                done[line["case"], seed] = line
                text = json.dumps(line)
                print(text, flush=True)
                if arguments.output is not None:
                    with arguments.output.open("a") as file:
                        file.write(text + "\n")
    found = [done[key] for key in wanted]
    good = sum(line["ok"] for line in found)
    late = max((line["late_s"] for line in found if line.get("late_s") is not None), default=None)
    given_up = sum(line.get("given_up", 0) for line in found)
    print(f"{good} of {len(found)}; latest epoch {late} s late; rounds given up: {given_up}", file=sys.stderr)
    return 0 if good == len(found) else 1


def _seeds(arguments: argparse.Namespace) -> range:
    return range(arguments.first_seed, arguments.first_seed + arguments.seeds)


def _swarm_fields(settings: Settings) -> dict[str, Any]:
    """The fields of a line that identify its kind of swarm."""
    return {
        "peers": settings.peers,
        "epoch_steps": settings.calc_steps,
        "overlap": settings.overlap,
        "averaging": settings.averaging,
        "compression": settings.compression,
    }


def _done(output: Path | None, settings: Settings) -> dict[tuple[str, int], dict[str, Any]]:
    if output is None or not output.exists():
        return {}
    rows = [json.loads(text) for text in output.read_text().splitlines()]
    mine = _swarm_fields(settings)
    return {(row["case"], row["seed"]): row for row in rows if all(row.get(k) == v for k, v in mine.items())}


if __name__ == "__main__":
    sys.exit(main())
