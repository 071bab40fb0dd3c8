"""The controller as a detached, named Ray actor: one a run, restarted by Ray when its worker is killed."""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cloud.provider import Provider, ProviderError
from cloud.steady_clock import run_clock
from metrics.store import FencedError, RunStore
from orchestrator.controller.calls import Call, RayCalls
from orchestrator.controller.json_log import log_to
from orchestrator.controller.keys import forget_keys
from orchestrator.controller.processes import identity, is_alive
from orchestrator.controller.prometheus import MetricsServer, RunCollector, address_of
from orchestrator.controller.ray_session import claim
from orchestrator.controller.requests import RunRequests
from orchestrator.controller.reserve import free_reserve, is_disk_full
from orchestrator.controller.shell import Pace, Shell
from orchestrator.controller.spending import spent_of
from orchestrator.controller.stop_mark import asked_to_stop
from orchestrator.controller.view import snapshot_of
from orchestrator.core.state import RunState
from orchestrator.errors import UsageError

NAMESPACE = "orch"
_PERIOD_S = 1.0
_CLOSE_TRIES = 5
_TICK_TRIES = 5  # ticks in a row that raise, before the run is ended
_RESTARTS = 5  # by Ray, so that a run nobody watches is still looked after
_LINGER_S = 2.0

_log = logging.getLogger("orchestrator.controller")


class ControllerActor:
    """Wraps a Shell in a thread. Methods are called through Ray; all return at once but `wait`."""

    def __init__(self, run_folder: str, home: str) -> None:
        self._folder, self._home = Path(run_folder), Path(home)
        self._now_s: Callable[[], float] = time.time
        self._shell: Shell | None = None
        self._metrics: MetricsServer | None = None
        self._store: RunStore | None = None
        self._status: str | None = None
        self._failure = ""
        self._open = False  # the run is over, and its cloud is not
        self._ended = threading.Event()
        self._stop_wanted: tuple[str, str] | None = None
        import ray

        if ray.get_runtime_context().was_current_actor_reconstructed:
            self.start()

    def start(self) -> None:
        """Take the run over and go on from its journal; nothing when that has happened.

        Raises FencedError while another controller holds it, StoreError, JournalError.
        """
        if self._shell is not None:
            return
        log_to(_log, self._folder / "controller.log", self._folder.name)
        store = RunStore.open_writer(self._folder / "run.db")
        try:
            provider = partial(make_provider, str(store.meta("provider")), str(self._folder))
            seed = f"{store.meta('run_id')}-{time.time_ns()}"  # jitter must differ after a restart
            self._calls = RayCalls(provider, time.monotonic, int(store.meta("max_parallel_calls", 8)))
            events = store.records("events")
            self._now_s = run_clock(self._folder, not_before_s=events[-1].at_s if events else 0.0)
            self._make_shell = partial(
                Shell,
                store,
                self._calls,
                RunRequests(self._folder, store),
                self._folder,
                now_s=self._now_s,
                jitter=random.Random(seed).random,
                spent=spent_of,
                pace=Pace(
                    float(store.meta("request_deadline_s", 120.0)),
                    float(store.meta("observe_deadline_s", 30.0)),
                    float(store.meta("observe_period_s", 0.0)),
                    float(store.meta("terminate_deadline_s", 60.0)),
                ),
            )
            self._shell = self._make_shell()
        except BaseException:
            store.close()
            raise
        self._store = store
        claim(self._home)
        self._metrics = _serve_metrics(store, self._state)
        _say(self._folder, "", self._metrics.url if self._metrics else "")
        threading.Thread(target=self._loop, name="controller", daemon=True).start()

    def ping(self) -> int:
        """This controller's pid."""
        return os.getpid()

    def snapshot(self) -> dict[str, Any]:
        """See `client.snapshot`."""
        with RunStore.open_reader(self._folder / "run.db") as store:
            return snapshot_of(store, run_clock(self._folder, begin=False)(), controller_alive=True)

    def stop(self, status: str, reason: str) -> None:
        """End the run gracefully; `status` is "stopped" or "failed"."""
        self._stop_wanted = self._stop_wanted or (status, reason)
        if self._shell is not None:
            self._shell.stop(status, reason)

    def wait(self, timeout_s: float) -> str | None:
        """The final status, or None when the run still goes on after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self._status

    def _loop(self) -> None:
        assert self._shell is not None
        assert self._store is not None
        try:
            run_to_the_end(self._next_shell, self._ticked)
            self._status = str(self._store.meta("status"))
        except FencedError as error:  # somebody else looks after the run: touch nothing of it
            _log.error("%s", error)
            self._failure = str(error)
        except (
            ProviderError
        ) as error:  # the run is over, well or not: its end is written by whoever closes it
            name, self._open = self._folder.name, True
            self._failure = (
                f"{name} is over ({self._shell.state.stop_status}), but VMs may be left: its cloud could not be "
                f"closed: {error}; `orch down {name}` tries again"
            )
        except Exception as error:  # noqa: BLE001 - whatever broke, nothing may be left running
            _log.exception("the controller broke")
            self._failure = f"{error}; see {self._folder / 'controller.log'}"
            self._abort()
        finally:
            if self._metrics is not None:
                self._metrics.close()
            self._store.close()
            free_reserve(self._folder)
            _say(self._folder, self._failure, is_open=self._open)
            self._ended.set()
            time.sleep(_LINGER_S)  # for those who wait
            _exit_actor(self._folder.name)

    def _state(self) -> RunState:
        assert self._shell is not None
        return self._shell.state

    def _next_shell(self, broken: Exception | None) -> Shell:
        """The shell; after a tick that raised a new one, from the journal as after a restart.

        A run whose disk is full ends, in the room that was kept for that.
        """
        if self._stop_wanted is None and (cause := asked_to_stop(self._folder)):
            self.stop("stopped", cause)
        if is_disk_full(broken) and free_reserve(self._folder):
            self.stop("failed", f"no room left on the disk of {self._folder}")
        if broken is not None:
            self._shell = self._make_shell()
            if self._stop_wanted is not None:
                self._shell.stop(*self._stop_wanted)
        assert self._shell is not None
        return self._shell

    def _ticked(self, took_s: float) -> None:
        if self._metrics is not None:
            self._metrics.ticked(took_s)

    def _abort(self) -> None:
        """End the VMs and say so where that is still possible (the disk may be full)."""
        assert self._store is not None
        free_reserve(self._folder)
        try:
            self._calls.wait(Call("close", "close", (), float(self._store.meta("close_deadline_s", 120.0))))
        except ProviderError as error:
            self._failure = f"{self._failure}; and VMs may be left: {error}"
        try:
            forget_keys(self._folder)
            with self._store.transaction():
                self._store.set_meta("error", self._failure)
                self._store.set_meta("ended_s", self._now_s())
                self._store.set_meta("status", "failed")
        except Exception:  # noqa: BLE001 - what is wrong is in self._failure already
            _log.exception("the end of the run could not be written down")


def run_to_the_end(
    shell: Callable[[Exception | None], Shell],
    ticked: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Tick once a second until the run has ended and its cloud is closed.

    A tick that raises is logged and repeated by a new shell from the journal (`shell(error)`), as after a restart of the
    controller. Raises what `_TICK_TRIES` ticks in a row raised, ProviderError after `_CLOSE_TRIES` attempts to close
    the cloud of a run that is over, FencedError at once.
    """
    failed = 0
    broken: Exception | None = None
    next_s = clock()
    while True:
        began_s = clock()
        try:
            if shell(broken).tick():
                return
            failed, broken = 0, None
        except FencedError:
            raise
        except ProviderError as error:  # only closing raises it: the run is over, its cloud is not
            failed += 1
            _log.warning("closing failed (%d of %d): %s", failed, _CLOSE_TRIES, error)
            if failed >= _CLOSE_TRIES:
                raise
        except Exception as error:
            failed, broken = failed + 1, error
            _log.exception("a tick failed (%d of %d)", failed, _TICK_TRIES)
            if failed >= _TICK_TRIES:
                raise
        ticked(clock() - began_s)
        pause_s = _PERIOD_S if broken is None else _PERIOD_S * 2 ** max(0, failed - 1)
        next_s = max(next_s + pause_s, clock())
        sleep(max(0.0, next_s - clock()))


