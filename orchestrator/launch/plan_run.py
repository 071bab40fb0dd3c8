"""The plan of a run: experiment, prices, scales, limits and obstacles to a launch, computed once.

The CLI renders a `RunPlan`, `orchestrator.saved_plan` stores its document, and `prepare` creates the run from
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from analysis.planning.plan import TOLERANCE, Quoter, book_quoter, plan_of
from analysis.planning.preemptions import SpotHistories
from cloud.prices.book import AUTO, PriceBook, load, load_for, names_of, newest
from cloud.prices.missing import MissingPrice
from cloud.targets import TARGETS, Target
from experiments.catalog import step_time
from experiments.emulation.scales import EmulationPlan, resolve_emulation
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from experiments.schema.trained_model import is_resolved, model_of
from experiments.wire.orders import MAX_PEERS
from orchestrator.core.state import RunSpec
from orchestrator.errors import RefusedError, StalePlanError
from orchestrator.launch.local_checks import local_obstacles
from orchestrator.launch.obstacles import Obstacle, ObstacleCode, of_error, refusal
from orchestrator.launch.rent_checks import rent_obstacles
from orchestrator.launch.rented import full_scale_emulation, patient, planned_quoter
from orchestrator.launch.requirement_checks import replaced_pins
from orchestrator.launch.run_spec import check_money, how_to_add, run_spec
from orchestrator.launch.start_from import StartFrom
from orchestrator.quotes import sky_quoter

_UNNAMED = "planned"  # the run's id until it has one


@dataclass(frozen=True, slots=True)
class RunPlan:
    """An experiment evaluated at the prices of one moment. Created by `plan_run` and `approved_plan` only."""

    spec: ExperimentSpec
    on: str  # "local": this machine; "sky": rented VMs
    book: PriceBook
    emulation: (
        EmulationPlan | None
    )  # None: a rented run whose scales cannot be resolved, and which is refused
    # What is shown and stored, in JSON types (`analysis.planning.plan.Plan.as_dict`, `launchable`, `obstacles`).
    document: Mapping[str, Any]
    core: RunSpec | None  # input of the controller's core, without the run's id; None: refused
    obstacles: tuple[Obstacle, ...]  # why it cannot be launched as it is, on any machine
    start: Mapping[str, Any] | None = None  # the checkpoint with which it begins (`RunMeta.start_from`)
    warnings: tuple[str, ...] = ()  # sentences that the run keeps, in its status and in its report

    @property
    def target(self) -> Target:
        """What its peers run on."""
        return TARGETS[self.on]

    def launchable(self, run_id: str) -> tuple[EmulationPlan, RunSpec]:
        """The scales and the core's specification for the run with this id.

        Raises RefusedError (money is among the obstacles), UsageError, SpecError (its task has not been built).
        """
        if self.obstacles:
            raise refusal(self.spec.name, self.on, self.obstacles)
        model_of(self.spec)  # raises if its task has not been built
        assert self.emulation is not None
        assert self.core is not None
        return self.emulation, replace(self.core, run_id=run_id)


def host_cores() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_run(
    spec: ExperimentSpec,
    on: str = "local",
    *,
    cores: int,
    price_tolerance: Decimal = TOLERANCE,
    approved: Mapping[str, Any] | None = None,
    check_prices: Callable[[Quoter], None] | None = None,
    notes: Iterable[str] = (),
    today: date | None = None,
    task_obstacles: tuple[Obstacle, ...] = (),
    start: StartFrom | None = None,
    spot: SpotHistories | None = None,
) -> RunPlan:
    """Plan a run on this machine ("local") or on rented VMs ("sky") without network access.

    `approved`: document of an earlier plan, whose instance types and prices replace today's.
    `check_prices` is called with today's quoter and may raise. `notes`: additional notes for the plan. `today`: for
    the age of prices; None: unknown. `task_obstacles`: why the experiment's task could not be built; a task that has
    not been built has no scales. `start`: the checkpoint with which it begins. `spot`: histories of spot capacity, for
    what preemptions leave of the predicted samples/s. Raises PriceBookError, StalePlanError. Obstacles to a launch are in the plan.
    """
    rented = TARGETS[on].rents
    book = _book(spec, approved, rented=rented)
    scales = _scales(spec, cores, rented=rented)
    quoter = sky_quoter(book, os.environ) if rented else book_quoter(book)
    if check_prices is not None:
        check_prices(quoter)
    shown = plan_of(
        spec,
        book,
        scales.emulation,
        on=on,
        quote=quoter if approved is None else planned_quoter(approved),
        price_tolerance=price_tolerance,
        notes=[*scales.notes, *notes],
        today=today,
        start_epoch=0 if start is None else start.epoch,
        spot=spot,
    ).as_dict()
    core, money = _core(spec, shown, book, scales, rented=rented, today=today)
    obstacles = (*_of_experiment(spec, on), *task_obstacles, *scales.obstacles, *money)
    dated = [*_outdated(spec.prices), *_without_compiler(spec)] if rented else []
    document = {
        "launchable": not obstacles,
        "obstacles": [obstacle.as_dict() for obstacle in obstacles],
        **shown,
        "notes": [*dated, *shown["notes"], *(() if start is None else start.notes(spec))],
    }
    predicted = (approved or {}).get("prediction") or {}
    if spot is None and predicted.get("preemptions"):  # from histories, which a launch does not read again
        document["prediction"] = predicted
    begins = None if start is None else start.to_json()
    if begins is not None:
        document["start_from"] = begins
    return RunPlan(spec, on, book, scales.emulation, document, core, obstacles, begins)


def approved_plan(spec: ExperimentSpec, on: str, document: Mapping[str, Any], *, cores: int) -> RunPlan:
    """Restore the approved plan of this document, with its prices and ceilings. Raises as `plan_run`."""
    rented = TARGETS[on].rents
    book, scales = _book(spec, document, rented=rented), _scales(spec, cores, rented=rented)
    core, money = _core(spec, document, book, scales, rented=rented)
    obstacles = (*_of_experiment(spec, on), *scales.obstacles, *money)
    warnings = tuple(document.get("kept_warnings", ()))
    return RunPlan(spec, on, book, scales.emulation, document, core, obstacles, warnings=warnings)


def _of_experiment(spec: ExperimentSpec, on: str) -> Iterable[Obstacle]:
    """Obstacles in the experiment, apart from its scales and its money."""
    if spec.peer_count > MAX_PEERS:
        yield Obstacle(
            ObstacleCode.TOO_MANY_PEERS,
            f"{spec.peer_count} peers, but a signed record of the allowlist holds at most {MAX_PEERS}; use fewer",
        )
    yield from replaced_pins(spec)
    yield from rent_obstacles(spec) if TARGETS[on].rents else local_obstacles(spec)


def _book(spec: ExperimentSpec, approved: Mapping[str, Any] | None, *, rented: bool) -> PriceBook:
    """Load the experiment's price book. Raises StalePlanError if it is not that of the approved plan."""
    book = load_for(spec.prices, rented=rented)
    planned = (approved or {}).get("price_book_sha256", book.sha256)
    if book.sha256 != planned:
        raise StalePlanError(
            f"{spec.name}: the price book {book.name} has changed since the plan was made (sha256 {planned[:12]}, now "
            f"{book.sha256[:12]}); restore it, or plan again (for a study: start a new one)"
        )
    return book


