"""Models of a transformers config.json, randomly initialised; nothing is downloaded and no code of a config is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.tasks.errors import TaskError

_AUTO = {
    "image-classification": "AutoModelForImageClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "speech-recognition": "AutoModelForSpeechSeq2Seq",
}
_EXAMPLES = {
    "image-classification": "resnet, convnext, vit",
    "masked-lm": "bert, roberta, distilbert",
    "causal-lm": "gpt2, llama",
    "speech-recognition": "whisper",
}

SMALL: dict[str, dict[str, Any]] = {
    "small-roberta": {
        "model_type": "roberta",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "small-gpt2": {
        "model_type": "gpt2",
        "n_embd": 128,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 512,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "small-whisper": {
        "model_type": "whisper",
        "d_model": 96,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 384,
        "decoder_ffn_dim": 384,
        "max_source_positions": 250,
        "max_target_positions": 128,
    },
}
"""Configs of small models by name; their vocabulary is the tokenizer's."""


def read_config(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys and values of a config.json, given as a path or as they are. Raises TaskError."""
    if not isinstance(source, str):
        return dict(source)
    try:
        config = json.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"config: {source} cannot be read ({error.strerror}); correct the path") from error
    except ValueError as error:
        raise TaskError(
            f"config: {source} is not JSON ({error}); use a config.json of transformers"
        ) from error
    if not isinstance(config, dict):
        raise TaskError(f"config: {source} is not a JSON object; use a config.json of transformers")
    return config


def build_from_config(
    task: str,
    source: str | Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build the model of a config.json for a built-in task, in float32, from torch's global generator.

    `defaults` are values of keys that the config does not have, `fixed` replace those that it has. An unknown key is refused
    if `source` is a mapping; a file may have keys of other versions of transformers. Raises TaskError, in one sentence, for
    a config that transformers rejects and for a type of model that cannot do the task.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = read_config(source)
    where = f"config {source}" if isinstance(source, str) else "config"
    kind = given.pop("model_type", None)
    if kind is None:
        raise TaskError(f"{where}: it has no model_type; add one, for example {_EXAMPLES[task]}")
    if kind not in CONFIG_MAPPING:
        raise TaskError(
            f"{where}: model_type {kind!r} is not known to transformers {transformers.__version__}; "
            f"use for example {_EXAMPLES[task]}"
        )
    auto = getattr(transformers, _AUTO[task])
    if CONFIG_MAPPING[kind] not in auto._model_mapping:
        raise TaskError(
            f"{where}: a model of type {kind} cannot do {task}; use for example {_EXAMPLES[task]}"
        )
    for key in ("auto_map", "quantization_config"):
        if key in given:
            raise TaskError(f"{where}: {key} is not supported; remove it from the config")
    if not isinstance(source, str):
        _refuse_unknown(where, CONFIG_MAPPING[kind], given)
    for key in ("torch_dtype", "dtype"):  # precision is the experiment's matter
        given.pop(key, None)
    try:
        config = CONFIG_MAPPING[kind](**{**(defaults or {}), **given, **(fixed or {})})
        model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise TaskError(
            f"{where}: transformers rejects it ({type(error).__name__}: {reason}); correct the config"
        ) from error
    return model


def _refuse_unknown(where: str, kind: Any, given: Mapping[str, Any]) -> None:
    """Raise TaskError for a key that this type of config does not have: transformers would ignore it."""
    plain = kind()
    known = {*plain.to_dict(), *kind.attribute_map}
    unknown = [key for key in given if key not in known and not hasattr(plain, key)]
    if unknown:
        from difflib import get_close_matches

        close = get_close_matches(unknown[0], known, 3) or sorted(known)
        raise TaskError(
            f"{where}: {unknown[0]!r} is not a key of a {plain.model_type} config; use {', '.join(close)}"
        )


def enable_gradient_checkpointing(name: str, model: nn.Module) -> None:
    """Make the model recompute its activations in the backward pass. Raises TaskError if it cannot."""
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise TaskError(
            f"gradient_checkpointing: {name} does not support it; remove the setting, or choose another model"
        )
    enable: Any = model.gradient_checkpointing_enable
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
