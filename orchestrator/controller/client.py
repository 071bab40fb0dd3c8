"""Operations on runs for the command line: launch, attach, snapshot, stop, down, reap.

`snapshot` reads run.db and never needs Ray. The others connect to Ray only briefly: if Ray is killed, the
attached command must survive.
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
from orchestrator.home import list_remains, run_folder, stored_owner
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
_BRING_UP_S = 300.0  # a launch in progress that was asked to stop has given up by then


@dataclass(frozen=True)
class RunConnection:
    """A run whose controller was alive when this object was created."""

    run_id: str
    folder: Path

    @property
    def home(self) -> Path:
        """The home folder that contains the run."""
        return self.folder.parent.parent

    def snapshot(self) -> dict[str, Any]:
        """See `snapshot`."""
        return snapshot(self.run_id, self.home)

    def stop(self, reason: str) -> None:
        """Ask the controller to stop the run (status "stopped"); returns once the controller has the request."""
        _request_stop(self.run_id, self.home, reason)

    def wait(self, timeout_s: float) -> str | None:
        """The run's final status, or None if it still runs after `timeout_s`.

        Raises ControllerLostError if the controller is gone before the run ended (`attach` continues it),
        RunFailedError if the controller gave up and could not record that, TeardownError if the run is over
        but its cloud could not be closed.
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
                        f"{self.run_id}: its controller is gone, its VMs may still run; "
                        f"continue with `orch attach {self.run_id}` or take it down with `orch down {self.run_id}`"
                    )
            time.sleep(_POLL_S)


def launch(run_id: str, home: Path) -> RunConnection:
    """Start a run whose folder was created by `prepare`: the cloud, Ray if needed, and the controller.

    Launching a running run is the same as `attach`. Raises HeldError (another controller holds it),
    RefusedError (it was taken down meanwhile), RaySessionError, ProviderError, StoreError. If it cannot
    start, nothing is left running and the run's status is "failed".
    """
    folder = run_folder(home, run_id)
    with start_lock(folder):
        if controller_alive(folder):
            return RunConnection(run_id, folder)
        return _bring_up(run_id, home)


def attach(run_id: str, home: Path) -> RunConnection:
    """Connect to the run's controller; if it is dead, start a new one that continues from the journal.

    Raises UsageError if the run has ended, HeldError, RaySessionError.
    """
    folder = run_folder(home, run_id)
    status = _status(folder)
    if status != _RUNNING:
        raise UsageError(f"{run_id} has ended ({status}); see `orch report {run_id}`")
    if controller_alive(folder):
        return RunConnection(run_id, folder)
    meta = _meta(folder)
    if not (folder / "keys" / "environment.key").exists():
        write_environment(folder, from_document(meta.document), target_of(meta.target))
    with start_lock(folder):
        if controller_alive(folder):
            return RunConnection(run_id, folder)
        if not began(folder):  # its launch was killed before it had a controller
            return _bring_up(run_id, home)
        return _take_over(run_id, home)


def snapshot(run_id: str, home: Path) -> dict[str, Any]:
    """The status of a run, read from run.db alone (works with and without a controller).

    `{"run_id", "experiment" (name), "status", "error", "target", "emulated", "scales", "host_contended"
    (None: unknown), "started_s", "ended_s", "at_s", "elapsed_s", "controller" ("alive"|"none"),
    "peers": [{"slot", "vm", "generation", "state", "phase", "location", "accelerator", "use_spot",
    "usd_per_h", "epoch" (in progress, from 1), "samples", "sps" (while calculating, raw; the three are None
    without a VM that reported), "preemptions", "cause", "since_s",
    "clock_skew_s" (how far its VM's clock is ahead of this machine's; None: not measured), "utilisation" (of its VM in the
    last minute: `metrics.utilisation.Busy`; None: unknown)}], "epoch": {"current", "last",
    "completed", "warmup", "measured", "samples", "target", "sps" (sum of the peers' rates, None while none
    trains), "eta_s"}, "throughput_sps" (of the measured epochs, by wall clock and at full scale), "granularity":
    float|None, "evaluation": {name: value} of the last evaluation on held-out data (None: none yet), "evaluated_epoch",
    "bad_samples" (those left out, as in the report; None: unknown), "checkpoints" and "start_from" (as in the report),
    "cost": {"spent_usd", "usd_per_h", "budget_usd", "estimated_usd"} (strings or None, at full scale), "paused_s",
    "dropped_rounds", "events": [{"at_s", "slot", "text"}] (last 20), "warnings": [str], "metrics_url" (for Prometheus;
    None: not served)}`. Raises StoreError.
    """
    folder = run_folder(home, run_id)
    alive = controller_alive(folder)
    with RunStore.open_reader(folder / "run.db") as store:
        found = snapshot_of(store, run_clock(folder, begin=False)(), alive)
    return found | {"metrics_url": (controller_metrics(folder) if alive else "") or None}


