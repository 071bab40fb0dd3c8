"""Address at which the controller serves Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import UsageError

_DEFAULT_ADDRESS = "127.0.0.1:0"  # port 0: any free port


def chosen_address(environ: Mapping[str, str]) -> str:
    """The address from `ORCH_METRICS_ADDRESS`, or else a free port on loopback. Raises UsageError."""
    chosen = environ.get("ORCH_METRICS_ADDRESS") or _DEFAULT_ADDRESS
    address_of(chosen)
    return chosen


def address_of(text: str) -> tuple[str, int] | None:
    """Host and port of "127.0.0.1:9464"; None for "off". Raises UsageError."""
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"ORCH_METRICS_ADDRESS: {text[:80]!r} is not an address; use the form 127.0.0.1:9464 (port 0: any free port), or off"
        )
    return host.strip("[]"), int(port)
