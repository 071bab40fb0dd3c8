"""`orch net check`: bad input without starting anything, and one measured pair."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from local_fixtures import limited_to

from orchestrator.cli.app import run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--network", "study-2023-4"], "did you mean 'study-2023-04'"),
        (["--places", "gcp/us-central1,moon/sea"], "no measurement at 'moon/sea'"),
        (["--places", "gcp/us-central1,gcp/us-west1"], "no figures from 'gcp/us-central1' to 'gcp/us-west1'"),
        (["--places", "gcp/us-central1,gcp/us-central1"], "each place only once"),
        (["--tuning", "wan"], "needs --windows kernel"),
    ],
)
def test_wrong_places_are_refused_before_anything_starts(capfd, arguments, says):
    assert run(["net", "check", *arguments]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert says in told.err


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")
def test_one_place_is_measured(capfd):
    before = set(Path("/tmp").glob("orch-net-*"))
    assert run(["net", "check", "--places", "gcp/europe-west1", "-o", "json"]) == 0
    (pair,) = json.loads(capfd.readouterr().out)["pairs"]
    assert pair["rtt_ms"] == pytest.approx(0.7, abs=1.0)
    assert limited_to(pair["wished_mbps"], pair["mbps"])
    assert pair["wished_mbps"] == pytest.approx(1100 * 1448 / 1500, rel=1e-3)
    assert set(Path("/tmp").glob("orch-net-*")) == before
