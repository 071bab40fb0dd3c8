"""`orch advise`: which places, numbers of peers, accelerators and options suit the user's goals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import MatrixOption, Where
from orchestrator.cli.exits import REFUSED
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.planning.advice import Advice, LeftOut
    from analysis.planning.search import Goals
    from experiments.schema.models import ExperimentSpec, Resources

_OPTIONS = ("compression", "averaging", "overlap", "tuning")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("advise")(_advise)


def _advise(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="YAML file, or name of a shipped experiment (`orch experiments`)."
        ),
    ],
    max_usd_per_h: Annotated[
        float | None, typer.Option(help="Goal: at most this many dollars an hour, VMs and egress.")
    ] = None,
    min_sps: Annotated[float | None, typer.Option(help="Goal: at least this many samples/s.")] = None,
    max_usd_per_1m: Annotated[
        float | None, typer.Option(help="Goal: at most this many dollars per million samples.")
    ] = None,
    peers: Annotated[str, typer.Option(metavar="N..M", help="Numbers of peers: 2..16, or 2,4,8.")] = "2..16",
    places: Annotated[
        str,
        typer.Option(metavar="LOCATION,...", help="Places to choose from. [those of the experiment]"),
    ] = "",
    clouds: Annotated[
        str, typer.Option(metavar="CLOUD,...", help="All regions of these clouds, besides --places.")
    ] = "",
    accelerators: Annotated[
        str, typer.Option(metavar="NAME:COUNT,...", help="Accelerators. [those of the experiment]")
    ] = "",
    max_per_place: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most this many peers with one accelerator in one place, such as a quota."
        ),
    ] = None,
    options: Annotated[
        str,
        typer.Option(
            metavar="any|NAME,...",
            help="Options to vary besides: compression, averaging, overlap, tuning. [none]",
        ),
    ] = "",
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="CHANGE",
            help="Instead of a search: predict the experiment with a change beside it as it is. '+2 eu', 'tuning=wan', "
            "'prices=BOOK' or KEY=VALUE. Repeatable.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples to which the time is given. [those of the experiment's epochs]"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of proposals.")] = 12,
    limit: Annotated[
        int, typer.Option(min=100, max=10_000_000, help="Maximum number of figures that the search computes.")
    ] = 60_000,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each proposal as an experiment file.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Write an HTML page with the proposals, their chart, machines in one place and this machine's own runs.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a value, for example swarm.target_batch_size=8192. Repeatable.",
        ),
    ] = None,
    matrix: MatrixOption = None,
    on: Annotated[
        Where,
        typer.Option(
            "--on", help="local: prices of emulated runs; sky: prices of rented VMs, by price book."
        ),
    ] = Where.local,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", "-o", help="table or json.", show_choices=True)
    ] = "table",
) -> None:
    """Search places, numbers of peers and accelerators for a goal.

    Prints the Pareto set: experiments of which none is both faster and cheaper per sample than another. Samples/s and
    dollars are predicted with 90 % intervals (docs/prediction.md); nothing is started, and files are all that is read.
    What cannot be predicted or priced is left out, with the reason. The proposals are compared with machines in one
    place, which may be the better choice.

    If no combination meets the goals, the command says which goals contradict each other and shows the nearest
    combination. docs/advise.md describes the search and its limits.

    Exit: 0 there are proposals, 2 invalid file or option, or nothing can be predicted, 3 the goals cannot be met.

    \b
    JSON: {"schema_version", "experiment", "goals", "samples", "price_book", "proposals": [{"name", "option", "peers":
      [{"location", "accelerators", "use_spot", "count"}], "sps": {"value", "low", "high"}, "granularity", "doubling",
      "usd_per_h", "usd_per_1m_samples", "time_to_samples_s" (each as sps), "egress_share", "bottleneck", "transfer",
      "assumptions", "why", "file"}], "more", "unmet": null or {"goals", "excess", "nearest"}, "alternatives":
      [{"name", "sps", "usd_per_h", "usd_per_1m_samples", "clock", "faster_than", "cheaper_than", "meets_goals",
      "note", "source"}], "left_out": [{"code", "what", "detail"}], "search": {"requested", "combinations",
      "evaluated", "ruled_out", "unfit", "not_searched", "complete"}, "report" (only with --report): the page's path}
    --what-if: {"schema_version", "experiment", "samples", "what_if": [{"change" ("" as it is), "sps", "granularity",
      "usd_per_h", "usd_per_1m_samples", "time_to_samples_s", "unknown"}]}
    """
    from analysis.planning.advice import AdviceError, advise
    from analysis.planning.search import Goals
    from cloud.prices.book import load_for
    from experiments.parse.load import load
    from orchestrator.cli.render.advice import advice_json, advice_text
    from orchestrator.errors import UsageError

    goals = _goals(max_usd_per_h, min_sps, max_usd_per_1m)
    spec = load(experiment, overrides or (), matrix or ())
    rented = TARGETS[on.value].rents
    if what_if:
        if write is not None or report is not None or goals != Goals():
            raise UsageError("--what-if predicts single changes; leave out the goals, --write and --report")
        _compare(
            experiment, spec, what_if, overrides or (), matrix or (), samples, rented=rented, output=output
        )
        return
    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise UsageError(f"{report}: not a file in an existing folder; use for example --report advice.html")
    if spec.swarm.plain:
        raise UsageError(
            f"{spec.name} trains a single peer without a swarm (swarm.plain); choose an experiment with several peers"
        )
    sizes = [n for n in _sizes(peers) if n >= spec.min_peers]
    if not sizes:
        raise UsageError(f"--peers {peers}: all are fewer than the experiment's min_peers {spec.min_peers}")
    varied, invalid = _varied(experiment, spec, options, overrides or (), matrix or ())
    book = load_for(spec.prices, rented=rented)
    try:
        advice = advise(
            varied, _resources(spec, places, clouds, accelerators), sizes, goals, book,
            rented=rented, invalid=invalid, samples=samples, most=max_per_place, rows=rows, limit=limit,
        )  # fmt: skip
    except AdviceError as error:
        raise UsageError(str(error)) from error
    written = _write(write, advice) if write is not None else {}
    page = None if report is None else str(_page(report, advice, spec))
    typer.echo(advice_json(advice, written, page) if output == "json" else advice_text(advice), nl=False)
    for path in (*written.values(), *([page] if page else ())):
        say(f"wrote {path}")
    if advice.unmet is not None:
        raise typer.Exit(REFUSED)


def _goals(max_usd_per_h: float | None, min_sps: float | None, max_usd_per_1m: float | None) -> Goals:
    import math

    from analysis.planning.search import Goals
    from orchestrator.errors import UsageError

    given = {
        "--max-usd-per-h": max_usd_per_h,
        "--min-sps": min_sps,
        "--max-usd-per-1m": max_usd_per_1m,
    }
    for name, value in given.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{name} {value:g}: give a number above 0, or leave the option out")
    return Goals(max_usd_per_h, min_sps, max_usd_per_1m)


def _sizes(text: str) -> list[int]:
    """Parse 2..16, 4 or 2,4,8."""
    from experiments.schema.fields import MAX_PEERS
    from orchestrator.errors import UsageError

    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dots, high = part.partition("..")
            found |= set(range(int(low), min(int(high), 10**4) + 1)) if dots else {int(low)}
    except ValueError as error:
        raise UsageError(
            f"--peers '{text[:80]}': write a range such as 2..16, or numbers such as 2,4,8"
        ) from error
    if not found or min(found) < 2 or max(found) > MAX_PEERS:
        raise UsageError(
            f"--peers '{text[:80]}': a swarm has 2 to {MAX_PEERS} peers; a single one has nobody to average with"
        )
    return sorted(found)


def _resources(spec: ExperimentSpec, places: str, clouds: str, accelerators: str) -> list[Resources]:
    """The kinds of VMs to choose from, each once: of the experiment, or places x accelerators."""
    from pydantic import ValidationError

    from cloud.places import find, nearest
    from cloud.places import places as known
    from experiments.schema.models import Resources
    from orchestrator.errors import UsageError

    own = [
        one.model_copy(update={"infra": find(one.infra).location})
        for group in spec.peers
        for one in group.alternatives
    ]
    wanted = [find(place).location for place in _parts(places)]
    rentable = list(dict.fromkeys(place.cloud for place in known() if place.rents_vms))
    for cloud in _parts(clouds):
        if cloud not in rentable:
            raise UsageError(
                f"--clouds: '{cloud[:40]}' is not a cloud that rents VMs ({', '.join(rentable)}){nearest(cloud, rentable)}"
            )
        regions = dict.fromkeys(p.region for p in known() if p.cloud == cloud and p.rents_vms)
        mine = {"/".join(one.infra.split("/")[:2]): one.infra for one in own}
        for region in regions:
            at = f"{cloud}/{region}"
            wanted.append(mine.get(at) or find(at).location)
    if not wanted and not accelerators:
        chosen = own
    else:
        names = _parts(accelerators) or list(dict.fromkeys(one.accelerators for one in own))
        names = [name if ":" in name else f"{name}:1" for name in names]
        try:
            chosen = [
                Resources(
                    infra=place, accelerators=name, use_spot=own[0].use_spot, disk_size=own[0].disk_size
                )
                for place in dict.fromkeys(wanted or [one.infra for one in own])
                for name in dict.fromkeys(names)
            ]
        except ValidationError as error:
            raise UsageError(f"--accelerators: {error.errors()[0]['msg']}") from error
    first: dict[tuple[str, str], Resources] = {}
    for one in chosen:
        first.setdefault((one.infra, one.accelerators), one)  # as the file prefers: spot, or on demand
    return list(first.values())


def _varied(
    experiment: str, spec: ExperimentSpec, options: str, overrides: Sequence[str], matrix: Sequence[str]
) -> tuple[dict[str, ExperimentSpec], list[LeftOut]]:
    """The experiment, and one with each other value of the options to vary; and those that are not valid."""
    from analysis.planning.advice import LeftOut
    from experiments.averaging.methods import COMPRESSIONS, EXCHANGES, OVERLAPS
    from experiments.parse.load import load
    from experiments.schema.errors import SpecError
    from orchestrator.errors import UsageError

    names = _parts(options)
    if unknown := [name for name in names if name not in (*_OPTIONS, "any")]:
        raise UsageError(f"--options: '{unknown[0][:40]}' is neither any nor {' nor '.join(_OPTIONS)}")
    values = {
        "compression": ("swarm.compression", spec.swarm.compression, [c.name for c in COMPRESSIONS]),
        "averaging": ("swarm.averaging", spec.swarm.averaging, [e.name for e in EXCHANGES]),
        "overlap": ("swarm.overlap", spec.swarm.overlap, [o.name for o in OVERLAPS]),
        "tuning": ("network_tuning", spec.network_tuning, ["default", "wan"]),
    }
    varied, invalid = {"": spec}, list[LeftOut]()
    for name in _OPTIONS if "any" in names else dict.fromkeys(names):
        key, now, others = values[name]
        for value in others:
            option = f"{key}={value}"
            if value != now:
                try:
                    varied[option] = load(experiment, [*overrides, option], matrix)
                except SpecError as error:
                    detail = "; ".join(problem.message for problem in error.problems)
                    invalid.append(LeftOut("option_invalid", option, detail))
    return varied, invalid


def _compare(
    experiment: str,
    spec: ExperimentSpec,
    changes: Sequence[str],
    overrides: Sequence[str],
    matrix: Sequence[str],
    samples: int | None,
    *,
    rented: bool,
    output: str,
) -> None:
    """Print the predictions of an experiment and of each change to it."""
    from analysis.planning.what_if import ChangeError, compared, override_of
    from cloud.prices.book import load_for
    from experiments.parse.load import load
    from experiments.schema.errors import SpecError
    from orchestrator.cli.render.advice import what_if_json, what_if_text
    from orchestrator.errors import UsageError

    try:
        wanted = {change: override_of(change, spec) for change in changes}
    except ChangeError as error:
        raise UsageError(f"--what-if {error}") from error
    specs = {"": spec}
    for change, one in wanted.items():
        try:
            specs[change] = load(experiment, [*overrides, one], matrix)
        except SpecError as error:
            raise UsageError(f"--what-if '{change}': {error}") from error
    priced = {change: (one, load_for(one.prices, rented=rented)) for change, one in specs.items()}
    found = compared(priced, rented=rented)
    samples = samples or spec.swarm.target_batch_size * spec.measure.all_epochs
    render = what_if_json if output == "json" else what_if_text
    typer.echo(render(spec.name, samples, found), nl=False)


def _page(path: Path, advice: Advice, spec: ExperimentSpec) -> Path:
    """Write the page, with the runs of this machine's home that measured the experiment."""
    from datetime import UTC, datetime

    from analysis.compare.measured import measured_runs
    from analysis.report.advice import build
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder, list_runs, run_folder

    home = home_folder()
    folders = [run_folder(home, run_id) for run_id in list_runs(home)]
    measured = measured_runs(folders, spec.name, spec.trains, spec.swarm.target_batch_size)
    try:
        return build(advice, measured, path, datetime.now(UTC).date())
    except OSError as error:
        raise UsageError(
            f"{error.filename or path}: cannot write the page ({error.strerror}); choose another file with --report"
        ) from error


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _write(folder: Path, advice: Advice) -> dict[str, str]:
    """Write each proposal as a file that `orch launch` takes, and return the paths by experiment name."""
    from analysis.planning.advice import yaml_of
    from experiments.parse.load import from_document, to_document
    from orchestrator.errors import UsageError

    written: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for proposal in advice.proposals:
            from_document(to_document(proposal.spec))  # raises SpecError for what does not fit these peers
            path = folder / f"{proposal.spec.name}.yaml"
            with path.open("x", encoding="utf-8") as file:
                file.write(yaml_of(proposal.spec))
            written[proposal.spec.name] = str(path)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already; choose another folder with --write") from error
    except OSError as error:
        raise UsageError(
            f"{error.filename}: cannot write the proposals ({error.strerror}); choose another folder with --write"
        ) from error
    return written
