"""Render a snapshot of a run: a rich view for terminals, lines elsewhere. Pure.

`orchestrator.controller.client.snapshot` makes snapshots and documents their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metrics.events.bad_samples import BadSamples
from metrics.events.evaluation import evaluation_words
from metrics.readable import usd
from orchestrator.cli.render.words import clock, duration, emulation_line, number, place

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {
    "TRAINING": "green",
    "DONE": "green",
    "JOINING": "cyan",
    "BOOTING": "cyan",
    "PROVISIONING": "cyan",
    "WAITING": "yellow",
}
_QUIET = ("TRAINING", "DONE")  # states shown without a cause
_CALCULATING = "calc. samples/s"  # heading of a peer's rate while it calculates
PEERS = (
    "slot",
    "location",
    "accelerator",
    "use_spot",
    "state",
    "epoch",
    _CALCULATING,
    "preemptions",
    "cause",
)
_BUSY = {"CPU": "cpu_mean", "GPU": "gpu_mean"}
_EVENTS_SHOWN = 6
_LINES_AT_ONCE = 12


def view(snapshot: Mapping[str, Any]) -> RenderableType:
    """Build the live view: head, peers by place, progress of the epoch, numbers so far, recent events."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_head(snapshot), style="bold")]
    emulation = emulation_line(snapshot)
    if emulation:
        parts.append(Text(emulation, style="dim"))
    peers = snapshot.get("peers") or ()
    parts.append(_peers(snapshot, peers))
    parts.extend(
        Text(f"  {peer.get('slot')}: {peer['cause']}", style="yellow", no_wrap=True, overflow="ellipsis")
        for peer in peers
        if peer.get("cause") and peer.get("state") not in _QUIET
    )
    parts.append(_epoch_bar(snapshot.get("epoch") or {}))
    numbers = _numbers(snapshot)
    if numbers:
        parts.append(Text(numbers))
    parts.extend(Text(f"warning: {warning}", style="yellow") for warning in snapshot.get("warnings") or ())
    events = list(snapshot.get("events") or ())[-_EVENTS_SHOWN:]
    parts.extend(Text(event_line(event), style="dim") for event in events)
    if snapshot.get("error"):
        parts.append(Text(str(snapshot["error"]), style="red"))
    return Group(*parts)


def lines(previous: Mapping[str, Any] | None, current: Mapping[str, Any]) -> list[str]:
    """Return what is new since `previous` (None: nothing was shown yet): head, events, warnings, epochs.

    At most a dozen events are returned at once; of a longer burst the newest are kept and the others counted.
    """
    out: list[str] = []
    if previous is None:
        out.append(_head(current))
        emulation = emulation_line(current)
        if emulation:
            out.append(emulation)
    old = previous or {}
    seen = {_event_key(event) for event in old.get("events") or ()}
    fresh = [event for event in current.get("events") or () if _event_key(event) not in seen]
    if len(fresh) > _LINES_AT_ONCE:
        out.append(f"... {len(fresh) - _LINES_AT_ONCE} more events: `orch why {current.get('run_id')}`")
        fresh = fresh[-_LINES_AT_ONCE:]
    out.extend(event_line(event) for event in fresh)
    warned = {*(old.get("warnings") or ()), _grown_warning(old, current)}
    out.extend(f"warning: {w}" for w in current.get("warnings") or () if w not in warned)
    before = (old.get("epoch") or {}).get("current")
    if previous is not None and (current.get("epoch") or {}).get("current") != before:
        out.append(progress_line(current))
    return out


