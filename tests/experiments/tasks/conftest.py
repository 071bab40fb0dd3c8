from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from task_rig import SENTENCES, WORDS, write_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tokenizer.json with 320 tokens."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", [*SENTENCES, *WORDS])
