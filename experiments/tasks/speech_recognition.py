"""Speech recognition with Whisper-type models: cross-entropy of the transcript's tokens; word error rate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.pipeline.builtin import speech
from experiments.pipeline.pipeline import Item
from experiments.tasks.builtin import IGNORED, evaluating, logits_of, mean, stack
from experiments.tasks.errors import TaskError
from experiments.tasks.language import TextTask, build_text_model, stack_tokens
from experiments.tasks.saving import load_weights
from experiments.tasks.settings import SpeechRecognition, read_settings
from experiments.tasks.word_errors import word_errors

TASK = "speech-recognition"
_POSITIONS_PER_S = 50  # of the encoder, two frames each

Batch = dict[str, torch.Tensor]
"""audio: float32 (n, mel bins, frames); labels: int64 (n, length), -100 after the transcript's end token."""


class SpeechRecognitionTask(TextTask):
    """Items have `audio`, a log-mel spectrogram, float32 (mel bins, frames), and `text`, labels (length,)."""

    def collate(self, items: Sequence[Item]) -> Batch:
        """Stack spectrograms and labels. Raises TaskError."""
        config: Any = self.model.config
        return {
            "audio": stack(TASK, items, "audio", np.float32),
            "labels": stack_tokens(TASK, items, "text", config.vocab_size),
        }

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean cross-entropy per token of the transcripts; 0 for a batch without any."""
        total, count = self._sums(batch)
        return total / count.clamp(min=1)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss (nats per token), and wer, the word error rate of greedy decoding. Raises TaskError without tokens.

        wer is wrong words over words of the transcripts, so it may exceed 1; it is absent if the transcripts have no words.
        """
        loss, tokens, wrong, words = 0.0, 0, 0, 0
        with evaluating(self.model):
            for batch in batches:
                part, count = self._sums(batch)
                loss, tokens = loss + float(part), tokens + int(count)
                end = self.tokenizer.token_id("eos")
                for labels, decoded in zip(batch["labels"], self.decode(batch["audio"]), strict=True):
                    # the end need not be marked as special in the tokenizer
                    reference = labels[(labels != IGNORED) & (labels != end)]
                    errors, length = word_errors(self._words(reference), decoded)
                    wrong, words = wrong + errors, words + length
        figures = {"loss": mean(loss, tokens, "tokens")}
        return {**figures, "wer": wrong / words} if words else figures

    @torch.no_grad()
    def decode(self, audio: torch.Tensor) -> list[str]:
        """Transcribe spectrograms (n, mel bins, frames) greedily, with at most `sequence_length` tokens each."""
        start, end = self.tokenizer.token_id("bos"), self.tokenizer.token_id("eos")
        found = greedy_tokens(self.model, audio, start, end, self._length)
        return [self._words(tokens) for tokens in found]

    def _words(self, tokens: torch.Tensor) -> str:
        """The text of token ids; special tokens are left out."""
        return self.tokenizer.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def _sums(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the cross-entropy, and number of tokens."""
        labels = batch["labels"]
        start = torch.full_like(labels[:, :1], self.tokenizer.token_id("bos"))
        # The decoder sees the labels one position later; what follows the end token is not predicted.
        inputs = torch.cat([start, labels[:, :-1]], dim=1)
        inputs = inputs.masked_fill(inputs == IGNORED, self.tokenizer.token_id("pad"))
        logits = logits_of(self.model(input_features=batch["audio"], decoder_input_ids=inputs))
        total = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
        )
        return total, (labels != IGNORED).sum()

    def save_files(self, folder: Path) -> None:
        """Write the tokenizer's files and preprocessor_config.json, for transformers' WhisperFeatureExtractor."""
        super().save_files(folder)
        bins, frames = _audio_shape(self.model)
        document = {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": bins,
            "sampling_rate": 16000,
            "hop_length": 160,
            "n_fft": 400,
            "chunk_length": frames // (2 * _POSITIONS_PER_S),  # s
        }
        (folder / "preprocessor_config.json").write_text(
            json.dumps(document, indent=2) + "\n", encoding="utf-8"
        )


@torch.no_grad()
def greedy_tokens(
    model: nn.Module, audio: torch.Tensor, start: int, end: int, most: int
) -> list[torch.Tensor]:
    """Decode each spectrogram of (n, mel bins, frames) to its most probable next token until `end`, `most` at most.

    Returns the tokens without `start`, and without `end` and what follows it.
    """
    whisper: Any = model
    encoded = whisper.get_encoder()(audio)
    tokens = torch.full((len(audio), 1), start, dtype=torch.int64, device=audio.device)
    ended = torch.zeros(len(audio), dtype=torch.bool, device=audio.device)
    cache = None
    for _ in range(most):
        output = whisper(
            encoder_outputs=encoded, decoder_input_ids=tokens[:, -1:], past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        following = output.logits[:, -1].argmax(dim=-1).masked_fill(ended, end)
        tokens = torch.cat([tokens, following[:, None]], dim=1)
        ended |= following == end
        if bool(ended.all()):
            break
    return [row[: int((row != end).cumprod(dim=0).sum())] for row in tokens[:, 1:]]


def _audio_shape(model: nn.Module) -> tuple[int, int]:
    """Mel bins and frames that the encoder takes: its second convolution halves the frames. Raises TaskError."""
    config: Any = model.config
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if getattr(config, "model_type", "") != "whisper" or bins is None or positions is None:
        raise TaskError(
            f"config: speech-recognition supports models of type whisper only, not {config.model_type}"
        )
    if positions % _POSITIONS_PER_S:
        raise TaskError(
            f"config: max_source_positions is {positions}; use a multiple of {_POSITIONS_PER_S}, because transformers' "
            "feature extractor takes whole seconds"
        )
    return bins, 2 * positions


def build(config: Mapping[str, Any], seed: int) -> SpeechRecognitionTask:
    """Build the task from its settings (`settings.SpeechRecognition`). Raises TaskError, PipelineError."""
    settings = cast(SpeechRecognition, read_settings(TASK, config))
    model = build_text_model(TASK, settings, seed)
    bins, frames = _audio_shape(model)
    pipeline = speech.pipeline(settings.tokenizer, settings.sequence_length, bins, frames)
    task = SpeechRecognitionTask(TASK, settings, model, (pipeline, pipeline))
    if settings.weights:
        load_weights(task, Path(settings.weights))
    return task
