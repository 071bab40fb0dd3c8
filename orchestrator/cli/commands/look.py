"""`orch ls`, `status`, `logs` and `why`: read-only views of runs, without Ray."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cloud.vm_report import printable, printable_values
from orchestrator.cli.names import RunArgument, find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

_LS = (
    "run", "status", "experiment", "target", "emulated", "host_contended", "peers", "epoch", "started", "elapsed_s",
    "spent_usd",
)  # fmt: skip
_PEERS = ("slot", "location", "accelerator", "use_spot", "state", "epoch", "sps", "preemptions", "cause")
_WHY = ("at", "slot", "generation", "vm", "kind", "from_state", "to_state", "cause")
_OTHER_LOGS = {
    "controller": "controller.log",
    "monitor": "monitor/monitor.log",
    "cloud": "cloud/host.log",
}
_ENDED = ("done", "failed", "stopped", "budget", "no_capacity")

FormatOption = Annotated[Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("ls")(_ls)
    app.command("status")(_status)
    app.command("logs")(_logs)
    app.command("why")(_why)


def _ls(output: FormatOption = Format.table) -> None:
    """List runs, newest first.

    \b
    JSON: {"schema_version", "runs": [{"run", "status", "experiment", "peers", "epoch",
      "started" (UTC), "elapsed_s", "spent_usd" (full scale), "controller", "error", "target",
      "emulated", "scales", "host_contended" (null: unknown),
      "clock_skew_s": largest clock offset of its VMs from this machine (null: not measured)}]}
    A running run without a controller is named on stderr, with the commands that help.
    A run that cannot be read has status "unreadable" and the reason in "error".
    """
    from orchestrator.home import home_folder, list_runs, run_folder
    from orchestrator.launch.start_lock import is_starting

    home = home_folder()
    rows = [_ls_row(run_id, home) for run_id in list_runs(home)]
    alone = [
        row
        for row in rows
        if row["status"] == "running"
        and row["controller"] == "none"
        and not is_starting(run_folder(home, row["run"]))
    ]
    shown = rows
    if output is Format.table:
        shown = [row | {"status": "running, no controller"} if row in alone else row for row in rows]
    typer.echo(rows_text("runs", shown, _LS, output), nl=False)
    for row in alone:
        run_id = row["run"]
        say(
            f"{run_id} has no controller: its VMs are not replaced, and its peers leave when their lease ends; "
            f"`orch attach {run_id}` starts one, `orch down {run_id}` tears the run down"
        )


def _ls_row(run_id: str, home: Path) -> dict[str, Any]:
    from metrics.store.database import StoreError
    from orchestrator.controller import client

    try:
        snapshot = printable_values(client.snapshot(run_id, home))
    except StoreError as error:
        return {"run": run_id, "status": "unreadable", "error": str(error)}
    started = snapshot.get("started_s")
    return {
        "run": run_id,
        "status": snapshot.get("status"),
        "experiment": snapshot.get("experiment"),
        "peers": len(snapshot.get("peers") or ()),
        "epoch": (snapshot.get("epoch") or {}).get("current"),
        "started": None if started is None else _utc(started),
        "elapsed_s": snapshot.get("elapsed_s"),
        "spent_usd": _amount((snapshot.get("cost") or {}).get("spent_usd")),
        "controller": snapshot.get("controller"),
        "error": snapshot.get("error"),
        "clock_skew_s": max(
            (p["clock_skew_s"] for p in snapshot.get("peers") or () if p.get("clock_skew_s") is not None),
            key=abs,
            default=None,
        ),
        **{key: snapshot.get(key) for key in ("target", "emulated", "scales", "host_contended")},
    }


def _status(
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the view updated until the run ends.")
    ] = False,
    output: FormatOption = Format.table,
) -> None:
    """Show a run's peers, epoch, throughput, cost and events.

    CSV contains the peers only. The exit code is 0 whatever the status of the run.

    \b
    JSON: {"schema_version", "run_id", "experiment", "status", "error", "target", "emulated", "scales",
      "host_contended", "started_s", "ended_s", "at_s", "elapsed_s", "controller": "alive"|"none",
      "peers": [{"slot", "vm", "generation", "state", "location", "accelerator", "use_spot",
        "usd_per_h", "epoch", "samples", "sps", "preemptions", "cause", "since_s",
          (epoch, samples, sps: null without a VM that reported; sps: its rate while calculating, raw)
        "clock_skew_s": by how much its VM's clock is ahead of this machine's, null: not measured,
        "utilisation" of its VM in the last minute (null: unknown; each value, too): {"seconds", "scopes" ("peer": of the peer's
          processes, "vm"), "cpu_mean", "cpu_peak", "memory_peak_bytes", "sent_mean_bytes_per_s",
          "sent_peak_bytes_per_s", "received_mean_bytes_per_s", "received_peak_bytes_per_s", "gpu_mean",
          "gpu_peak", "gpu_memory_peak_bytes"; shares are 0 to 1}}],
      "epoch": {"current" (from 1), "last", "warmup", "measured", "samples", "target",
        "sps": sum of the peers' rates while calculating, raw, null while none trains, "eta_s"},
      "throughput_sps": by wall clock, of the measured epochs so far, at full scale, as in the report,
      "granularity", "evaluation": {name: value} on held-out data or null, "evaluated_epoch",
      "bad_samples": those left out, as in `orch report`, null: unknown,
      "checkpoints": {"stored", "failed", "bytes", "sent_bytes", "newest", "restored"}, as in `orch report`,
      "start_from": checkpoint with which it began, {"prefix", "name", "epoch", "folder"}, or null,
      "cost": {"spent_usd", "usd_per_h", "budget_usd", "estimated_usd"}, "paused_s", "dropped_rounds",
      "events": [{"at_s", "slot", "text"}], "warnings": [],
      "metrics_url": Prometheus endpoint of the running controller, or null}
    """
    from orchestrator.cli.render import live
    from orchestrator.controller import client

    found = find_run(run)
    if watch:
        if output is not Format.table:
            raise typer.BadParameter("--watch supports only -o table", param_hint="--output")
        _watch(found.run_id, found.home)
        return
    snapshot = printable_values(client.snapshot(found.run_id, found.home))
    if output is Format.json:
        typer.echo(as_json({"schema_version": SCHEMA_VERSION, **snapshot}), nl=False)
    elif output is Format.table:
        for line in live.lines(None, snapshot):
            typer.echo(line)
        typer.echo(live.progress_line(snapshot))
        typer.echo(
            rows_text("peers", live.peer_rows(snapshot), live.peer_columns(snapshot), Format.table), nl=False
        )
        if snapshot.get("error"):
            typer.echo(f"error: {snapshot['error']}")
    else:
        typer.echo(rows_text("peers", snapshot.get("peers") or (), _PEERS, output), nl=False)


def _watch(run_id: str, home: Path) -> None:
    from orchestrator.cli.follow import choose_screen
    from orchestrator.controller import client

    with choose_screen() as screen:
        while True:
            snapshot = printable_values(client.snapshot(run_id, home))
            screen.show(snapshot)
            if snapshot.get("status") in _ENDED:
                return
            time.sleep(1.0)


def _logs(
    run: RunArgument,
    slot: Annotated[
        str, typer.Argument(metavar="[SLOT]", help="Slot name, or controller, monitor or cloud.")
    ] = "controller",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    last: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Print only the last N lines; 0 prints all.")
    ] = 0,
) -> None:
    """Print the log of the controller or of a slot's VMs.

    Logs of a slot's VMs are printed oldest VM first. The controller's log is printed as text; the file itself,
    controller.log in the run's folder, has one JSON object per line: {"at", "level", "run", "slot",
    "generation", "vm", "cause", "message"}.
    """
    found = find_run(run)
    if not follow:
        texts = [path.read_text(errors="replace") for path in _log_files(found.run_id, found.folder, slot)]
        lines = "".join(texts).splitlines()
        for line in lines[-last:] if last else lines:
            typer.echo(_shown(slot, line))
        return
    _follow_log(found.run_id, found.home, found.folder, slot, last)


def _log_files(run_id: str, folder: Path, slot: str) -> list[Path]:
    """Return the existing log files, oldest first. Raises UsageError for an unknown slot."""
    from orchestrator.errors import UsageError

    if slot in _OTHER_LOGS:
        path = folder / _OTHER_LOGS[slot]
        if not path.is_file():
            raise UsageError(f"{path}: no such log yet; `orch status {run_id}` shows the state of the run")
        return [path]
    vms = folder / "vms"
    prefix = f"{run_id}-{slot}-"
    found = [path for path in (vms.iterdir() if vms.is_dir() else ()) if path.name.startswith(prefix)]
    mine = [path for path in found if path.name.removeprefix(prefix).isdigit()]
    if not mine:
        slots = sorted({path.name.removeprefix(f"{run_id}-").rpartition("-")[0] for path in _folders(vms)})
        known = ", ".join([*slots, *_OTHER_LOGS])
        raise UsageError(f"{slot!r}: {run_id} has no such log; available: {known}")
    logs = [path / "peer.log" for path in sorted(mine, key=lambda p: int(p.name.removeprefix(prefix)))]
    return [path for path in logs if path.is_file()]


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _follow_log(run_id: str, home: Path, folder: Path, slot: str, last: int) -> None:
    from orchestrator.controller import client

    offsets: dict[Path, int] = {}
    first = True
    while True:
        ended = client.snapshot(run_id, home).get("status") in _ENDED
        # Read after the status, so that a run that has ended has written everything already.
        for path in _log_files(run_id, folder, slot):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                text = file.read()
            if not ended:  # the last line may be incomplete
                text = text[: text.rfind(b"\n") + 1]
            offsets[path] = offsets.get(path, 0) + len(text)
            lines = text.decode(errors="replace").splitlines()
            for line in lines[-last:] if first and last else lines:
                typer.echo(_shown(slot, line))
        first = False
        if ended:
            return
        time.sleep(0.5)


def _shown(log: str, line: str) -> str:
    from orchestrator.controller.json_log import as_text

    return printable((as_text(line) if log == "controller" else line).expandtabs(), None)


def _why(
    run: RunArgument,
    slot: Annotated[str, typer.Argument(metavar="[SLOT]", help="Show only this slot. [all]")] = "",
    output: FormatOption = Format.table,
) -> None:
    """Show every state change of a slot, with its cause.

    A warning on stderr counts the bad samples that the peers left out.

    \b
    JSON: {"schema_version", "events": [{"seq", "at_s", "at", "slot", "generation", "vm", "kind",
      "from_state", "to_state", "cause"}], "warnings": []}
    """
    from metrics.events.bad_samples import bad_samples_of
    from metrics.records import CHECKPOINTS, SWARM_LOST
    from metrics.store.database import RunStore
    from orchestrator.errors import UsageError

    found = find_run(run)
    with RunStore.open_reader(found.folder / "run.db") as store:
        events, counts = store.records("events"), store.run_meta().bad_samples
        slot_of = {row.vm: row.slot for row in store.records("vms")}
    slots = sorted({event.slot for event in events if event.slot})
    if slot and slot not in slots:
        raise UsageError(
            f"{slot!r}: {found.run_id} has no such slot; its slots: {', '.join(slots) or 'none yet'}"
        )
    # Zone and run events, and checkpoints, affect every slot.
    shared = ("zone", "run", "run_ended", "controller", SWARM_LOST, *CHECKPOINTS)
    rows = [_event_row(e) for e in events if not slot or e.slot == slot or e.kind in shared]
    if output in (Format.table, Format.csv):
        # "slot" rows hold what a restarted controller needs; they change no state.
        rows = [row for row in rows if row["from_state"] != row["to_state"] or row["kind"] != "slot"]
    left_out = bad_samples_of(counts, lambda vm: slot_of.get(vm, vm), slot)
    warnings = [printable(left_out.sentence, None)] if left_out is not None and left_out.sentence else []
    typer.echo(rows_text("events", rows, _WHY, output, {"warnings": warnings}), nl=False)
    for warning in warnings if output in (Format.table, Format.csv) else ():
        say(f"warning: {warning}")


def _event_row(event: Any) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at_s": event.at_s,
        "at": _utc(event.at_s),
        "slot": event.slot or "-",
        "generation": event.generation if event.generation >= 0 else "-",
        "vm": event.vm or "-",
        "kind": event.kind,
        "from_state": event.from_state or "-",
        "to_state": event.to_state or "-",
        "cause": printable(event.cause, None),
    }


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def _amount(text: str | float | None) -> float | None:
    return None if text is None else float(text)
