"""The error of tasks; importing it does not import torch."""

from __future__ import annotations


class TaskError(Exception):
    """A task is configured wrongly or violates the protocol; the message says what to correct."""
