"""A run in TensorBoard: an event file with scalars by epoch, the settings and final figures for its tab HParams.

Written with the package `tensorboard` alone: neither TensorFlow nor torch is needed. Equal records give equal bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.export.tracking import FINAL, TrackedRun

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def open_log(settings: str, run_id: str) -> EventFile:
    """Open the log of a run in a folder of TensorBoard runs."""
    return EventFile(Path(settings) / run_id)


def export_log(folder: Path, final: Path, run: TrackedRun) -> EventFile:
    """Open the log of an export, which is written to `folder`."""
    return EventFile(folder)


class EventFile:
    """The event file of one run, to which events are appended."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the run, to be shown with `tensorboard --logdir`."""
        self._folder = folder
        self._file: io.FileIO | None = None
        self._written: set[tuple[str, int]] = set()  # tag and step

    def write(self, run: TrackedRun, *, last: bool) -> None:
        """Append the events that the file lacks. Raises OSError."""
        try:
            file = self._file or self._open(run)
            fresh = io.BytesIO()
            records = import_module("tensorboard.summary.writer.record_writer").RecordWriter(fresh)
            for event in _events(run, self._written, last=last):
                records.write(event.SerializeToString(deterministic=True))
            left = fresh.getbuffer()
            while left:
                left = left[file.write(left) :]
        except BaseException:
            self.close()  # what was written is found out again
            raise

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self, run: TrackedRun) -> io.FileIO:
        """Open the file for appending, without a record at its end that a crash or a full disk has cut."""
        # TensorBoard orders the files of a folder by name, and shows those with "tfevents" in it.
        path = self._folder / f"events.out.tfevents.{int(run.started_s)}.{run.run_id}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written, length = _read(path.read_bytes() if path.exists() else b"")
        # Unbuffered: a failed write leaves nothing behind that closing would try to write again.
        self._file = io.FileIO(path, "ab")
        self._file.truncate(length)
        return self._file


def _read(content: bytes) -> tuple[set[tuple[str, int]], int]:
    """Return the tags and steps of an event file, and the length of its complete records."""
    pb = import_module("tensorboard.compat.proto.event_pb2")
    crc = import_module("tensorboard.summary.writer.record_writer").masked_crc32c
    found: set[tuple[str, int]] = set()
    at = 0
    while len(header := content[at : at + _LENGTH.size]) == _LENGTH.size:
        start = at + _LENGTH.size + _CRC.size
        end = start + _LENGTH.unpack(header)[0]
        data, check = content[start:end], content[end : end + _CRC.size]
        if len(check) < _CRC.size or _CRC.unpack(check)[0] != crc(data):
            break
        event = pb.Event.FromString(data)
        found |= {(value.tag, event.step) for value in event.summary.value} or {("", 0)}
        at = end + _CRC.size
    return found, at


def _events(run: TrackedRun, written: set[tuple[str, int]], *, last: bool) -> Iterator[Any]:
    """Return the events (`tensorboard.compat.proto.event_pb2.Event`) that are not yet in `written`, and add them to it.

    Steps are Hivemind epochs.
    """
    pb = import_module("tensorboard.compat.proto.event_pb2")
    summaries = import_module("tensorboard.compat.proto.summary_pb2")

    def event(at_s: float, step: int, values: list[Any]) -> Iterator[Any]:
        fresh = [value for value in values if (value.tag, step) not in written]
        if fresh:
            yield pb.Event(wall_time=at_s, step=step, summary=summaries.Summary(value=fresh))
            written.update((value.tag, step) for value in fresh)

    def scalars(values: Any) -> list[Any]:
        return [summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values]

    if ("", 0) not in written:
        yield pb.Event(wall_time=run.started_s, file_version="brain.Event:2")
        written.add(("", 0))
    yield from event(run.started_s, 0, [_session_start(run, summaries)])
    for point in run.points:
        yield from event(point.at_s, point.epoch, scalars(point.values.items()))
    if last:
        yield from event(run.started_s, 0, [_experiment(run, summaries)])
        final = scalars((FINAL + name, value) for name, value in run.final.items())
        yield from event(run.ended_s, run.last_epoch, final)
        yield from event(run.ended_s, 0, [_session_end(run, summaries)])


def _experiment(run: TrackedRun, summaries: Any) -> Any:
    """Which settings and figures there are, for the tab HParams."""
    api, plugin, tags = _hparams_modules()
    kinds = {bool: "DATA_TYPE_BOOL", float: "DATA_TYPE_FLOAT64", str: "DATA_TYPE_STRING"}
    experiment = api.Experiment(
        time_created_secs=run.started_s,
        hparam_infos=[
            api.HParamInfo(name=name, type=api.DataType.Value(kinds[type(value)]))
            for name, value in run.parameters.items()
        ],
        metric_infos=[
            api.MetricInfo(name=api.MetricName(tag=FINAL + name), display_name=name) for name in run.final
        ],
    )
    return _hparams(tags.EXPERIMENT_TAG, plugin.HParamsPluginData(experiment=experiment), summaries, tags)


def _session_start(run: TrackedRun, summaries: Any) -> Any:
    """The settings, for the tab HParams."""
    _, plugin, tags = _hparams_modules()
    start = plugin.SessionStartInfo(start_time_secs=run.started_s, group_name=run.experiment)
    for name, value in run.parameters.items():
        field = {bool: "bool_value", float: "number_value", str: "string_value"}[type(value)]
        setattr(start.hparams[name], field, value)
    return _hparams(
        tags.SESSION_START_INFO_TAG, plugin.HParamsPluginData(session_start_info=start), summaries, tags
    )


def _session_end(run: TrackedRun, summaries: Any) -> Any:
    api, plugin, tags = _hparams_modules()
    status = {"done": "STATUS_SUCCESS", "running": "STATUS_RUNNING"}.get(run.status, "STATUS_FAILURE")
    end = plugin.SessionEndInfo(status=api.Status.Value(status), end_time_secs=run.ended_s)
    return _hparams(
        tags.SESSION_END_INFO_TAG, plugin.HParamsPluginData(session_end_info=end), summaries, tags
    )


def _hparams_modules() -> tuple[Any, Any, Any]:
    names = ("api_pb2", "plugin_data_pb2", "metadata")
    api, plugin, tags = (import_module(f"tensorboard.plugins.hparams.{name}") for name in names)
    return api, plugin, tags


def _hparams(tag: str, content: Any, summaries: Any, tags: Any) -> Any:
    content.version = tags.PLUGIN_DATA_VERSION
    data = summaries.SummaryMetadata.PluginData(
        plugin_name=tags.PLUGIN_NAME, content=content.SerializeToString(deterministic=True)
    )
    return summaries.Summary.Value(
        tag=tag, metadata=summaries.SummaryMetadata(plugin_data=data), tensor=tags.NULL_TENSOR
    )
