"""`orch simulate FILE --spot`: replacement policies compared on histories of spot capacity."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.exits import FAILED
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, plain, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from experiments.schema.models import ExperimentSpec
    from orchestrator.core.state import Replace
    from orchestrator.simulation.policies import Market, PolicyRun
    from orchestrator.simulation.scenario import FaultClass, Scenario

_TABLE = (
    "policy", "runs", "time_training", "regret", "samples", "spent_usd", "usd_per_1m", "reached", "hours_to_target",
    "below_min_peers_h", "lost_samples", "preemptions", "refusals",
)  # fmt: skip


@dataclass(frozen=True)
class SpotOptions:
    """The options of one command. None: not given."""

    spot: Sequence[str]
    policy: str | None
    restart_s: float | None
    days: float | None
    epochs: int | None
    faults: tuple[FaultClass, ...]
    trace: Path | None
    instance: str
    slot: str


def compare_policies(
    spec: ExperimentSpec, options: SpotOptions, seeds: Sequence[int], output: Format, command: Sequence[str]
) -> None:
    """Simulate each policy with each seed, and print one row per policy.

    `command`: the command up to --seed, for the message about a violated invariant. Raises UsageError, RefusedError,
    RunFailedError.
    """
    from orchestrator.launch.default_checkpoints import with_default_checkpoints
    from orchestrator.simulation.experiments import ignored, measured_epochs, of_experiment
    from orchestrator.simulation.policies import reference_rows, summaries

    spec, warning = with_default_checkpoints(spec, "sky")
    policies = _policies(options.policy)
    market, notes = _market(spec, options)
    left_out = [*ignored(spec), *_ignored_of_spot(spec)]
    if warning:
        notes.append(warning)
    if options.epochs is None:
        notes.append(
            f"{spec.name}: {measured_epochs(spec)} epochs, those of 'measure'; with --epochs 0 as long as the histories"
        )
    say("\n".join([*notes, *(f"ignored: {what}" for what in left_out)]))

    scenarios: list[Scenario] = []
    for seed in seeds:
        from_s, until_s = market.window(seed)
        days = (until_s - from_s) / 86400.0
        scenarios.append(
            of_experiment(
                spec, seed, days=days, faults=options.faults, epochs=options.epochs, environ=os.environ
            )
        )
    runs = [_run(spec, made, market, policy, options, command) for policy in policies for made in scenarios]
    references = reference_rows(market, scenarios[0].spec, seeds)
    rows = summaries(runs)
    if output in (Format.json, Format.yaml):
        document = _document(market, left_out, rows, references, runs)
        typer.echo(_written(document, output), nl=False)
    else:
        typer.echo(_table(rows, references, output), nl=False)
    lost = [run for run in runs if run.status == "lost"]
    if lost:
        say(f"{len(lost)} of {len(runs)} runs were lost, their controller never came back")
        raise typer.Exit(FAILED)


def _run(
    spec: ExperimentSpec,
    made: Scenario,
    market: Market,
    policy: Replace | None,
    options: SpotOptions,
    command: Sequence[str],
) -> PolicyRun:
    """Simulate one run. Raises RunFailedError if an invariant is violated."""
    from orchestrator.cli.scenario_options import check_slot, with_trace
    from orchestrator.core.journal import story
    from orchestrator.errors import RunFailedError
    from orchestrator.simulation.checks import SimulationError
    from orchestrator.simulation.driver import simulate
    from orchestrator.simulation.policies import on_market, policy_run

    made = on_market(made, market, spec, policy=policy, faults=options.faults)
    name = policy or _own_policy(made)
    chosen = [] if policy is None else ["--policy", policy]
    made = replace(made, command=shlex.join([*command, *chosen, "--seed", str(made.seed)]))
    if options.trace is not None:
        made = with_trace(made, options.trace, options.instance)
    if options.slot:
        check_slot(options.slot, made)
    try:
        outcome = simulate(made)
    except SimulationError as error:
        raise RunFailedError(f"an invariant was violated at {error}") from error
    if options.slot:
        say("\n".join([f"{name}, seed {made.seed}:", *story(outcome.journal, options.slot)]))
    found = policy_run(name, made, market, outcome)
    if outcome.status in ("failed", "no_capacity"):
        say(f"{name}, seed {made.seed}: gave up after {found.hours:.1f} h: {outcome.cause}")
    return found


def _own_policy(made: Scenario) -> str:
    """The policies of the experiment's slots, as the name of a row."""
    return " and ".join(dict.fromkeys(slot.policy.replace for slot in made.spec.slots))


