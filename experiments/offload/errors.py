"""Errors of offloading; every message is one sentence that says what to do.

OffloadError
├── PlanError          the plan, or what the server is started with, is wrong: correct it
├── RefusedError       a request is wrong; `status` is that of HTTP
└── ServerLostError    the server is silent, refuses or broke off: read from the store
"""

from __future__ import annotations


class OffloadError(Exception):
    """Offloading does not work. The message never contains a token."""


class PlanError(OffloadError):
    """A plan does not fit the pipeline, or is damaged."""


class RefusedError(OffloadError):
    """The server does not answer a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServerLostError(OffloadError):
    """The server sent no whole answer."""
