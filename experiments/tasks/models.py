"""The paper's models, randomly initialised from their configurations; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from experiments.tasks.errors import TaskError

VISION = ("ConvNextLarge", "ResNet18", "ResNet50", "ResNet152", "WideResNet101_2")
_IMAGE_CLASSES = 1000


def _conv_next_large(classes: int = _IMAGE_CLASSES) -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536], num_labels=classes)
    )


def _resnet(depths: list[int], layer: str, widths: list[int], classes: int = _IMAGE_CLASSES) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(depths=depths, layer_type=layer, hidden_sizes=widths, num_labels=classes)
    )


_BASIC, _BOTTLENECK = [64, 128, 256, 512], [256, 512, 1024, 2048]
_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def _roberta(**settings: Any) -> nn.Module:
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(
        RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, **settings)
    )


def _xlm_roberta_large(**settings: Any) -> nn.Module:
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    return XLMRobertaForMaskedLM(
        XLMRobertaConfig(
            vocab_size=250002, max_position_embeddings=514, type_vocab_size=1, **_LARGE, **settings
        )
    )


def _whisper(width: int, layers: int, heads: int, **settings: Any) -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            **settings,
        )
    )


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; inner width twice a ResNet's (Zagoruyko, Komodakis 2016)."""

    def __init__(self, inputs: int, base: int, stride: int) -> None:
        super().__init__()
        inner, outputs = 2 * base, 4 * base
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class _WideResNet101(nn.Module):
    """Images (n, 3, h, w) -> logits (n, classes)."""

    def __init__(self, classes: int = _IMAGE_CLASSES) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        width = 64
        for stage, (base, depth) in enumerate(zip(_BASIC, (3, 4, 23, 3), strict=True)):
            for block in range(depth):
                layers.append(_Bottleneck(width, base, 2 if stage and not block else 1))
                width = 4 * base
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "ConvNextLarge": _conv_next_large,
    "ResNet18": partial(_resnet, [2, 2, 2, 2], "basic", _BASIC),
    "ResNet50": partial(_resnet, [3, 4, 6, 3], "bottleneck", _BOTTLENECK),
    "ResNet152": partial(_resnet, [3, 8, 36, 3], "bottleneck", _BOTTLENECK),
    "WideResNet101_2": _WideResNet101,
    "RoBERTaBase": _roberta,
    "RoBERTaLarge": partial(_roberta, **_LARGE),
    "RoBERTaXLM": _xlm_roberta_large,
    "WhisperTiny": partial(_whisper, 384, 4, 6),
    "WhisperBase": partial(_whisper, 512, 6, 8),
    "WhisperSmall": partial(_whisper, 768, 12, 12),
}
"""Functions that build a model. Vision models take `classes`; the others take settings of their transformers config."""


def build_model(name: str, seed: int) -> nn.Module:
    """Build a model by name; the same seed gives identical replicas. Raises TaskError for an unknown name."""
    if name not in MODELS:
        raise TaskError(f"model: {name!r} is not one of {', '.join(MODELS)}")
    torch.manual_seed(seed)
    return MODELS[name]()
