"""Pipelines of text for language models: one stored sample, a `txt` member in UTF-8, becomes one sequence of tokens.

Texts are packed when shards are written (`orch data pack --text-bytes`): short ones are joined, long ones are cut.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from experiments.pipeline.builtin.tokens import SPECIAL, special_id, special_token, tokenizer_at
from experiments.pipeline.errors import BadValueError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

FIELDS = {"text": ("txt",)}
IGNORED = -100
"""Label of a token that is not predicted."""

_LIBRARIES = ("tokenizers", "numpy")
_MASKED, _RANDOM = 0.8, 0.1  # shares of the predicted tokens (Devlin et al., NAACL 2019); the others stay


def lm_pipeline(tokenizer: str, length: int, *, random_window: bool = False) -> Pipeline:
    """Return the pipeline for predicting each token from those before it.

    `tokenizer`: path of a tokenizer.json. `length`: tokens of a sequence, the first token (bos, if the tokenizer has one)
    included; of a longer text the first ones are used, or with `random_window` a random part. Fields: text, int64[2,
    length], the inputs and the labels, which are the inputs with -100 at padding; bytes, the bytes of text that all labels
    after the first stand for (to within a character where a token is part of one). Raises PipelineError.
    """
    _check(tokenizer, length, "pad")
    return Pipeline(
        "text-lm",
        FIELDS,
        (
            decode_op(),
            _tokenize_op(tokenizer, "bos"),
            _window_op(length, random=random_window),
            Op("bytes", f"{__name__}:covered_bytes", "text", "array", "number", into="bytes"),
            _text_op("labels", "labelled", {"length": length}, tokenizer),
        ),
    )


def mlm_pipeline(
    tokenizer: str, length: int, fraction: float = 0.15, *, random_window: bool = False
) -> Pipeline:
    """Return the pipeline for predicting masked tokens (BERT: Devlin et al., NAACL 2019), masked anew in each pass.

    `fraction` of the tokens are predicted: 80 % of them are replaced by the mask token, 10 % by a random token, 10 % stay.
    Special tokens and padding are never predicted, nor taken as random tokens. Field text: int64[2, length], the inputs
    and the labels, -100 where nothing is predicted. Other arguments as in `lm_pipeline`. Raises PipelineError.
    """
    _check(tokenizer, length, "pad", "mask")
    if not 0 < fraction < 1:
        raise PipelineError(f"pipeline text-mlm: fraction is {fraction}; it must be between 0 and 1")
    return Pipeline(
        "text-mlm",
        FIELDS,
        (
            decode_op(),
            _tokenize_op(tokenizer, "bos", "eos"),
            _window_op(length, random=random_window),
            _text_op("labels", "labelled", {"length": length}, tokenizer),
            _text_op("mask", "masked", {"fraction": fraction}, tokenizer, random=True),
        ),
    )


def decode_op() -> Op:
    """The operation `decode`: field text, bytes in UTF-8 to text."""
    return Op("decode", f"{__name__}:decode", "text", "bytes", "text")


def decode(data: bytes) -> str:
    """Decode UTF-8. Raises BadValueError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValueError(f"the text is not in UTF-8: {error.reason} at byte {error.start}") from error
    if not text:
        raise BadValueError("the text is empty")
    return text


def tokenized(text: str, tokenizer: str, before: str = "", after: str = "") -> np.ndarray:
    """Tokenize a text: int64[2, tokens], the ids, and the number of bytes of the text up to the end of each token.

    `before`, `after`: roles of the tokens put at the ends ("": none). Raises BadValueError.
    """
    encoding = tokenizer_at(tokenizer).encode(text, add_special_tokens=False)
    if not encoding.ids:
        raise BadValueError("the text has no tokens")
    ends = np.maximum.accumulate(np.fromiter((end for _, end in encoding.offsets), np.int64))
    ends = _bytes_up_to(text)[ends]
    ids = np.array(encoding.ids, dtype=np.int64)
    if before:
        ids, ends = np.insert(ids, 0, special_id(tokenizer, before)), np.insert(ends, 0, 0)
    if after:
        ids, ends = np.append(ids, special_id(tokenizer, after)), np.append(ends, ends[-1])
    return np.stack([ids, ends])