def _grown_warning(old: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Return the warning of bad samples if only its counts are new; "" otherwise."""
    before, now = (BadSamples.from_json(shown.get("bad_samples")) for shown in (old, current))
    known = (bool(before.training), bool(before.heldout)) == (bool(now.training), bool(now.heldout))
    return now.sentence if known else ""


def progress_line(snapshot: Mapping[str, Any]) -> str:
    """Summarise the progress of a run in one line."""
    epoch = snapshot.get("epoch") or {}
    states = [str(peer.get("state")) for peer in snapshot.get("peers") or ()]
    at = snapshot.get("at_s")
    head = f"{clock(at)}  " if at is not None else ""
    training = f"{states.count('TRAINING')} of {len(states)} peers training"
    return head + ", ".join(part for part in (_epoch_words(epoch), training, _numbers(snapshot)) if part)


def peer_rows(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the peers with the columns of `peer_columns`; figures of a slot without a VM that reported are "-"."""
    return [
        {
            **peer,
            "epoch": "-" if peer.get("epoch") is None else peer["epoch"],
            _CALCULATING: _rate_of(snapshot, peer),
            **{heading: _share(peer.get("utilisation"), key) for heading, key in _BUSY.items()},
        }
        for peer in snapshot.get("peers") or ()
    ]


def peer_columns(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    """Return `PEERS`, with CPU and GPU (of the last minute, mean) where one is known."""
    known = tuple(
        heading
        for heading, key in _BUSY.items()
        if any((peer.get("utilisation") or {}).get(key) is not None for peer in snapshot.get("peers") or ())
    )
    at = PEERS.index("preemptions")
    return PEERS[:at] + known + PEERS[at:]


def _share(used: Mapping[str, Any] | None, key: str) -> str:
    share = (used or {}).get(key)
    return "-" if share is None else f"{share:.0%}"


def event_line(event: Mapping[str, Any]) -> str:
    """Format an event: time, slot, text."""
    slot = f"{event.get('slot')}: " if event.get("slot") else ""
    return f"{clock(event.get('at_s'))}  {slot}{event.get('text', '')}"


def _event_key(event: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return event.get("at_s"), event.get("slot"), event.get("text")


def _head(snapshot: Mapping[str, Any]) -> str:
    elapsed = snapshot.get("elapsed_s")
    running = f", {duration(elapsed)} since start" if elapsed is not None else ""
    controller = ""
    if snapshot.get("status") == "running" and snapshot.get("controller") == "none":
        controller = f", without a controller (`orch attach {snapshot.get('run_id')}` starts one)"
    return f"{snapshot.get('run_id')}: {snapshot.get('status')}{running}{controller}"


def _epoch_words(epoch: Mapping[str, Any]) -> str:
    current, last = epoch.get("current"), epoch.get("last")
    if current is None:
        return "no epoch yet"
    of = f" of {last}" if last is not None else ""
    warmup = epoch.get("warmup") or 0
    note = " (warm-up)" if 0 < current <= warmup else ""
    return f"epoch {current}{of}{note}"


def _numbers(snapshot: Mapping[str, Any]) -> str:
    """Format the numbers so far; what is not known yet, such as granularity before a measured epoch, is omitted.

    Costs are known from the start, so `unknown` means that a price is unknown, which a warning explains.
    """
    cost = snapshot.get("cost") or {}
    dropped = snapshot.get("dropped_rounds") or 0
    parts: list[str] = []
    rates = _rates(snapshot)
    if rates:
        parts.append(rates)
    if snapshot.get("granularity") is not None:
        parts.append(f"granularity {number(snapshot['granularity'])}")
    if snapshot.get("evaluation"):
        parts.append(f"held-out {evaluation_words(snapshot['evaluation'])}")
    if cost:
        parts.append(f"{usd(cost.get('spent_usd'))} so far, {usd(cost.get('usd_per_h'))}/h")
    if cost.get("budget_usd") is not None:
        parts.append(f"budget {usd(cost['budget_usd'])}")
    if dropped:
        parts.append(f"DROPPED ROUNDS {dropped}")
    return ", ".join(parts)


def _rates(snapshot: Mapping[str, Any]) -> str:
    """Format the throughput by wall clock and the sum of the peers' rates while calculating, at full scale."""
    throughput = snapshot.get("throughput_sps")
    calculating = _full_scale(snapshot, (snapshot.get("epoch") or {}).get("sps"))
    parts = [f"throughput {number(throughput)} samples/s"] if throughput is not None else []
    if calculating is not None:
        parts.append(f"{number(calculating)} samples/s while calculating")
    return ", ".join(parts)


def _rate_of(snapshot: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    sps = _full_scale(snapshot, peer.get("sps"))
    return "-" if sps is None else number(sps)


def _full_scale(snapshot: Mapping[str, Any], raw_sps: float | None) -> float | None:
    """A rate while calculating at full scale: time and samples grow alike, except for the time scale."""
    return None if raw_sps is None else raw_sps / ((snapshot.get("scales") or {}).get("time") or 1.0)


def _epoch_bar(epoch: Mapping[str, Any]) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    samples, target = epoch.get("samples") or 0, epoch.get("target") or 0
    share = min(1.0, samples / target) if target else 0.0
    grid = Table.grid(padding=(0, 1))
    eta = epoch.get("eta_s")
    words = f"{share:4.0%}" + (f", averaging in {duration(eta)}" if eta is not None else "")
    grid.add_row(_epoch_words(epoch), ProgressBar(total=1.0, completed=share, width=30), words)
    return grid


def _peers(snapshot: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("place", "slot", "VM", "state", "epoch", _CALCULATING, "lost"):
        table.add_column(
            heading, justify="right" if heading in ("epoch", _CALCULATING) else "left", no_wrap=True
        )
    for peer in sorted(peers, key=lambda p: (str(p.get("location")), str(p.get("slot")))):
        state = str(peer.get("state"))
        preempted = peer.get("preemptions") or 0
        kind = f"{peer.get('accelerator') or ''}{' spot' if peer.get('use_spot') else ''}"
        table.add_row(
            place(peer.get("location")),
            Text(str(peer.get("slot"))),
            Text(kind),
            Text(state, style=_STYLES.get(state, "red")),
            str(peer.get("epoch") if peer.get("epoch") is not None else "-"),
            _rate_of(snapshot, peer),
            f"{preempted} x" if preempted else "",
        )
    return table
