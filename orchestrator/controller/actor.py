"""The controller as a detached, named Ray actor, one per run; Ray restarts it when its worker is killed."""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from cloud.clock import run_clock
from cloud.provider import Provider, ProviderError
from metrics.store.database import FencedError, RunStore
from orchestrator.controller.calls import RayCalls
from orchestrator.controller.data_positions import last_position, positions_by_epoch
from orchestrator.controller.json_log import log_to
from orchestrator.controller.loop import Shells, abort, run_to_the_end
from orchestrator.controller.own_environment import adopt_environment
from orchestrator.controller.prometheus import MetricsServer, RunCollector
from orchestrator.controller.records import journal_takeover, written_until_s
from orchestrator.controller.spending import spent_of
from orchestrator.controller.stop_mark import asked_to_stop
from orchestrator.controller.tick import Pace, Shell
from orchestrator.controller.view import snapshot_of
from orchestrator.core.state import RunState
from orchestrator.disk_reserve import free_reserve
from orchestrator.errors import UsageError
from orchestrator.launch.peer_request import RunRequests
from orchestrator.metrics_address import address_of
from orchestrator.ray.processes import identity, is_alive, named_for
from orchestrator.ray.session import claim
from orchestrator.tracking.process import TrackingProcess, add_warning, start_tracking

NAMESPACE = "orch"
_RESTARTS = 5  # by Ray, so that a run without an attached command still has a controller
_LINGER_S = 2.0
_TRACKING_S = 30.0  # for the last write of the trackers, after the end of the run

_log = logging.getLogger("orchestrator.controller")


class ControllerActor:
    """Runs a Shell in a thread. Methods are called through Ray; all except `wait` return immediately."""

    def __init__(self, run_folder: str, home: str) -> None:
        self._folder, self._home = Path(run_folder), Path(home)
        self._now_s: Callable[[], float] = time.time
        self._shells: Shells | None = None
        self._metrics: MetricsServer | None = None
        self._tracking: TrackingProcess | None = None
        self._store: RunStore | None = None
        self._status: str | None = None
        self._failure = ""
        self._close_s = 120.0  # deadline for closing the provider
        self._open = False  # the run is over, but its cloud could not be closed
        self._ended = threading.Event()
        import ray

        if ray.get_runtime_context().was_current_actor_reconstructed:
            self.start()

    def start(self) -> None:
        """Take over the run and continue from its journal. A second call does nothing.

        Raises FencedError while another controller holds the run, StoreError, JournalError.
        """
        if self._shells is not None:
            return
        adopt_environment(self._folder)
        log_to(_log, self._folder / "controller.log", self._folder.name)
        store = RunStore.open_writer(self._folder / "run.db")
        try:
            meta = store.run_meta()
            provider = partial(make_provider, str(meta.provider), str(self._folder))
            seed = f"{meta.run_id}-{time.time_ns()}"  # jitter must differ after a restart
            adopt = partial(adopt_environment, self._folder)
            self._calls = RayCalls(
                provider, time.monotonic, self._folder.name, meta.max_parallel_calls, adopt
            )
            self._close_s = meta.close_deadline_s
            events = store.records("events")
            self._now_s = run_clock(self._folder, not_before_s=written_until_s(store, events))
            earlier = _read_controller_file(self._folder)
            if earlier and meta.status == "running":
                journal_takeover(store, events, int(earlier["pid"]), os.getpid(), self._now_s())
            requests = RunRequests(
                self._folder, store, partial(last_position, store), partial(positions_by_epoch, store)
            )
            make_shell = partial(
                Shell,
                store,
                self._calls,
                requests,
                self._folder,
                now_s=self._now_s,
                jitter=random.Random(seed).random,
                spent=spent_of,
                pace=Pace(**{key.name: getattr(meta, key.name) for key in fields(Pace)}),
                own_paths=requests.own_paths,
            )
            self._shells = Shells(
                make_shell, self._folder, asked_to_stop=asked_to_stop, free_reserve=free_reserve
            )
        except BaseException:
            store.close()
            raise
        self._store = store
        claim(self._home)
        self._metrics = _serve_metrics(store, self._state)
        self._tracking = start_tracking(store, self._folder)
        _write_controller_file(self._folder, "", self._metrics.url if self._metrics else "")
        threading.Thread(target=self._loop, name="controller", daemon=True).start()

    def ping(self) -> int:
        """This controller's pid."""
        return os.getpid()

    def snapshot(self) -> dict[str, Any]:
        """See `client.snapshot`."""
        with RunStore.open_reader(self._folder / "run.db") as store:
            return snapshot_of(store, run_clock(self._folder, begin=False)(), controller_alive=True)

    def stop(self, status: str, reason: str) -> None:
        """Stop the run gracefully; `status` is "stopped" or "failed"."""
        if self._shells is not None:
            self._shells.stop(status, reason)

    def wait(self, timeout_s: float) -> str | None:
        """The final status, or None if the run has not ended after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self._status

    def _loop(self) -> None:
        assert self._shells is not None
        assert self._store is not None
        try:
            run_to_the_end(self._shells.next, self._ticked)
            self._status = str(self._store.meta("status"))
        except FencedError as error:  # another controller holds the run: change nothing
            _log.error("%s", error)
            self._failure = str(error)
        except ProviderError as error:  # the run is over; whoever closes its cloud records the end
            name, self._open = self._folder.name, True
            self._failure = (
                f"{name} is over ({self._state().stop_status}), but VMs may be left: its cloud could not be "
                f"closed: {error}; retry with `orch down {name}`"
            )
        except Exception as error:  # noqa: BLE001 - nothing may be left running, whatever the error
            _log.exception("the controller failed")
            self._failure = f"{error}; see {self._folder / 'controller.log'}"
            free_reserve(self._folder)
            self._failure = abort(
                self._store, self._calls, self._folder, self._now_s(), self._failure, self._close_s
            )
        finally:
            if self._metrics is not None:
                self._metrics.close()
            if self._tracking is not None:
                self._tracking.finish(_TRACKING_S)
            self._store.close()
            free_reserve(self._folder)
            _write_controller_file(self._folder, self._failure, is_open=self._open)
            self._ended.set()
            time.sleep(_LINGER_S)  # for pending calls of `wait`
            _exit_actor(self._folder.name)

    def _state(self) -> RunState:
        assert self._shells is not None
        return self._shells.shell.state

    def _ticked(self, took_s: float) -> None:
        if self._metrics is not None:
            self._metrics.ticked(took_s)


def make_provider(factory: str, run_folder: str) -> Provider:
    """Create a provider from "module:callable", called with the run's folder."""
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(Path(run_folder))


