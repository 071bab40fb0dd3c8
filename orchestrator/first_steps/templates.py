"""The files of a new experiment: its YAML, and what its task needs beside it.

Besides one template for all kinds of tasks there are those of the paper's trainings, for rented VMs and one's own data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from itertools import product
from string import Template

_SHARDS = 8  # of the training data
_MOST_CHARACTERS = 40  # of an experiment's name
_DEFAULT_NAME = "mine"
_TOKENIZER_FILE = "tokenizer.json"
_SPEECH_VOCABULARY = 298  # all that the words of the digits give: a token for each word


class TaskKind(StrEnum):
    """What a new experiment trains."""

    image_classification = "image-classification"
    masked_lm = "masked-lm"
    causal_lm = "causal-lm"
    speech_recognition = "speech-recognition"
    python = "python"


class PaperTraining(StrEnum):
    """The trainings that the paper measured, on real data: experiments/templates."""

    imagenet_c8 = "imagenet-c8"
    wikipedia_mlm_c8 = "wikipedia-mlm-c8"
    whisper_a8 = "whisper-a8"


@dataclass(frozen=True, slots=True)
class _Content:
    """What is particular to a kind of task."""

    title: str
    task: str  # YAML of the task, with its comments
    dataset: str  # of the embedded store
    target_batch_size: int
    batch_size: int
    lr: float
    epochs: int
    beside: Mapping[str, Callable[[], bytes]] = field(
        default_factory=dict
    )  # makers of further files, by name


def experiment_files(kind: TaskKind, name: str) -> dict[str, bytes]:
    """Return the files of a new experiment by name: `<name>.yaml` first.

    Training a tokenizer on the standard library takes about 4 s. Raises DataSourceError.
    """
    content = _CONTENTS[kind]
    text = Template(_template("experiment.yaml")).substitute(
        name=name,
        title=content.title,
        task=content.task.strip(),
        dataset=content.dataset,
        last_shard=f"{_SHARDS - 1:06d}",
        target_batch_size=content.target_batch_size,
        batch_size=content.batch_size,
        lr=content.lr,
        epochs=content.epochs,
    )
    return {f"{name}.yaml": text.encode(), **{file: make() for file, make in content.beside.items()}}


def file_names(kind: TaskKind, name: str) -> tuple[str, ...]:
    """Return the names of the files that `experiment_files` makes, without making them."""
    return (f"{name}.yaml", *_CONTENTS[kind].beside)


def training_files(training: PaperTraining, name: str, bucket: str) -> dict[str, bytes]:
    """Return the files of one of the paper's trainings by name. `bucket`: of its data, or bucket/prefix.

    The tokenizer is a stand-in with which the experiment can be planned.
    """
    text = Template(_template(f"{training}.yaml")).substitute(name=name, bucket=bucket)
    beside = {file: make() for file, make in _BESIDE[training].items()}
    return {f"{name}.yaml": text.encode(), **beside}


def training_file_names(training: PaperTraining, name: str) -> tuple[str, ...]:
    """Return the names of the files that `training_files` makes, without making them."""
    return (f"{name}.yaml", *_BESIDE[training])


def name_of_folder(folder: str) -> str:
    """Turn a folder's name into an experiment's name: "My Task_2" becomes "my-task-2"; "mine" if nothing is left."""
    text = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:_MOST_CHARACTERS].strip("-")
    return text or _DEFAULT_NAME


def _template(name: str) -> str:
    return (files("experiments") / "templates" / name).read_text(encoding="utf-8")


def _stdlib_tokenizer() -> bytes:
    """Train a tokenizer on the training texts of the data set stdlib."""
    from cloud.datasets.stdlib import TrainTexts, stdlib_records, train_tokenizer

    records = TrainTexts(stdlib_records())
    for _ in records:
        pass
    return train_tokenizer(records.texts)


def _speech_tokenizer() -> bytes:
    """Train a tokenizer on the words of the data set speech, so that each word is one token."""
    from cloud.datasets.speech import WORDS
    from cloud.datasets.stdlib import train_tokenizer

    texts = [" ".join(pair) for pair in product(WORDS, WORDS)]
    return train_tokenizer(texts, _SPEECH_VOCABULARY)


def _task_file() -> bytes:
    return _template("task.py").encode()


_TOKENIZER = """\
    # The tokenizer, shipped to the peers. It was trained on the generated {texts}; for your own texts, give
    # the tokenizer.json of a model on the Hub, or one that you train with the library tokenizers.
    tokenizer: tokenizer.json