def _bytes_up_to(text: str) -> np.ndarray:
    """Bytes in UTF-8 of the first n characters, for n from 0 to their number."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.array(list(map(ord, text)))
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def first_window(tokens: np.ndarray, length: int) -> np.ndarray:
    """The first `length` tokens."""
    return tokens[:, :length]


def random_window(tokens: np.ndarray, rng: np.random.Generator, length: int) -> np.ndarray:
    """`length` consecutive tokens that start anywhere, each start equally likely; all if there are no more."""
    first = int(rng.integers(0, max(0, tokens.shape[1] - length) + 1))
    return tokens[:, first : first + length]


def covered_bytes(tokens: np.ndarray) -> int:
    """Bytes of text that the tokens after the first one stand for."""
    return int(tokens[1, -1] - tokens[1, 0])


def labelled(tokens: np.ndarray, tokenizer: str, length: int) -> np.ndarray:
    """Return int64[2, length]: the ids followed by padding, and the ids followed by -100."""
    found = np.full((2, length), IGNORED, dtype=np.int64)
    found[0] = special_id(tokenizer, "pad")
    found[:, : tokens.shape[1]] = tokens[0]
    return found


def masked(rows: np.ndarray, rng: np.random.Generator, tokenizer: str, fraction: float) -> np.ndarray:
    """Choose the tokens to predict and change the inputs: int64[2, length], inputs and labels."""
    ids, labels = rows
    special, ordinary = _ids(tokenizer)
    chosen = (labels != IGNORED) & ~np.isin(ids, special) & (rng.random(len(ids)) < fraction)
    how = rng.random(len(ids))
    other = rng.choice(ordinary, len(ids))
    inputs = np.where(chosen & (how < _MASKED), special_id(tokenizer, "mask"), ids)
    inputs = np.where(chosen & (how >= _MASKED) & (how < _MASKED + _RANDOM), other, inputs)
    return np.stack([inputs, np.where(chosen, ids, IGNORED)])


@cache
def _ids(path: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids of special tokens, also of those that are in the plain vocabulary, and all other ids."""
    tokenizer = tokenizer_at(path)
    added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
    special = {number for number, token in added.items() if token.special}
    special |= {special_id(path, role) for role in SPECIAL if special_token(tokenizer, role) is not None}
    ordinary = set(tokenizer.get_vocab(with_added_tokens=True).values()) - special
    return np.array(sorted(special), np.int64), np.array(sorted(ordinary), np.int64)


def _text_op(
    name: str, function: str, parameters: dict[str, Any], tokenizer: str, *, random: bool = False
) -> Op:
    """An operation on field text, array to array, by a function of this module that needs the tokenizer."""
    return Op(
        name,
        f"{__name__}:{function}",
        "text",
        "array",
        "array",
        parameters,
        random,
        libraries=_LIBRARIES,
        files={"tokenizer": tokenizer},
    )


def _tokenize_op(tokenizer: str, *roles: str) -> Op:
    """The operation `tokenize`. Of the roles, bos goes before the text and eos after it, if the tokenizer has them."""
    known = [role for role in roles if special_token(tokenizer_at(tokenizer), role) is not None]
    parameters = {{"bos": "before", "eos": "after"}[role]: role for role in known}
    files = {"tokenizer": tokenizer}
    call = f"{__name__}:tokenized"
    return Op("tokenize", call, "text", "text", "array", parameters, libraries=_LIBRARIES, files=files)


def _window_op(length: int, *, random: bool) -> Op:
    call = f"{__name__}:{'random_window' if random else 'first_window'}"
    return Op("window", call, "text", "array", "array", {"length": length}, random, libraries=("numpy",))


def _check(tokenizer: str, length: int, *roles: str) -> None:
    if length < 2:
        raise PipelineError(
            f"a sequence of {length} tokens has nothing to predict; use a length of 2 or more"
        )
    for role in roles:
        special_id(tokenizer, role)
