"""The scales of an emulated run, and what is expected of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.networks import Network, path_model
from experiments.catalog import published, step_time
from experiments.emulation.scales import full_size, resolve_emulation
from experiments.parse import SpecError, library, load

TASKS = ("glyphs-2", "stdlib-lm-1", "stdlib-lm-2", "stdlib-lm-4")  # nothing of them is scaled
LIBRARY = [entry.name for entry in library() if entry.name not in TASKS]
STUDY = [name for name in LIBRARY if name[:5] in ("geo-a", "geo-b", "geo-c")]
SWARMS = [name for name in STUDY if load(name).peer_count > 1]


def test_geo_b2_on_two_cores():
    plan = resolve_emulation(load("geo-b2"), 2)
    assert (plan.bytes_scale, plan.time_scale, plan.samples_scale) == (100, 1, 32)
    assert (plan.raw_target_batch_size, plan.coalesce, plan.steps, plan.parts) == (1024, {"T4:1": 1}, 16, 378)
    assert plan.calc_s == pytest.approx(14.4)
    assert plan.study_calc_s == pytest.approx(460.8)  # published: 460.4
    assert plan.parameters == 1_977_673
    assert plan.part_size_bytes == pytest.approx(2 * plan.parameters / 2 / 378, rel=1e-3)


@pytest.mark.parametrize("name", STUDY)
def test_rules_hold_for_each_experiment_of_the_paper(name):
    spec = load(name)
    plan = resolve_emulation(spec, 2)
    unit = spec.peer_count * 32 * plan.coalesce["T4:1"]
    assert plan.time_scale == 1
    assert plan.raw_target_batch_size % unit == 0
    assert plan.samples_scale * plan.raw_target_batch_size == pytest.approx(32768)
    assert plan.calc_s == pytest.approx(14, abs=1)
    assert plan.host_busy < 0.5
    assert any(r.startswith(f"host busy: {100 * plan.host_busy:.0f} % expected") for r in plan.reasons)
    assert not any(r.startswith("warning") for r in plan.reasons)
    network = Network.load("study-2023-04")
    where = [group.resources.infra for group in spec.peers if group.resources]
    model, streams = path_model("study"), spec.peer_count - 1
    slowest = min(model.carried_bps(network, a, b, streams) for a in where for b in where)
    assert slowest / plan.bytes_scale >= 0.7e6
    assert plan.coalesce == {"T4:1": 4 if name.endswith("-nlp") else 1}


def one_report_of_each(spec, plan) -> int:
    """Samples."""
    steps = [plan.coalesce[g.alternatives[0].accelerators] for g in spec.peers for _ in range(g.count)]
    return spec.swarm.batch_size * sum(steps)


def test_steps_per_report_depend_on_the_accelerator():
    """A DGX-2 takes a tenth of the T4's time for a step; both report about once a second."""
    spec = load("geo-f-a-1-nlp")
    plan = resolve_emulation(spec, 2)
    assert plan.coalesce == {"V100:8": 37, "T4:1": 4}
    assert one_report_of_each(spec, plan) == 32 * (37 + 4)
    assert plan.raw_target_batch_size % (32 * 41) == 0
    assert plan.calc_s == pytest.approx(14, abs=0.6)
    (said,) = (r for r in plan.reasons if r.startswith("coalesce"))
    assert said.startswith("coalesce 37 on V100:8 (a step takes 0.0272 s), 4 on T4:1 (a step takes 0.276 s):")
    assert (
        "1.78397: about 14 s of calculation per epoch, in multiples of 1312 samples (one report of every peer)"
        in str(plan.reasons)
    )


def test_step_time_is_reported_with_three_digits():
    plan = resolve_emulation(
        load("geo-a1-nlp", ["swarm.batch_size=33", "swarm.target_batch_size=33000"]), 2
    )  # 0.23 s x 33 / 32 = 0.2371875 s
    assert "coalesce 4: a step takes 0.237 s, a peer reports about once per second" in plan.reasons
    assert any("for 1 peer on 2 cores" in reason for reason in plan.reasons)


