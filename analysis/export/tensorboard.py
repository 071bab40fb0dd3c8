"""Exports a run for TensorBoard: an event file with scalars by epoch, the settings and final figures for its tab HParams.

Written with the package `tensorboard` alone: neither TensorFlow nor torch is needed. Equal records give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.export.tables import EXPORT_FORMAT, EXPORT_VERSION, MANIFEST, ExportError, new_folder, snapshot
from analysis.export.tracking import TrackedRun, tracked_run
from metrics.store.schema import SCHEMA_VERSION

_INSTALL = ".venv/bin/python -m pip install -e '.[tensorboard]'"  # in a clone of orch
_FINAL = "final/"


def export_tensorboard(run_db: Path, out: Path, force: bool = False) -> None:
    """Write the folder `out`, to be shown with `tensorboard --logdir out`.

    A run in progress is written as of one moment. `force` replaces an existing export. Raises ExportError,
    metrics.store.database.StoreError.
    """
    try:
        writer = import_module("tensorboard.summary.writer.record_writer")
    except ImportError as error:
        raise ExportError(
            f"--to tensorboard needs the package tensorboard, which is not installed here; install it with `{_INSTALL}` in "
            "a clone of orch"
        ) from error
    with snapshot(run_db) as store:
        run = tracked_run(store)
    with new_folder(out, force) as folder:
        # TensorBoard orders the files of a folder by name, and shows those with "tfevents" in it.
        with (folder / f"events.out.tfevents.{int(run.started_s)}.{run.run_id}").open("wb") as file:
            records = writer.RecordWriter(file)
            for event in events(run):
                records.write(event.SerializeToString(deterministic=True))
        manifest = {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "schema_version": SCHEMA_VERSION,
            "orch_version": version("orch"),
            "run_id": run.run_id,
            "form": "tensorboard",
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def events(run: TrackedRun) -> Iterator[Any]:
    """Return TensorBoard's events of a run, `tensorboard.compat.proto.event_pb2.Event`. Steps are Hivemind epochs."""
    pb = import_module("tensorboard.compat.proto.event_pb2")
    summaries = import_module("tensorboard.compat.proto.summary_pb2")

    def scalars(at_s: float, step: int, values: Any) -> Any:
        entries = [summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values]
        return pb.Event(wall_time=at_s, step=step, summary=summaries.Summary(value=entries))

    yield pb.Event(wall_time=run.started_s, file_version="brain.Event:2")
    yield from (
        pb.Event(wall_time=run.started_s, summary=summaries.Summary(value=[value]))
        for value in _session_start(run, summaries)
    )
    for point in run.points:
        yield scalars(point.at_s, point.epoch, point.values.items())
    last = max((point.epoch for point in run.points), default=0)
    yield scalars(run.ended_s, last, [(_FINAL + name, value) for name, value in run.final.items()])
    yield pb.Event(wall_time=run.ended_s, summary=summaries.Summary(value=[_session_end(run, summaries)]))


def _session_start(run: TrackedRun, summaries: Any) -> Iterator[Any]:
    """The experiment (which settings and figures there are) and the session (its settings), for the tab HParams."""
    api = import_module("tensorboard.plugins.hparams.api_pb2")
    plugin = import_module("tensorboard.plugins.hparams.plugin_data_pb2")
    tags = import_module("tensorboard.plugins.hparams.metadata")
    kinds = {bool: "DATA_TYPE_BOOL", float: "DATA_TYPE_FLOAT64", str: "DATA_TYPE_STRING"}
    start = plugin.SessionStartInfo(start_time_secs=run.started_s, group_name=run.experiment)
    for name, value in run.parameters.items():
        field = {bool: "bool_value", float: "number_value", str: "string_value"}[type(value)]
        setattr(start.hparams[name], field, value)
    experiment = api.Experiment(
        time_created_secs=run.started_s,
        hparam_infos=[
            api.HParamInfo(name=name, type=api.DataType.Value(kinds[type(value)]))
            for name, value in run.parameters.items()
        ],
        metric_infos=[
            api.MetricInfo(name=api.MetricName(tag=_FINAL + name), display_name=name) for name in run.final
        ],
    )
    for tag, content in (
        (tags.EXPERIMENT_TAG, plugin.HParamsPluginData(experiment=experiment)),
        (tags.SESSION_START_INFO_TAG, plugin.HParamsPluginData(session_start_info=start)),
    ):
        yield _hparams(tag, content, summaries, tags)


def _session_end(run: TrackedRun, summaries: Any) -> Any:
    api = import_module("tensorboard.plugins.hparams.api_pb2")
    plugin = import_module("tensorboard.plugins.hparams.plugin_data_pb2")
    tags = import_module("tensorboard.plugins.hparams.metadata")
    status = {"done": "STATUS_SUCCESS", "running": "STATUS_RUNNING"}.get(run.status, "STATUS_FAILURE")
    end = plugin.SessionEndInfo(status=api.Status.Value(status), end_time_secs=run.ended_s)
    return _hparams(
        tags.SESSION_END_INFO_TAG, plugin.HParamsPluginData(session_end_info=end), summaries, tags
    )


def _hparams(tag: str, content: Any, summaries: Any, tags: Any) -> Any:
    content.version = tags.PLUGIN_DATA_VERSION
    data = summaries.SummaryMetadata.PluginData(
        plugin_name=tags.PLUGIN_NAME, content=content.SerializeToString(deterministic=True)
    )
    return summaries.Summary.Value(
        tag=tag, metadata=summaries.SummaryMetadata(plugin_data=data), tensor=tags.NULL_TENSOR
    )
