"""The numbers of the published study's own logs, to the last digit. The logs themselves are never committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.goldens import check, orch_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("command", "golden"),
    [("replay", "logs_replay.json"), ("audit", "logs_audit.json"), ("cost", "logs_cost.json.gz")],
)
def test_the_numbers_of_the_studys_logs(command: str, golden: str, paper_traces: Path):
    found = orch_json(command, str(paper_traces))
    check(golden, json.loads(json.dumps(found).replace(str(paper_traces), "<logs>")))
