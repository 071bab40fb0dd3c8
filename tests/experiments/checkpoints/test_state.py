"""A checkpoint's files give back what was trained, bit for bit, and refuse what they do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from checkpoint_rig import equal_bits, saved, trained

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.state import copy_state, load_state

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lamb"])
@pytest.mark.parametrize("fresh_steps", [0, 1])
def test_training_goes_on_as_if_it_had_not_stopped(tmp_path, optimizer, fresh_steps):
    task, chosen, ballast = saved(tmp_path, optimizer, 3, lineage="abc")
    other, restored, other_ballast = trained(optimizer, fresh_steps, seed=5)
    held = [v for state in restored.state.values() for v in state.values()]
    assert load_state(tmp_path, other, restored, other_ballast) == {"lineage": "abc"}
    now = [v for state in restored.state.values() for v in state.values()]
    assert all(any(one is other for other in now) for one in held)  # replaced in place
    for step in range(2):
        pairs = [(task.model.state_dict(), other.model.state_dict()), (ballast, other_ballast)]
        assert all(equal_bits(one[name], two[name]) for one, two in pairs for name in one)
        states = [one.state_dict()["state"] for one in (chosen, restored)]
        assert states[0].keys() == states[1].keys()
        for number, state in states[0].items():
            assert state.keys() == states[1][number].keys()
            assert all(equal_bits(state[name], states[1][number][name]) for name in state)
        for made, by in ((task, chosen), (other, restored)):
            torch.manual_seed(step)
            by.zero_grad()
            made.loss({"images": torch.rand(8, 64), "labels": torch.arange(8), "more": []}).backward()
            by.step()


def test_the_copy_does_not_change_with_the_model():
    task, chosen, ballast = trained("adam", 1)
    copied = copy_state(task.model, chosen, ballast)
    before = {name: tensor.clone() for name, tensor in {**copied.model, **copied.tensors}.items()}
    with torch.no_grad():
        for group in chosen.param_groups:
            for parameter in group["params"]:
                parameter.add_(1.0)
                for tensor in chosen.state[parameter].values():
                    tensor.add_(1.0)
    assert all(
        equal_bits(tensor, before[name]) for name, tensor in {**copied.model, **copied.tensors}.items()
    )
    assert copied.size_bytes == sum(t.numel() * t.element_size() for t in before.values())


def test_the_learning_rate_in_force_is_not_that_of_the_file(tmp_path):
    saved(tmp_path)
    task, chosen, ballast = trained("adam", 1)
    chosen.param_groups[0]["lr"] = 0.5
    load_state(tmp_path, task, chosen, ballast)
    assert chosen.param_groups[0]["lr"] == 0.5
    document = json.loads((tmp_path / "state/state.json").read_text())
    assert document["groups"][0]["settings"]["lr"] == 0.01
    assert document["groups"][0]["names"] == ["1.weight", "1.bias", "extra:0"]


@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        ("sgd", "foreign", "has the state of Adam, but the optimizer is SGD"),
        ("fewer", "foreign", "other parameters than the model's: extra:0"),
        ("shape", "foreign", r"extra/0 is of shape \[7\], but must be of shape \[9\]"),
        ("model", "foreign", r"tensor 1.weight has the shape \[10, 64\], but the model's has \[11, 64\]"),
        ("cut", "corrupt", "optimizer.safetensors cannot be read"),
        ("newer", "newer_format", "state.json has format 2"),
        ("missing", "corrupt", "state.json cannot be read"),
        ('"names": [', "corrupt", r"state.json cannot be read \(names of a group is 0\)"),
        ('"numbers": {', "corrupt", r"state.json cannot be read \(numbers is 0\)"),
        ('"about": {', "corrupt", r"state.json cannot be read \(about is 0\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path, case, code, message):
    saved(tmp_path)
    task, chosen, ballast = trained("sgd" if case == "sgd" else "adam", 1, seed=5)
    if case == "fewer":
        del chosen.param_groups[0]["params"][2]
    elif case == "shape":
        ballast = {"0": torch.zeros(9)}
    elif case == "model":
        task.model[1] = torch.nn.Linear(64, 11)
    path = tmp_path / "state/state.json"
    if case == "cut":
        path = tmp_path / "state/optimizer.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
    elif case == "newer":
        path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    elif case.startswith('"'):
        path.write_text(path.read_text().replace(case, case.replace('": ', '": 0, "unknown": ')))
    elif case == "missing":
        path.unlink()
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as raised:
        load_state(tmp_path, task, None if case == "model" else chosen, ballast)
    assert raised.value.code == code
    assert all(equal_bits(tensor, before[name]) for name, tensor in task.model.state_dict().items())


def test_an_optimizer_with_unknown_parameters_is_refused():
    task, chosen, _ = trained("adam", 1)
    with pytest.raises(CheckpointError, match=r"shape \[7\] that is not the model's; name it in `extra`"):
        copy_state(task.model, chosen)


def test_what_the_docs_say_about_plain_torch_works(tmp_path, monkeypatch):
    task, chosen, _ = saved(tmp_path / "made")
    (tmp_path / "m").mkdir()
    (tmp_path / "made/model/model.safetensors").rename(tmp_path / "m/model.safetensors")
    (tmp_path / "made/state").rename(tmp_path / "m/state")
    other, restored, _ = trained("adam", 0, seed=5)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.DOTALL)
    plain = "\n".join(block for block in blocks if "load_file" in block)
    monkeypatch.chdir(tmp_path)
    exec(plain, {"model": other.model, "optimizer": restored})
    for one, two in zip(task.model.parameters(), other.model.parameters(), strict=True):
        assert equal_bits(one, two)
        assert {"step", "exp_avg", "exp_avg_sq"} == set(restored.state[two])
        assert all(equal_bits(value, restored.state[two][name]) for name, value in chosen.state[one].items())
