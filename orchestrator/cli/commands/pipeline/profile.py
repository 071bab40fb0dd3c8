"""`orch pipeline profile`: measure the strategies of running a pipeline."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands.pipeline.measuring import numbers, profile_errors, words
from orchestrator.cli.commands.pipeline.offload_profile import profile_offload
from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.pipeline.profile_records import Measurement
    from experiments.pipeline.stored import StoredCodec

_CACHES = ("none", "disk", "memory")
_KINDS = ("thread", "process")
_BATCHES = 50
_WINDOWS = 5
_OFFLOAD = "Profile by sample, for offloading"
_COLUMNS = (
    "strategy",
    "after",
    "stored_kb",
    "offline_s_per_1k",
    "t1_sps",
    "t3_sps",
    "t4_sps",
    "t4_interval",
    "cpu_ms",
)


def profile(
    target: Annotated[str, typer.Argument(help="An experiment (FILE or NAME), or a built-in pipeline.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the experiment."),
    ] = None,
    splits: Annotated[
        str, typer.Option(metavar="all|N,N", help="How many first operations run once and are stored.")
    ] = "all",
    codecs: Annotated[
        str, typer.Option(metavar="C,C", help="Of stored values: none, gzip, zlib, zstd, png, webp.")
    ] = "none",
    streams: Annotated[str, typer.Option(metavar="N,N", help="Shards read at once.")] = "1",
    workers: Annotated[
        str, typer.Option(metavar="N,N", help="Workers that run the operations. [1; --offload: one a core]")
    ] = "",
    kind: Annotated[str, typer.Option(metavar="thread|process", help="Kind of the workers.")] = "thread",
    cache: Annotated[
        str, typer.Option(metavar="C,C", help="none, disk (stored bytes), memory (decoded items).")
    ] = "none",
    samples: Annotated[
        int, typer.Option(help="Samples to measure; as many others check the extrapolation.")
    ] = 128,
    windows: Annotated[int, typer.Option(help="Timed windows of each rate.", min=5, max=1000)] = _WINDOWS,
    link: Annotated[
        str, typer.Option(metavar="Mb/s,ms", help="Read the store as over this path, such as 210,103.")
    ] = "",
    to: Annotated[
        str, typer.Option(metavar="s3://...", help="Where your own store takes stored values meanwhile.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for profile.json. Default: profiles/<target>-<time> in ORCH_HOME."),
    ] = None,
    offload: Annotated[
        bool,
        typer.Option(
            "--offload",
            help="Measure what running first operations next to the storage would save.",
            rich_help_panel=_OFFLOAD,
        ),
    ] = False,
    batches: Annotated[
        int, typer.Option(help="Batches of each rate.", min=2, max=10_000, rich_help_panel=_OFFLOAD)
    ] = _BATCHES,
    pass_: Annotated[
        int,
        typer.Option(
            "--pass",
            metavar="N",
            help="Pass whose random operations are run; 0: the first.",
            min=0,
            rich_help_panel=_OFFLOAD,
        ),
    ] = 0,
    sps_per_peer: Annotated[
        float | None,
        typer.Option(
            "--sps-per-peer",
            metavar="X",
            help="Samples/s of the trainer, if it cannot be measured here.",
            rich_help_panel=_OFFLOAD,
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Measure strategies: which first operations run once and are stored, and how the rest is read.

    All combinations of the options are measured one after the other. Stored values are deleted afterwards. T1: reading
    the source, T3: reading the stored values, both without operations; T4: batches that a consumer gets which does nothing.

    JSON: {"schema_version": 1, "target", "pipeline", "fingerprint", "ops", "storable", "machine", "cores",
    "memory_bytes", "link_mbps", "link_rtt_ms", "generated", "measured_at", "seconds", "measurements": [{"strategy":
    {"split", "codec", "streams", "workers", "worker_kind", "cache"}, "after", "samples", "stored_bytes", "wire_bytes",
    "later_wire_bytes", "cached_bytes", "offline_s", "offline_cpu_s", "save_s", "read_sps", "write_sps",
    "stored_read_sps", "delivered_sps", "cpu_s", "host": {"seconds", "cpu_share", "disk_read_bytes_per_s",
    "disk_write_bytes_per_s", "net_received_bytes_per_s", "net_sent_bytes_per_s", "context_switches_per_s"},
    "bad_samples"}],
    "extrapolations": [[label, {"total_samples", "stored_bytes", "offline_s", "second_samples",
    "second_error_percent"}]]}. Bytes and seconds are those of a sample; a rate is {"value", "low", "high", "n"} in samples
    per second; "host" has means of the whole machine while batches are delivered, null where unknown;
    "bad_samples" of the "samples" were left out. profile.json contains the same, host.csv the host once a second.

    With --offload nothing is stored: stage 1 measures fetching, preprocessing and training alone and says whether the input is
    I/O-bound, stage 2 each sample's bytes and CPU seconds by operation and codec (docs/offload.md).

    JSON with --offload: {"schema_version": 1, "steps": [{"after", "codec", "mean_bytes", "smallest" (samples that are smallest
    there), "cpu_s", "read_s"}], "target", "pipeline", "fingerprint", "ops", "codecs": [{"codec", "ops", "not_held"}],
    "storable" (first operations before a random one), "samples", "bad_samples", "seed", "pass_number", "machine", "cores",
      "link_mbps", "link_rtt_ms", "generated",
    "measured_at", "seconds", "stage_1": {"batches", "batch_size", "streams", "workers", "worker_kind", "fetch_sps",
    "preprocess_sps", "trainer_sps", "trainer_given", "io_bound":
    io_bound|trainer_slowest|preprocessing_slowest|overlap|trainer_unknown, "text"}}. offload.json contains the same but
    for "steps" and "text", samples.csv a row for each sample.
    """
    import json

    from analysis.pipeline.host_load import to_csv
    from analysis.pipeline.profile_file import to_json
    from cloud.durable_file import write_durably
    from cloud.storage.link import Link
    from orchestrator.cli.render.progress import ProgressLine
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder
    from orchestrator.pipeline.find_profile import FILE, HOST_FILE, profiles_folder
    from orchestrator.pipeline.host_watch import HostWatch
    from orchestrator.pipeline.offload.profiling import OffloadWanted
    from orchestrator.pipeline.profiling import Wanted
    from orchestrator.pipeline.profiling import profile as measure
    from orchestrator.pipeline.strategy_runs import ProfileError
    from orchestrator.pipeline.target import find_target
    from orchestrator.pipeline.trace_options import check_folder

    if samples < 1:
        raise UsageError(f"--samples {samples}: at least one sample must be measured; try --samples 128")
    if sps_per_peer is not None and not 0 < sps_per_peer < math.inf:
        raise UsageError(f"--sps-per-peer {sps_per_peer:g}: a rate is above 0")
    if kind not in _KINDS:
        raise UsageError(f"--kind {kind}: choose thread or process")
    offload_only = {
        "--batches": batches != _BATCHES,
        "--pass": pass_ != 0,
        "--sps-per-peer": sps_per_peer is not None,
    }
    if not offload and (given := [name for name, is_given in offload_only.items() if is_given]):
        raise UsageError(f"{given[0]}: it belongs to --offload; add --offload, or leave it out")
    caches = words("--cache", cache)
    if unknown := [one for one in caches if one not in _CACHES]:
        raise UsageError(f"--cache {unknown[0]}: choose from {', '.join(_CACHES)}")
    if to and not to.startswith("s3://"):
        raise UsageError(f"--to {to}: write a bucket and a prefix, such as s3://bucket/prefix")
    try:
        path = Link.parse(link) if link else None
    except ValueError as error:
        raise UsageError(f"--link: {error}") from error
    found_target = find_target(target, tuple(set_ or ()))
    here = Path.cwd()
    check_folder("--out", profiles_folder(home_folder()) if out is None else here / out)
    if offload:
        strategies_only = {
            "--splits": splits != "all",
            "--cache": cache != "none",
            "--windows": windows != _WINDOWS,
            "--to": to != "",
        }
        if given := [name for name, is_given in strategies_only.items() if is_given]:
            raise UsageError(
                f"{given[0]}: strategies are not measured with --offload; leave one of the two out"
            )
        wanted_offload = OffloadWanted(
            samples=samples,
            batches=batches,
            codecs=_codecs(codecs),
            streams=_one("--streams", streams),
            workers=_one("--workers", workers) if workers else 0,
            kind=kind,
            pass_number=pass_,
            link=path,
            trainer_sps=sps_per_peer,
        )
        profile_offload(found_target, wanted_offload, None if out is None else here / out, output)
        return
    wanted = Wanted(
        splits=None if splits == "all" else numbers("--splits", splits, 0),
        codecs=words("--codecs", codecs),
        streams=numbers("--streams", streams, 1),
        workers=numbers("--workers", workers or "1", 1),
        kind=kind,
        caches=caches,
        samples=samples,
        windows=windows,
        link=path,
        to_url=to,
    )
    line = ProgressLine()
    left: list[str] = []
    host = HostWatch()
    try:
        with profile_errors(found_target):
            found = measure(
                found_target,
                wanted,
                say,
                lambda text: line.show(lambda: text),
                left.append,
                host,
            )
    finally:
        line.clear()
        for sentence in left:
            say(sentence)
    at = datetime.now(UTC)
    folder = (
        profiles_folder(home_folder()) / f"{Path(found.target).name}-{at:%Y%m%d-%H%M%S}"
        if out is None
        else here / out
    )
    text = to_json(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / HOST_FILE, to_csv(host.samples).encode(), 0o644)
        write_durably(folder / FILE, text.encode(), 0o644)
    except OSError as error:
        raise ProfileError(f"{folder}: cannot write the profile ({error.strerror}); choose --out") from error
    if output is Format.json:
        typer.echo(text, nl=False)
    elif output is Format.yaml:
        document: dict[str, Any] = json.loads(text)
        rows = document.pop("measurements")
        document.pop("schema_version")
        typer.echo(rows_text("measurements", rows, (), output, document), nl=False)
    else:
        rows = [_row(one) for one in found.measurements]
        typer.echo(rows_text("measurements", rows, _COLUMNS, output), nl=False)
        if output is Format.table:
            for label, one in found.extrapolations:
                error = one.second_error_percent
                typer.echo(
                    f"{label}: {one.stored_bytes.value / 1e6:.4g} MB for {one.total_samples} samples, "
                    f"second sample {'unknown' if error is None else f'{error:+.2g} %'}"
                )
            for one in found.measurements:
                if one.bad_samples:
                    typer.echo(
                        f"{one.strategy.label}: {one.bad_samples} of {one.samples} samples are bad and were left out"
                    )
    say(f"saved as {folder / FILE}")
    if left:
        raise ProfileError(
            "the profile is complete, but stored values are left in the store; delete them as said above"
        )