"""
_IMAGES = """\
# What is trained: a built-in task. Samples have an image (jpg, png or webp) and a class number (cls).
task:
  name: image-classification
  with:
    # small-cnn is quick on a CPU. For a GPU: ResNet18, ResNet50, ConvNextLarge ..., or `config: config.json` of a model on
    # the Hub, with `weights: model.safetensors` to start from.
    model: small-cnn
    # Number of classes; labels are 0 to classes - 1.
    classes: 62
    # Height and width of the model's input in pixels.
    image_size: 32
"""
_MASKED = f"""\
# What is trained: a built-in task. Samples have a text (txt), of which the model predicts hidden tokens.
task:
  name: masked-lm
  with:
    # small-roberta is quick on a CPU. For a GPU: RoBERTaBase ..., or `config: config.json` of a model on the Hub.
    model: small-roberta
{_TOKENIZER.format(texts="texts")}\
    # Tokens of a text; longer ones are cut.
    sequence_length: 64
"""
_CAUSAL = f"""\
# What is trained: a built-in task. Samples have a text (txt), of which the model predicts each next token.
task:
  name: causal-lm
  with:
    # small-gpt2 is quick on a CPU. For a GPU: `config: config.json` of a model on the Hub, for example Llama's.
    model: small-gpt2
{_TOKENIZER.format(texts="texts")}\
    # Tokens of a text; longer ones are cut.
    sequence_length: 64
"""
_SPEECH = f"""\
# What is trained: a built-in task. Samples have a sound (wav, flac, mp3 ...) and its transcript (txt).
task:
  name: speech-recognition
  with:
    # small-whisper hears 5 s and is quick on a CPU. For a GPU: WhisperTiny, WhisperBase or WhisperSmall, which hear 30 s.
    model: small-whisper
{_TOKENIZER.format(texts="transcripts")}\
    # Most tokens of a transcript; a sample with a longer one is a bad sample.
    sequence_length: 24
"""
_PYTHON = """\
# What is trained: the function `build` of task.py, which is yours to change. `with` are its settings.
task:
  python: task.py:build
  with: {width: 32}
# Further files and folders that task.py imports or reads; the peers get copies of them:
# code: [helpers.py, corpus]
# Packages that task.py needs, as in pip's requirements.txt. VMs install them; on this machine, install them yourself:
# requirements: [sentencepiece==0.2.0]
"""

_CONTENTS = {
    TaskKind.image_classification: _Content(
        "classification of images", _IMAGES, "glyphs", 768, 32, 0.001, 20
    ),
    TaskKind.masked_lm: _Content(
        "a masked language model", _MASKED, "stdlib", 128, 16, 0.001, 10, {_TOKENIZER_FILE: _stdlib_tokenizer}
    ),
    TaskKind.causal_lm: _Content(
        "a language model", _CAUSAL, "stdlib", 128, 16, 0.001, 10, {_TOKENIZER_FILE: _stdlib_tokenizer}
    ),
    TaskKind.speech_recognition: _Content(
        "recognition of speech", _SPEECH, "speech", 128, 8, 0.001, 10, {_TOKENIZER_FILE: _speech_tokenizer}
    ),
    TaskKind.python: _Content(
        "a task of your own", _PYTHON, "digits", 512, 32, 0.005, 10, {"task.py": _task_file}
    ),
}

_BESIDE: Mapping[PaperTraining, Mapping[str, Callable[[], bytes]]] = {
    PaperTraining.imagenet_c8: {},
    PaperTraining.wikipedia_mlm_c8: {_TOKENIZER_FILE: _stdlib_tokenizer},
    PaperTraining.whisper_a8: {_TOKENIZER_FILE: _speech_tokenizer},
}
