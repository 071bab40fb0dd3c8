"""Source text of Python's standard library in chunks that end at line ends, and a tokenizer trained on them."""

from __future__ import annotations

import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from cloud.storage.errors import DataSourceError
from cloud.storage.shards import HELDOUT, Record, fraction_of, safe_key, split_of

TOKENIZER_NAME = "tokenizer.json"
CHUNK_BYTES = 512
VOCABULARY = 2048
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<mask>")
HELD_OUT_SHARE = 0.1  # of the files

_SKIPPED = frozenset(
    ("test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__", "lib-dynload")
)


def source_files(folder: Path | None = None) -> list[tuple[str, Path]]:
    """Return the sources of the standard library, sorted: path inside it, and where the file is.

    Without tests, idlelib and installed packages. Raises DataSourceError if there are none.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    found = [
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*.py")
        if not _SKIPPED.intersection(path.relative_to(folder).parts[:-1])
        and not path.relative_to(folder)
        .parts[0]
        .startswith(("config-", "_sysconfigdata"))  # differ between machines
    ]
    if not found:
        raise DataSourceError(
            f"{folder} has no sources of Python's standard library; use a Python that was installed with them"
        )
    return sorted(found)


def stdlib_records(
    *,
    chunk_bytes: int = CHUNK_BYTES,
    heldout: float = HELD_OUT_SHARE,
    seed: int = 0,
    folder: Path | None = None,
) -> Iterator[Record]:
    """Yield the chunks as samples with the member `txt`, ordered by a hash of their keys and `seed`.

    A whole file is either held out or not, by the hash of its path. The chunks of a file, joined in the order of their
    keys, are its text. Raises DataSourceError for a source that cannot be read.
    """
    if chunk_bytes < 16:
        raise ValueError(f"chunks of {chunk_bytes} bytes: at least 16")
    chunks: list[tuple[float, Record]] = []
    for name, path in source_files(folder):
        split = split_of(name, heldout)
        for number, chunk in enumerate(cut(_text(path), chunk_bytes)):
            key = f"{safe_key(name.removesuffix('.py'))}-{number:05d}"
            chunks.append((fraction_of(key, seed), Record(key, {"txt": chunk}, split)))
    chunks.sort(key=lambda pair: (pair[0], pair[1].key))
    return (record for _, record in chunks)


def cut(text: str, chunk_bytes: int) -> Iterator[bytes]:
    """Cut into chunks of at most `chunk_bytes` bytes of UTF-8 that end at line ends; longer lines are cut inside."""
    chunk = b""
    for line in text.splitlines(keepends=True):
        data = line.encode("utf-8")
        if chunk and len(chunk) + len(data) > chunk_bytes:
            yield chunk
            chunk = b""
        while len(data) > chunk_bytes:
            end = chunk_bytes
            while data[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
            yield data[:end]
            data = data[end:]
        chunk += data
    if chunk:
        yield chunk


def stdlib_made(chunk_bytes: int, heldout: float, vocabulary: int, seed: int) -> dict[str, Any]:
    """Describe what the bytes of the data set depend on."""
    return {
        "dataset": "stdlib",
        "chunk_bytes": chunk_bytes,
        "heldout": heldout,
        "vocabulary": vocabulary,
        "seed": seed,
        "python": python_version(),
        "tokenizers": version("tokenizers"),
    }


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> bytes:
    """Train a byte-level BPE tokenizer and return its tokenizer.json.

    It has `SPECIAL_TOKENS`, encodes every text and decodes to the same text. Raises DataSourceError if the texts give
    fewer tokens than `vocabulary`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise DataSourceError(
            f"the text gives a vocabulary of {tokenizer.get_vocab_size()} tokens, not {vocabulary}; "
            "ask for a smaller one"
        )
    return tokenizer.to_str(pretty=True).encode("utf-8")


def text_member(record: Record) -> str:
    """The text of a sample with the member `txt`."""
    return record.members["txt"].decode("utf-8")


class TrainTexts:
    """Passes records through and keeps the texts of those that are not held out; `text` takes it out of a record."""

    def __init__(self, records: Iterable[Record], text: Callable[[Record], str] = text_member) -> None:
        self._records, self._text = records, text
        self.texts: list[str] = []

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            if record.split != HELDOUT:
                self.texts.append(self._text(record))
            yield record


def _text(path: Path) -> str:
    try:
        with tokenize.open(path) as file:  # in the encoding that the source declares; line ends become \n
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise DataSourceError(
            f"{path} cannot be read as Python source ({error}); install Python again"
        ) from error
