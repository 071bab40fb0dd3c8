"""Helpers of the peer's process tests: an S3 endpoint for files, keys, configs, peer processes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from experiments.peer.config import PeerConfig
from experiments.peer.processes import descendants
from experiments.wire.record_keys import generate_identity, generate_record_key

RUN = "peer-test"


def kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its group, and remove torch's shared memory, which they can no longer remove."""
    pids = [process.pid, *(pid for pid in descendants(process.pid) if _group_of(pid) == process.pid)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pid in pids:
        for file in Path("/dev/shm").glob(f"torch_{pid}_*"):
            file.unlink(missing_ok=True)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """An HTTP server that answers S3's GET of s3://bucket/<file of folder>; yields its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = (folder / self.path.split("?")[0].removeprefix("/bucket/")).read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # peers that are killed reset their connections

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def config_of(slot: str, endpoint: str, shards: tuple[str, ...], **changes: object) -> PeerConfig:
    """A config of a tiny emulated peer that learns digits."""
    config = PeerConfig(
        run_id=RUN,
        vm=f"{RUN}-{slot}-0",
        slot=slot,
        generation=0,
        listen_address="127.0.0.1",
        listen_port=free_port(),
        initial_peers=(),
        expected_peers=1,
        barrier_timeout_s=30.0,
        target_batch_size=256,
        batch_size=16,
        coalesce=1,
        max_epochs=3,
        compression="float16",
        optimizer={"name": "adam", "lr": 0.01},
        matchmaking_time_s=1.5,
        averaging_timeout_s=20.0,
        next_chunk_timeout_s=5.0,
        request_timeout_s=1.0,
        dht_timeout_s=5.0,
        part_size_bytes=16384,
        model="ConvNextLarge",
        emulated=True,
        parameters=100_000,
        forward_s=0.1,
        backward_s=0.2,
        sync_work_s=0.1,
        seed=7,
        endpoint=endpoint,
        region="us-east-1",
        shards=tuple(s for s in shards if "train" in s),
        heldout_shards=tuple(s for s in shards if "heldout" in s),
        cache_bytes=1 << 24,
        environment={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
    )
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


class PeerProcess:
    """One peer in a process of its own, with its folder."""

    def __init__(
        self, folder: Path, config: PeerConfig, identity: bytes = b"", record: bytes = b"",
        off_clock: tuple[float, float, Path] | None = None,
    ) -> None:  # fmt: skip
        """`off_clock`: arguments of `peer_off_clock`."""
        folder.mkdir(parents=True)
        self.folder, self.config = folder, config
        self.temporary = Path(tempfile.mkdtemp(prefix="opt-", dir="/tmp"))  # short: sockets go there
        (folder / "config.json").write_text(json.dumps(config.to_json()))
        (folder / config.identity_file).write_bytes(identity or generate_identity()[0])
        (folder / config.record_key_file).write_bytes(record or generate_record_key()[0])
        program = ["-m", "experiments.peer", str(folder / "config.json")]
        if off_clock is not None:
            program[:2] = [str(Path(__file__).with_name("peer_off_clock.py"))]
            program += map(str, off_clock)
        with (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def status(self) -> dict:
        path = self.folder / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"phase": "none", "epoch": 0}

    def wait_for(self, what: Callable[[dict], bool], timeout_s: float = 60.0) -> dict:
        """Wait until `what(status)` holds; fails with the peer's log otherwise."""
        deadline = time.monotonic() + timeout_s
        while not what(status := self.status()):
            if status["phase"] == "failed" or self.process.poll() is not None or time.monotonic() > deadline:
                log = self.folder / "peer.log"
                tail = (
                    log.read_text()[-3000:] if log.exists() else (self.folder / "stderr").read_text()[-3000:]
                )
                raise AssertionError(f"{self.config.vm}: {status}\n{tail}")
            time.sleep(0.05)
        return status

    def leave(self) -> float:
        """Send SIGTERM; returns the seconds until the process ended."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return time.monotonic() - began

    def kill(self) -> None:
        kill_group(self.process)
        shutil.rmtree(self.temporary, ignore_errors=True)