def make_provider(factory: str, run_folder: str) -> Provider:
    """A provider from "module:callable", called with the run's folder."""
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(Path(run_folder))


def start_actor(run_folder: Path, home: Path) -> Any:
    """The run's actor, made when there is none, with its controller started. This process is a driver already.

    Raises FencedError when another controller holds the run, StoreError.
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
    remote: Any = ray.remote(ControllerActor)
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
            # The one we know of may have let go of nothing yet: it ends this moment.
            if controller_alive(run_folder) or time.monotonic() > deadline - 50.0:
                ray.kill(actor, no_restart=True)
                raise cause from error
        except RayActorError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def controller_alive(run_folder: Path) -> bool:
    """Whether the process that last took the run over still runs."""
    said = _said(run_folder)
    return bool(said) and is_alive(int(said["pid"]), str(said["began"]))


def began(run_folder: Path) -> bool:
    """Whether the run ever had a controller."""
    return (run_folder / "controller.json").exists()


def controller_address(run_folder: Path) -> str:
    """Of the Ray in which the last controller was, the user's or ours; "" when none was."""
    return str(_said(run_folder).get("ray", ""))


def controller_failure(run_folder: Path) -> str:
    """Why the last controller gave up, "" when it did not."""
    return str(_said(run_folder).get("failure", ""))


def controller_left_open(run_folder: Path) -> bool:
    """Whether it gave up closing the cloud of a run that is over."""
    return bool(_said(run_folder).get("open", False))


def controller_metrics(run_folder: Path) -> str:
    """Where Prometheus finds the last controller's numbers; "" when it serves none."""
    return str(_said(run_folder).get("metrics", ""))


def _said(run_folder: Path) -> dict[str, Any]:
    try:
        return json.loads((run_folder / "controller.json").read_text())
    except (OSError, ValueError):
        return {}


def _say(run_folder: Path, failure: str, metrics: str = "", *, is_open: bool = False) -> None:
    import ray

    path = run_folder / "controller.json"
    fresh = path.with_suffix(".new")
    said = {
        "pid": os.getpid(),
        "began": identity(os.getpid()),
        "ray": ray.get_runtime_context().gcs_address,
        "failure": failure,
        "metrics": metrics,
        "open": is_open,
    }
    try:
        fresh.write_text(json.dumps(said))
        os.replace(fresh, path)
    except OSError as error:
        _log.error("%s cannot be written: %s", path, error)


def _exit_actor(name: str) -> None:
    import ray

    # no_restart: a run that has ended needs no controller.
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def _serve_metrics(store: RunStore, state: Callable[[], RunState]) -> MetricsServer | None:
    """A port that is taken must not stop a run: it goes on, and says so."""
    try:
        address = address_of(str(store.meta("metrics_address", "off")))
        return MetricsServer(address, RunCollector(store, state)) if address else None
    except (OSError, UsageError) as error:
        said = f"no numbers for Prometheus: nothing can listen there ({error}); set ORCH_METRICS_ADDRESS"
        _log.warning("%s", said)
        known = store.meta("warnings", [])
        store.set_meta("warnings", known if said in known else [*known, said])
        return None
