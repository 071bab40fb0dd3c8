"""Masked language modelling: cross-entropy of the masked tokens (Devlin et al., NAACL 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import functional

from experiments.pipeline.builtin import text
from experiments.pipeline.pipeline import Item
from experiments.tasks.builtin import IGNORED, evaluating, logits_of, mean, perplexity
from experiments.tasks.language import TextTask, build_text_model, stack_tokens
from experiments.tasks.saving import load_weights
from experiments.tasks.settings import MaskedLm, read_settings

TASK = "masked-lm"

Batch = dict[str, torch.Tensor]
"""inputs, labels: int64 (n, length); attention: bool (n, length), false at padding. A label of -100 is not predicted."""


class MaskedLmTask(TextTask):
    """Items have `text`, an integer array (2, length): inputs with masked tokens, and labels."""

    def collate(self, items: Sequence[Item]) -> Batch:
        """Stack inputs and labels. Raises TaskError."""
        config: Any = self.model.config
        inputs, labels = stack_tokens(TASK, items, "text", config.vocab_size).unbind(dim=1)
        return {"inputs": inputs, "labels": labels, "attention": inputs != self.tokenizer.token_id("pad")}

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy per masked token; 0 for a batch without any."""
        logits, labels = self._masked(batch)
        return functional.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss (nats per masked token), accuracy of masked tokens, perplexity. Raises TaskError without any."""
        loss, right, count = 0.0, 0, 0
        with evaluating(self.model):
            for batch in batches:
                logits, labels = self._masked(batch)
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(dim=-1) == labels).sum())
                count += len(labels)
        average = mean(loss, count, "masked tokens")
        return {
            "loss": average,
            "accuracy": mean(right, count, "masked tokens"),
            "perplexity": perplexity(average),
        }

    def _masked(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n, vocabulary) and labels (n,) of the masked tokens of the batch."""
        masked = batch["labels"] != IGNORED
        logits = logits_of(self.model(input_ids=batch["inputs"], attention_mask=batch["attention"]))
        return logits[masked], batch["labels"][masked]


def build(config: Mapping[str, Any], seed: int) -> MaskedLmTask:
    """Build the task from its settings (`settings.MaskedLm`). Raises TaskError, PipelineError."""
    settings = cast(MaskedLm, read_settings(TASK, config))
    model = build_text_model(TASK, settings, seed)
    pipeline = text.mlm_pipeline(settings.tokenizer, settings.sequence_length, settings.mask_fraction)
    task = MaskedLmTask(TASK, settings, model, (pipeline, pipeline))
    if settings.weights:
        load_weights(task, Path(settings.weights))
    return task
