"""`orch init` and `orch try`: write a new experiment, and try one in a single process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.render.output import SCHEMA_VERSION, as_json
from orchestrator.cli.render.terminal import say
from orchestrator.first_steps.templates import PaperTraining, TaskKind

if TYPE_CHECKING:
    from orchestrator.first_steps.trial import Trial

_FORCE = "--force"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*")
_Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json", help="Output format.")]


def register(app: typer.Typer) -> None:
    """Add both commands to the application."""
    app.command("init")(_init)
    app.command("try")(_try)


def _init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the experiment: a-z, 0-9 and '-'. [the folder's name; with --template its name]",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        TaskKind | None,
        typer.Option("--task", help="What it trains. python: a task of your own. [image-classification]"),
    ] = None,
    template: Annotated[
        PaperTraining | None,
        typer.Option("--template", help="A training of the paper, on rented VMs; instead of --task."),
    ] = None,
    bucket: Annotated[
        str, typer.Option(metavar="BUCKET[/PREFIX]", help="With --template: where your data are.")
    ] = "",
    force: Annotated[bool, typer.Option(_FORCE, help="Overwrite files that exist.")] = False,
    output: _Output = "table",
) -> None:
    """Write a new experiment into the current folder.

    Writes NAME.yaml, in which a comment explains each key and says what to change for your own data and for rented
    VMs; with --task python also task.py, a complete task; for tasks with texts or sounds also tokenizer.json, trained
    on the generated data (about 5 s). The files can be launched on this machine as they are.

    With --template, NAME.yaml is one of the paper's trainings on your own data in BUCKET: ImageNet or Wikipedia on 8 T4s
    on four continents, speech on 8 T4s in one zone. `orch plan NAME.yaml --on sky` shows what it costs before the data
    are there.

    Exit: 0 written, 2 invalid command, or a file exists.

    \b
    JSON: {"schema_version": 1, "files": [path, ...]}
    """
    from orchestrator.errors import UsageError
    from orchestrator.first_steps.templates import (
        experiment_files,
        file_names,
        name_of_folder,
        training_file_names,
        training_files,
    )

    _check_output(output)
    bucket = _valid_bucket(bucket, template)
    if task is not None and template is not None:
        raise typer.BadParameter("the template has a task; give one of the two options", param_hint="--task")
    task = task or TaskKind.image_classification
    if name is None:
        name = name_of_folder(Path.cwd().name) if template is None else str(template)
    name = _valid_name(name)
    names = file_names(task, name) if template is None else training_file_names(template, name)
    paths = [Path(file) for file in names]
    there = [path for path in paths if path.exists() or path.is_symlink()]
    if there and not force:
        names = " and ".join(map(str, there))
        raise UsageError(
            f"{names} {'exists' if len(there) == 1 else 'exist'} already; give another name or folder, or overwrite with {_FORCE}"
        )
    if "tokenizer.json" in map(str, paths):
        say("training a tokenizer")
    made = experiment_files(task, name) if template is None else training_files(template, name, bucket)
    for file, content in made.items():
        _write(Path(file), content)
    if output == "json":
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, "files": list(map(str, paths))}), nl=False)
        return
    for path in paths:
        typer.echo(path)
    if template is not None:
        say(f"orch plan {name}.yaml --on sky    shows what a launch would rent and cost")
        return
    say(
        f"orch try {name}.yaml     trains some steps in one process\n"
        f"orch plan {name}.yaml    shows what a launch would start\n"
        f"orch launch {name}.yaml  launches it on this machine"
    )


def _valid_name(name: str) -> str:
    """Check a name with the rule of experiment files. Raises BadParameter."""
    from pydantic import TypeAdapter, ValidationError

    from experiments.schema.fields import ExperimentName

    try:
        return TypeAdapter(ExperimentName).validate_python(name)
    except ValidationError:
        raise typer.BadParameter(
            f"'{name[:80]}' is no name of an experiment; use a-z, 0-9 and '-', at most 40 characters",
            param_hint="NAME",
        ) from None


def _valid_bucket(bucket: str, template: PaperTraining | None) -> str:
    """Check --bucket and return it without s3://. Raises BadParameter."""
    if (template is None) != (not bucket):
        wrong = (
            "is only for --template"
            if template is None
            else f"is missing: --template {template} reads your own data"
        )
        raise typer.BadParameter(f"it {wrong}", param_hint="--bucket")
    plain = bucket.removeprefix("s3://").rstrip("/")
    if template is not None and not _BUCKET.fullmatch(plain):
        raise typer.BadParameter(
            f"'{bucket[:80]}' is no bucket or bucket/prefix; use for example my-bucket/data",
            param_hint="--bucket",
        )
    return plain


def _write(path: Path, content: bytes) -> None:
    from orchestrator.errors import UsageError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); use another folder") from error


def _check_output(output: str) -> None:
    if output not in ("table", "json"):
        raise typer.BadParameter(f"'{output[:80]}' is not table or json", param_hint="--output")


def _try(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="YAML file, or name of a shipped experiment (`orch experiments`)."
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Training steps.")] = 5,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=65_536, help="Samples of a step. [swarm.batch_size]", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file. Repeatable."),
    ] = None,
    output: _Output = "table",
) -> None:
    """Try an experiment in one process: read, train some steps, save.

    Reads the first samples of the first training shard, decodes them, trains, evaluates held-out samples, saves the
    model, loads it and checks that it evaluates the same. Nothing is launched, and peers do not average. Your code is
    copied as for a peer. Without data.endpoint the samples are generated here, as a local run would; otherwise they are
    read from the store, with the experiment's secrets from your environment or boto3's usual credentials.

    Times are those of this machine; an interval is a 95 % t interval, and the first step and sample are left out.

    Exit: 0 it works, 1 the task or a sample does not, 2 invalid file, option or store.

    \b
    JSON: {"schema_version", "experiment", "task", "device", "threads", "parameters", "shard", "generated",
      "batch_size", "steps", "samples_read", "samples_repeated", "stored_bytes_per_sample": {"value", "low",
      "high", "n"}, "decoded_bytes_per_sample": {same}, "decode_ms_per_sample": {same}, "step_ms": {same},
      "samples_per_s": {same}, "loss": {"first", "last"}, "evaluation": {"shard", "samples", "metrics": {}},
      "saved_bytes", "peak_rss_bytes", "peak_gpu_bytes" or null, "bad_samples": {"count", "policy",
      "first": {"shard", "key", "text"} or null}}
    """
    from experiments.parse.load import load
    from orchestrator.cli.exits import FAILED
    from orchestrator.cli.render.trial import trial_json, trial_lines
    from orchestrator.first_steps.trial import try_experiment

    _check_output(output)
    spec = load(experiment, overrides or (), ())
    trial: Trial = try_experiment(spec, steps=steps, batch_size=batch_size)
    policy = spec.data.bad_samples
    if output == "json":
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, **trial_json(trial, policy)}), nl=False)
    else:
        for line in trial_lines(trial):
            typer.echo(line)
    if trial.first_bad is not None:
        say(f"{trial.first_bad}")
        if policy == "fail":
            raise typer.Exit(FAILED)