def start_actor(run_folder: Path, home: Path) -> Any:
    """Start the run's actor and its controller if they do not run yet.

    This process must already be connected to Ray. Raises FencedError if another controller holds the run,
    StoreError.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {
        "name": run_folder.name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_concurrency": 8,
        "max_restarts": _RESTARTS,
        "get_if_exists": True,
        "scheduling_strategy": here,
    }
    remote: Any = ray.remote(named_for(run_folder.name, ControllerActor))
    deadline = time.monotonic() + 60.0
    while True:
        actor = remote.options(**options).remote(str(run_folder), str(home))
        try:
            ray.get(actor.start.remote(), timeout=60.0)
            return actor
        except RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, FencedError):
                ray.kill(actor, no_restart=True)
                raise cause from error
            # The previous controller may still hold the run for a moment while it ends.
            if controller_alive(run_folder) or time.monotonic() > deadline - 50.0:
                ray.kill(actor, no_restart=True)
                raise cause from error
        except RayActorError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def controller_alive(run_folder: Path) -> bool:
    """Whether the process that last took over the run is still alive."""
    entry = _read_controller_file(run_folder)
    return bool(entry) and is_alive(int(entry["pid"]), str(entry["began"]))


def began(run_folder: Path) -> bool:
    """Whether the run ever had a controller."""
    return (run_folder / "controller.json").exists()


def controller_address(run_folder: Path) -> str:
    """Address of the Ray cluster of the last controller, the user's or ours; "" if there was no controller."""
    return str(_read_controller_file(run_folder).get("ray", ""))


def controller_failure(run_folder: Path) -> str:
    """Why the last controller gave up; "" if it did not."""
    return str(_read_controller_file(run_folder).get("failure", ""))


def controller_left_open(run_folder: Path) -> bool:
    """Whether the last controller could not close the cloud of a finished run."""
    return bool(_read_controller_file(run_folder).get("open", False))


def controller_metrics(run_folder: Path) -> str:
    """URL of the last controller's Prometheus metrics; "" if it serves none."""
    return str(_read_controller_file(run_folder).get("metrics", ""))


def _read_controller_file(run_folder: Path) -> dict[str, Any]:
    try:
        return json.loads((run_folder / "controller.json").read_text())
    except (OSError, ValueError):
        return {}


def _write_controller_file(
    run_folder: Path, failure: str, metrics: str = "", *, is_open: bool = False
) -> None:
    import ray

    path = run_folder / "controller.json"
    fresh = path.with_suffix(".new")
    entry = {
        "pid": os.getpid(),
        "began": identity(os.getpid()),
        "ray": ray.get_runtime_context().gcs_address,
        "failure": failure,
        "metrics": metrics,
        "open": is_open,
    }
    try:
        fresh.write_text(json.dumps(entry))
        os.replace(fresh, path)
    except OSError as error:
        _log.error("%s cannot be written: %s", path, error)


def _exit_actor(name: str) -> None:
    import ray

    # no_restart: a finished run needs no controller.
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def _serve_metrics(store: RunStore, state: Callable[[], RunState]) -> MetricsServer | None:
    """Start the metrics server. A port in use does not stop the run; it is only reported as a warning."""
    try:
        address = address_of(store.run_meta().metrics_address)
        return MetricsServer(address, RunCollector(store, state)) if address else None
    except (OSError, UsageError) as error:
        warning = f"no Prometheus metrics: cannot listen on the address ({error}); set ORCH_METRICS_ADDRESS"
        _log.warning("%s", warning)
        add_warning(store, warning)
        return None
