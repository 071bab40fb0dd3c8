"""A stand-in for the package `sky`, as `cloud.sky.skypilot.sdk` calls it: clusters, requests, and what goes wrong with them.

In memory and at once; a launch is under way until somebody waits for it. `on` holds what is done just before a call.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO

import pytest


class ClusterDoesNotExist(Exception):
    """Like the class in `sky.exceptions`; `cloud.sky.skypilot.errors` recognizes it by its name."""


class RequestCancelled(Exception):
    """The same."""


@dataclass
class Request:
    """One request of SkyPilot's server."""

    request_id: str
    name: str
    cluster_name: str | None
    do: Callable[[], Any]
    status: str = "RequestStatus.RUNNING"


@dataclass
class Resources:
    """What was asked for, and what was got."""

    infra: str
    use_spot: bool = False
    disk_size: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    instance_type: str | None = None
    accelerators: Any = None
    cpus: str | None = None
    ports: Any = None
    image_id: str | None = None
    usd_per_h: float | None = 0.2

    @property
    def cloud(self) -> str:
        return self.infra.split("/")[0].upper()

    @property
    def region(self) -> str:
        return self.infra.split("/")[1]

    @property
    def zone(self) -> str:
        return self.infra.split("/")[2]

    def get_cost(self, seconds: float) -> float:
        if self.usd_per_h is None:
            raise ValueError("no price")
        return self.usd_per_h * seconds / 3600


class Task:
    """What a cluster runs."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.resources: Resources

    def set_resources(self, resources: Resources) -> None:
        self.resources = resources


class FakeSky:
    """SkyPilot's client and server in one."""

    StatusRefreshMode = SimpleNamespace(FORCE="FORCE", NONE="NONE")
    Task = Task

    def __init__(self) -> None:
        self.clusters: dict[str, Resources] = {}  # those that run
        self.requests: dict[str, Request] = {}
        self.launched: list[str] = []  # cluster names, one a launch
        self.lists = 0
        self.provision_log = ""
        self.rented_usd_per_h: float | None = 0.2
        self.on: dict[str, Callable[[], None]] = {}
        self._ids = itertools.count()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`import sky` gives this."""
        config = SimpleNamespace(override_skypilot_config=self._config)
        autostop = SimpleNamespace(AutostopWaitFor=SimpleNamespace(JOBS="JOBS"))
        package = ModuleType("sky")
        for name in ("StatusRefreshMode", "Task", "Resources", "launch", "get", "api_status", "api_cancel"):
            setattr(package, name, getattr(self, name))
        for name in ("status", "down"):
            setattr(package, name, getattr(self, name))
        package.skypilot_config = config  # type: ignore[attr-defined]
        modules = {
            "sky": package,
            "sky.skypilot_config": config,
            "sky.client": SimpleNamespace(sdk=SimpleNamespace(tail_provision_logs=self._log_of)),
            "sky.skylet": ModuleType("sky.skylet"),
            "sky.skylet.autostop_lib": autostop,
            "sky.utils": ModuleType("sky.utils"),
            "sky.utils.registry": SimpleNamespace(CLOUD_REGISTRY={}),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _log_of(self, cluster: str, *, output_stream: TextIO, **_: Any) -> int:
        output_stream.write(self.provision_log)
        return 0

    def _config(self, _: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def Resources(self, **given: Any) -> Resources:
        return Resources(**given)

    def _ask(self, name: str, cluster: str | None, do: Callable[[], Any]) -> str:
        asked = Request(f"request-{next(self._ids)}", f"sky.{name}", cluster, do)
        self.requests[asked.request_id] = asked
        return asked.request_id

    def launch(self, task: Task, *, cluster_name: str, **_: Any) -> str:
        self._happen("launch")
        self.launched.append(cluster_name)
        task.resources.usd_per_h = self.rented_usd_per_h
        task.resources.instance_type = task.resources.instance_type or "n1"
        return self._ask("launch", cluster_name, lambda: self.clusters.update({cluster_name: task.resources}))

    def get(self, request_id: str) -> Any:
        """Wait for a request. Raises what it raised."""
        asked = self.requests[request_id]
        self._happen(f"get {asked.name.removeprefix('sky.')}")
        if asked.status.endswith("CANCELLED"):
            raise RequestCancelled(request_id)
        try:
            result = asked.do()
        except Exception:
            asked.status = "RequestStatus.FAILED"
            raise
        asked.status = "RequestStatus.SUCCEEDED"
        return result

    def api_status(self, *, cluster_name: str, all_status: bool) -> list[Request]:
        return [asked for asked in self.requests.values() if asked.cluster_name]

    def api_cancel(self, request_ids: list[str]) -> str:
        def cancel() -> None:
            for each in request_ids:
                self.requests[each].status = "RequestStatus.CANCELLED"

        return self._ask("cancel", None, cancel)

    def status(self, names: list[str] | None, *, refresh: str, _include_credentials: bool) -> str:
        def listed() -> list[dict[str, Any]]:
            self.lists += 1
            self._happen(f"list {self.lists}")
            return [
                {
                    "name": name,
                    "status": SimpleNamespace(name="UP"),
                    "labels": resources.labels,
                    "handle": SimpleNamespace(launched_resources=resources, head_ip="203.0.113.9"),
                }
                for name, resources in self.clusters.items()
                if names is None or name in names
            ]

        return self._ask("status", None, listed)

    def down(self, cluster: str) -> str:
        def end() -> None:
            if self.clusters.pop(cluster, None) is None:
                raise ClusterDoesNotExist(cluster)

        return self._ask("down", None, end)

    def finish(self) -> None:
        """Complete every launch in progress."""
        for asked in self.requests.values():
            if asked.name == "sky.launch" and asked.status.endswith("RUNNING"):
                self.get(asked.request_id)

    def _happen(self, what: str) -> None:
        self.on.get(what, lambda: None)()
