"""One operation: what its declaration accepts, and what identifies its output."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.pipeline import op as op_module
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.op import Op, function_at

HERE = "tests.experiments.pipeline.ops_for_tests"


def an_op(**changed):
    declared = {"name": "text", "call": f"{HERE}:text", "field": "text", "takes": "bytes", "gives": "text"}
    return Op(**{**declared, **changed})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"takes": "tensor"},
            "operation text: 'tensor' is not a kind; use bytes, text, number, image, array",
        ),
        ({"gives": "str"}, "operation text: 'str' is not a kind"),
        ({"codec": "png"}, "operation text: codec 'png' cannot hold a value of kind text; use utf-8"),
        (
            {"gives": "image", "codec": "gif"},
            "codec 'gif' cannot hold a value of kind image; use pixels or png",
        ),
        ({"name": ""}, r"an operation that calls .*:text has no name"),
        ({"parameters": {"a": {1, 2}}}, r"operation text: its parameters cannot be written as JSON \(.*set"),
    ],
)
def test_a_wrong_declaration_is_refused_with_what_would_fit(changed, sentence):
    with pytest.raises(PipelineError, match=sentence):
        an_op(**changed)


def test_the_codec_is_that_of_the_kind_unless_named():
    assert an_op().codec == "utf-8"
    assert an_op(gives="image", codec="png").codec == "png"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("no_colon", "'no_colon' is not an import path; write it as package.module:NAME"),
        (":name", "is not an import path"),
        ("no.such.module:name", r"no\.such\.module:name: cannot be imported \(No module named 'no'\)"),
        (f"{HERE}:absent", "ops_for_tests defines no absent; correct the name"),
        ("broken_ops_never_written:f", r"cannot be imported \(No module named 'broken_ops_never_written'\)"),
        ("experiments.pipeline.codecs:KINDS", "experiments.pipeline.codecs:KINDS is not a function"),
    ],
)
def test_a_path_that_names_no_function_is_refused(call, sentence):
    with pytest.raises(PipelineError, match=sentence):
        function_at(call)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\nraise ValueError('no data')\n", r"broken_ops\.py:2: ValueError: no data"),
        ("def f(:\n", r"broken_ops\.py:1: SyntaxError: "),
        (
            "\nimport no_such_library\n",
            r"broken_ops\.py:2: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        (
            "\nimport os\nos.nothing\n",
            r"broken_ops\.py:3: AttributeError: module 'os' has no attribute 'nothing'",
        ),
        ("\nfrom os import nothing\n", r"broken_ops\.py:2: ImportError: cannot import name 'nothing'"),
    ],
)
def test_what_a_users_file_raises_is_given_with_its_line(tmp_path, monkeypatch, source, reason):
    (tmp_path / "broken_ops.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PipelineError, match=rf"broken_ops:f: cannot be imported \(.*{reason}"):
        function_at("broken_ops:f")


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.integers() | st.text(max_size=5) | st.lists(st.floats(allow_nan=False)),
        max_size=3,
    )
)
def test_equal_parameters_give_equal_identities_in_any_order(parameters):
    backwards = dict(reversed(parameters.items()))
    assert an_op(parameters=parameters).identity() == an_op(parameters=backwards).identity()


@pytest.mark.parametrize(
    "changed",
    [
        {"parameters": {"add": 1}},
        {"call": f"{HERE}:upper"},
        {"random": True},
        {"name": "other"},
        {"field": "other"},
        {"into": "other"},
        {"gives": "bytes"},
        {"libraries": ("numpy",)},
    ],
)
def test_identity_changes_with_the_declaration(changed):
    assert an_op(**changed).identity() != an_op().identity()


def test_naming_the_default_changes_nothing():
    assert an_op(codec="utf-8", into="text").identity() == an_op().identity()


def test_identity_has_the_versions_of_libraries(monkeypatch):
    before = an_op(libraries=("numpy",)).identity()
    monkeypatch.setattr(op_module, "version", lambda name: "9.9")
    after = an_op(libraries=("numpy",)).identity()
    assert after["libraries"] == {"numpy": "9.9"}
    assert {**before, "libraries": {}} == {**after, "libraries": {}}


def test_a_library_that_is_not_installed_is_named():
    with pytest.raises(PipelineError, match="operation text needs no-such-library, which is not installed"):
        an_op(libraries=("no-such-library",)).identity()


def test_identity_changes_with_the_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for source in ("def f(x):\n    return x\n", "def f(x):\n    return x + x\n"):
        (tmp_path / "changing_ops.py").write_text(source)
        sys.modules.pop("changing_ops", None)
        function_at.cache_clear()
        op_module._source.cache_clear()
        found.append(an_op(call="changing_ops:f").identity()["source"])
    sys.modules.pop("changing_ops", None)
    assert found == ["def f(x):\n    return x\n", "def f(x):\n    return x + x\n"]


def test_a_callable_without_a_file_is_refused():
    with pytest.raises(PipelineError, match=r"builtins:len: its source cannot be read; define it in a file"):
        an_op(call="builtins:len").identity()


def test_an_object_that_can_be_called_has_its_modules_source():
    assert "class Shout" in an_op(call=f"{HERE}:shout").identity()["source"]


def test_of_a_file_the_content_counts_and_not_its_place(tmp_path):
    files = [tmp_path / name for name in "abc"]
    for file, content in zip(files, ("one", "one", "two"), strict=True):
        file.write_text(content)
    first, second, third = (an_op(files={"path": str(file)}).identity() for file in files)
    assert first == second
    assert first != third
    with pytest.raises(PipelineError, match=r"operation text: .*none cannot be read \(No such file"):
        an_op(files={"path": str(tmp_path / "none")}).identity()
