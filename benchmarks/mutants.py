"""Hand-written mutants: apply each to a copy of the tree and run the tests that should fail.

`python -m benchmarks.mutants` prints one row per mutant. Exits with 1 if one survives, with 2 if one no longer applies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", "build", ".hypothesis", ".pytest_cache", "runs"
)
_SKY = "tests/cloud/sky/test_faults.py"


@dataclass(frozen=True)
class Mutant:
    """A replacement of `before`, which occurs once in the file, by `after`. `tests` must then fail."""

    what: str
    path: str
    before: str
    after: str
    tests: str


MUTANTS = (
    Mutant("one listing in close", "cloud/sky/provider.py", "for pause_s in (0.0, 3.0):", "for pause_s in (0.0,):", _SKY),
    Mutant(
        "a pending launch is not cancelled", "cloud/sky/clusters.py",
        "self.call(f\"ending {cluster}\", lambda: sdk.cancel(waiting))", "pass", _SKY,
    ),
    Mutant(
        "a launch that was ended meanwhile is kept", "cloud/sky/launching.py",
        "            raise dear\n        _check_wanted(run, request.vm, doing)\n", "            raise dear\n", _SKY,
    ),
    Mutant(
        "an unknown price passes the ceiling", "cloud/sky/price_check.py",
        "    if ceiling is None or (usd_per_h is not None and usd_per_h <= ceiling):\n        return None\n",
        "    if ceiling is None or usd_per_h is None or usd_per_h <= ceiling:\n        return None\n", _SKY,
    ),
    Mutant(
        "no fsync of VM records", "cloud/durable_file.py", "            os.fsync(file.fileno())\n", "",
        "tests/cloud/sky/test_teardown.py",
    ),
    Mutant(
        "no fsync of their folder", "cloud/durable_file.py", "        os.fsync(descriptor)\n", "        pass\n",
        "tests/cloud/sky/test_teardown.py",
    ),
    Mutant(
        "abandoned calls are not killed", "orchestrator/controller/calls.py",
        "                ray.kill(worker)\n                done", "                done",
        "tests/orchestrator/controller/test_calls.py",
    ),
    Mutant(
        "EndRun while a request is under way", "orchestrator/controller/tick.py",
        'if not self._calls.busy("request"):', "if True:", "tests/orchestrator/controller/test_observations.py",
    ),
    Mutant(
        "synchronous=OFF", "metrics/store/database.py", "PRAGMA synchronous=FULL", "PRAGMA synchronous=OFF",
        "tests/metrics/test_store.py",
    ),
    Mutant(
        "a VM that the lists lack is replaced without being ended", "orchestrator/core/machine.py",
        '"the provider no longer knows the VM", jitter, gone=False)', '"the provider no longer knows the VM", jitter, gone=True)',
        "tests/orchestrator/core/test_spot.py",
    ),
    Mutant(
        "three lists without a VM are enough", "orchestrator/core/observations.py",
        "if known.reads + 1 >= _READS and now_s - known.since_s > wait_s:", "if known.reads + 1 >= _READS:",
        "tests/orchestrator/core/test_spot.py",
    ),
)  # fmt: skip


def main() -> int:
    """Run all mutants."""
    survived = False
    with tempfile.TemporaryDirectory(prefix="orch-mutants-") as name:
        tree = Path(name) / "tree"
        shutil.copytree(_ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
        whole = _tests(tree, *dict.fromkeys(m.tests for m in MUTANTS))
        if whole.returncode:
            print(whole.stdout[-2000:], "the tests fail without a mutant", sep="\n")
            return 2
        print("| mutant | file | killed by |", "|---|---|---|", sep="\n")
        for mutant in MUTANTS:
            path = tree / mutant.path
            text = path.read_text()
            if text.count(mutant.before) != 1:
                print(f"{mutant.what}: {mutant.path} does not contain exactly once: {mutant.before!r}")
                return 2
            path.write_text(text.replace(mutant.before, mutant.after))
            done = _tests(tree, mutant.tests)
            path.write_text(text)
            failed = [
                line.split()[1].partition("::")[2]
                for line in done.stdout.splitlines()
                if line.startswith("FAILED")
            ]
            if done.returncode not in (0, 1) or (done.returncode == 1 and not failed):
                print(done.stdout[-2000:])
                return 2
            survived |= not failed
            print(
                f"| {mutant.what} | `{mutant.path}` | {', '.join(f'`{each}`' for each in failed) or 'SURVIVED'} |",
                flush=True,
            )
    return int(survived)


def _tests(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not processes",
        *tests,
    ]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