def stop(run_id: str, home: Path, reason: str = "stopped by the user", timeout_s: float | None = None) -> str:
    """Stop the run gracefully (peers leave, VMs end, logs are collected) and return its final status.

    If there is no live controller, one is started for it. For a run that has ended, only the status is
    returned. Raises TeardownError if it has not ended after `timeout_s` (default: 60 s, for rented VMs 10
    min).
    """
    folder = run_folder(home, run_id)
    timeout_s = timeout_s or (_RENTED_STOP_S if target_of(_meta(folder).target).rents else _STOP_S)
    status = _status(folder)
    if status != _RUNNING:
        return status
    ask_to_stop(folder, reason)  # a controller that Ray restarts, or that starts later, will stop, too
    if not began(folder):  # interrupted during its launch: no controller is needed to end it
        left = down(run_id, home)
        if left:
            raise TeardownError(
                f"{run_id}: still there: {', '.join(left)}; retry with `orch down {run_id}`", left
            )
        return _status(folder)
    connection = attach(run_id, home)
    connection.stop(reason)
    ended = connection.wait(timeout_s)
    if ended is None:
        raise TeardownError(
            f"{run_id} has not ended within {timeout_s:.0f} s; take it down with `orch down {run_id}`",
            [run_id],
        )
    return ended


def down(run_id: str, home: Path, timeout_s: float | None = None) -> list[str]:
    """Take down everything the run may have left, with or without a journal; returns what is still there.

    An empty list means that nothing is left, proven by two listings of the provider. The caller turns a
    non-empty list into exit code 5. A launch of the run in progress is stopped first. An unreadable run.db
    does not prevent the teardown. Raises NewerError for a run of a newer orch.
    """
    folder = run_folder(home, run_id)
    try:
        status = "imported" if target_of(_meta(folder).target).from_logs else _status(folder)
    except NewerError:
        raise
    except StoreError:
        status = "unreadable"
    if status == "imported":
        return []  # logs of a run elsewhere: nothing of it ever ran here
    free_reserve(folder)
    if status in (_RUNNING, "unreadable"):
        ask_to_stop(folder, "taken down")
    try:
        with start_lock(folder, _BRING_UP_S):
            return _take_down(run_id, home, status, timeout_s)
    except HeldError:
        return [f"{run_id}: another `orch` that is starting it does not stop"]


def _take_down(run_id: str, home: Path, status: str, timeout_s: float | None) -> list[str]:
    """Take down the run while holding the start lock, which prevents a launch meanwhile."""
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
            pass  # the cloud is gone, which is what had to be proven
        except ProviderError as error:
            left.append(f"{run_id}: {error}")
    if not left:
        if status != "unreadable":
            _write_end(folder, "taken down")
        forget_keys(folder)
    return left


def reap(home: Path, everything: bool = False, on: str = "", owner: str = "") -> Reaped:
    """Take down what runs without a live controller left behind (`everything`: live runs, too), and our own Ray.

    With `on` "sky", or if a run of this home used rented VMs, this includes VMs in the clouds that carry the
    label of `owner` (default: the owners of this home); see `reaping.reap_clouds`. Raises UsageError if no
    owner is known.
    """
    left: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    unreadable: dict[str, str] = {}
    alive: set[str] = set()
    runs = list_remains(home)
    searched = owners_to_ask_for(home, (o for r in runs for o in _owners_of(run_folder(home, r))), on, owner)
    for run_id in runs:
        folder = run_folder(home, run_id)
        if not everything and _has_controller(run_id, home):
            alive.add(run_id)
            continue
        try:
            _status(folder)
        except StoreError as error:
            unreadable[run_id] = str(error)
        try:
            found = down(run_id, home)
        except StoreError as error:  # a newer orch's run, or a full disk: still check whether it runs
            found = [str(error)] if LocalCloud(folder).alive else []
        if found:
            left[run_id] = found
    known = set(runs) - alive
    own = stored_owner(home, {})
    for name, may_end_all in searched.items():
        remaining, others = reap_clouds(home, name, known, alive, everything and may_end_all)
        # VMs with this home's own label were rented from here, even if their run's folder has been removed.
        for found, into in ((remaining, left), (others, left if name == own else unknown)):
            for run_id, names in found.items():
                into[run_id] = [*into.get(run_id, []), *names]
    if everything or not live_claims(home):
        stuck = stop_ray(home)
        if stuck:
            left["ray"] = [f"process {pid}" for pid in stuck]
    return Reaped(left, tuple(searched), reach() if searched else None, unknown, unreadable)


