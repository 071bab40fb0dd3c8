"""Settings of the built-in tasks (`task.with` of an experiment file), checked before anything is built; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.tasks.errors import TaskError

FILE_SETTINGS = ("config", "tokenizer", "weights")
"""Settings that may name files: by paths, or by s3:// URLs in the store of the data."""


def stored_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that name objects of the store, with their s3:// URLs."""
    named = {key: settings.get(key) for key in FILE_SETTINGS}
    return {
        key: value for key, value in named.items() if isinstance(value, str) and value.startswith("s3://")
    }


_VISION = ("ConvNextLarge", "ResNet18", "ResNet50", "ResNet152", "WideResNet101_2")
_LANGUAGE = ("RoBERTaBase", "RoBERTaLarge", "RoBERTaXLM")
_SPEECH = ("WhisperTiny", "WhisperBase", "WhisperSmall")


class Settings(BaseModel):
    """Settings of every built-in task. Paths are relative to the working directory."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    models: ClassVar[tuple[str, ...]] = ()  # names that `model` may have; the first is the default

    model: str = Field(
        "", description="Name of a built-in model; the first of them is used if `config` is not given."
    )
    config: str | dict[str, Any] | None = Field(
        None,
        description="A transformers config.json instead of `model`: its path or s3:// URL, or its keys and values.",
    )
    weights: str = Field(
        "", description="Path or s3:// URL of a model.safetensors to start from; empty: random weights."
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third more work."
    )

    @property
    def model_name(self) -> str:
        """Name of the built-in model; "" if the model is that of `config`."""
        return self.model or ("" if self.config is not None else self.models[0])


class ImageClassification(Settings):
    """Settings of image-classification."""

    models: ClassVar[tuple[str, ...]] = ("small-cnn", *_VISION)

    classes: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Number of classes; labels are 0 to classes - 1. Default: 1000 for the paper's models, or `num_labels` "
        "of `config`.",
    )
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = Field(
        None,
        description="Height and width of the model's input in pixels. Default: 64 for small-cnn, `image_size` of `config`, "
        "else 224.",
    )
    augment: Literal["imagenet", "crop", "flip", "none"] | None = Field(
        None,
        description="Change of training images: imagenet (random part and mirror image), crop (moved by up to an eighth), "
        "flip (mirror image), none. Default: imagenet for the paper's models, else none.",
    )


class TextSettings(Settings):
    """Settings of every task with a tokenizer."""

    tokenizer: Annotated[str, Field(min_length=1)] = Field(
        description="Path or s3:// URL of a tokenizer.json of the tokenizers library."
    )
    sequence_length: Annotated[int, Field(ge=8)] = Field(
        128,
        description="Tokens of a text; longer ones are cut. In speech-recognition the most that a transcript may have, and "
        "the most that are decoded.",
    )


class MaskedLm(TextSettings):
    """Settings of masked-lm."""

    models: ClassVar[tuple[str, ...]] = ("small-roberta", *_LANGUAGE)

    mask_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15,
        description="Share of the tokens to predict: 80 % of them masked, 10 % replaced, 10 % unchanged.",
    )


class CausalLm(TextSettings):
    """Settings of causal-lm."""

    models: ClassVar[tuple[str, ...]] = ("small-gpt2",)


class SpeechRecognition(TextSettings):
    """Settings of speech-recognition."""

    models: ClassVar[tuple[str, ...]] = ("small-whisper", *_SPEECH)


SETTINGS: dict[str, type[Settings]] = {
    "image-classification": ImageClassification,
    "masked-lm": MaskedLm,
    "causal-lm": CausalLm,
    "speech-recognition": SpeechRecognition,
}
"""The settings of each built-in task, by its name in experiment files."""


FIGURES: dict[str, tuple[str, ...]] = {
    "image-classification": ("loss", "accuracy"),
    "masked-lm": ("loss", "accuracy", "perplexity"),
    "causal-lm": ("loss", "perplexity", "nats_per_byte"),
    "speech-recognition": ("loss", "wer"),
}
"""The figures that each built-in task evaluates on held-out data."""


def read_settings(task: str, config: Mapping[str, Any]) -> Settings:
    """Check the settings of the built-in task `task`; files are not opened. Raises TaskError with every problem."""
    kind = SETTINGS[task]
    try:
        settings = kind.model_validate(dict(config))
    except ValidationError as error:
        raise TaskError("; ".join(_sentence(kind, e) for e in error.errors())) from error
    if settings.model and settings.config is not None:
        raise TaskError("model and config are both given; remove one of them")
    if settings.model and settings.model not in kind.models:
        raise TaskError(
            f"model: {settings.model!r} is not one of {', '.join(kind.models)}; use one of them, or give "
            "'config', a transformers config.json"
        )
    return settings


def _sentence(kind: type[Settings], error: Any) -> str:
    """One problem that pydantic found, as part of a sentence."""
    key = str(error["loc"][0])
    match error["type"]:
        case "extra_forbidden":
            return f"{key!r} is not a setting; use {', '.join(kind.model_fields)}"
        case "missing":
            return f"{key!r} is missing: {kind.model_fields[key].description}"
        case _:
            reason = error["msg"][0].lower() + error["msg"][1:]
            return f"{key}: {error['input']!r} is refused: {reason}"
