"""What a world has in it: in its own process namespace every process is seen, whoever started it."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import boto3
from fate import instances

_REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "ap-southeast-2")


def processes() -> dict[int, str]:
    """Process ids of the world with their command lines; none that has ended."""
    found: dict[int, str] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words:
            found[pid] = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def pids(*words: str) -> list[int]:
    """Processes whose command line has all the words."""
    return [pid for pid, command in processes().items() if all(w in command for w in words)]


def wait_until_gone(before: dict[int, str], limit_s: float = 30) -> list[str]:
    """The processes that were not there before, once they stop ending, at most `limit_s` later."""
    end = time.monotonic() + limit_s
    while True:
        left = [f"{pid} {command[:200]}" for pid, command in processes().items() if pid not in before]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.25)


def clusters() -> list[str]:
    """SkyPilot's clusters, from its own database: its server need not be up."""
    path = Path.home() / ".sky/state.db"
    if not path.is_file():
        return []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        return [name for (name,) in database.execute("select name from clusters order by name")]


def in_ec2() -> list[str]:
    """Ids of all VMs, volumes and addresses that EC2 lists and that have not ended, in every region."""
    found: list[str] = [row["id"] for row in instances(up=True)]
    for region in _REGIONS:
        ec2: Any = boto3.client("ec2", region_name=region)
        found += [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]]
        found += [address["AllocationId"] for address in ec2.describe_addresses()["Addresses"]]
        ec2.close()
    return sorted(found)
