"""The numbers of the published study's own logs, to the last digit. The logs themselves are never committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.goldens import check, orch_json

pytestmark = pytest.mark.slow


def test_replay_of_the_studys_logs(paper_traces: Path):
    check("replay.json", orch_json("replay", str(paper_traces)))
