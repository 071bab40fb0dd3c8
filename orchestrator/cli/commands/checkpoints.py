"""`orch checkpoints`, `orch pull` and `orch evaluate`: a run's checkpoints, a copy of one, its held-out figures."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from experiments.checkpoints.listing import Listed
    from experiments.checkpoints.manifest import Manifest
    from experiments.schema.models import ExperimentSpec
    from orchestrator.checkpoints.sources import RunCheckpoints

_SAMPLES = "samples (epochs x batch)"
_TABLE = ("name", "epoch", _SAMPLES, "size", "age", "vm", "complete")
_CSV = ("name", "epoch", "samples", "bytes", "age_s", "vm", "complete", "problem")
_Output = Annotated[str, typer.Option("--output", metavar="table|json", help="Output format.")]
_Epoch = Annotated[
    int | None, typer.Option("--epoch", min=0, help="Epoch of the checkpoint. [the newest complete one]")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("checkpoints")(_checkpoints)
    app.command("pull")(_pull)
    app.command("evaluate")(_evaluate)


def _checkpoints(
    run: RunArgument,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """List a run's checkpoints, newest first.

    Reads the run's object store, or the folder into which a local run's newest checkpoint was copied when its store
    ended. If the store cannot be reached, what the run's journal says was stored is shown, and stderr says so; which of
    these still exist is then unknown. Samples are completed epochs x target batch size of the peers: the peers train a
    few more before an epoch ends, and `orch report` counts those too.

    Exit: 0 listed, 2 no such run, or it stores no checkpoints.

    \b
    JSON: {"schema_version", "run_id", "source": "store"|"folder"|"journal", "where", "checkpoints": [{"name",
      "epoch", "vm", "slot", "samples", "bytes", "made_at_s", "age_s", "complete": true|false|null (unknown),
      "problem", "problem_code": "incomplete"|"corrupt"|"foreign"|"newer_format"|null}]}; unknown is null;
      "samples": epochs x target batch size; "bytes": of the files that the manifest names
    """
    from cloud.storage.errors import StorageError
    from orchestrator.checkpoints.sources import run_checkpoints

    found = run_checkpoints(find_run(run).folder, os.environ)
    now_s, kind, reason = time.time(), found.kind, found.gone
    rows: list[dict[str, Any]] = []
    if found.source is not None:
        try:
            rows = [_listed_row(one, now_s) for one in found.source.list()]
        except StorageError as error:
            reason = str(error)
    if reason:
        kind = "journal"
        rows = [_note_row(found, n, now_s) for n in range(len(found.notes))]
    if output is Format.table:
        _show_table(found, rows, reason)
        return
    more = {"run_id": found.run_id, "source": kind, "where": found.where}
    typer.echo(rows_text("checkpoints", rows, _CSV, output, more), nl=False)
    if reason:
        say(_journal_words(found, reason))


def _pull(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder to create. [./<run id>-epoch-N]"),
    ] = None,
    epoch: _Epoch = None,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Leave out the optimizer's state.")
    ] = False,
    output: _Output = "table",
) -> None:
    """Pull a checkpoint into a folder: resuming, verified, all or nothing.

    DIR has the model's files, which transformers' `from_pretrained` loads where it is a model of transformers,
    state/ with the optimizer's state, and manifest.json. An interrupted pull is continued by the same command. Each
    file's SHA-256 is verified before DIR gets its name. A folder with other content is not touched. Prints the folder.

    Exit: 0 pulled, 1 the checkpoint cannot be used or the store failed, 2 no such checkpoint, or DIR cannot be used.

    \b
    JSON: {"schema_version", "run_id", "name", "epoch", "vm", "folder", "model_only", "bytes", "samples",
      "made_at_s", "parent", "ran", "task_sha256", "passed_over": [sentence]}
    """
    from orchestrator.checkpoints.pulled import pull
    from orchestrator.checkpoints.sources import choose, passed_over, run_checkpoints

    _check_output(output)
    found = run_checkpoints(find_run(run).folder, os.environ)
    source = _readable(found)
    listed = source.list()
    chosen = choose(listed, epoch, found)
    skipped = passed_over(listed, chosen) if epoch is None else []
    for sentence in skipped:
        say(f"passed over: {sentence}")
    folder = out or Path(f"{found.run_id}-epoch-{chosen.epoch}")
    try:
        manifest = _fetched(source, chosen, folder, model_only, pull)
    except KeyboardInterrupt:
        say("what has arrived is kept; the same command continues")
        raise
    size = _size_bytes(manifest, model_only)
    if output == "json":
        document = {
            "schema_version": SCHEMA_VERSION,
            "run_id": manifest.run_id,
            "name": manifest.name,
            "epoch": manifest.epoch,
            "vm": manifest.vm,
            "folder": str(folder),
            "model_only": model_only,
            "bytes": size,
            "samples": manifest.samples,
            "made_at_s": manifest.made_at_s,
            "parent": manifest.parent,
            "ran": manifest.ran,
            "task_sha256": manifest.task_sha256,
            "passed_over": skipped,
        }
        typer.echo(as_json(document), nl=False)
        return
    typer.echo(str(folder))
    from metrics.readable import size as readable

    how = (
        "transformers' from_pretrained loads the folder"
        if "model/config.json" in manifest.files
        else "model.safetensors has its weights"
    )
    say(f"{manifest.name} of {manifest.ran}, {readable(size)}, verified; {how}")


def _evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DIR",
            help="Run id, a unique prefix of one, `latest`, or a folder that `orch pull` wrote.",
        ),
    ],
    epoch: _Epoch = None,
    experiment: Annotated[
        str,
        typer.Option(
            "--experiment",
            metavar="FILE|NAME",
            help="The experiment of a pulled folder whose run is not known on this machine.",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of --experiment. Repeatable."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="table|json", help="Output format.")
    ] = "table",
) -> None:
    """Evaluate a checkpoint on the experiment's held-out samples.

    Uses the run's copy of your code, the same pipeline and batches as its peers. The samples come from the
    experiment's store; those of a local run's embedded store are generated again. The same weights have the same
    figures as in the run, up to the rounding of another device or version of torch; if the run evaluated this epoch,
    its figures are shown too.

    Exit: 0 evaluated, 1 the checkpoint, the task or a sample cannot be used, 2 invalid command, no such run or data.

    \b
    JSON: {"schema_version", "run_id", "name", "epoch", "ran", "figures": {name: number}, "samples",
      "bad_samples", "shards": [], "generated", "device", "reported": {name: number} or null}
    """
    import tempfile

    from cloud.targets import target_of
    from metrics.events.evaluation import evaluations_of
    from orchestrator.checkpoints.pulled import open_pulled, pull
    from orchestrator.checkpoints.sources import choose, passed_over, run_checkpoints
    from orchestrator.errors import UsageError

    _check_output(output)
    if not Path(run).expanduser().is_dir():
        if experiment or overrides:
            raise UsageError("--experiment and --set are for folders; a run has its own experiment")
        place = find_run(run)
        found = run_checkpoints(place.folder, os.environ)
        source = _readable(found)
        listed = source.list()
        chosen = choose(listed, epoch, found)
        for sentence in passed_over(listed, chosen) if epoch is None else []:
            say(f"passed over: {sentence}")
        with tempfile.TemporaryDirectory(prefix="orch-evaluate-") as made:
            model = Path(made) / chosen.name
            manifest = _fetched(source, chosen, model, True, pull)
            stored = bool(found.spec.data.endpoint) or target_of(found.meta.target).rents
            rows = found.meta.evaluations
            document = _evaluation(found.spec, manifest, model, place.folder, stored)
    else:
        folder = Path(run).expanduser()
        if epoch is not None:
            raise UsageError("--epoch is for runs; a folder has one checkpoint")
        manifest = open_pulled(folder)
        spec, run_folder, stored, rows = _experiment_of(manifest, experiment, overrides or [])
        document = _evaluation(spec, manifest, folder, run_folder, stored)
    reported = next(
        (e.figures for e in evaluations_of(rows) if e.epoch == manifest.epoch and e.figures), None
    )
    if output == "json":
        typer.echo(as_json({**document, "reported": reported}), nl=False)
        return
    for name, value in document["figures"].items():
        said = (
            ""
            if reported is None or name not in reported
            else f"  (reported by the run: {reported[name]:.6g})"
        )
        typer.echo(f"{name}  {value:.6g}{said}")
    bad = f", {document['bad_samples']} bad ones left out" if document["bad_samples"] else ""
    origin = "generated here" if document["generated"] else "read from the store"
    say(f"{manifest.name}: {document['samples']} held-out samples, {origin}{bad}, on {document['device']}")


def _experiment_of(
    manifest: Manifest, experiment: str, overrides: list[str]
) -> tuple[ExperimentSpec, Path | None, bool, Any]:
    """The experiment of a pulled checkpoint, the run's folder if it is here, whether the samples are in a store, and the
    run's evaluations.
    """
    from cloud.targets import target_of
    from experiments.parse.load import from_document, load
    from metrics.store.database import RunStore
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder, run_folder

    if experiment:
        spec = load(experiment, overrides, ())
        return spec, None, bool(spec.data.endpoint), ()
    if overrides:
        raise UsageError("--set is for --experiment")
    folder = run_folder(home_folder(), manifest.run_id)
    if not (folder / "run.db").is_file():
        raise UsageError(
            f"{manifest.run_id}, whose checkpoint this is, is not known on this machine; give its experiment with "
            "--experiment FILE"
        )
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    spec = from_document(meta.document)
    return spec, folder, bool(spec.data.endpoint) or target_of(meta.target).rents, meta.evaluations


def _evaluation(
    spec: ExperimentSpec, manifest: Manifest, model: Path, run_folder: Path | None, stored: bool
) -> dict[str, Any]:
    from orchestrator.checkpoints.evaluate import evaluate
    from orchestrator.cli.render.progress import ProgressLine

    line = ProgressLine()
    try:
        found = evaluate(
            spec,
            manifest,
            model,
            run_folder=run_folder,
            stored=stored,
            on_batch=lambda samples: line.show(lambda: f"{samples} samples evaluated"),
        )
    finally:
        line.clear()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": manifest.run_id,
        "name": manifest.name,
        "epoch": manifest.epoch,
        "ran": found.ran,
        "figures": dict(found.figures),
        "samples": found.samples,
        "bad_samples": found.left_out,
        "shards": list(found.shards),
        "generated": found.generated,
        "device": found.device,
    }


def _fetched(source: Any, chosen: Listed, folder: Path, model_only: bool, pull: Any) -> Manifest:
    """Pull the chosen checkpoint, with a line of progress."""
    from metrics.readable import size
    from orchestrator.cli.render.progress import ProgressLine

    total = _size_bytes(chosen.manifest, model_only) if chosen.manifest is not None else 0
    line, done = ProgressLine(), 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        line.show(lambda: f"{size(done)} of {size(total)}")

    try:
        return pull(source, chosen.name, folder, model_only=model_only, on_bytes=on_bytes)
    finally:
        line.clear()


def _size_bytes(manifest: Manifest, model_only: bool) -> int:
    from orchestrator.checkpoints.pulled import is_of_model

    return sum(
        about.size_bytes for file, about in manifest.files.items() if is_of_model(file) or not model_only
    )


def _readable(found: RunCheckpoints) -> Any:
    from orchestrator.errors import UsageError

    if found.source is None:
        raise UsageError(f"{found.run_id}: {found.gone}")
    return found.source


def _listed_row(one: Listed, now_s: float) -> dict[str, Any]:
    about = one.manifest
    return {
        "name": one.name,
        "epoch": one.epoch,
        "vm": one.vm,
        "slot": None if about is None else about.slot,
        "samples": None if about is None else about.samples,
        "bytes": one.bytes,
        "made_at_s": None if about is None else about.made_at_s,
        "age_s": None if about is None else now_s - about.made_at_s,
        "complete": one.problem is None,
        "problem": None if one.problem is None else str(one.problem),
        "problem_code": None if one.problem is None else one.problem.code,
    }


def _note_row(found: RunCheckpoints, number: int, now_s: float) -> dict[str, Any]:
    note = found.notes[number]
    return {
        "name": note.name,
        "epoch": note.epoch,
        "vm": note.vm,
        "slot": None,
        "samples": None,
        "bytes": note.bytes,
        "made_at_s": note.at_s,
        "age_s": now_s - note.at_s,
        "complete": None,
        "problem": None,
        "problem_code": None,
    }


def _show_table(found: RunCheckpoints, rows: list[dict[str, Any]], reason: str) -> None:
    from metrics.readable import size
    from orchestrator.cli.render.words import duration

    shown = [
        row | {_SAMPLES: row["samples"], "size": size(row["bytes"]), "age": duration(row["age_s"])}
        for row in rows
    ]
    typer.echo(rows_text("checkpoints", shown, _TABLE, Format.table), nl=False)
    for row in rows:
        if row["problem"] is not None:
            say(f"{row['problem']}")
    say(_journal_words(found, reason) if reason else f"read from {found.where}")


def _journal_words(found: RunCheckpoints, reason: str) -> str:
    return f"shown is what the run's journal says was stored in {found.where}: {reason}"


def _check_output(output: str) -> None:
    if output not in ("table", "json"):
        raise typer.BadParameter(f"'{output[:80]}' is not table or json", param_hint="--output")
