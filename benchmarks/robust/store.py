"""Some shards of digits behind an HTTP server that answers S3's GET."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cloud.storage.digits import write_shards

__all__ = ["serve_shards"]


@contextlib.contextmanager
def serve_shards(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Write the shards and serve them as s3://bucket/...; yields the endpoint and the training shards' URLs."""
    made = write_shards(folder, 8, samples_per_shard=128)

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
        yield f"http://127.0.0.1:{server.server_port}", tuple(f"s3://bucket/{name}" for name in made.train)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