@pytest.mark.parametrize("name", LIBRARY)
def test_peers_report_about_once_per_second_unless_a_step_takes_longer(name):
    spec = load(name)
    plan = resolve_emulation(spec, 2)
    for group in spec.peers:
        for resources in group.alternatives:
            times = step_time(spec.model, resources.accelerators, plain=spec.swarm.plain)
            assert times is not None
            steps = plan.coalesce[resources.accelerators]
            assert steps == 1 or steps * (times.forward_s(32) + times.backward_s(32)) <= 1.4


def test_each_alternative_of_a_slot_has_its_steps_per_report():
    at = "infra: gcp/us-central1/us-central1-a"
    places = f"[{{{at}, accelerators: 'T4:1'}}, {{{at}, accelerators: 'V100:8'}}]"
    spec = load("geo-a2-nlp", ["peers[0].resources=null", f"peers[0].any_of={places}"])
    assert resolve_emulation(spec, 2).coalesce == {"T4:1": 4, "V100:8": 37}


def test_the_library_says_where_averaging_keeps_two_cores_busy():
    noted = {n for n in LIBRARY if any(r.startswith("note") for r in resolve_emulation(load(n), 2).reasons)}
    assert noted == {"a10-8-rn152", "a10-8-wrn101", "a10-8-rbase", "geo-e-a-8", "geo-f-a-8"}


@pytest.mark.parametrize("name", [name for name in LIBRARY if name not in STUDY])
def test_the_others_can_be_emulated_on_two_cores(name):
    """Best effort: no more than half of this machine, and none of Hivemind's own limits passed."""
    spec = load(name)
    plan = resolve_emulation(spec, 2)
    assert plan.raw_target_batch_size % one_report_of_each(spec, plan) == 0 or plan.samples_scale == 1
    assert (plan.host_busy or 0) < 0.5
    assert not [reason for reason in plan.reasons if reason.startswith("warning")]
    assert plan.epoch_s is not None
    assert plan.epoch_s < 200


@pytest.mark.parametrize(
    ("name", "within"),
    [("a10-8-conv", 0.10), ("a10-8-rxlm", 0.15), ("geo-e-a-8", 0.10), ("geo-e-b-8", 0.15), ("geo-f-a-8", 0.10)],
)  # fmt: skip
def test_step_times_and_networks_of_the_others_explain_their_rates(name, within):
    figures, plan = published(name), resolve_emulation(load(name), 2)
    assert figures is not None
    assert 32768 / (plan.study_epoch_s or 0) == pytest.approx(figures.sps, rel=within)


@pytest.mark.parametrize("name", SWARMS)
def test_calculation_at_full_scale_is_the_paper_s(name):
    figures = published(name)
    assert figures is not None
    assert resolve_emulation(load(name), 2).study_calc_s == pytest.approx(figures.calc_s, rel=0.05)


def test_single_gpu_is_a_plain_loop_at_its_wall_clock_rate():
    for name in ("geo-a1", "geo-a1-nlp"):
        figures, spec = published(name), load(name)
        plan = resolve_emulation(spec, 2)
        assert figures is not None
        assert (spec.swarm.plain, plan.comm_s) == (True, 0.0)
        assert plan.study_epoch_s == plan.study_calc_s
        assert 32768 / (plan.study_epoch_s or 0) == pytest.approx(figures.sps, rel=0.002)
        in_swarm = resolve_emulation(load(name, ["swarm.plain=false"]), 2)
        assert (in_swarm.study_calc_s or 0) > (plan.study_calc_s or 0)
        assert in_swarm.comm_s > 0


def test_local_2_is_unscaled_and_short():
    spec = load("local-2")
    plan = resolve_emulation(spec, 2)
    assert (plan.bytes_scale, plan.time_scale, plan.samples_scale) == (1, 1, 1)
    assert plan.raw_target_batch_size == spec.swarm.target_batch_size
    epochs = spec.measure.warmup_epochs + spec.measure.epochs
    assert spec.measure.epochs >= 25
    assert plan.epoch_s * epochs < 200  # of the 300 s promised: the rest is the start and the host's noise
    assert plan.epoch_s == pytest.approx(plan.study_epoch_s)


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("emulation.bytes_scale=40", "bytes_scale", 40),
        ("emulation.samples_scale=1", "samples_scale", 1),
        ("emulation.samples_scale=16", "samples_scale", 16),
        ("emulation.time_scale=2", "time_scale", 2),
        ("emulation.parts=7", "parts", 7),
    ],
)
def test_given_scales_are_kept_and_reported(override, field, value):
    plan = resolve_emulation(load("geo-b2", [override]), 2)
    assert getattr(plan, field) == value
    assert any(field in reason and ("given" in reason or "requested" in reason) for reason in plan.reasons)


