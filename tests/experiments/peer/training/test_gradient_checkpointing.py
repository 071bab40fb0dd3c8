"""`swarm.gradient_checkpointing`: the same gradients with fewer kept activations, or a clear refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import task_rig

torch = pytest.importorskip("torch")

from experiments.peer.training.task import TaskRunner, build_runner  # noqa: E402 - after torch is known to exist
from experiments.tasks.protocol import TaskError  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402


def language_model(folder: Path, checkpointing: bool) -> TaskRunner:
    config = folder / "config.json"
    config.write_text(json.dumps(task_rig.SMALL_LLAMA))
    settings = {
        "config": str(config),
        "tokenizer": task_rig.write_tokenizer(folder / "tokenizer.json"),
        "sequence_length": 32,
    }
    task = {"call": "experiments.tasks.causal_lm:build", "with": settings, "sha256": "0" * 64}
    return build_runner(
        config_of("a", "", (), task=task, emulated=False, gradient_checkpointing=checkpointing)
    )


def kept_bytes_and_gradients(runner: TaskRunner) -> tuple[int, list[Any]]:
    (batch, *_), kept = task_rig.batches_of(runner.task, task_rig.text_samples(8), 4), [0]

    def keep(tensor: Any) -> Any:
        kept[0] += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = runner.loss(batch)
    runner.backward(loss)
    return kept[0], [parameter.grad for parameter in runner.parameters()]


def test_gradients_are_the_same_and_fewer_activations_are_kept(tmp_path: Path) -> None:
    (less, found), (more, expected) = (
        kept_bytes_and_gradients(language_model(tmp_path, checkpointing)) for checkpointing in (True, False)
    )
    assert less < 0.7 * more
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected, strict=True))


def test_a_model_without_it_is_refused() -> None:
    task = {"call": "small_task:build", "with": {}, "sha256": "0" * 64}
    for config in (
        config_of("a", "", (), task=task, emulated=False, gradient_checkpointing=True),
        config_of("a", "", (), gradient_checkpointing=True),
    ):
        with pytest.raises(
            TaskError, match=r"has no gradient checkpointing .* remove swarm\.gradient_checkpointing"
        ):
            build_runner(config)
