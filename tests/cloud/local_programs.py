"""Programs for the emulated VMs of the tests; imported by the host process by this file's name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


def _say(config: Path, **what: object) -> None:
    fresh = config.with_name("status.new")
    fresh.write_text(json.dumps(what))
    fresh.replace(config.with_name("status.json"))


def sit(config: Path) -> None:
    """Stay, with a stubborn child in a session of its own, a file and a socket in the temporary folder."""
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal,time; signal.signal(15,signal.SIG_IGN); print('up',flush=True); time.sleep(600)",
        ],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    temp = Path(tempfile.gettempdir())
    (temp / "left-behind").write_text("x")
    socket.socket(socket.AF_UNIX).bind(str(temp / "left.sock"))
    _say(config, phase="training", temp=str(temp), address=os.environ["ORCH_ADDRESS"])
    time.sleep(600)


def leave(config: Path) -> None:
    """Leave politely on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _say(config, phase="training")
    time.sleep(600)


def flood(config: Path) -> None:
    """Send as much as goes to a node that does not listen."""
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _say(config, phase="training")
    while True:
        try:
            wire.sendto(bytes(60), ("10.77.0.2", 9))
        except OSError:  # no listener, or no space
            continue


def crash(config: Path) -> None:
    raise RuntimeError("the program is broken")


def listen(config: Path) -> None:
    """Accept one connection and report how it ended."""
    server = socket.create_server((os.environ["ORCH_ADDRESS"], 7000))
    _say(config, phase="ready")
    wire, _ = server.accept()
    wire.recv(1)
    _say(config, phase="connected")
    wire.settimeout(1.5)
    try:
        _say(config, phase="done", heard=repr(wire.recv(1)))
    except TimeoutError:
        _say(config, phase="done", heard="nothing")
    except OSError as error:
        _say(config, phase="done", heard=str(error))
    time.sleep(600)


def connect(config: Path) -> None:
    wire = socket.create_connection((json.loads(config.read_text())["to"], 7000))
    wire.sendall(b"x")
    time.sleep(600)


def fetch(config: Path) -> None:
    """Read a URL through the store's node."""
    url = json.loads(config.read_text())["url"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5) as answer:
                _say(config, phase="done", body=answer.read().decode())
            break
        except OSError as error:
            _say(config, phase="starting", error=str(error))
            time.sleep(0.1)
    time.sleep(600)
