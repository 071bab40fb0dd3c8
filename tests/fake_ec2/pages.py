"""The two HTTP services in addition to moto's: the VMs' metadata and the admin API."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from machines import Machine, Machines
from roles import access_key, role_of

_ROLE = "meta-data/iam/security-credentials/"


class _Handler(BaseHTTPRequestHandler):
    machines: Machines

    def answer(self, value: Any, code: int = 200) -> None:
        body = (value if isinstance(value, str) else json.dumps(value, indent=1)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _metadata_of(machine: Machine) -> dict[str, Any]:
    instance, ip = machine.instance, machine.vm.ip
    zone = instance.placement.zone
    region = zone[:-1]
    about: dict[str, Any] = {
        "meta-data/instance-id": instance.id,
        "meta-data/public-ipv4": ip,
        "meta-data/local-ipv4": ip,
        "meta-data/instance-type": instance.instance_type,
        "meta-data/instance-life-cycle": instance.lifecycle or "on-demand",
        "meta-data/placement/availability-zone": zone,
        "meta-data/placement/region": region,
        "dynamic/instance-identity/document": {
            "instanceId": instance.id,
            "region": region,
            "availabilityZone": zone,
        },
    }
    if role := role_of(machine):  # with its credentials a VM can end itself (SkyPilot's autodown)
        about[_ROLE] = role
        about[_ROLE + role] = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": access_key(instance.id),
            "SecretAccessKey": "fake",
            "Token": "fake",
            "LastUpdated": "2025-01-01T00:00:00Z",
            "Expiration": "2099-01-01T00:00:00Z",
        }
    if machine.notice:
        about["meta-data/spot/instance-action"] = {"action": "terminate", "time": machine.notice}
        about["meta-data/spot/termination-time"] = machine.notice
    return about


class _Metadata(_Handler):
    """Answers a VM, identified by its address, and requires a token: SkyPilot's VMs have `HttpTokens: required`."""

    def do_PUT(self) -> None:
        self.answer("token")

    def do_GET(self) -> None:
        machine = self.machines.at_address(self.client_address[0])
        if machine is None:
            return self.answer("not a VM of ours", 404)
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            return self.answer("no token", 401)
        value = _metadata_of(machine).get(self.path.removeprefix("/latest/"))
        self.answer(*(("no such page", 404) if value is None else (value,)))


class _Admin(_Handler):
    """The admin API's requests: JSON in and out."""

    def do_GET(self) -> None:
        with self.machines.lock:
            all_of_them = list(self.machines.by_id.values())
            if self.path == "/ls":
                return self.answer([m.about() for m in all_of_them])
            if self.path == "/user-data":
                return self.answer({m.instance.id: m.vm.user_data for m in all_of_them})
        self.answer("no such page", 404)

    def do_POST(self) -> None:
        machines = self.machines
        want = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        match self.path:
            case "/cap":
                machines.failing[want["zone"]] = int(want["fail"])
                return self.answer(machines.failing)
            case "/boot":
                machines.boot_delay_s = float(want["delay_s"])
                return self.answer(machines.boot_delay_s)
            case "/preempt" | "/unplug":
                found = machines.find(want)
            case _:
                return self.answer("no such page", 404)
        for machine in found:
            if self.path == "/unplug":
                machine.vm.plug(bool(want.get("plugged", False)))
            elif notice_s := float(want.get("notice_s", 0)):
                machines.announce(machine, notice_s)
            else:
                machines.preempt(machine)
        self.answer([machine.instance.id for machine in found])


def _server(handler: type[_Handler], machines: Machines, address: tuple[str, int]) -> ThreadingHTTPServer:
    bound = type(handler.__name__, (handler,), {"machines": machines})
    return ThreadingHTTPServer(address, bound)


def metadata(machines: Machines) -> ThreadingHTTPServer:
    """The instance metadata service, not serving yet."""
    return _server(_Metadata, machines, ("169.254.169.254", 80))


def admin(machines: Machines, port: int) -> ThreadingHTTPServer:
    """The admin API, not serving yet. Its calls are in docs/fake-ec2.md."""
    return _server(_Admin, machines, ("0.0.0.0", port))
