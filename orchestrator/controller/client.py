"""What the command line does with runs: launch, attach, look, stop, take down, reap.

Looking at a run reads its run.db and never needs Ray. The others connect to Ray for a moment only: a Ray
that is killed must not take the command that watches with it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.clock import run_clock
from cloud.local import LocalCloud
from cloud.provider import EndedError, Provider, ProviderError
from cloud.sky import records
from cloud.targets import TARGETS, target_of
from experiments.parse.load import from_document
from metrics.store.database import FencedError, NewerError, RunStore, StoreError
from metrics.store.meta import RunMeta
from orchestrator.controller.actor import (
    NAMESPACE,
    began,
    controller_address,
    controller_alive,
    controller_failure,
    controller_left_open,
    controller_metrics,
    make_provider,
    start_actor,
)
from orchestrator.controller.own_environment import keep_environment
from orchestrator.controller.reaping import Reaped, owners_to_ask_for, reach, reap_clouds
from orchestrator.controller.stop_mark import ask_to_stop, asked_to_stop
from orchestrator.controller.view import snapshot_of
from orchestrator.core.journal import JournalError, replay
from orchestrator.disk_reserve import free_reserve
from orchestrator.errors import (
    ControllerLostError,
    HeldError,
    RaySessionError,
    RefusedError,
    RunFailedError,
    TeardownError,
    UsageError,
)
from orchestrator.home import kept_owner, list_remains, run_folder
from orchestrator.launch.keys import forget_keys
from orchestrator.launch.prepare import LOCAL, start_cloud, write_environment
from orchestrator.launch.start_lock import is_starting, start_lock
from orchestrator.ray.session import (
    connect,
    disconnect,
    ensure_ray,
    live_claims,
    read_session,
    stop_ray,
)

_RUNNING = "running"
_GRACE_S = 20.0  # Ray restarts a killed controller within this
_GONE_S = 4.0  # unless Ray is gone too
_POLL_S = 0.25
_STOP_S, _RENTED_STOP_S = 60.0, 600.0
_BRING_UP_S = 300.0  # a bring-up that was asked to stop has given up by then


@dataclass(frozen=True)
class RunConnection:
    """A run whose controller was alive when this was made."""

    run_id: str
    folder: Path

    @property
    def home(self) -> Path:
        """The home folder the run lies in."""
        return self.folder.parent.parent

    def snapshot(self) -> dict[str, Any]:
        """See `snapshot`."""
        return snapshot(self.run_id, self.home)

    def stop(self, reason: str) -> None:
        """Ask the controller to end the run (status "stopped"); returns once it was told."""
        _tell_stop(self.run_id, self.home, reason)

    def wait(self, timeout_s: float) -> str | None:
        """The run's final status, or None when it still runs after `timeout_s`.

        Raises ControllerLostError when the controller is gone and the run has not ended
        (`attach` again goes on), RunFailedError when it gave up and could not write that down, TeardownError when
        the run is over and its cloud could not be closed.
        """
        deadline = time.monotonic() + timeout_s
        lost_s: float | None = None
        while True:
            status = _status(self.folder)
            if status != _RUNNING:
                return status
            now_s = time.monotonic()
            if controller_alive(self.folder):
                lost_s = None
                if now_s >= deadline:
                    return None
            else:
                lost_s = lost_s or now_s
                failure = controller_failure(self.folder)
                if failure and controller_left_open(self.folder):
                    raise TeardownError(failure, [self.run_id])
                if failure:
                    raise RunFailedError(failure)
                if now_s - lost_s > (_GRACE_S if _ray_lives(self.home) else _GONE_S):
                    raise ControllerLostError(
                        f"{self.run_id}: its controller is gone, its VMs may live on; "
                        f"`orch attach {self.run_id}` goes on, `orch down {self.run_id}` takes it down"
                    )
            time.sleep(_POLL_S)


def launch(run_id: str, home: Path) -> RunConnection:
    """Start a prepared run (`launching.prepare` made its folder): the cloud, Ray when needed, the controller.

    Launching a run id that already runs is the same as `attach`.
    Raises HeldError (another controller holds it), RefusedError (it was taken down meanwhile), RaySessionError,
    ProviderError, StoreError. When it cannot start, nothing of it is left running and the run's status is "failed".
    """
    folder = run_folder(home, run_id)
    with start_lock(folder):
        if controller_alive(folder):
            return RunConnection(run_id, folder)
        return _bring_up(run_id, home)


def attach(run_id: str, home: Path) -> RunConnection:
    """Connect to the run's controller; when it is dead, start a new one that goes on from the journal.

    Raises UsageError when the run has ended, HeldError, RaySessionError.
    """
    folder = run_folder(home, run_id)
    status = _status(folder)
    if status != _RUNNING:
        raise UsageError(f"{run_id} has ended ({status}); `orch report {run_id}` shows it")
    if controller_alive(folder):
        return RunConnection(run_id, folder)
    meta = _meta(folder)
    if not (folder / "keys" / "environment.key").exists():
        write_environment(folder, from_document(meta.document), target_of(meta.target))
    with start_lock(folder):
        if controller_alive(folder):
            return RunConnection(run_id, folder)
        if not began(folder):  # its launcher died before it had a controller
            return _bring_up(run_id, home)
        return _take_over(run_id, home)


def snapshot(run_id: str, home: Path) -> dict[str, Any]:
    """How the run is, read from run.db alone (works with and without a controller).

    `{"run_id", "experiment" (name), "status", "error", "target", "emulated", "scales", "host_contended"
    (None: nobody knows), "started_s", "ended_s", "at_s", "elapsed_s", "controller" ("alive"|"none"),
    "peers": [{"slot", "vm", "generation", "state", "phase", "location", "accelerator", "use_spot",
    "usd_per_h", "epoch", "samples", "sps", "preemptions", "cause", "since_s",
    "clock_skew_s" (what its VM's clock is ahead of this machine's; None: not measured)}], "epoch": {"current",
    "last", "completed", "warmup", "measured", "samples", "target", "sps", "eta_s"}, "granularity":
    float|None, "cost": {"spent_usd", "usd_per_h", "budget_usd", "estimated_usd"} (strings or None: study scale), "paused_s",
    "dropped_rounds", "events": [{"at_s", "slot", "text"}] (last 20), "warnings": [str], "metrics_url" (for
    Prometheus; None: not served)}`. Raises StoreError.
    """
    folder = run_folder(home, run_id)
    alive = controller_alive(folder)
    with RunStore.open_reader(folder / "run.db") as store:
        found = snapshot_of(store, run_clock(folder, begin=False)(), alive)
    return found | {"metrics_url": (controller_metrics(folder) if alive else "") or None}


def stop(run_id: str, home: Path, reason: str = "stopped by the user", timeout_s: float | None = None) -> str:
    """End the run gracefully (peers leave, VMs end, logs are collected) and return its final status.

    When no controller lives one is started to do it. A run that has ended already: its status.
    Raises TeardownError when it has not ended after `timeout_s` (60 s, rented VMs 10 min).
    """
    folder = run_folder(home, run_id)
    timeout_s = timeout_s or (_RENTED_STOP_S if target_of(_meta(folder).target).rents else _STOP_S)
    status = _status(folder)
    if status != _RUNNING:
        return status
    ask_to_stop(folder, reason)  # a controller that Ray starts again, or that begins later, does not go on
    if not began(folder):  # interrupted while it was started: nobody needs a controller to end it
        left = down(run_id, home)
        if left:
            raise TeardownError(
                f"{run_id}: still there: {', '.join(left)}; `orch down {run_id}` tries again", left
            )
        return _status(folder)
    connection = attach(run_id, home)
    connection.stop(reason)
    ended = connection.wait(timeout_s)
    if ended is None:
        raise TeardownError(
            f"{run_id} has not ended within {timeout_s:.0f} s; `orch down {run_id}` takes it down", [run_id]
        )
    return ended


def down(run_id: str, home: Path, timeout_s: float | None = None) -> list[str]:
    """Take down whatever the run may have left, journal or not; returns what is provably still there.

    Empty list: nothing is left, by two listings of the provider's. The caller turns a list that is not empty into exit code 5.
    Another `orch` that is bringing the run up gives up first. A run.db that cannot be read keeps nothing alive.
    Raises NewerError for a newer orch's run.
    """
    folder = run_folder(home, run_id)
    try:
        status = "imported" if target_of(_meta(folder).target).from_logs else _status(folder)
    except NewerError:
        raise
    except StoreError:
        status = "unreadable"
    if status == "imported":
        return []  # somebody else's logs: nothing of it ever ran here
    free_reserve(folder)
    if status in (_RUNNING, "unreadable"):
        ask_to_stop(folder, "taken down")
    try:
        with start_lock(folder, _BRING_UP_S):
            return _take_down(run_id, home, status, timeout_s)
    except HeldError:
        return [f"{run_id}: another `orch` that is starting it does not give up"]


def _take_down(run_id: str, home: Path, status: str, timeout_s: float | None) -> list[str]:
    """With the start lock held: nobody brings the run up meanwhile."""
    folder = run_folder(home, run_id)
    left: list[str] = []
    try:
        if status == _RUNNING and controller_alive(folder):
            stop(run_id, home, "taken down", timeout_s)
        elif controller_alive(folder):
            left += _end_controller(run_id, home)
    except (TeardownError, ControllerLostError, RunFailedError, RaySessionError, HeldError, StoreError):
        left += _end_controller(run_id, home)
    for provider in _providers(folder):
        try:
            provider.close()
            left += [o.vm for o in provider.observe() if o.state in ("pending", "running")]
        except EndedError:
            pass  # what is to be proven
        except ProviderError as error:
            left.append(f"{run_id}: {error}")
    if not left:
        if status != "unreadable":
            _write_end(folder, "taken down")
        forget_keys(folder)
    return left


def reap(home: Path, everything: bool = False, on: str = "", owner: str = "") -> Reaped:
    """Take down what runs without a live controller left behind (`everything`: live runs too), and Ray if ours.

    With `on` "sky", or a run of this home on rented VMs, also what the clouds have with the label of `owner`, else
    of whoever rents from this home: see `reaping.reap_clouds`. Raises UsageError when nobody knows whose label.
    """
    left: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    unreadable: dict[str, str] = {}
    alive: set[str] = set()
    runs = list_remains(home)
    whose = owners_to_ask_for(home, (o for r in runs for o in _owners_of(run_folder(home, r))), on, owner)
    for run_id in runs:
        folder = run_folder(home, run_id)
        if not everything and _looked_after(run_id, home):
            alive.add(run_id)
            continue
        try:
            _status(folder)
        except StoreError as error:
            unreadable[run_id] = str(error)
        try:
            found = down(run_id, home)
        except StoreError as error:  # of a newer orch, or no room: what runs of it is seen all the same
            found = [str(error)] if LocalCloud(folder).alive else []
        if found:
            left[run_id] = found
    known = set(runs) - alive
    own = kept_owner(home, {})
    for name, all_of_it in whose.items():
        still, strange = reap_clouds(home, name, known, alive, everything and all_of_it)
        # What carries a name that only this home has was rented from here: its run's folder has been removed.
        for found, into in ((still, left), (strange, left if name == own else unknown)):
            for run_id, names in found.items():
                into[run_id] = [*into.get(run_id, []), *names]
    if everything or not live_claims(home):
        stuck = stop_ray(home)
        if stuck:
            left["ray"] = [f"process {pid}" for pid in stuck]
    return Reaped(left, tuple(whose), reach() if whose else None, unknown, unreadable)


def _looked_after(run_id: str, home: Path) -> bool:
    """Whether somebody brings the run up, or it has a controller, or Ray is starting that again."""
    folder = run_folder(home, run_id)
    if controller_alive(folder) or is_starting(folder):
        return True
    with suppress(StoreError):
        if _status(folder) != _RUNNING:
            return False
    if not (began(folder) and _ray_lives(home) and _ray_has(run_id, home)):
        return False
    deadline = time.monotonic() + _GRACE_S
    while not (alive := controller_alive(folder)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def _ray_has(run_id: str, home: Path) -> bool:
    """Whether the Ray in which the run's controller was has not given it up."""
    session = read_session(home)
    address = controller_address(run_folder(home, run_id)) or (session.address if session else "")
    with suppress(RaySessionError, ValueError):
        connect(address, home)
        import ray

        try:
            ray.get_actor(run_id, namespace=NAMESPACE)
            return True
        finally:
            disconnect()
    return False


