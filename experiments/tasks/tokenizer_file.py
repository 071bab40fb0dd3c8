"""A tokenizer.json of the tokenizers library: its size and special tokens, and its form for transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.pipeline.builtin.tokens import (
    SPECIAL,
    special_id,
    special_token,
    tokenizer_at,
    vocabulary_size,
)
from experiments.pipeline.errors import PipelineError
from experiments.tasks.errors import TaskError


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json at `path`. Raises TaskError where the file is missing, rejected or has no token of a role."""

    path: str

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizers.Tokenizer."""
        try:
            return tokenizer_at(self.path)
        except PipelineError as error:
            raise TaskError(str(error)) from error

    @property
    def size(self) -> int:
        """Number of token ids: one more than the greatest."""
        return vocabulary_size(self.tokenizer)

    def token(self, role: str) -> str | None:
        """The token of a role (pad, mask, bos, eos, unk); None if the tokenizer has none."""
        return special_token(self.tokenizer, role)

    def token_id(self, role: str) -> int:
        """The id of the token of a role."""
        try:
            return special_id(self.path, role)
        except PipelineError as error:
            raise TaskError(str(error)) from error

    def save(self, folder: Path, length: int) -> None:
        """Write tokenizer.json, and the tokenizer_config.json with which transformers' AutoTokenizer loads it."""
        content = Path(self.path).read_bytes()  # the folder may be the tokenizer's own
        (folder / "tokenizer.json").write_bytes(content)
        special = {f"{role}_token": token for role in SPECIAL if (token := self.token(role)) is not None}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length, **special}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
