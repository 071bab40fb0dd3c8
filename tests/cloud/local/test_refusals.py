"""A machine that does not allow what was asked for: no TUN, no namespaces, a full disk under the shard cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.local.network import fabric
from cloud.local.network.fabric import SwitchFabric
from cloud.local.options import LocalOptions
from cloud.provider import InvalidRequestError

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def test_requested_tun_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fabric, "tun_usable", lambda: False)
    with pytest.raises(
        InvalidRequestError, match=r"/dev/net/tun: this user may not open it; run as root, or"
    ):
        SwitchFabric(LocalOptions(link="tun"), tmp_path / "switch.json")


def _unshared(flags: list[str], script: str, *arguments: str) -> str:
    """Output of a script in its own namespaces; skips the test if the machine does not allow them."""
    done = subprocess.run(
        ["unshare", *flags, "sh", "-c", script, sys.executable, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    if "unshare:" in done.stderr or "mount:" in done.stderr or "/proc/sys/user" in done.stderr:
        pytest.skip(f"this machine does not let the test make namespaces: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout


_START = """
import sys
from pathlib import Path
from cloud.local import LocalCloud, LocalOptions
from cloud.provider import InvalidRequestError
for mode in ("namespaces", "auto"):
    try:
        cloud = LocalCloud.start(Path(sys.argv[1]) / mode, LocalOptions(mode=mode, preload=()))
    except InvalidRequestError as error:
        print(error)
    else:
        print("started", cloud.mode)
        cloud.close()
"""


@linux
@pytest.mark.processes
def test_without_namespaces_it_says_so_or_goes_on_without_distance(tmp_path: Path):
    script = 'echo 0 >/proc/sys/user/max_net_namespaces && "$0" -c "$1" "$2"'
    refused, went_on = _unshared(["--user", "--map-root-user"], script, _START, str(tmp_path)).splitlines()
    assert refused.startswith("this machine does not allow creating namespaces (")
    assert "use mode auto or loopback (no distance)" in refused
    assert went_on == "started loopback"


_FILL = """
import sys
from pathlib import Path
from cloud.storage.cache import ShardCache
from cloud.storage.url import S3Url
cache = ShardCache(Path(sys.argv[1]), 10_000_000, warn=print)
writer = cache.writer(S3Url("digits", "train-000000.tar"), "etag", 1_000_000)
for _ in range(10):
    writer.write(bytes(100_000))
print(cache.used_bytes, sorted(p.suffix for p in cache.folder.iterdir() if p.suffix))
cache.close()
"""


@linux
@pytest.mark.processes
def test_a_disk_that_is_really_full_switches_the_cache_off_once(tmp_path: Path):
    flags = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = 'mount -t tmpfs -o size=200k none "$2" && "$0" -c "$1" "$2"'
    warned, left = _unshared(flags, script, _FILL, str(tmp_path)).splitlines()
    assert "the shard cache is off (No space left on device)" in warned
    assert "shards are read from the network" in warned
    assert left == "0 []"