def _bring_up(run_id: str, home: Path) -> RunConnection:
    """The cloud and the first controller, or neither."""
    folder = run_folder(home, run_id)
    try:
        _refuse_if_asked_to_stop(folder)
        start_cloud(folder)
        _refuse_if_asked_to_stop(folder)
        return _take_over(run_id, home)
    except FencedError as error:
        raise HeldError(str(error)) from error
    except HeldError:
        raise
    except Exception as error:
        with suppress(StoreError, ProviderError, OSError):  # the first error is the one to tell
            if controller_alive(folder):
                _end_controller(run_id, home)
            _provider(folder).close()
            forget_keys(folder)
            _write_end(folder, str(error), "stopped" if asked_to_stop(folder) else "failed")
        raise


def _refuse_if_asked_to_stop(folder: Path) -> None:
    if cause := asked_to_stop(folder):
        raise RefusedError(f"{folder.name} was ended while it was started: {cause}; launch it anew")


def _ray_lives(home: Path) -> bool:
    """Of the user's Ray nothing is known: it may restart the controller."""
    session = read_session(home)
    return session.alive if session is not None else "RAY_ADDRESS" in os.environ


def _take_over(run_id: str, home: Path) -> RunConnection:
    folder = run_folder(home, run_id)
    address = ensure_ray(home)
    connect(address, home)
    from ray.exceptions import RayError

    try:
        if _meta(folder).provider != LOCAL:  # the emulated cloud needs no credentials, and gets none
            keep_environment(folder, os.environ)
        start_actor(folder, home)
    except FencedError as error:
        raise HeldError(str(error)) from error
    except RayError as error:
        raise RaySessionError(
            f"{run_id}: Ray at {address} does not start its controller ({type(error).__name__}); "
            f"see {folder / 'controller.log'} and Ray's own logs, then try again"
        ) from error
    finally:
        disconnect()
    return RunConnection(run_id, folder)


