"""`orch offload serve` as a program, next to the embedded Swift: killed in mid-shard and back, and ended without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloud.storage.client import ClientPerProcess
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import read_shard
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment
from experiments.offload.mixed import MixedPipeline
from experiments.offload.plan import OffloadPlan
from experiments.offload.reader import OffloadReader, Patience, ServerAddress
from experiments.pipeline.load import load_pipeline
from tests.experiments.offload.offload_rig import PIPELINE, SEED, Store, digests, mixed_choices

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

STORE = Store(2, 40)
PLAN = OffloadPlan.of(PIPELINE, SEED, mixed_choices(STORE.keys))
QUICK = Patience(connect_s=2, silent_s=2, sample_s=6, retry_s=0.2)


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if "ORCH_SWIFT_VENV" not in os.environ:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            patch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        environment = swift_environment()
        with SwiftServer(tmp_path_factory.mktemp("store"), environment=environment) as server:
            patch.setenv("AWS_ACCESS_KEY_ID", server.credentials.access_key)
            patch.setenv("AWS_SECRET_ACCESS_KEY", server.credentials.secret_key)
            client = ClientPerProcess(server.endpoint)()
            client.create_bucket(Bucket="photos")
            for name, data in STORE.objects.items():
                client.put_object(Bucket="photos", Key=name, Body=data)
            yield server
            client.close()


class Program:
    """The command in a process of its own."""

    def __init__(self, folder: Path, endpoint: str, *arguments: str, port: int = 0):
        self.keys = folder / "keys"
        plan = folder / "plan.json"
        plan.write_text(PLAN.to_json())
        self._errors = (folder / "errors").open("w+")
        command = [
            sys.executable,
            "-c",
            "import sys; from orchestrator.cli.app import main; sys.exit(main())",
        ]
        command += ["offload", "serve", "--pipeline", "imagenet", "--settings", '{"size": 16, "classes": 10}']
        command += [
            "--plan",
            str(plan),
            "--shards",
            "s3://photos/train-{000000..000001}.tar",
            "--endpoint",
            endpoint,
        ]
        command += ["--keys", str(self.keys), "--port", str(port), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.errors()
            text += line
        self.facts = json.loads(text)
        self.workers = children(self.process.pid)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def address(self) -> ServerAddress:
        tokens = json.loads((self.keys / "tokens.json").read_text())
        return ServerAddress(
            host=self.facts["host"],
            port=self.facts["port"],
            certificate=(self.keys / "certificate.pem").read_text(),
            fingerprint=self.facts["fingerprint"],
            plan=self.facts["plan"],
            token=tokens["a-0"],
        )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        for pid in self.workers:  # the kernel ends them with their parent
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)
        return code


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.parametrize("cores", [1, 3])
def test_a_server_killed_in_mid_shard_and_back_changes_no_tensor(swift, tmp_path: Path, cores: int) -> None:
    opener = ShardOpener(ClientPerProcess(swift.endpoint), endpoint=swift.endpoint)
    expected = digests(
        lambda _pass: (s for url in STORE.urls for s in read_shard(url, opener.open(url))), PIPELINE, (0, 1)
    )
    first = Program(tmp_path, swift.endpoint, "--cores", str(cores), "--slot", "a-0")
    assert len(first.workers) == cores
    reports: list[str] = []
    with contextlib.closing(
        OffloadReader(first.address(), opener, patience=QUICK, report=reports.append)
    ) as reader:
        programs = [first]

        def read(pass_number):
            number = 0
            for url in STORE.urls:
                for sample in reader.read(url, pass_number):
                    number += 1
                    if pass_number == 0 and number == 7:
                        assert programs[0].end(signal.SIGKILL) == -signal.SIGKILL
                    if pass_number == 0 and number == 60:
                        assert reader.counts.store_samples > 0
                        port = first.facts["port"]
                        programs.append(Program(tmp_path, swift.endpoint, "--cores", str(cores), port=port))
                        while not reader._up.is_set():
                            time.sleep(0.01)
                    yield sample

        try:
            assert (
                digests(
                    read, MixedPipeline(load_pipeline("imagenet", {"size": 16, "classes": 10}), SEED), (0, 1)
                )
                == expected
            )
        finally:
            if len(programs) == 2:
                assert programs[1].end(signal.SIGINT) == 130
    assert reader.counts.server_samples + reader.counts.store_samples == 160
    assert reader.counts.server_samples >= 80 + 20  # the second pass, and the end of the first
    assert reader.counts.fallbacks == len(reports) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_command_made_is_removed_when_it_ends(swift, tmp_path: Path, number: int) -> None:
    program = Program(tmp_path, swift.endpoint, "--cores", "2", "--slot", "a-0", "--slot", "b-0")
    files = sorted(path.name for path in program.keys.iterdir())
    assert files == ["certificate.pem", "key.pem", "tokens.json"]
    assert {path.stat().st_mode & 0o777 for path in program.keys.iterdir()} == {0o600}
    assert program.end(number) == 130
    assert list(program.keys.iterdir()) == []