def test_scales_that_break_a_rule_give_a_warning():
    few = resolve_emulation(load("geo-c8", ["emulation.bytes_scale=10"]), 2)
    assert few.host_busy > 0.5
    assert any(r.startswith("warning") and "is 50 % or more" in r for r in few.reasons)
    slow = resolve_emulation(load("geo-c8", ["emulation.bytes_scale=1000"]), 2)
    assert any(r.startswith("warning") and "will not reach its rate" in r for r in slow.reasons)


def test_experiment_may_forbid_emulation():
    with pytest.raises(SpecError, match="cannot be emulated"):
        resolve_emulation(load("geo-b2", ["emulation=null"]), 2)


def test_rented_vms_train_at_full_scale_with_an_estimate_from_step_times():
    plan = full_size(load("geo-b2", ["emulation=null"]))
    assert (plan.bytes_scale, plan.time_scale, plan.samples_scale, plan.coalesce) == (1, 1, 1, {"T4:1": 1})
    assert (plan.raw_target_batch_size, plan.parameters, plan.part_size_bytes) == (32768, 197767336, 2**19)
    assert plan.calc_s == plan.study_calc_s == pytest.approx(460.8)  # published: 460.4
    assert plan.epoch_s == plan.study_epoch_s == plan.reckoned_epoch_s


@given(
    st.integers(1, 16), st.integers(1, 64), st.sampled_from(["ConvNextLarge", "RoBERTaXLM", "digits"]),
    st.floats(0.5, 120),
)  # fmt: skip
def test_unpredictable_epoch_is_unknown_and_traffic_assumes_the_shortest(count, per_peer, model, found_s):
    at = [f"peers[0].count={count}", f"swarm.target_batch_size={count * per_peer * 32}", f"model={model}"]
    at += [f"swarm.matchmaking_time_s={found_s}", "emulation=null"]
    known = full_size(load("geo-a2", at))
    unknown = full_size(load("geo-a2", [*at, "peers[0].resources.accelerators=H100:1"]))
    assert (unknown.calc_s, unknown.epoch_s, unknown.study_calc_s, unknown.study_epoch_s) == (None,) * 4
    assert 0 < unknown.reckoned_epoch_s == pytest.approx(found_s)
    assert unknown.reckoned_epoch_s <= known.reckoned_epoch_s
    assert (known.calc_s is None) == (model == "digits")  # a digit's step time is what it is padded to


@given(st.integers(1, 32), st.integers(1, 64), st.sampled_from([8, 32, 128]), st.integers(1, 64))
def test_any_size_gives_whole_reports_within_the_target(count, per_peer, batch, cores):
    target = count * per_peer * batch
    spec = load(
        "geo-a2",
        [f"peers[0].count={count}", f"swarm.batch_size={batch}", f"swarm.target_batch_size={target}"],
    )
    plan = resolve_emulation(spec, cores)
    assert 0 < plan.raw_target_batch_size <= target
    assert plan.samples_scale == 1 or plan.raw_target_batch_size % one_report_of_each(spec, plan) == 0
    assert plan.samples_scale >= 1
    assert plan.bytes_scale >= 1
    assert plan.part_size_bytes > 0


def test_a_steps_parts_add_up():
    times = step_time("ConvNextLarge", "T4:1")
    assert times is not None
    assert times.forward_s(32) + times.backward_s(32) == pytest.approx(0.9)
    assert times.forward_s(64) == pytest.approx(2 * times.forward_s(32))
    assert step_time("ConvNextLarge", "A100:1") is None
    assert step_time("RoBERTaXLM", "T4:1").sync_work_s == pytest.approx(1.9 + 3.4 * 0.560142482, abs=1e-3)
