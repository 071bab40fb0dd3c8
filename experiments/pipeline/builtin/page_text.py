"""Pipeline `text`: an HTML page becomes its text, the text byte-pair ids, the ids embedded vectors, as in PRESTO.

Isenko et al. (SIGMOD 2022) embed with 768 numbers a token (GPT-2). The vectors have hundreds of times the bytes of the ids,
which is what makes this pipeline worth measuring.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from cloud.storage.npy import read_npy
from experiments.pipeline.builtin.tokens import tokenizer_at, vocabulary_size
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

FIELDS = {"text": ("html", "htm")}
WIDTH = 768
_SPREAD = 0.02  # standard deviation of generated vectors, as GPT-2's are initialised


def pipeline(tokenizer: str, length: int | None = None, embedding: str = "", seed: int = 0) -> Pipeline:
    """Return the pipeline: extract the text, tokenize, embed.

    `tokenizer`: path of a tokenizer.json. `length`: most tokens of a text, of which the first are kept (None: all).
    `embedding`: path of a .npy with float32[vocabulary, width]; "": float32[
    vocabulary, 768] drawn from `seed`, which carries no meaning but costs the same. Field text: float32[tokens, width].
    Raises PipelineError.
    """
    if length is not None and length < 1:
        raise PipelineError(f"pipeline text: length is {length}; it must be at least 1 token")
    vocabulary = vocabulary_size(tokenizer_at(tokenizer))
    if embedding:
        rows = _table(embedding).shape[0]
        if rows < vocabulary:
            raise PipelineError(
                f"embedding: {embedding} has {rows} rows, but tokenizer {tokenizer} has {vocabulary} tokens; use the "
                "embedding that belongs to the tokenizer"
            )
        embed = Op(
            "embed",
            f"{__name__}:embedded_from",
            "text",
            "array",
            "array",
            libraries=("numpy",),
            files={"embedding": embedding},
        )
    else:
        parameters = {"vocabulary": vocabulary, "width": WIDTH, "seed": seed}
        embed = Op(
            "embed", f"{__name__}:embedded", "text", "array", "array", parameters, libraries=("numpy",)
        )
    ops = (
        Op(
            "extract",
            "experiments.pipeline.builtin.html_text:text_of_html",
            "text",
            "bytes",
            "text",
            libraries=("python",),
        ),
        Op(
            "tokenize",
            f"{__name__}:token_ids",
            "text",
            "text",
            "array",
            {"length": length},
            libraries=("tokenizers", "numpy"),
            files={"tokenizer": tokenizer},
        ),
        embed,
    )
    return Pipeline("text", FIELDS, ops)


def token_ids(text: str, tokenizer: str, length: int | None) -> np.ndarray:
    """Tokenize a text: int32[tokens], at most `length`, without special tokens. Raises BadValueError."""
    ids = tokenizer_at(tokenizer).encode(text, add_special_tokens=False).ids
    if not ids:
        raise BadValueError("the text has no tokens")
    return np.array(ids[:length], dtype=np.int32)


def embedded(ids: np.ndarray, vocabulary: int, width: int, seed: int) -> np.ndarray:
    """Look up int32[tokens] in a table drawn from `seed`: float32[tokens, width]. Raises BadValueError."""
    return _looked_up(ids, _drawn(vocabulary, width, seed))


def embedded_from(ids: np.ndarray, embedding: str) -> np.ndarray:
    """Look up int32[tokens] in the table of a .npy: float32[tokens, width]. Raises BadValueError, PipelineError."""
    return _looked_up(ids, _table(embedding))


def _looked_up(ids: np.ndarray, table: np.ndarray) -> np.ndarray:
    if ids.min() < 0 or ids.max() >= len(table):
        raise BadValueError(
            f"the token ids are {ids.min()} to {ids.max()}, but the embedding has {len(table)} rows"
        )
    return table[ids]


@cache
def _drawn(vocabulary: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.standard_normal((vocabulary, width), dtype=np.float32) * np.float32(_SPREAD)


@cache
def _table(path: str) -> np.ndarray:
    try:
        found = read_npy(Path(path).read_bytes())
    except OSError as error:
        raise PipelineError(
            f"embedding: {path} cannot be read ({error.strerror}); correct the path of the .npy"
        ) from error
    except ValueError as error:
        raise PipelineError(f"embedding: {path} is not a .npy file: {error}; use another file") from error
    if found.dtype != np.float32 or found.ndim != 2 or not found.size:
        raise PipelineError(
            f"embedding: {path} holds {found.dtype}{list(found.shape)}, not float32[vocabulary, width]; convert it"
        )
    return found
