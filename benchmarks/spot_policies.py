"""Score replacement policies on the nine zones of skypilot-org/spot-traces: AWS V100 from 15 February 2023, 45 days.

One peer, 6.5 minutes to restart. Prints the share of the time in training of the reference policies next to the published
shares, and the regret of each policy of the real controller. The repository states no licence, so clone it yourself.

    python -m benchmarks.spot_policies CLONE
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from analysis.spot.references import REFERENCES, training_shares
from analysis.spot.timeline import covered, timeline
from cloud.spot.formats import read_skypilot
from cloud.spot.history import History
from experiments.parse.load import load
from orchestrator.simulation.driver import simulate
from orchestrator.simulation.experiments import of_experiment
from orchestrator.simulation.policies import POLICIES, Market, on_market, policy_run, summaries

RESTART_S, SEEDS = 390.0, 10
FACTS = {
    "pinned_to_best": 0.896,
    "random_other": 0.970,
    "any_up": 0.982,
    "past_availability": 0.984,
    "oracle": 0.985,
}
_MOST_OFF = 0.005
# Nine priced places: only their histories matter here, so they need not be those of the histories.
_PLACES = [
    f"gcp/{zone[:-2]}/{zone}"
    for zone in (
        *("us-central1-a", "us-east1-c", "us-west1-a", "us-east4-a", "us-west2-b", "us-west4-a"),
        *("europe-west1-b", "europe-west2-a", "europe-west3-b"),
    )
]
_EXPERIMENT = """\
name: nine-zones
model: ConvNextLarge
data:
  shards: s3://digits/train-{000000..000031}.tar
  heldout: s3://digits/heldout-000000.tar
  location: b2/us-west-1
swarm: {target_batch_size: 32768, batch_size: 32, optimizer: {name: adam, lr: 0.01}}
peers:
  - name: us
    count: 1
    any_of:
PLACES
    replace: {policy: next_place, max_replacements: 1000}
measure: {warmup_epochs: 1, epochs: 2}
emulation: null
"""


def reference_shares(histories: dict[str, History]) -> dict[str, float]:
    """Mean share of the time in training of each reference policy over the seeds."""
    line = timeline(histories, *covered(histories))
    seeds = [training_shares(line, peers=1, restart_s=RESTART_S, seed=seed) for seed in range(SEEDS)]
    return {name: sum(shares[name] for shares in seeds) / SEEDS for name in REFERENCES}


def regrets(histories: list[History]) -> dict[str, float]:
    """Regret of each of the controller's policies against the oracle, as a share of the time."""
    market = Market(dict(zip(_PLACES, histories, strict=True)), RESTART_S, None)
    places = "\n".join(
        f'      - {{infra: {place}, accelerators: "T4:1", use_spot: true}}' for place in _PLACES
    )
    with tempfile.TemporaryDirectory(prefix="orch-spot-") as folder:
        file = Path(folder) / "nine.yaml"
        file.write_text(_EXPERIMENT.replace("PLACES", places))
        spec = load(str(file))
    from_s, until_s = market.window(0)
    days = (until_s - from_s) / 86400
    plain = of_experiment(spec, 0, days=days, faults=(), epochs=0, environ={"HOME": "/nonexistent"})
    runs = []
    for policy in POLICIES:
        made = on_market(plain, market, spec, policy=policy, faults=())
        runs.append(policy_run(policy, made, market, simulate(made)))
    return {row["policy"]: row["regret"] for row in summaries(runs)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Policies on the nine zones of skypilot-org/spot-traces")
    parser.add_argument("clone", type=Path, help="folder of a clone of github.com/skypilot-org/spot-traces")
    options = parser.parse_args()
    folder = options.clone / "availability" / "1-node" / "aws-02-15-2023"
    paths = sorted(folder.glob("*_v100_1.json"))
    if len(paths) != len(_PLACES):
        print(f"{folder} has {len(paths)} files *_v100_1.json instead of {len(_PLACES)}", file=sys.stderr)
        return 2
    histories = {path.stem: read_skypilot(path.name, path.read_bytes()) for path in paths}
    found = reference_shares(histories)
    off = [name for name in REFERENCES if abs(found[name] - FACTS[name]) > _MOST_OFF]
    for name in REFERENCES:
        print(
            f"{name:18} {100 * found[name]:5.1f} % of the time in training, published {100 * FACTS[name]:.1f}"
        )
    for policy, regret in regrets(list(histories.values())).items():
        print(f"{policy:18} regret {100 * regret:.2f} points")
    print(f"further than half a point from the published share: {', '.join(off) or 'none'}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
