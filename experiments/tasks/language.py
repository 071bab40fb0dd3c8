"""What tasks with a tokenizer have in common: models that fit the tokenizer, batches of tokens, the tokenizer's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.pipeline.pipeline import Item, Pipeline
from experiments.tasks.builtin import BuiltInTask, seeded, stack
from experiments.tasks.errors import TaskError
from experiments.tasks.models import MODELS
from experiments.tasks.settings import TextSettings
from experiments.tasks.tokenizer_file import TokenizerFile
from experiments.tasks.transformers_models import (
    SMALL,
    build_from_config,
    enable_gradient_checkpointing,
    read_config,
)


class TextTask(BuiltInTask):
    """A built-in task with a tokenizer, which is saved with the model."""

    def __init__(
        self, kind: str, settings: TextSettings, model: nn.Module, pipelines: tuple[Pipeline, Pipeline]
    ) -> None:
        super().__init__(kind, settings, model, *pipelines)
        self.tokenizer = TokenizerFile(settings.tokenizer)
        self._length = settings.sequence_length

    def save_files(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json. Raises OSError."""
        self.tokenizer.save(folder, self._length)


def build_text_model(task: str, settings: TextSettings, seed: int) -> nn.Module:
    """Build the model of the settings for their tokenizer; the same seed gives the same weights. Raises TaskError.

    A built-in small model, or a config without vocab_size, gets the tokenizer's vocabulary. The special tokens are the
    tokenizer's.
    """
    tokenizer, name = TokenizerFile(settings.tokenizer), settings.model_name
    ids: dict[str, Any] = {
        f"{role}_token_id": tokenizer.token_id(role)
        for role in ("pad", "bos", "eos")
        if tokenizer.token(role) is not None
    }
    if task == "causal-lm":
        # With it, transformers would ask for a mask, which padding after the text does not need.
        ids.pop("pad_token_id", None)
    if task == "speech-recognition":
        # Whisper's own lists of suppressed tokens are ids of another tokenizer.
        ids |= {"decoder_start_token_id": tokenizer.token_id("bos"), "begin_suppress_tokens": None}
    with seeded(seed):
        if name in MODELS:
            model = MODELS[name](**ids)
        else:
            source = SMALL[name] if name else settings.config
            assert source is not None  # read_settings: one of the two is given
            _check_pad(tokenizer, read_config(source), ids)
            # a config's own ids of start and end are those of another tokenizer
            fixed = {key: value for key, value in ids.items() if key != "pad_token_id"}
            if task == "speech-recognition":
                fixed |= {"suppress_tokens": None, "forced_decoder_ids": None}
            model = build_from_config(task, source, {"vocab_size": tokenizer.size, **ids}, fixed)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(name or "this type of model", model)
    _check_vocabulary(tokenizer, model)
    most = _positions(model)
    if most is not None and settings.sequence_length > most:
        raise TaskError(
            f"sequence_length: {settings.sequence_length}, but the model has positions for {most} tokens; "
            f"use at most {most}"
        )
    return model


def _check_pad(tokenizer: TokenizerFile, config: dict[str, Any], ids: dict[str, Any]) -> None:
    given = config.get("pad_token_id")
    if given is not None and "pad_token_id" in ids and given != ids["pad_token_id"]:
        raise TaskError(
            f"config: pad_token_id is {given}, but the id of {tokenizer.token('pad')} in {tokenizer.path} is "
            f"{ids['pad_token_id']}; use the tokenizer of this model, or remove pad_token_id"
        )


def _check_vocabulary(tokenizer: TokenizerFile, model: nn.Module) -> None:
    config: Any = model.config
    if tokenizer.size > config.vocab_size:
        raise TaskError(
            f"tokenizer: {tokenizer.path} has {tokenizer.size} tokens, but the model only {config.vocab_size} "
            "(vocab_size); use a smaller tokenizer, or another model"
        )


def _positions(model: nn.Module) -> int | None:
    """Most tokens of a sequence; None if the model sets no limit."""
    config: Any = model.config
    if hasattr(config, "max_target_positions"):
        return config.max_target_positions
    most = getattr(config, "max_position_embeddings", None)
    embeddings: Any = getattr(getattr(model, "base_model", None), "embeddings", None)
    if most is not None and hasattr(embeddings, "padding_idx") and hasattr(embeddings, "position_embeddings"):
        return most - embeddings.padding_idx - 1  # RoBERTa's positions start after the padding token's id
    return most


def stack_tokens(task: str, items: Sequence[Item], field: str, vocabulary: int) -> torch.Tensor:
    """Stack a field of token ids into int64 (items, ...). Raises TaskError for an id beyond the vocabulary."""
    tokens = stack(task, items, field, np.int64)
    if tokens.numel() and int(tokens.max()) >= vocabulary:
        raise TaskError(
            f"field {field!r}: token {int(tokens.max())} is out of range: the model has {vocabulary} tokens; "
            "use the same tokenizer in the pipeline and in the task"
        )
    return tokens
