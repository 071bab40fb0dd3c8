"""What a plan takes from a two-stage profile."""

from __future__ import annotations

from dataclasses import replace

import made_up_offload
import numpy as np
import pytest
from made_up_offload import OPS, profile

from analysis.pipeline.offload.choices import Choice, choices_of
from analysis.pipeline.offload.compare import compare_policies
from analysis.pipeline.offload.offload_profile import OffloadProfile, speed_by_op
from analysis.pipeline.offload.pass_time import Machines, Prices
from analysis.pipeline.offload.sample_profile import SampleProfile

MACHINES = Machines(0.01, 8e6, 4, 1)


def test_measured_codecs_are_choices_of_each_sample():
    found = profile()
    choices = choices_of(found.samples, found.choosable())
    webp = choices.index(Choice(2, "webp:2"))
    assert choices.sent_bytes[:, webp] == pytest.approx([60_000, 150_528, 75_264])
    assert choices.server_s[:, webp] == pytest.approx([0.021, 0.01, 0.026])
    assert choices.client_s[:, webp] == pytest.approx([0.001, 0, 0.0015])


def test_the_payload_and_the_means():
    found = profile()
    assert found.mean_raw_bytes == pytest.approx(890_000 / 3)
    assert found.mean_cpu_s == pytest.approx(0.05 / 3)
    assert found.payload_bps == pytest.approx(8 * 890_000 / 3 * 10)


def test_parts_that_do_not_fit_are_refused():
    found = profile()
    with pytest.raises(ValueError, match="which its head does not describe"):
        OffloadProfile(found.head, replace(found.samples, op_s=None), found.codecs)
    with pytest.raises(ValueError, match="codecs are others"):
        OffloadProfile(found.head, found.samples)
    bad = replace(found.codecs[0], write_s=np.array([0.0, -1.0, 0.0]))
    with pytest.raises(ValueError, match="webp:2 has a value that is negative or not finite"):
        OffloadProfile(found.head, found.samples, (bad,))


def test_time_is_no_reason_to_offload_if_it_is_off_and_dollars_are():
    found = profile()
    on = {row.policy: row for row in compare_policies(found.samples, MACHINES)}
    assert (on["best"].verdict, on["best"].offloaded) == ("pays", 2)
    off = {row.policy: row for row in compare_policies(found.samples, MACHINES, time_off=True)}
    assert {row.verdict for name, row in off.items() if name != "none"} == {"off"}
    assert off["none"].verdict == "baseline"
    assert (off["best"].offloaded, off["best"].bound_s) == (0, None)
    assert off["greedy"].found == on["greedy"].found  # what it would take is still known
    prices = Prices(0.0, 1e-8, 0.0, 1e-8)
    in_usd = compare_policies(found.samples, MACHINES, aim="usd", prices=prices, time_off=True)
    assert in_usd[-1].verdict == "pays"


def test_the_servers_speed_is_that_of_the_samples_that_both_have():
    client = made_up_offload.samples()
    server = SampleProfile(
        ["x", "c", "a"], OPS, np.ones(3), np.ones((3, 2)), np.array([[9, 9], [0.03, 0.002], [0.024, 0.002]])
    )
    assert speed_by_op(client, server) == pytest.approx({"decode": 1.5, "crop": 1.0})
    idle = replace(client, op_s=np.zeros((3, 2)))
    assert speed_by_op(idle, server) == {"decode": 1.0, "crop": 1.0}
    for wrong, says in (
        (replace(server, keys=["x", "y", "z"]), "no sample in common"),
        (replace(server, ops=("decode", "flip")), "the operations are decode, flip, not decode, crop"),
        (replace(server, op_s=None), "has no times"),
        (replace(server, op_s=np.zeros((3, 2))), "operation decode took no time on the server"),
    ):
        with pytest.raises(ValueError, match=says):
            speed_by_op(client, wrong)
