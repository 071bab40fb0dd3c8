"""The content of switch.json, without packets."""

from __future__ import annotations

import json
import socket
import time
from types import SimpleNamespace

import pytest

from cloud.local.network.shaper import Node, Shaper
from cloud.local.network.switch import Switch
from cloud.networks import NO_PATH_MODEL, Network, PathModel

MODEL = PathModel("often", 2.9e6, 0.017, 0.02, 0.4, 9.0)


def _report(tmp_path, model: PathModel):
    began_s = time.monotonic() - 1000
    shaper = Shaper(Network.load("study-2023-04"), 100, 1, 1e9, model=model, run_id="r", began_s=began_s)
    shaper.add(1, Node("r-us-0-0", "vm", "gcp/us-central1"))
    shaper.add(2, Node("r-eu-0-0", "vm", "gcp/europe-west1"))
    shaper.add(3, Node("r-us-1-0", "vm", "gcp/us-central1"))
    ours, theirs = socket.socketpair()
    probe = SimpleNamespace(worst_s=0.0, over_10ms_share=0.0)
    with ours, theirs:
        report = Switch(shaper, ours, tmp_path / "switch.json", probe).report()
    return json.loads(json.dumps(report))


def test_the_spells_so_far_are_told_in_unix_time(tmp_path):
    spells = _report(tmp_path, MODEL)["spells"]
    assert {tuple(sorted(row[:2])) for row in spells} == {("r-eu-0-0", "r-us-0-0"), ("r-eu-0-0", "r-us-1-0")}
    now_s = time.time()
    assert all(now_s - 1001 < begins_s < now_s and lasts_s > 0 for _, _, begins_s, lasts_s in spells)
    assert len(spells) == pytest.approx(2 * 1000 / (1 / 0.02 + 9), rel=0.5)


def test_without_a_model_and_without_packets_it_says_nothing(tmp_path):
    report = _report(tmp_path, NO_PATH_MODEL)
    assert (report["spells"], report["by_second"], report["late_over_10ms_share"]) == ([], [], 0.0)
