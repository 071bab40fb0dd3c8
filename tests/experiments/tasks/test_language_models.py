"""Masked and causal language models on short texts: trained, evaluated, settings that contradict the tokenizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from task_rig import (
    SENTENCES,
    SMALL_BERT,
    SMALL_LLAMA,
    batches_of,
    digest,
    losses_of,
    text_samples,
)
from torch.nn import functional

from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.causal_lm import build as build_causal
from experiments.tasks.errors import TaskError
from experiments.tasks.masked_lm import build as build_masked
from experiments.tasks.settings import SETTINGS

CAUSAL, MASKED = BUILT_IN["causal-lm"], BUILT_IN["masked-lm"]


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(
    ("call", "settings"),
    [
        (CAUSAL, {}),
        (CAUSAL, {"gradient_checkpointing": True}),
        (CAUSAL, {"config": SMALL_LLAMA}),
        (MASKED, {"mask_fraction": 0.3}),
        (MASKED, {"mask_fraction": 0.3, "config": SMALL_BERT}),
    ],
)
def test_it_learns_and_equal_seeds_give_equal_weights(call: str, settings: dict, tokenizer: str) -> None:
    config = {"tokenizer": tokenizer, "sequence_length": 32, **settings}
    task, same, other = (build(call, config, seed) for seed in (5, 5, 6))
    assert digest(task) == digest(same) != digest(other)
    made = batches_of(task, text_samples(10), 5)
    torch.manual_seed(0)  # for dropout
    losses = losses_of(task, made, 20, lr=3e-3)
    torch.manual_seed(0)
    losses_of(same, made, 20, lr=3e-3)
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    assert digest(task) == digest(same)
    before = digest(task)
    figures = task.evaluate(batches_of(task, text_samples(5), 5, heldout=True))
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert set(figures) == {"loss", "perplexity", "nats_per_byte" if call == CAUSAL else "accuracy"}
    assert digest(task) == before
    assert task.model.training


@pytest.mark.slow  # transformers is imported
def test_gradient_checkpointing_changes_no_gradient(tokenizer: str) -> None:
    config = {"tokenizer": tokenizer, "sequence_length": 32}
    plain = build_causal(config, 0)
    saving = build_causal({**config, "gradient_checkpointing": True}, 0)
    for task in (plain, saving):
        task.model.train()
        task.loss(batches_of(task, text_samples(5), 5)[0]).backward()
    for a, b in zip(plain.model.parameters(), saving.model.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.slow  # transformers is imported
def test_causal_evaluation_weighs_tokens_not_batches(tokenizer: str) -> None:
    task = build_causal({"tokenizer": tokenizer, "sequence_length": 48}, 0)
    found = text_samples(5)
    task.model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for item in (task.pipeline.run(one, seed=1, pass_number=0) for one in found):  # each alone, unpadded
            inputs, labels = torch.from_numpy(item["text"])
            ids = inputs[labels != -100]
            logits = task.model(input_ids=ids[None]).logits[0, :-1]
            total += float(functional.cross_entropy(logits, ids[1:], reduction="sum"))
            tokens += len(ids) - 1
    size = sum(len(text.encode()) for text in SENTENCES)  # none is cut
    for batch_size in (1, 2, 5):
        figures = task.evaluate(batches_of(task, found, batch_size))
        assert figures["loss"] == pytest.approx(total / tokens, abs=1e-5)
        assert figures["nats_per_byte"] == pytest.approx(total / size, abs=1e-5)
    with pytest.raises(TaskError, match="no tokens to evaluate"):
        task.evaluate([])


@pytest.mark.slow  # transformers is imported
def test_masked_evaluation_weighs_masked_tokens_not_batches(tokenizer: str) -> None:
    task = build_masked({"tokenizer": tokenizer, "sequence_length": 48, "mask_fraction": 0.4}, 0)
    [whole] = batches_of(task, text_samples(15), 15)
    masked = whole["labels"] != -100
    assert 0.2 < masked.sum() / whole["attention"].sum() < 0.6
    task.model.eval()
    with torch.no_grad():
        logits = task.model(input_ids=whole["inputs"], attention_mask=whole["attention"]).logits[masked]
    labels = whole["labels"][masked]
    expected = {
        "loss": float(functional.cross_entropy(logits, labels)),
        "accuracy": float((logits.argmax(-1) == labels).float().mean()),
    }
    figures = task.evaluate(batches_of(task, text_samples(15), 4))
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    nothing = {**whole, "labels": torch.full_like(whole["labels"], -100)}
    assert float(task.loss(nothing).detach()) == 0.0


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize(
    ("call", "settings", "message"),
    [
        (CAUSAL, {"sequence_length": 513}, "sequence_length: 513, but the model has positions for 512 tokens"),
        (MASKED, {"sequence_length": 513}, "sequence_length: 513, but the model has positions for 512 tokens"),
        (CAUSAL, {"config": {**SMALL_LLAMA, "vocab_size": 100}}, r"has 320 tokens, but the model only 100 \(vocab"),
        (MASKED, {"config": {**SMALL_BERT, "pad_token_id": 0}}, "pad_token_id is 0, but the id of <pad> in .* is 1"),
        (CAUSAL, {"tokenizer": "nowhere/tokenizer.json"}, "nowhere/tokenizer.json does not exist"),
        (CAUSAL, {"tokenizer": __file__}, "is not a tokenizer.json of the tokenizers library"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(call: str, settings: dict, message: str, tokenizer: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        build(call, {"tokenizer": tokenizer, "sequence_length": 32, **settings}, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.slow  # transformers is imported
def test_a_token_beyond_the_vocabulary_is_refused(tokenizer: str) -> None:
    task = build_causal({"tokenizer": tokenizer, "sequence_length": 32}, 0)
    with pytest.raises(TaskError, match="token 320 is out of range: the model has 320 tokens"):
        task.collate([{"text": np.full((2, 32), 320), "bytes": 1}])


@pytest.mark.slow  # 124 million parameters
@pytest.mark.timeout(900)
def test_roberta_base_learns(tokenizer: str) -> None:
    torch.set_num_threads(1)  # two threads wait for each other beside other tests
    config = {"model": "RoBERTaBase", "tokenizer": tokenizer, "sequence_length": 16, "mask_fraction": 0.4}
    task = build_masked(config, 0)
    assert sum(p.numel() for p in task.model.parameters()) == 124_697_433
    losses = losses_of(task, batches_of(task, text_samples(4), 2), 8, lr=1e-4)
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 1


def test_the_defaults_are_of_every_task_with_a_tokenizer() -> None:
    assert {name for name, kind in SETTINGS.items() if "tokenizer" in kind.model_fields} == {
        "masked-lm", "causal-lm", "speech-recognition",
    }  # fmt: skip


def test_models_that_see_what_they_shall_predict_are_refused(tokenizer: str) -> None:
    settings = {"tokenizer": tokenizer, "config": SMALL_BERT, "sequence_length": 16}
    with pytest.raises(
        TaskError, match="a model of type bert sees the tokens that it shall predict; add is_decoder"
    ):
        build(BUILT_IN["causal-lm"], settings, 1)
    build(BUILT_IN["causal-lm"], {**settings, "config": {**SMALL_BERT, "is_decoder": True}}, 1)


def test_the_ids_of_start_and_end_are_the_tokenizers(tokenizer: str) -> None:
    config = {**SMALL_LLAMA, "bos_token_id": 66, "eos_token_id": 67}
    task = build(BUILT_IN["causal-lm"], {"tokenizer": tokenizer, "config": config, "sequence_length": 16}, 1)
    made: Any = task.model.config
    assert (made.bos_token_id, made.eos_token_id) == (0, 2)  # <s> and </s> of the tokenizer


def test_a_held_out_pipeline_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.experiments import small_task

    monkeypatch.setattr(small_task, "given", small_task.build, raising=False)

    def wrong(config: Any, seed: int) -> Any:
        task = small_task.given(config, seed)
        task.heldout_pipeline = "my_task.py:PIPELINE"
        return task

    monkeypatch.setattr(small_task, "wrong", wrong, raising=False)
    with pytest.raises(TaskError, match="its 'heldout_pipeline' is not a Pipeline"):
        build("tests.experiments.small_task:wrong", {}, 1)