def _policies(option: str | None) -> list[Replace | None]:
    """The policies to compare; None: those of the experiment. Raises UsageError."""
    from cloud.places import nearest
    from orchestrator.errors import UsageError
    from orchestrator.simulation.policies import POLICIES

    if option is None:
        return [None]
    words = (
        list(POLICIES) if option == "all" else [word.strip() for word in option.split(",") if word.strip()]
    )
    if not words:
        raise UsageError(f"--policy: no policy is named; write all, or some of {', '.join(POLICIES)}")
    for word in words:
        if word not in POLICIES:
            raise UsageError(
                f"--policy: '{word}' is not a replacement policy ({', '.join(POLICIES)}){nearest(word, POLICIES)}"
            )
    return [policy for policy in POLICIES if policy in words]


def _market(spec: ExperimentSpec, options: SpotOptions) -> tuple[Market, list[str]]:
    """The histories of the experiment's places, and what to tell the user about them. Raises UsageError."""
    from cloud.spot.history import facts
    from orchestrator.cli.spot_option import histories_of
    from orchestrator.home import home_folder
    from orchestrator.simulation.policies import RESTART_S, Market, covered

    histories, notes = histories_of(spec, options.spot, home_folder(), time.time())
    begins_s, ends_s = covered(histories)
    days = (ends_s - begins_s) / 86400.0
    restart_s = RESTART_S if options.restart_s is None else options.restart_s
    if options.days is not None and options.days > days:
        notes.append(f"the histories have {days:.2f} days in common: runs end there, nothing is repeated")
    elif options.days is None:
        notes.append(f"the histories have {days:.2f} days in common, as long as a run lasts at most")
    else:
        notes.append(f"of the {days:.2f} days of the histories, each seed has {options.days:g} of its own")
    notes += [
        f"{place}: {history.source}, available {facts(history).availability:.1%} of {facts(history).duration_s / 86400:.2f} days"
        for place, history in histories.items()
    ]
    return Market(histories, restart_s, options.days), notes


def _ignored_of_spot(spec: ExperimentSpec) -> list[str]:
    """Name what a history does not tell, in sentences without a full stop."""
    left_out = [
        "notices before preemptions and changes of price: a history has only capacity",
        "of a place that loses capacity, the youngest VMs are preempted",
        "what a lost peer had calculated since the last averaging, while other peers train",
    ]
    if spec.checkpoint is None:
        left_out.append("no checkpoints: whenever all peers are lost, training starts over")
    return left_out


def _document(
    market: Market,
    left_out: Sequence[str],
    rows: Sequence[dict[str, Any]],
    references: Sequence[dict[str, Any]],
    runs: Sequence[PolicyRun],
) -> dict[str, Any]:
    from cloud.spot.history import facts

    return {
        "schema_version": SCHEMA_VERSION,
        "ignored": list(left_out),
        "restart_s": market.restart_s,
        "histories": [
            {
                "place": place,
                "source": history.source,
                "sha256": history.sha256,
                "days": (history.end_s - history.times_s[0]) / 86400.0,
                "availability": facts(history).availability,
            }
            for place, history in market.histories.items()
        ],
        "policies": list(rows),
        "references": list(references),
        "runs": [asdict(run) for run in runs],
    }


def _written(document: dict[str, Any], output: Format) -> str:
    if output is Format.json:
        return as_json(document)
    import yaml

    return yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True)


def _table(rows: Sequence[dict[str, Any]], references: Sequence[dict[str, Any]], output: Format) -> str:
    """Policies, then reference policies, of which only the time in training is known."""
    if output is Format.csv:
        more = [{**row, "policy": f"reference {row['policy']}"} for row in references]
        return rows_text("policies", [*rows, *more], _TABLE, output)
    shown = [{**row, "hours_to_target": _or_none(row["hours_to_target"])} for row in rows]
    text = rows_text("policies", shown, _TABLE, output)
    return (
        text + "\n" + rows_text("references", list(references), ("policy", "time_training", "regret"), output)
    )


def _or_none(value: float | None) -> float | str:
    return "none" if value is None else value
