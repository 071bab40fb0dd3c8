"""Keeps a finished run's journal for `test_journals.py`: `python tests/orchestrator/journals/make.py NAME [RUN_FOLDER]`.

Without a run's folder: the journal of the scripted run of `crash_rig.py`. A file is made once, by the version that
wrote the journal, and never again: later versions must read it as it is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from metrics.store.database import RunStore
from orchestrator.core.journal import replay


def kept(run_folder: Path) -> dict[str, Any]:
    """The journal's rows and what they come to."""
    with RunStore.open_reader(run_folder / "run.db") as store:
        events = store.records("events")
        version = (store.meta("versions") or {}).get("orch", "")
    state = replay(events)
    assert state.ended, f"{run_folder.name} has not ended"
    end = {
        "status": state.stop_status,
        "slots": {s.name: [str(s.state), s.generation, s.lost] for s in state.slots},
        "intents": sorted(state.intents),
        "monitors": list(state.monitor_vms()),
    }
    return {"made_by": version, "end": end, "events": [asdict(e) for e in events]}


def write(name: str, run_folder: Path) -> Path:
    """Into this folder, one row a line. Raises FileExistsError."""
    found = kept(run_folder)
    rows = ",\n  ".join(json.dumps(row) for row in found.pop("events"))
    path = Path(__file__).with_name(f"{name}.json")
    head = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    with path.open("x") as file:
        file.write(f'{{{head},\n "events": [\n  {rows}\n ]}}\n')
    return path


def _scripted(folder: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import pytest
    from crash_rig import ScriptedRun, use_quick_keys

    with pytest.MonkeyPatch.context() as patch:
        use_quick_keys(patch.setattr)
        run = ScriptedRun(folder)
        run.run()
    return run.path.parent


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temp:
        print(write(name, Path(rest[0]) if rest else _scripted(Path(temp))))
