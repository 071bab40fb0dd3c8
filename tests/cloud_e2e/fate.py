"""The fake EC2's admin API: what there is, and faults on demand."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

_URL = "http://127.0.0.1:5567"


def call(path: str, **wish: Any) -> Any:
    """GET, or POST with a wish."""
    body = json.dumps(wish).encode() if wish else None
    with urllib.request.urlopen(_URL + path, body, timeout=60) as answer:
        return json.load(answer)


def instances(*, up: bool | None = None) -> list[dict[str, Any]]:
    """Every VM there ever was in this world, or those up (or not)."""
    return [i for i in call("/ls") if up is None or (i["state"] in ("pending", "running")) == up]


def no_capacity(zone: str, launches: int) -> None:
    """The next so many launches in the zone are refused; -1: all, 0: none."""
    call("/cap", zone=zone, fail=launches)


def preempt(instance: str, notice_s: float = 0) -> None:
    """Spot takes it back, now or after a notice in its metadata."""
    assert call("/preempt", id=instance, notice_s=notice_s) == [instance]


def user_data() -> dict[str, str]:
    """What each VM was given at its launch, in base64, by instance id."""
    return call("/user-data")


def access_key(instance: str) -> str:
    """The access key of a VM's role, as its metadata service gives it (tests/fake_ec2/roles.py)."""
    return "ASIA" + instance[-16:].upper()
