"""text: the text of HTML pages, byte-pair ids and embedded vectors, and bad pages."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.datasets.stdlib import train_tokenizer
from experiments.pipeline.builtin import page_text
from experiments.pipeline.builtin.html_text import text_of_html
from experiments.pipeline.builtin.tokens import tokenizer_at
from experiments.pipeline.errors import BadSampleError, BadValueError, PipelineError
from experiments.pipeline.pipeline import apply
from experiments.pipeline.randomness import Randomness

PAGE = b"""<!DOCTYPE html><html><head><title>Not shown</title><style>p { color: red }</style></head>
<body><h1>Two&nbsp;words</h1><p>A <b>b</b>old
  line.<br>Another &amp; last<script>document.write("<p>no</p>")</script></p><table><tr><td>1<td>2</table></body></html>"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    path.write_bytes(train_tokenizer([text_of_html(PAGE)] * 3, 270))
    return str(path)


def a_sample(data: bytes, member="html"):
    return {"__key__": "0007", "__url__": "s3://b/t.tar", member: data}


def test_blocks_are_lines_and_what_is_not_shown_is_left_out():
    assert text_of_html(PAGE) == "Two words\nA bold line.\nAnother & last\n1\n2"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"<p>a<p>b", "a\nb"),
        (b"<br/>x<br/>y", "x\ny"),
        (b"<p>unclosed <b>bold", "unclosed bold"),
        (b"a < b &lt; c &unknown; &#233;", "a < b < c &unknown; é"),
        (b"<noscript><p>no <noscript>no</noscript> no</p></noscript>yes", "yes"),
        (b"<template>no</template></p>yes<!-- no -->", "yes"),
        ("<p>ü".encode(), "ü"),
        ("<p>ü".encode("utf-8-sig"), "ü"),
        ("<p>ü".encode("utf-16"), "ü"),
        ('<meta charset="latin-1"><p>ü'.encode("latin-1"), "ü"),
        ("<meta http-equiv='Content-Type' content='text/html; charset=cp1252'><p>€".encode("cp1252"), "€"),
    ],
)
def test_text_of_pages(data, text):
    assert text_of_html(data) == text


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the page has no text"),
        (b"<html><head><title>t</title></head><body><img src=x></body></html>", "the page has no text"),
        (b"<script>var x = 1", "the page has no text"),
        (b"<p>\xff", "the page is not in utf-8: invalid start byte at byte 3"),
        (b"<meta charset=klingon>x", "the page is in the encoding 'klingon', which Python does not know"),
        (b"<meta charset=base64>x", "the page is in the encoding 'base64', which Python does not know"),
    ],
)
def test_a_bad_page_names_shard_and_key(data, sentence, tokenizer):
    with pytest.raises(
        BadSampleError, match=f"^s3://b/t.tar: sample 0007, operation extract: {sentence}; correct"
    ):
        page_text.pipeline(tokenizer).run(a_sample(data), 0, 0)


@given(st.binary(max_size=300) | st.text(alphabet="<>/!-ap&;= '\"\n", max_size=80).map(str.encode))
def test_any_bytes_have_a_text_or_are_refused(data):
    try:
        text = text_of_html(data)
    except BadValueError:
        return
    assert text == "\n".join(line for line in text.split("\n") if line.strip())


def test_shapes_and_types_after_each_operation(tokenizer):
    pipeline = page_text.pipeline(tokenizer)
    assert [(op.name, op.takes, op.gives, op.codec, op.random) for op in pipeline.ops] == [
        ("extract", "bytes", "text", "utf-8", False),
        ("tokenize", "text", "array", "npy", False),
        ("embed", "array", "array", "npy", False),
    ]
    item = pipeline.start(a_sample(PAGE, "htm"))
    values = []
    for op in pipeline.ops:
        item["text"] = apply(op, item["text"], Randomness(0, 0, "k"))
        values.append(item["text"])
    text, ids, vectors = values
    assert text == text_of_html(PAGE)
    assert ids.dtype == np.int32
    assert tokenizer_at(tokenizer).decode(ids.tolist()) == text
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(ids), 768))
    table = np.random.Generator(np.random.Philox(0)).standard_normal((270, 768), dtype=np.float32)
    for at, number in enumerate(ids.tolist()):  # the lookup, one by one
        assert np.array_equal(vectors[at], table[number] * np.float32(0.02))


def test_the_same_seed_gives_the_same_vectors_and_another_others(tokenizer):
    def run(seed):
        return page_text.pipeline(tokenizer, seed=seed).run(a_sample(PAGE), 0, 0)["text"].tobytes()

    assert run(1) == run(1) != run(2)


def test_a_length_keeps_the_first_tokens(tokenizer):
    whole = page_text.pipeline(tokenizer).run(a_sample(PAGE), 0, 0)["text"]
    short = page_text.pipeline(tokenizer, length=5).run(a_sample(PAGE), 0, 0)["text"]
    assert np.array_equal(short, whole[:5])
    with pytest.raises(PipelineError, match="length is 0; it must be at least 1 token"):
        page_text.pipeline(tokenizer, length=0)


def a_table(path: Path, array: np.ndarray) -> str:
    np.save(path, array)
    return str(path)


def test_an_embedding_of_your_own(tokenizer, tmp_path):
    table = np.arange(270 * 3, dtype=np.float32).reshape(270, 3)
    own = page_text.pipeline(tokenizer, embedding=a_table(tmp_path / "e.npy", table))
    item = own.run(a_sample(PAGE), 0, 0)
    ids = tokenizer_at(tokenizer).encode(text_of_html(PAGE), add_special_tokens=False).ids
    assert item["text"].tolist() == [table[number].tolist() for number in ids]
    other = page_text.pipeline(tokenizer, embedding=a_table(tmp_path / "f.npy", table + 1))
    assert own.fingerprint() != other.fingerprint()
    assert own.fingerprint(2) == other.fingerprint(2)


def objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"no", "is not a .npy file: it does not begin as a .npy file"),
        (objects(), "it holds Python objects"),
        (np.zeros((270, 3)), r"holds float64\[270, 3\], not float32\[vocabulary, width\]"),
        (np.zeros(3, np.float32), r"holds float32\[3\], not"),
        (np.zeros((269, 3), np.float32), "has 269 rows, but tokenizer .* has 270 tokens"),
    ],
)
def test_an_embedding_that_does_not_fit_is_refused(content, sentence, tokenizer, tmp_path):
    path = tmp_path / "e.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        a_table(path, content)
    with pytest.raises(PipelineError, match=sentence):
        page_text.pipeline(tokenizer, embedding=str(path))


def test_ids_of_another_tokenizer_are_a_bad_value():
    with pytest.raises(BadValueError, match="the token ids are 3 to 9, but the embedding has 9 rows"):
        page_text.embedded(np.array([3, 9], np.int32), 9, 4, 0)
