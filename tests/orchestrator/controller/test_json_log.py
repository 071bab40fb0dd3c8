"""The controller's log: one JSON object per line, and its rendering as text."""

from __future__ import annotations

import json
import logging

import pytest

from orchestrator.controller.json_log import about, as_text, log_to


@pytest.fixture
def log(tmp_path):
    logger = logging.getLogger("orchestrator.controller.test_json_log")
    log_to(logger, tmp_path / "controller.log", "geo-1")
    log_to(logger, tmp_path / "another.log", "geo-2")  # a controller started twice logs once
    yield logger
    for handler in logger.handlers[:]:  # pytest adds one of its own
        logger.removeHandler(handler)
        handler.close()


def test_log_lines_are_json_objects(log, tmp_path):
    log.info("intent %s", "geo-1-us-0-2", extra=about("us-0", 2, "geo-1-us-0-2", "preempted"))
    log.warning("two\nlines %d", 5)
    try:
        raise ValueError("no\nroom")
    except ValueError:
        log.exception("the controller failed")
    lines = [json.loads(line) for line in (tmp_path / "controller.log").read_text().splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    first = lines[0]
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "info", "run": "geo-1", "slot": "us-0", "generation": 2, "vm": "geo-1-us-0-2",
        "cause": "preempted", "message": "intent geo-1-us-0-2",
    }  # fmt: skip
    assert {lines[1][name] for name in ("slot", "generation", "vm", "cause")} == {None}
    assert lines[1]["message"] == "two\nlines 5"
    assert "ValueError" in lines[2]["traceback"]
    assert not (tmp_path / "another.log").exists()


def test_as_text(log, tmp_path):
    log.info("ticked")
    (line,) = (tmp_path / "controller.log").read_text().splitlines()
    assert as_text(line).endswith("Z INFO ticked")
    for odd in (line[:20], "ticked", "5", "null", '{"at": 1}', ""):
        assert as_text(odd) == odd
    assert (
        as_text('{"at": "t", "level": "error", "message": "broke", "traceback": "T"}') == "t ERROR broke\nT"
    )
