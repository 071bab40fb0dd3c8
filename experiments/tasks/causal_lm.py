"""Causal language modelling: cross-entropy of each token given the tokens before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from experiments.pipeline.builtin import text
from experiments.pipeline.pipeline import Item
from experiments.tasks.builtin import IGNORED, evaluating, logits_of, mean, perplexity, stack
from experiments.tasks.errors import TaskError
from experiments.tasks.language import TextTask, build_text_model, stack_tokens
from experiments.tasks.saving import load_weights
from experiments.tasks.settings import CausalLm, read_settings

TASK = "causal-lm"

Batch = dict[str, torch.Tensor]
"""inputs, labels: int64 (n, length), a label of -100 is not predicted; bytes: int64 (n,), of text that labels stand for."""


class CausalLmTask(TextTask):
    """Items have `text`, an integer array (2, length): inputs and labels, which are the inputs without padding.

    They also have `bytes`, the number of bytes of text that the predicted tokens, all labels after the first, stand for.
    """

    def collate(self, items: Sequence[Item]) -> Batch:
        """Stack inputs, labels and bytes. Raises TaskError."""
        config: Any = self.model.config
        inputs, labels = stack_tokens(TASK, items, "text", config.vocab_size).unbind(dim=1)
        return {"inputs": inputs, "labels": labels, "bytes": stack(TASK, items, "bytes", np.int64)}

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy per predicted token; 0 for a batch without any."""
        total, count = self._sums(batch)
        return total / count.clamp(min=1)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss (nats per token), perplexity (per token) and nats_per_byte. Raises TaskError without tokens."""
        loss, tokens, size = 0.0, 0, 0
        with evaluating(self.model):
            for batch in batches:
                part, count = self._sums(batch)
                loss, tokens = loss + float(part), tokens + int(count)
                size += int(batch["bytes"].sum())
        average = mean(loss, tokens, "tokens")
        return {
            "loss": average,
            "perplexity": perplexity(average),
            "nats_per_byte": mean(loss, size, "bytes"),
        }

    def _sums(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the cross-entropy, and number of predicted tokens."""
        # Padding follows the text, and no token attends to a later one: a mask would change nothing.
        logits = logits_of(self.model(input_ids=batch["inputs"]))[:, :-1]
        labels = batch["labels"][:, 1:]
        total = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
        )
        return total, (labels != IGNORED).sum()


@torch.no_grad()
def _check_causal(model: Any) -> None:
    """Raise TaskError if a token changes what is predicted before it, as in BERT unless it is made a decoder."""
    tokens = torch.arange(8).reshape(2, 4) % model.config.vocab_size
    tokens[1, :3] = tokens[0, :3]
    training = model.training
    logits = logits_of(model.eval()(input_ids=tokens))[:, :3]
    model.train(training)
    if not torch.allclose(logits[0], logits[1], rtol=1e-4, atol=1e-5):
        raise TaskError(
            f"config: a model of type {model.config.model_type} sees the tokens that it shall predict; add is_decoder: true, "
            "or use another type, such as gpt2 or llama"
        )


def build(config: Mapping[str, Any], seed: int) -> CausalLmTask:
    """Build the task from its settings (`settings.CausalLm`). Raises TaskError, PipelineError."""
    settings = cast(CausalLm, read_settings(TASK, config))
    model = build_text_model(TASK, settings, seed)
    _check_causal(model)
    pipeline = text.lm_pipeline(settings.tokenizer, settings.sequence_length)
    task = CausalLmTask(TASK, settings, model, (pipeline, pipeline))
    if settings.weights:
        load_weights(task, Path(settings.weights))
    return task
