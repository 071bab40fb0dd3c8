"""`orch data`, as a user runs it: the real program, the real store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ORCH = [sys.executable, "-c", "import sys; from orchestrator.cli.app import main; sys.exit(main())", "data"]


def run(*arguments, environment):
    return subprocess.run(
        [*ORCH, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_serve_make_refuse_and_stop(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    serving = subprocess.Popen(
        [*ORCH, "serve", "--port", "0", "--folder", str(tmp_path / "store"), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with serving:
        try:
            assert serving.stdout is not None
            said = ""
            for line in serving.stdout:
                said += line
                if line == "}\n":
                    break
            facts = json.loads(said)
            lines = Path(facts["environment_file"]).read_text().splitlines()
            variables = dict(line.removeprefix("export ").split("=", 1) for line in lines)
            assert variables["AWS_SECRET_ACCESS_KEY"] not in said
            ours = {**environment, **variables}
            made = run(
                "make", "digits", "--to", "s3://digits/v1", "--shards", "2", "--samples-per-shard", "9", "-o", "json",
                environment=ours,
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
            assert json.loads(made.stdout)["splits"][0] == {
                "split": "train",
                "shards": "s3://digits/v1/train-{000000..000001}.tar",
                "samples": 18,
                "count": 2,
            }
            pictures = (
                "make",
                "glyphs",
                "--to",
                "s3://digits/g",
                "--shards",
                "2",
                "--samples-per-shard",
                "9",
            )
            for stored in ("stored 3 objects", "stored 0 objects"):  # the store keeps the SHA-256
                glyphs = run(*pictures, environment=ours)
                assert glyphs.returncode == 0, glyphs.stderr
                assert stored in glyphs.stderr
            checked = run("check", "s3://digits/g", environment=ours)
            assert checked.returncode == 0, checked.stdout + checked.stderr
            wrong = run(
                "make",
                "digits",
                "--to",
                "s3://digits",
                environment={**ours, "AWS_SECRET_ACCESS_KEY": "hunter2"},
            )
            assert (wrong.returncode, wrong.stdout) == (2, "")
            assert "refused our credentials" in wrong.stderr
            assert "hunter2" not in wrong.stderr
            assert "Traceback" not in wrong.stderr
            taken = run("serve", "--port", facts["endpoint"].rpartition(":")[2], environment=ours)
            assert taken.returncode == 1
            assert "is in use by another program" in taken.stderr
        finally:
            serving.send_signal(signal.SIGINT)
            _, errors = serving.communicate(timeout=20)
    assert serving.returncode == 130
    assert "Traceback" not in errors
