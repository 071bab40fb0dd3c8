"""Text pipelines: tokens, labels, the bytes that labels stand for, masking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from experiments.pipeline.builtin import text
from experiments.pipeline.builtin.tokens import special_id
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.pipeline import Item, Pipeline

SENTENCE = "the swarm averages gradients, and the grüne Wiese is 東京"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level BPE tokenizer of 320 tokens."""
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Decoder()
    special = ["<pad>", "<s>", "</s>", "<mask>"]
    trainer = BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=ByteLevel.alphabet())
    made.train_from_iterator([SENTENCE] * 3, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def run(pipeline: Pipeline, data: str | bytes, *, key: str = "a", pass_number: int = 0) -> Item:
    data = data.encode() if isinstance(data, str) else data
    return pipeline.run({"__key__": key, "__url__": "s3://b/x.tar", "txt": data}, 0, pass_number)


def test_inputs_and_labels_are_the_tokens_of_the_text(tokenizer: str):
    item = run(text.lm_pipeline(tokenizer, 64), SENTENCE)
    inputs, labels = item["text"]
    ids = Tokenizer.from_file(tokenizer).encode(SENTENCE, add_special_tokens=False).ids
    expected = [special_id(tokenizer, "bos"), *ids]
    assert inputs.tolist()[: len(expected)] == labels.tolist()[: len(expected)] == expected
    assert set(inputs[len(expected) :]) == {special_id(tokenizer, "pad")}
    assert set(labels[len(expected) :]) == {-100}
    assert item["bytes"] == len(SENTENCE.encode())


def test_a_long_text_is_cut_and_its_bytes_are_those_of_the_tokens_left(tokenizer: str):
    item = run(text.lm_pipeline(tokenizer, 9), SENTENCE)
    decoded = Tokenizer.from_file(tokenizer).decode(item["text"][1].tolist(), skip_special_tokens=True)
    assert decoded
    assert SENTENCE.startswith(decoded)
    assert item["bytes"] == len(decoded.encode())
    assert item["text"].shape == (2, 9)


def test_windows_are_random_but_the_same_for_a_sample_and_pass(tokenizer: str):
    pipeline = text.lm_pipeline(tokenizer, 8, random_window=True)
    windows = [run(pipeline, SENTENCE, pass_number=n)["text"] for n in range(8)]
    again = [run(pipeline, SENTENCE, pass_number=n)["text"] for n in range(8)]
    assert np.array_equal(windows, again)
    assert len({window.tobytes() for window in windows}) > 1


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80))
def test_bytes_up_to_each_character(written: str):
    expected = [len(written[:n].encode()) for n in range(len(written) + 1)]
    assert text._bytes_up_to(written).tolist() == expected


def test_masking_follows_bert(tokenizer: str):
    pipeline = text.mlm_pipeline(tokenizer, 512, 0.15)
    rows = [run(pipeline, SENTENCE * 8, key=str(n))["text"] for n in range(100)]
    plain = run(text.mlm_pipeline(tokenizer, 512, 1e-12), SENTENCE * 8)["text"][0]
    inputs, labels = np.stack(rows).transpose(1, 0, 2)
    predicted = labels != -100
    special = np.isin(plain, [special_id(tokenizer, role) for role in ("pad", "bos", "eos")])
    assert not predicted[:, special].any()
    assert np.array_equal(labels[predicted], np.broadcast_to(plain, labels.shape)[predicted])
    assert np.array_equal(inputs[~predicted], np.broadcast_to(plain, inputs.shape)[~predicted])
    assert predicted[:, ~special].mean() == pytest.approx(0.15, abs=0.01)
    masked = (inputs == special_id(tokenizer, "mask")) & predicted
    same = (inputs == labels) & predicted
    assert masked.sum() / predicted.sum() == pytest.approx(0.8, abs=0.03)
    assert same.sum() / predicted.sum() == pytest.approx(0.1, abs=0.03)


def test_no_random_token_is_special(tokenizer: str):
    """A random <pad> would be hidden from the model's attention."""
    special = [special_id(tokenizer, role) for role in ("pad", "bos", "eos")]
    rows = np.stack(
        [run(text.mlm_pipeline(tokenizer, 64, 0.9), SENTENCE, key=str(n))["text"] for n in range(2000)]
    )
    inputs, labels = rows.transpose(1, 0, 2)
    replaced = (labels != -100) & (inputs != labels) & (inputs != special_id(tokenizer, "mask"))
    assert len(set(inputs[replaced])) > 250  # of some 300
    assert not np.isin(inputs[replaced], special).any()


def test_special_tokens_of_a_plain_vocabulary_are_not_predicted(tmp_path: Path):
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    names = ["[UNK]", "[SEP]", "[CLS]", "[MASK]", "[PAD]", "one", "two"]
    made = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    pipeline = text.mlm_pipeline(str(tmp_path / "tokenizer.json"), 6, 0.9)
    labels = np.stack([run(pipeline, "one two", key=str(n))["text"][1] for n in range(100)])
    assert set(labels.ravel()) == {-100, 5, 6}


def test_the_masks_change_with_the_pass_only(tokenizer: str):
    pipeline = text.mlm_pipeline(tokenizer, 64)
    first, again, second = (run(pipeline, SENTENCE, pass_number=n)["text"] for n in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\xff\xfe", "the text is not in UTF-8: invalid start byte at byte 0"), (b"", "the text is empty")],
)
def test_a_bad_text_names_the_sample(tokenizer: str, data: bytes, reason: str):
    with pytest.raises(BadSampleError, match=f"s3://b/x.tar: sample a, operation decode: {reason}"):
        run(text.lm_pipeline(tokenizer, 8), data)


def test_the_tokenizer_is_part_of_the_fingerprint(tokenizer: str, tmp_path: Path):
    copy, other = tmp_path / "copy.json", tmp_path / "other.json"
    copy.write_bytes(Path(tokenizer).read_bytes())
    other.write_bytes(Path(tokenizer).read_bytes() + b"\n")
    prints = [text.lm_pipeline(str(path), 8).fingerprint() for path in (tokenizer, copy, other)]
    assert prints[0] == prints[1] != prints[2]


def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path: Path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for path, reason in ((wrong, "is not a tokenizer.json"), (tmp_path / "none.json", "does not exist")):
        with pytest.raises(PipelineError, match=reason):
            text.lm_pipeline(str(path), 8)


def test_settings_out_of_range_are_refused(tokenizer: str):
    with pytest.raises(PipelineError, match="use a length of 2 or more"):
        text.lm_pipeline(tokenizer, 1)
    with pytest.raises(PipelineError, match="fraction is 1"):
        text.mlm_pipeline(tokenizer, 8, 1)
