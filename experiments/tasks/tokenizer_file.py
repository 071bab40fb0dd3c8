"""A tokenizer.json of the tokenizers library: its size and special tokens, and its form for transformers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.tasks.errors import TaskError

_SPECIAL = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "bos": ("<s>", "[CLS]", "[BOS]", "<|startoftranscript|>", "<|startoftext|>", "<bos>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "[EOS]", "<|endoftext|>", "<eos>"),
    "unk": ("<unk>", "[UNK]"),
}
"""Names of special tokens, by role, in order of preference."""


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json at `path`. Raises TaskError where the file is missing, rejected or has no token of a role."""

    path: str

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizers.Tokenizer."""
        from tokenizers import Tokenizer

        if not Path(self.path).is_file():
            raise TaskError(f"tokenizer: {self.path} does not exist; correct the path of the tokenizer.json")
        try:
            return Tokenizer.from_file(self.path)
        except Exception as error:
            raise TaskError(
                f"tokenizer: {self.path} is not a tokenizer.json of the tokenizers library ({error}); use another file"
            ) from error

    @property
    def size(self) -> int:
        """Number of token ids: one more than the greatest."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def token(self, role: str) -> str | None:
        """The token of a role (pad, mask, bos, eos, unk); None if the tokenizer has none."""
        found = (name for name in _SPECIAL[role] if self.tokenizer.token_to_id(name) is not None)
        return next(found, None)

    def token_id(self, role: str) -> int:
        """The id of the token of a role."""
        token = self.token(role)
        if token is None:
            raise TaskError(
                f"tokenizer: {self.path} has no {role} token; add one of {', '.join(_SPECIAL[role])} to it"
            )
        return int(self.tokenizer.token_to_id(token))

    def save(self, folder: Path, length: int) -> None:
        """Write tokenizer.json, and the tokenizer_config.json with which transformers' AutoTokenizer loads it."""
        shutil.copyfile(self.path, folder / "tokenizer.json")
        special = {f"{role}_token": token for role in _SPECIAL if (token := self.token(role)) is not None}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length, **special}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
