"""A "VM": processes in their own namespaces with an overlay of the common root file system.

Its init is vm_init.sh. A VM has its own network stack with one address on the world's bridge, its own process
tree, users, host name and files, and a real sshd. It shares the kernel, the clock and the cores with everything
else in the world.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_INIT = Path(__file__).resolve().with_name("vm_init.sh")
_BRIDGE, _GATEWAY = "fake0", "198.18.0.1"
_link_lock = threading.Lock()


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def script_of_user_data(user_data: str) -> str:
    """The part of cloud-init that SkyPilot relies on (users, files, commands), as a shell script for the VM.

    `user_data` as EC2 has it, in base64: a script or a #cloud-config.
    """
    text = base64.b64decode(user_data).decode() if user_data else ""
    if text.startswith("#!"):
        return text
    config: dict[str, Any] = yaml.safe_load(text) if text.startswith("#cloud-config") else {}
    q, lines = shlex.quote, []
    for user in (u for u in config.get("users", []) if isinstance(u, dict)):
        lines += _user(user)
    for file in config.get("write_files", []):
        path = file["path"]
        lines += [
            f"mkdir -p {q(os.path.dirname(path))}",
            f"printf %s {q(file.get('content', ''))} > {q(path)}",
        ]
    for command in [*config.get("bootcmd", []), *config.get("runcmd", [])]:
        lines.append(f"( {command if isinstance(command, str) else shlex.join(command)} ) || true")
    return "\n".join(lines) + "\n"


def _user(user: dict[str, Any]) -> list[str]:
    q, name = shlex.quote, user["name"]
    keys = "\n".join(k.strip() for k in user.get("ssh_authorized_keys", [])) + "\n"
    add = f"useradd -m -s {q(user.get('shell', '/bin/bash'))} {q(name)}; usermod -p '*' {q(name)}"
    lines = [
        f"id {q(name)} >/dev/null 2>&1 || {{ {add}; }}",
        f'home=$(getent passwd {q(name)} | cut -d: -f6); mkdir -p -m 700 "$home/.ssh"',
        f'printf %s {q(keys)} >> "$home/.ssh/authorized_keys"; chmod 600 "$home/.ssh/authorized_keys"',
        f'chown -R {q(name)}: "$home/.ssh"',
    ]
    if user.get("sudo"):
        lines.append(f"echo {q(name + ' ' + str(user['sudo']))} > /etc/sudoers.d/90-{q(name)}")
    return lines


@dataclass
class VM:
    """One machine: off until `start`, removed with its disk by `delete`."""

    id: str
    ip: str
    user_data: str  # base64
    state_dir: Path
    rootfs: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Its disk, console and user data."""
        return self.state_dir / self.id

    @property
    def link(self) -> str:
        """Name of the bridge's end of its network cable."""
        return "v" + self.id[-12:]

    def start(self) -> None:
        """Power on; sshd answers about 1.3 s later."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "user-data.sh").write_text(script_of_user_data(self.user_data))
        with (self.folder / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"),
                    *(str(_INIT), self.rootfs, str(self.folder), self.ip, _GATEWAY),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        ours, theirs = os.readlink("/proc/self/ns/net"), f"/proc/{self.process.pid}/ns/net"
        while os.readlink(theirs) == ours:
            time.sleep(0.005)
        peer = ("peer", "name", "eth0", "netns", str(self.process.pid))
        with _link_lock:
            _ip("link", "add", self.link, "type", "veth", *peer)
            _ip("link", "set", self.link, "master", _BRIDGE, "up")

    def kill(self) -> None:
        """Power off, without notice: every process is gone and the link is down on return."""
        if self.process is None:
            return
        subprocess.run(["ip", "link", "del", self.link], capture_output=True, check=False)
        # The child of unshare is the VM's init. It is reaped, and unshare ends, only after the kernel has
        # ended every process of its pid namespace.
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children or [pid]:
            os.kill(int(child), signal.SIGKILL)
        self.process.wait()
        self.process = None

    def plug(self, plugged: bool) -> None:
        """Connect or disconnect it; disconnected, it stays up but is unreachable, like a partition or a hung machine."""
        _ip("link", "set", self.link, "up" if plugged else "down")

    def delete(self) -> None:
        """Power off and forget the disk."""
        self.kill()
        for _ in range(50):  # the overlay is unmounted once the last process is reaped
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)
