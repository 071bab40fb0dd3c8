"""Tokenizers of the tokenizers library, loaded once per process, and the names of their special tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from experiments.pipeline.errors import PipelineError

SPECIAL = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "bos": ("<s>", "[CLS]", "[BOS]", "<|startoftranscript|>", "<|startoftext|>", "<bos>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "[EOS]", "<|endoftext|>", "<eos>"),
    "unk": ("<unk>", "[UNK]"),
}
"""Names of special tokens, by role, in order of preference."""


@cache
def tokenizer_at(path: str) -> Any:
    """Load a tokenizer.json as a tokenizers.Tokenizer that neither truncates nor pads. Raises PipelineError."""
    from tokenizers import Tokenizer

    if not Path(path).is_file():
        raise PipelineError(f"tokenizer: {path} does not exist; correct the path of the tokenizer.json")
    try:
        found = Tokenizer.from_file(path)
    except Exception as error:  # tokenizers raises bare Exceptions
        raise PipelineError(
            f"tokenizer: {path} is not a tokenizer.json of the tokenizers library ({error}); use another file"
        ) from error
    found.no_truncation()
    found.no_padding()
    return found


def special_token(tokenizer: Any, role: str) -> str | None:
    """The tokenizer's token of a role (a key of `SPECIAL`); None if it has none."""
    return next((name for name in SPECIAL[role] if tokenizer.token_to_id(name) is not None), None)


def special_id(path: str, role: str) -> int:
    """The id of a special token of the tokenizer at `path`. Raises PipelineError if it has none of the role."""
    tokenizer = tokenizer_at(path)
    token = special_token(tokenizer, role)
    if token is None:
        raise PipelineError(
            f"tokenizer: {path} has no {role} token; add one of {', '.join(SPECIAL[role])} to it"
        )
    return int(tokenizer.token_to_id(token))


def vocabulary_size(tokenizer: Any) -> int:
    """Number of token ids: one more than the greatest."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