def _tell_stop(run_id: str, home: Path, reason: str) -> None:
    connect(_address(run_id, home), home)
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        actor = ray.get_actor(run_id, namespace=NAMESPACE)
        ray.get(actor.stop.remote("stopped", reason), timeout=30.0)
    except (ValueError, RayActorError, GetTimeoutError) as error:
        if _status(run_folder(home, run_id)) == _RUNNING:  # else it ended by itself just now
            raise ControllerLostError(f"{run_id}: its controller does not answer") from error
    finally:
        disconnect()


def _address(run_id: str, home: Path) -> str:
    """Of the Ray in which the run's controller is: the user's, whether RAY_ADDRESS still says so or not."""
    folder = run_folder(home, run_id)
    return (controller_address(folder) if controller_alive(folder) else "") or ensure_ray(home)


def _end_controller(run_id: str, home: Path) -> list[str]:
    """Kill a controller that does not end its run."""
    try:
        connect(_address(run_id, home), home)
        import ray

        try:
            ray.kill(ray.get_actor(run_id, namespace=NAMESPACE), no_restart=True)
        finally:
            disconnect()
    except ValueError:
        return []
    except RaySessionError as error:
        return [f"{run_id}: {error}"] if controller_alive(run_folder(home, run_id)) else []
    return []