def _codecs(text: str) -> tuple[StoredCodec, ...]:
    """The codecs that are asked for, without none. Raises UsageError."""
    from experiments.pipeline.stored import STORED_CODECS
    from orchestrator.errors import UsageError

    wanted = words("--codecs", text)
    if unknown := [one for one in wanted if one not in STORED_CODECS]:
        raise UsageError(f"--codecs {unknown[0]}: not a codec; choose from {', '.join(STORED_CODECS)}")
    return tuple(codec for codec in STORED_CODECS if codec in wanted and codec != "none")


def _one(option: str, text: str) -> int:
    """One number. Raises UsageError."""
    from orchestrator.errors import UsageError

    found = numbers(option, text, 1)
    if len(found) != 1:
        raise UsageError(f"{option} {text}: with --offload name one number")
    return found[0]


def _row(one: Measurement) -> dict[str, Any]:
    rate = one.delivered_sps
    return {
        "strategy": one.strategy.label,
        "after": one.after,
        "stored_kb": one.stored_bytes / 1e3,
        "offline_s_per_1k": None if one.offline_s is None else one.offline_s * 1e3,
        "t1_sps": one.read_sps.value,
        "t3_sps": None if one.stored_read_sps is None else one.stored_read_sps.value,
        "t4_sps": rate.value,
        "t4_interval": None
        if rate.low is None or rate.high is None
        else f"{rate.low:.1f} to {rate.high:.1f}",
        "cpu_ms": one.cpu_s.value * 1e3,
    }
