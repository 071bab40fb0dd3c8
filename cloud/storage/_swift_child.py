"""Commands that run inside the embedded store's own virtual environment (and network namespace), started by path.

    python -I _swift_child.py ports IP PORT          bind; print {"ports": [proxy, three inner]} as JSON
    python -I _swift_child.py health SECONDS URL...  exit 0 as soon as all answer 200, else 1
    python -I _swift_child.py rings FOLDER A C O     write the three rings for these ports
    python -I _swift_child.py serve SERVER CONF      run the account, container, object or proxy server

Imports nothing of orch, whose packages are not installed in that environment.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import sys
import time
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener


def main(arguments: list[str]) -> int:
    command, *rest = arguments
    if command == "ports":
        return _ports(rest[0], int(rest[1]))
    if command == "health":
        return _health(float(rest[0]), rest[1:])
    if command == "rings":
        return _rings(rest[0], dict(zip(("account", "container", "object"), map(int, rest[1:]), strict=True)))
    return _serve(rest[0], rest[1])


def _ports(ip: str, port: int) -> int:
    held: list[socket.socket] = []
    for address in ((ip, port), ("127.0.0.1", 0), ("127.0.0.1", 0), ("127.0.0.1", 0)):
        listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        held.append(listener)
        # Like Swift: lingering connections of an earlier server must not prevent the bind.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1)
        except OSError as error:
            answer = {"error": error.strerror, "errno": error.errno, "address": list(address)}
            break
    else:
        answer = {"ports": [listener.getsockname()[1] for listener in held]}
    sys.stdout.write(json.dumps(answer))
    return 0


def _health(seconds: float, urls: list[str]) -> int:
    ask = build_opener(ProxyHandler({}))  # the store is local: never use a proxy
    deadline = time.monotonic() + seconds
    waiting = list(urls)
    while True:
        for url in list(waiting):
            try:
                with ask.open(url, timeout=2) as answer:
                    if answer.status == 200:
                        waiting.remove(url)
            except (URLError, OSError):
                continue
        if not waiting:
            return 0
        if time.monotonic() >= deadline:
            return 1
        time.sleep(0.05)


def _rings(folder: str, ports: dict[str, int]) -> int:
    builders = importlib.import_module("swift.common.ring.builder")
    for name, port in ports.items():
        builder = builders.RingBuilder(4, 1, 1)
        builder.add_dev(
            {
                "id": 0,
                "region": 1,
                "zone": 1,
                "ip": "127.0.0.1",
                "port": port,
                "replication_ip": "127.0.0.1",
                "replication_port": port,
                "device": "d1",
                "weight": 1.0,
                "meta": "",
            }
        )
        builder.rebalance(seed="orch")
        builder.get_ring().save(os.path.join(folder, f"{name}.ring.gz"))
    return 0


class _NoSyslog(logging.NullHandler):
    """Replaces Swift's syslog handler: Swift logs to the host's syslog whatever its configuration says."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


def _serve(server: str, conf: str) -> int:
    logs = importlib.import_module("swift.common.utils.logs")
    vars(logs)["ThreadSafeSysLogHandler"] = _NoSyslog
    wsgi = importlib.import_module("swift.common.wsgi")
    # Keep the current user; in a user namespace setgroups is not even allowed.
    vars(wsgi)["drop_privileges"] = lambda user: None
    sys.argv = [f"swift-{server}-server", conf, "-v"]
    package = "obj" if server == "object" else server
    importlib.import_module(f"swift.{package}.server").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