def _meta(folder: Path) -> RunMeta:
    """A run's meta. Raises StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        return store.run_meta()


def _provider(folder: Path) -> Provider:
    return make_provider(str(_meta(folder).provider), str(folder))


def _providers(folder: Path) -> list[Provider]:
    """The run's provider; where run.db cannot be read, each that has left something in the run's folder."""
    try:
        return [_provider(folder)]
    except StoreError:
        left = [t for t in TARGETS.values() if t.trace and (folder / t.trace).is_dir()]
        return [make_provider(target.provider, str(folder)) for target in left]


def _owners_of(folder: Path) -> set[str]:
    """The labels orch-owner of a run's VMs; none when none is rented. What run.db cannot say, the VMs' records do."""
    try:
        return {str(owner) for owner in (_meta(folder).owner,) if owner}
    except StoreError:
        labels = (record.labels.get("orch-owner") for record in records.read_all(folder / "sky"))
        return {str(owner) for owner in labels if owner}


def _status(folder: Path) -> str:
    return str(_meta(folder).status)


def _known_end(store: RunStore) -> tuple[str, str] | None:
    """Status and cause of a run that was being stopped, as its journal has them."""
    with suppress(JournalError):
        state = replay(store.records("events"))
        return (state.stop_status, state.stop_cause) if state.stop_status else None
    return None


def _write_end(folder: Path, cause: str, status: str = "stopped") -> None:
    """Say that a run is over whose controller could not; how it ended, where its journal knows."""
    if _status(folder) != _RUNNING:
        return
    deadline = time.monotonic() + 5.0
    while True:
        try:
            with RunStore.open_writer(folder / "run.db") as store, store.transaction():
                status, cause = _known_end(store) or (status, cause)
                store.set_meta("error", "" if status == "done" else cause)
                store.set_meta("ended_s", run_clock(folder, begin=False)())
                store.set_meta("status", status)
            return
        except FencedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
