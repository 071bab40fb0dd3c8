"""Pure components of the peer: loss reasons, egress differences, members, models, config, status."""

from __future__ import annotations

import json
import logging
import os

import pytest
import torch
from torch.nn import functional

from experiments.catalog import models
from experiments.peer.averaging.rounds import Round
from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import compression_of, torch_optimizer_of
from experiments.peer.optimizer.lamb import Lamb
from experiments.peer.reporting.loss_log import LossWatch, loss_reason
from experiments.peer.status import Status
from experiments.peer.swarm.dht_node import first_peers
from experiments.peer.swarm.members import Member
from experiments.peer.swarm.membership import alive_slots
from experiments.peer.training.bad_samples import LeftOut
from experiments.peer.training.emulated_model import DIGITS, DigitsNet, ModelSizeError, build_emulated
from experiments.peer.training.epoch_accounting import egress_between, loss_reasons
from experiments.pipeline.errors import BadSampleError
from experiments.tasks.models import MODELS, VISION


def test_the_catalog_knows_which_models_learn_from_images() -> None:
    assert {name for name, model in models().items() if model.kind == "vision"} == set(VISION)
    assert {name for name, model in models().items() if model.kind == "digits"} == set(DIGITS)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Averaging: received 43.2% results", "received 43.2 % of results"),
        ("Reducer: received 66.7% of input tensors", "received 66.7 % of inputs"),
        ("Averaged gradients with 8 peers", None),
    ],
)
def test_hivemind_loss_messages_are_parsed(message: str, reason: str | None) -> None:
    assert loss_reason(message) == reason


def test_loss_messages_are_still_in_hiveminds_source() -> None:
    import inspect

    from hivemind.averaging import partition

    assert 'f"Averaging: received {(1.0' in inspect.getsource(partition)
    assert 'f"Reducer: received {parts_received' in inspect.getsource(partition)


def test_a_loss_logged_in_a_forked_process_reaches_the_parent() -> None:
    watch = LossWatch()
    try:
        pid = os.fork()
        if pid == 0:
            watch.emit(
                logging.LogRecord("h", logging.WARNING, "", 1, "Averaging: received 12.5% results", (), None)
            )
            os._exit(0)
        os.waitpid(pid, 0)
        assert watch.take() == ["received 12.5 % of results"]
        assert watch.take() == []
    finally:
        watch.close()


def test_complete_round_and_single_peer_have_no_losses() -> None:
    assert loss_reasons(Round(group_size=3, swarm_peers=3), [], 2) == []
    assert loss_reasons(Round(group_size=1, swarm_peers=0), [], 0) == []


def test_each_kind_of_loss_has_a_reason() -> None:
    assert loss_reasons(Round(group_size=1), [], 1) == ["no other peers seen"]
    assert loss_reasons(Round(group_size=4), [], 7) == ["group of 4 of 8"]
    assert loss_reasons(Round(group_size=2), ["received 50.0 % of results"], 1) == [
        "received 50.0 % of results"
    ]
    failed = Round(group_size=1, losses=["averaging failed (TimeoutError): local gradients"])
    assert loss_reasons(failed, [], 1) == ["averaging failed (TimeoutError): local gradients"]


def test_egress_is_the_difference_of_two_readings() -> None:
    records = egress_between("vm", 3, "comm", 2.5, {"10.0.0.1": 100}, {"10.0.0.1": 100, "10.0.0.2": 70})
    assert [(r.dst_address, r.bytes, r.seconds, r.phase) for r in records] == [("10.0.0.2", 70, 2.5, "comm")]


def test_initial_peers_come_from_the_config_or_the_environment() -> None:
    environ = {"PEERS": " /ip4/1.2.3.4/tcp/1/p2p/A\n/ip4/1.2.3.5/tcp/1/p2p/B ", "FIRST": "alone\n"}
    assert first_peers(("/a", "/b"), environ) == ("/a", "/b")
    assert first_peers((), environ) == ()
    assert first_peers(("env:PEERS",), environ) == ("/ip4/1.2.3.4/tcp/1/p2p/A", "/ip4/1.2.3.5/tcp/1/p2p/B")
    assert first_peers(("env:FIRST",), environ) == ()
    with pytest.raises(PeerConfigError, match="OTHER is not set"):  # never a second swarm by mistake
        first_peers(("env:OTHER",), environ)


