"""Speech recognition on tones, one per letter: trained, decoded, evaluated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from task_rig import TINY_WHISPER, batches_of, digest, losses_of, sound_samples

from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.errors import TaskError
from experiments.tasks.speech_recognition import build as build_speech
from experiments.tasks.speech_recognition import greedy_tokens

CALL = BUILT_IN["speech-recognition"]


@pytest.mark.slow  # transformers is imported
def test_it_learns_to_transcribe_and_equal_seeds_give_equal_weights(tokenizer: str) -> None:
    config = {"tokenizer": tokenizer, "sequence_length": 16, "config": TINY_WHISPER}
    task, same, other = (build(CALL, config, seed) for seed in (5, 5, 6))
    assert digest(task) == digest(same) != digest(other)
    found = sound_samples(9)
    made = batches_of(task, found, 9)
    before = task.evaluate(batches_of(task, found, 4, heldout=True))
    losses = losses_of(task, made, 20, lr=5e-3)
    losses_of(same, made, 20, lr=5e-3)
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])
    assert digest(task) == digest(same)
    losses_of(task, made, 180, lr=5e-3)
    after = task.evaluate(batches_of(task, found, 4, heldout=True))
    assert after["wer"] < 0.2 < before["wer"]
    assert after["loss"] < 0.2 < before["loss"]
    assert after == pytest.approx(task.evaluate(batches_of(task, found, 9, heldout=True)), abs=1e-5)


@pytest.mark.slow  # transformers is imported
def test_greedy_decoding_with_a_cache_gives_the_tokens_of_the_whole_sequence(tokenizer: str) -> None:
    task = build_speech({"tokenizer": tokenizer, "sequence_length": 12, "config": TINY_WHISPER}, 3)
    [batch] = batches_of(task, sound_samples(3), 3)
    start, end = task.tokenizer.token_id("bos"), task.tokenizer.token_id("eos")
    task.model.eval()
    found = greedy_tokens(task.model, batch["audio"], start, end, 12)
    for audio, tokens in zip(batch["audio"], found, strict=True):
        expected = [start]
        with torch.no_grad():
            while len(expected) <= 12:
                ids = torch.tensor([expected])
                logits = task.model(input_features=audio[None], decoder_input_ids=ids).logits
                expected.append(int(logits[0, -1].argmax()))
                if expected[-1] == end:
                    break
        assert tokens.tolist() == [token for token in expected[1:] if token != end]
        assert len(tokens) <= 12


@pytest.mark.slow  # transformers is imported
def test_only_whisper_is_supported_and_only_as_long_as_it_can(tokenizer: str) -> None:
    for settings, message in (
        ({"config": {"model_type": "moonshine"}}, "supports models of type whisper only, not moonshine"),
        ({"config": {**TINY_WHISPER, "max_source_positions": 75}}, "is 75; use a multiple of 50"),
        (
            {"config": TINY_WHISPER, "sequence_length": 33},
            "sequence_length: 33, but the model has positions for 32",
        ),
    ):
        with pytest.raises(TaskError, match=message):
            build_speech({"tokenizer": tokenizer, "sequence_length": 8, **settings}, 0)


@pytest.mark.slow  # 38 million parameters on 30 s of sound
@pytest.mark.timeout(900)
def test_whisper_tiny_learns(tokenizer: str) -> None:
    torch.set_num_threads(1)  # two threads wait for each other beside other tests
    task = build_speech({"model": "WhisperTiny", "tokenizer": tokenizer, "sequence_length": 8}, 0)
    assert sum(p.numel() for p in task.model.parameters()) == 37_760_640
    losses = losses_of(task, batches_of(task, sound_samples(2), 1), 10, lr=1e-4)
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 1
