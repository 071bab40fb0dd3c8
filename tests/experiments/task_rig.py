"""What tests of tasks share: training for some steps, held-out figures, and a digest of the weights."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from experiments.tasks.protocol import Task

WORDS = ("low", "mid", "high")
COLOURS = ((250, 20, 20), (20, 250, 20), (20, 20, 250), (250, 250, 250))
SMALL_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}
SMALL_VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SMALL_LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
SMALL_BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
TINY_WHISPER = {
    "model_type": "whisper",
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "max_target_positions": 32,
    "init_std": 0.1,
}


def losses_of(task: Task, batches: Sequence[Any], steps: int, lr: float = 1e-3) -> list[float]:
    """Train on the batches in turn with Adam; the loss of every step."""
    task.model.train()
    optimizer = torch.optim.Adam((p for p in task.model.parameters() if p.requires_grad), lr=lr)
    losses = []
    for step in range(steps):
        loss = task.loss(batches[step % len(batches)])
        assert loss.dim() == 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def digest(task: Task) -> str:
    """SHA-256 of all parameters and buffers, in order."""
    total = sha256()
    for name, tensor in task.model.state_dict().items():
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def batches_of(
    task: Any, samples: Sequence[dict[str, Any]], size: int, *, heldout: bool = False
) -> list[Any]:
    """The samples through the task's pipeline, in batches of `size`."""
    pipeline = task.heldout_pipeline if heldout else task.pipeline
    items = [pipeline.run(sample, seed=1, pass_number=0) for sample in samples]
    return [task.collate(items[start : start + size]) for start in range(0, len(items), size)]


def sample(index: int, **members: bytes) -> dict[str, Any]:
    """A sample of a shard: bytes by extension."""
    return {"__key__": f"{index:04}", "__url__": "s3://bucket/train-000.tar", **members}


SENTENCES = [
    "def area(width, height):\n    return width * height\n",
    "for name in sorted(names):\n    print(name)\n",
    "if value is None:\n    raise ValueError(name)\n",
    "with open(path) as file:\n    return file.read()\n",
    "class Größe:\n    pass  # naïve\n",
]
"""Texts, one with characters of several bytes."""


def write_tokenizer(path: Path, texts: Sequence[str] = SENTENCES, size: int = 320) -> str:
    """Train a byte-level BPE tokenizer on the texts and write its tokenizer.json; returns the path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return str(path)


def image_samples(count: int, classes: int = 4, side: int = 40) -> list[dict]:
    """Samples of a shard: a square whose corner and colour depend on the class."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        label = index % classes
        image = Image.fromarray(rng.integers(0, 90, (side, side, 3), dtype=np.uint8))
        left, top = 20 * (label % 2), 20 * (label // 2)
        ImageDraw.Draw(image).rectangle((left, top, left + 15, top + 15), fill=COLOURS[label])
        file = io.BytesIO()
        image.save(file, "png")
        made.append(sample(index, png=file.getvalue(), cls=b"%d" % label))
    return made


def text_samples(count: int) -> list[dict]:
    return [sample(index, txt=SENTENCES[index % len(SENTENCES)].encode()) for index in range(count)]


def sound_samples(count: int) -> list[dict]:
    """One second of two tones of half a second; the transcript says their heights."""
    made = []
    for index in range(count):
        spoken = [WORDS[index % 3], WORDS[index // 3 % 3]]
        time_s = np.arange(8000) / 16000
        sound = np.concatenate([np.sin(2 * np.pi * 300 * 3 ** WORDS.index(w) * time_s) for w in spoken])
        file = io.BytesIO()
        with wave.open(file, "wb") as wav:
            wav.setnchannels(1)
            wav.setsampwidth(2)
            wav.setframerate(16000)
            wav.writeframes((sound * 20000).astype("<i2").tobytes())
        made.append(sample(index, wav=file.getvalue(), txt=" ".join(spoken).encode()))
    return made