class _Scales(NamedTuple):
    """The scales, obstacles to resolving them, and notes for the plan."""

    emulation: EmulationPlan | None
    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()


def _scales(spec: ExperimentSpec, cores: int, *, rented: bool) -> _Scales:
    """Resolve the scales."""
    unknown = ("its duration is unknown",)
    if not is_resolved(spec):
        return _Scales(None, notes=("its duration is unknown, because its task has not been built",))
    if spec.emulation is None and not rented:  # `local_obstacles` says why
        return _Scales(None, notes=unknown)
    try:
        expected = full_scale_emulation(spec, cores) if rented else resolve_emulation(spec, cores)
    except SpecError as error:
        return _Scales(None, (of_error(ObstacleCode.NO_SCALES, spec.name, error),), unknown)
    if not rented:
        return _Scales(expected, notes=unknown if expected.study_epoch_s is None else ())
    if expected.study_epoch_s is None:
        return _Scales(expected, notes=(_unknown_duration(spec),))
    distance = "the duration ignores the distance between the places: averaging may take longer"
    return _Scales(expected, notes=(distance,))


def _core(
    spec: ExperimentSpec,
    shown: Mapping[str, Any],
    book: PriceBook,
    scales: _Scales,
    *,
    rented: bool,
    today: date | None = None,
) -> tuple[RunSpec | None, tuple[Obstacle, ...]]:
    """The core's specification, or why its prices or limits in dollars prevent a launch.

    Rented VMs use the plan's places, prices and ceilings.
    """
    code = ObstacleCode.VM_PRICE_UNKNOWN
    try:
        if rented:
            _refuse_unknown_prices(spec, shown, today)
        if scales.emulation is None:
            return None, ()
        code = ObstacleCode.DOLLAR_LIMIT
        if rented:
            quote, ceilings = planned_quoter(shown), shown.get("ceilings") or {}
            core = patient(
                run_spec(spec, _UNNAMED, book, scales.emulation, ceilings=ceilings, rented=True, quote=quote)
            )
        else:  # the emulated cloud's prices are those of the book
            core = run_spec(spec, _UNNAMED, book, scales.emulation)
        check_money(spec, core, book, rented=rented, today=today)
    except RefusedError as error:
        return None, (of_error(code, spec.name, error),)
    return core, ()