def _has_controller(run_id: str, home: Path) -> bool:
    """Whether the run is being launched, has a controller, or Ray is restarting its controller."""
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
    """Whether the Ray cluster of the run's controller still has its actor."""
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
    """Start the cloud and the first controller, or leave neither running."""
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
        with suppress(StoreError, ProviderError, OSError):  # the first error is the one to report
            if controller_alive(folder):
                _end_controller(run_id, home)
            _provider(folder).close()
            forget_keys(folder)
            _write_end(folder, str(error), "stopped" if asked_to_stop(folder) else "failed")
        raise


def _refuse_if_asked_to_stop(folder: Path) -> None:
    if cause := asked_to_stop(folder):
        raise RefusedError(f"{folder.name} was ended while it was starting: {cause}; launch it again")


def _ray_lives(home: Path) -> bool:
    """Whether Ray may still restart the controller; assumed for the user's own Ray."""
    session = read_session(home)
    return session.alive if session is not None else "RAY_ADDRESS" in os.environ


def _take_over(run_id: str, home: Path) -> RunConnection:
    folder = run_folder(home, run_id)
    address = ensure_ray(home)
    connect(address, home)
    from ray.exceptions import RayError

    try:
        if _meta(folder).provider != LOCAL:  # the emulated cloud needs no credentials
            keep_environment(folder, os.environ)
        start_actor(folder, home)
    except FencedError as error:
        raise HeldError(str(error)) from error
    except RayError as error:
        raise RaySessionError(
            f"{run_id}: Ray at {address} cannot start its controller ({type(error).__name__}); "
            f"see {folder / 'controller.log'} and Ray's own logs, then try again"
        ) from error
    finally:
        disconnect()
    return RunConnection(run_id, folder)


def _request_stop(run_id: str, home: Path, reason: str) -> None:
    connect(_address(run_id, home), home)
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        actor = ray.get_actor(run_id, namespace=NAMESPACE)
        ray.get(actor.stop.remote("stopped", reason), timeout=30.0)
    except (ValueError, RayActorError, GetTimeoutError) as error:
        if _status(run_folder(home, run_id)) == _RUNNING:  # otherwise it has just ended by itself
            raise ControllerLostError(f"{run_id}: its controller does not respond") from error
    finally:
        disconnect()


def _address(run_id: str, home: Path) -> str:
    """Address of the Ray cluster of the run's controller, even if RAY_ADDRESS has changed since."""
    folder = run_folder(home, run_id)
    return (controller_address(folder) if controller_alive(folder) else "") or ensure_ray(home)


def _end_controller(run_id: str, home: Path) -> list[str]:
    """Kill a controller that does not end its run. Returns what could not be ended."""
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
    """The meta of a run. Raises StoreError."""
    with RunStore.open_reader(folder / "run.db") as store:
        return store.run_meta()


def _provider(folder: Path) -> Provider:
    return make_provider(str(_meta(folder).provider), str(folder))


def _providers(folder: Path) -> list[Provider]:
    """The run's provider; if run.db is unreadable, every provider with files in the run's folder."""
    try:
        return [_provider(folder)]
    except StoreError:
        left = [t for t in TARGETS.values() if t.trace and (folder / t.trace).is_dir()]
        return [make_provider(target.provider, str(folder)) for target in left]


def _owners_of(folder: Path) -> set[str]:
    """The labels orch-owner of a run's rented VMs, from run.db, or from the VMs' records if it is unreadable."""
    try:
        return {str(owner) for owner in (_meta(folder).owner,) if owner}
    except StoreError:
        labels = (record.labels.get("orch-owner") for record in records.read_all(folder / "sky"))
        return {str(owner) for owner in labels if owner}


def _status(folder: Path) -> str:
    return str(_meta(folder).status)


def _known_end(store: RunStore) -> tuple[str, str] | None:
    """Status and cause of a stopping run, from its journal."""
    with suppress(JournalError):
        state = replay(store.records("events"))
        return (state.stop_status, state.stop_cause) if state.stop_status else None
    return None


def _write_end(folder: Path, cause: str, status: str = "stopped") -> None:
    """Record the end of a run whose controller could not; the journal's status and cause take precedence."""
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
