"""`orch pipeline profile --offload`: the two-stage profile that offloading is decided by."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.commands.pipeline.measuring import profile_errors
from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.pipeline.offload.offload_profile import OffloadProfile
    from orchestrator.pipeline.offload.profiling import OffloadWanted
    from orchestrator.pipeline.target import Target

COLUMNS = ("after", "mean_kb", "smallest", "cpu_ms", "read_ms")


def profile_offload(target: Target, wanted: OffloadWanted, out: Path | None, output: Format) -> None:
    """Measure, save and print. `out`: an absolute folder; None: one of its own below ORCH_HOME.

    Raises UsageError, ProfileError, InputError, StorageError, DataSourceError.
    """
    from analysis.pipeline.offload.offload_profile_file import head_document
    from orchestrator.cli.render.io_bound import io_bound_text
    from orchestrator.cli.render.progress import ProgressLine
    from orchestrator.home import home_folder
    from orchestrator.pipeline.find_profile import profiles_folder
    from orchestrator.pipeline.offload.find_profile import write_offload_profile
    from orchestrator.pipeline.offload.profiling import offload_profile
    from orchestrator.pipeline.strategy_runs import ProfileError

    line = ProgressLine()
    try:
        with profile_errors(target):
            found = offload_profile(target, wanted, say, lambda text: line.show(lambda: text))
    finally:
        line.clear()
    name = f"{Path(found.head.target).name}-offload-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = profiles_folder(home_folder()) / name if out is None else out
    try:
        path = write_offload_profile(folder, found)
    except OSError as error:
        raise ProfileError(f"{folder}: cannot write the profile ({error.strerror}); choose --out") from error
    stage = found.head.stage_1
    text = io_bound_text(stage.fetch_sps, stage.preprocess_sps, stage.trainer_sps)
    document = head_document(found.head)
    document.pop("schema_version")
    document["stage_1"]["text"] = text
    steps = _steps(found)
    if output in (Format.json, Format.yaml):
        typer.echo(rows_text("steps", steps, (), output, document), nl=False)
    else:
        typer.echo(rows_text("steps", [_cells(one) for one in steps], COLUMNS, output), nl=False)
        if output is Format.table:
            typer.echo(text)
            for codec in found.head.codecs:
                if codec.not_held:
                    typer.echo(
                        f"{codec.name}: it cannot hold {codec.not_held} of {found.head.samples} samples, which are sent without "
                        "it"
                    )
            if found.head.bad_samples:
                typer.echo(f"{found.head.bad_samples} bad samples were left out")
    say(f"saved as {path}")


def _steps(found: OffloadProfile) -> list[dict[str, Any]]:
    """A row for the samples as they are stored, for each operation, and for each codec after its operations."""
    samples = found.samples
    assert samples.op_s is not None  # it was measured
    smallest = samples.smallest

    def row(after: str, codec: str, size: Any, at: int | None, cpu: Any, read: Any) -> dict[str, Any]:
        return {
            "after": after,
            "codec": codec,
            "mean_bytes": float(size.mean()),
            "smallest": None if at is None else int((smallest == at).sum()),
            "cpu_s": None if cpu is None else float(cpu.mean()),
            "read_s": None if read is None else float(read.mean()),
        }

    rows = [row("", "none", samples.raw_bytes, 0, None, None)]
    for at, op in enumerate(samples.ops):
        rows.append(row(op, "none", samples.size_bytes[:, at], at + 1, samples.op_s[:, at], None))
    for one in found.codecs:
        rows.append(
            row(
                samples.ops[one.place.ops - 1],
                one.place.codec,
                one.size_bytes,
                None,
                one.write_s,
                one.read_s,
            )
        )
    return rows


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    def ms(seconds: float | None) -> str | None:
        return None if seconds is None else f"{seconds * 1e3:.4g}"

    return {
        "after": f"{row['after'] or 'stored'}{'' if row['codec'] == 'none' else ', ' + row['codec']}",
        "mean_kb": f"{row['mean_bytes'] / 1e3:.4g}",
        "smallest": row["smallest"],
        "cpu_ms": ms(row["cpu_s"]),
        "read_ms": ms(row["read_s"]),
    }