def _refuse_unknown_prices(spec: ExperimentSpec, shown: Mapping[str, Any], today: date | None) -> None:
    """Refuse VMs of unknown price without a price ceiling. Raises RefusedError."""
    places = [place for peer in shown["peers"] for place in peer["places"]]
    unknown = sorted({p["location"] for p in places if p["ceiling_usd_per_h"] is None})
    if not unknown:
        return
    said = f"{spec.name}: the price of a VM is unknown at {', '.join(unknown[:3])}; set 'max_usd_per_h' for the place"
    missing = [MissingPrice.of(columns) for columns in shown.get("missing_prices", ())]
    if not any(price.product == "vm" for price in missing):
        raise RefusedError(f"{said}, or remove it")
    if spec.budget_usd is None:
        missing = [price for price in missing if price.product == "vm"]
    raise RefusedError(f"{said}, remove it, or {how_to_add(spec.prices, missing, today)}")


def _outdated(prices: str) -> list[str]:
    """A note if real traffic is priced by a book of orch that is not the newest."""
    books = [name for name in names_of(prices) if not name.endswith(".csv")]
    own = [name for name in names_of(prices) if name.endswith(".csv")]
    if not books or AUTO in books:
        return []
    used, latest = load(",".join(books)), newest()
    if not used.newest_date or not latest.newest_date or used.newest_date >= latest.newest_date:
        return []
    return [
        f"traffic is priced by {used.name} of {used.newest_date}, because 'prices' names it; "
        f"{latest.name} has prices of {latest.newest_date}, about ten times higher between clouds; "
        f"use them with --set prices={','.join([AUTO, *own])}"
    ]


def _without_compiler(spec: ExperimentSpec) -> list[str]:
    """A note if CPU VMs compile the model: their images need not have a C++ compiler."""
    places = (place for group in spec.peers for place in group.alternatives)
    on_cpu = any(place.accelerators.startswith("CPU:") for place in places)
    if not (spec.swarm.compile and on_cpu) or "g++" in spec.setup or "build-essential" in spec.setup:
        return []
    return [
        "swarm.compile needs a C++ compiler on CPU VMs, which an image need not have, and without it the run ends at its "
        "start: add `sudo apt-get install -y g++` to setup"
    ]


def _unknown_duration(spec: ExperimentSpec) -> str:
    accelerators = {group.alternatives[0].accelerators for group in spec.peers}
    # A step of such a model takes its padded time, which is not a measurement.
    defined = model_of(spec).kind == "digits"
    unknown = [a for a in sorted(accelerators) if defined or step_time(spec.timed_as, a) is None]
    return (
        f"its duration is unknown: no step of {spec.timed_as} was measured on {', '.join(unknown)}; traffic is estimated as "
        f"if each epoch took swarm.matchmaking_time_s ({spec.swarm.matchmaking_time_s:g} s), the minimum; "
        "longer epochs lower the traffic and the reserve"
    )