def test_serving_slots_get_no_data() -> None:
    members = [Member("v0", "a", "serving", 9, ""), Member("v1", "b", "training", 9, "")]
    assert alive_slots(members, "c") == ("b", "c")


def test_emulated_model_has_exactly_the_requested_parameters() -> None:
    for parameters in (4810, 4811, 5000, 197_767):
        model = build_emulated(parameters, seed=1)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert all(p.grad is not None for p in model.ballast)
    with pytest.raises(ModelSizeError, match="bytes_scale"):
        build_emulated(4000, seed=1)


def test_equal_seeds_give_equal_replicas() -> None:
    one, other = build_emulated(6000, seed=5), build_emulated(6000, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_small_network_learns_digits() -> None:
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    pixels = torch.tensor(digits["data"], dtype=torch.float32) / 16
    labels = torch.tensor(digits["target"])
    held = torch.arange(len(labels)) % 5 == 0
    network = DigitsNet()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    train = torch.nonzero(~held).squeeze()
    for _ in range(30):
        chosen = train[torch.randperm(len(train))[:256]]
        optimizer.zero_grad()
        functional.cross_entropy(network(pixels[chosen]), labels[chosen]).backward()
        optimizer.step()
    accuracy = (network(pixels[held]).argmax(1) == labels[held]).float().mean()
    assert accuracy > 0.92


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ConvNextLarge", 197_767_336),
        ("ResNet18", 11_689_512),
        ("ResNet50", 25_557_032),
        ("ResNet152", 60_192_808),
        ("WideResNet101_2", 126_886_696),
        ("RoBERTaBase", 124_697_433),
        ("RoBERTaLarge", 355_412_057),
        ("RoBERTaXLM", 560_142_482),
        ("WhisperTiny", 37_760_640),
        ("WhisperBase", 72_593_920),
        ("WhisperSmall", 241_734_912),
    ],
)
def test_paper_models_have_their_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_errors_for_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(PeerConfigError, match="float16"):
        compression_of("float8")
    with pytest.raises(PeerConfigError, match="adam, adamw, sgd, lamb"):
        torch_optimizer_of({"name": "adagrad"})
    with pytest.raises(PeerConfigError, match="does not take"):
        torch_optimizer_of({"name": "sgd", "learning_rate": 1})


def test_lamb_goes_downhill() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = Lamb([weight], lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    assert float((weight**2).sum().detach()) < 0.1


def test_status_is_complete_and_replaces_warnings_with_the_same_key(tmp_path) -> None:
    status = Status(tmp_path / "status.json", clock=lambda: 5.0)
    status.warn("heal", "1 time")
    status.warn("heal", "2 times")
    status.set(phase="ready")
    document = json.loads((tmp_path / "status.json").read_text())
    assert document["phase"] == "ready"
    assert (document["warnings"], document["recorded_warnings"]) == (["2 times"], [])
    assert set(document) == {
        "phase", "at_s", "maddr", "peer_id", "epoch", "error", "hopeless", "ran", "warnings", "notice_at_s", "join",
        "parameters_sha", "bad_samples", "data_position", "coverage", "checkpoints", "utilisation", "input_sums",
        "recorded_warnings", "epoch_positions",
    }  # fmt: skip
    assert [p.name for p in tmp_path.glob("*.json*")] == ["status.json"]
    with pytest.raises(KeyError):
        status.set(fase="x")


def test_status_has_the_last_count_of_left_out_samples_of_both_kinds(tmp_path) -> None:
    status = Status(tmp_path / "status.json")
    error = BadSampleError("s3://b/a.tar", "a003", "decode", "it is bad")
    for count in (1, 7):
        status.left_out("training", LeftOut("samples", count, error))
    status.left_out("heldout", LeftOut("held-out samples", 2, error))
    document = json.loads((tmp_path / "status.json").read_text())
    first = "s3://b/a.tar: sample a003, operation decode: it is bad"
    assert document["bad_samples"] == {
        "training": {"count": 7, "first": first},
        "heldout": {"count": 2, "first": first},
    }
    assert [text.split(" left out")[0] for text in document["warnings"]] == [
        "7 bad samples",
        "2 bad held-out samples",
    ]
    assert document["recorded_warnings"] == [0, 1]
