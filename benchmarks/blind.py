"""Draw random experiments and predict them before anybody runs them.

    python -m benchmarks.blind                        # the study and its predictions, from the committed seed
    orch study run benchmarks/blind/blind-12.yaml     # run them; `orch compare blind-12` shows predicted and measured

Twelve experiments with random places, numbers of peers, models, target batch sizes and compressions, all within the
emulated cloud's reach and within what the predictor predicts. The files are committed before any of the experiments runs,
so the comparison is blind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from analysis.planning.prediction import as_json, predict
from cloud.prices.book import load as load_book
from experiments.catalog import published_runs
from experiments.emulation.scales import resolve_emulation
from experiments.parse import find, load_all
from experiments.parse.load import load
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec

SEED, COUNT, CORES = 20261127, 12, 2
FOLDER = Path(__file__).with_name("blind")
_BOOK = "study-2023-04"
_PLACES = {
    "us": "gcp/us-central1/us-central1-a",
    "eu": "gcp/europe-west1/europe-west1-b",
    "asia": "gcp/asia-east1/asia-east1-a",
    "aus": "gcp/australia-southeast1/australia-southeast1-a",
}
_BASES = {"ConvNextLarge": "geo-c8", "RoBERTaXLM": "geo-c8-nlp"}
_TARGETS = (16384, 32768, 65536)
_COMPRESSIONS = ("float16", "uniform8bit", "none")
_MOST_PEERS = 8


def draw(chance: random.Random) -> dict[str, Any]:
    """Draw an entry of a study: an experiment of the library and the keys that are changed."""
    base = chance.choice(sorted(_BASES.values()))
    names = sorted(chance.sample(sorted(_PLACES), chance.randint(1, 4)))
    while True:
        counts = [chance.randint(1, 4) for _ in names]
        if 2 <= sum(counts) <= _MOST_PEERS:
            break
    peers = [
        {
            "name": name,
            "count": count,
            "resources": {"infra": _PLACES[name], "accelerators": "T4:1", "use_spot": True},
        }
        for name, count in zip(names, counts, strict=True)
    ]
    changes = {
        "peers": peers,
        "swarm.target_batch_size": chance.choice(_TARGETS),
        "swarm.compression": chance.choice(_COMPRESSIONS),
    }
    return {"experiment": base, "set": changes}


def spec_of(entry: dict[str, Any]) -> ExperimentSpec:
    """Return the experiment of an entry. Raises SpecError."""
    return load(entry["experiment"], [f"{key}={json.dumps(value)}" for key, value in entry["set"].items()])


def entries(seed: int = SEED, count: int = COUNT) -> list[dict[str, Any]]:
    """Draw until `count` different experiments can be emulated and predicted, and none is one of the paper's."""
    chance, found, known = random.Random(seed), list[dict[str, Any]](), _published()
    while len(found) < count:
        entry = draw(chance)
        if _key(entry) in known:
            continue
        try:
            spec = spec_of(entry)
            resolve_emulation(spec, CORES)
        except SpecError:
            continue
        if predict(spec).sps is None:
            continue
        known.add(_key(entry))
        found.append(
            {"experiment": entry["experiment"], "label": f"blind-{len(found) + 1}", "set": entry["set"]}
        )
    return found


def study(found: list[dict[str, Any]]) -> str:
    """Return the study file."""
    head = (
        f"# Written by benchmarks/blind.py with seed {SEED}, before any of them ran.\n"
        f"name: blind-{len(found)}\n"
        "description: experiments that nobody had run when they were predicted\nexperiments:\n"
    )
    rows = "".join(f"  - {json.dumps(entry)}\n" for entry in found)
    return f"{head}{rows}repeats: 1\ncontended_retries: 2\ncompare: {{replay: never}}\n"


def predictions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each experiment's prediction, without its assumptions and its pairs."""
    book, rows = load_book(_BOOK), list[dict[str, Any]]()
    for entry in found:
        shown = as_json(predict(spec_of(entry), book))
        kept = ("sps", "granularity", "calc_s", "comm_s", "epoch_s", "egress_usd_per_epoch", "bottleneck")
        rows.append({"label": entry["label"], **{key: shown[key] for key in kept}})
    return rows


def _key(entry: dict[str, Any]) -> str:
    return json.dumps([entry["experiment"], entry["set"]], sort_keys=True)


def _published() -> set[str]:
    """The paper's own experiments, as entries."""
    found: set[str] = set()
    for name in published_runs():
        if not name.startswith(("geo-a", "geo-b", "geo-c")):
            continue
        for spec in load_all(str(find(name, shipped=True))):
            peers = [
                {
                    "name": group.name,
                    "count": group.count,
                    "resources": {
                        "infra": group.alternatives[0].infra,
                        "accelerators": "T4:1",
                        "use_spot": True,
                    },
                }
                for group in sorted(spec.peers, key=lambda group: group.name)
            ]
            changes = {
                "peers": peers,
                "swarm.target_batch_size": spec.swarm.target_batch_size,
                "swarm.compression": spec.swarm.compression,
            }
            found.add(_key({"experiment": _BASES[str(spec.model)], "set": changes}))
    return found


def main() -> int:
    """Write the study and its predictions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    found = entries()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"blind-{COUNT}.yaml").write_text(study(found))
    (FOLDER / "predictions.json").write_text(json.dumps(predictions(found), indent=1) + "\n")
    print(f"wrote {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
