"""Converts counters of whole network cards into egress and ingress rows, and detects doubled counters. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.importers.wandb.account import Account, Span
from analysis.importers.wandb.bee import Bee, Nic
from metrics.records import EpochRecord, IngressRecord

_FP16_BYTES = 2
_OVERHEAD = 1.02  # headers, matchmaking, the DHT
_TWICE = (1.7, 2.3)
_ONCE = (0.7, 1.4)
_CUT_S = 1.0  # clocks are truncated to whole seconds


def averaging_bytes(parameters: int, peers: int) -> float:
    """Return the bytes that a VM sends per averaging round: 2(n-1)/n x parameters in FP16 + 2 % (the paper's logs)."""
    return 2 * (peers - 1) / peers * parameters * _FP16_BYTES * _OVERHEAD


def _in(nic: Nic, values: np.ndarray, began_s: float, ended_s: float) -> float:
    low, high = np.searchsorted(nic.at_s, [began_s, ended_s], side="right")
    return float(values[low:high].sum())


def doubled(
    bees: Mapping[str, Bee], accounts: Mapping[str, Account], parameters: int | None
) -> tuple[dict[str, float], list[str]]:
    """Return ({VM with doubled counters: ratio}, sentences).

    A machine with a synthetic and an accelerated card for the same link counts each byte on both. Its counters then
    show about twice the sent and received bytes of an averaging round, while its peers' show them once; if the model's
    parameters are unknown, it shows twice its peers' median. Continuous traffic (acknowledgements of incoming data) is
    subtracted. A ratio that is off for all VMs comes from another setting (such as no compression), and without known
    parameters so may a ratio that is off for most VMs: these are only reported.
    """
    sent, received, expected = {}, {}, {}
    for vm, bee in bees.items():
        epochs = accounts[vm].epochs
        if bee.nic is None or not epochs or len(bees) < 2:
            continue
        peers = [e.group_size if e.group_size > 1 else len(bees) for e in epochs]
        sent[vm] = statistics.median(_round_bytes(bee.nic, bee.nic.sent, e) for e in epochs)
        received[vm] = statistics.median(_around(bee.nic, bee.nic.received, e) for e in epochs)
        if parameters:
            expected[vm] = statistics.median(averaging_bytes(parameters, n) for n in peers)
    if parameters:
        ratios = {vm: sent[vm] / expected[vm] for vm in sent}
        found = {
            vm: r
            for vm, r in ratios.items()
            if _TWICE[0] <= r <= _TWICE[1] and received[vm] >= _TWICE[0] * expected[vm]
        }
        once = [vm for vm, r in ratios.items() if _ONCE[0] <= r <= _ONCE[1]]
        if ratios and not once:
            low, high = min(ratios.values()), max(ratios.values())
            return {}, [
                f"All VMs sent {low:.2f} to {high:.2f} times the bytes of averaging {parameters} parameters in FP16: "
                "gradients were compressed differently, or every counter counts twice; nothing is halved."
            ]
        return found, [
            f"{bees[vm].shown}: {vm} sent {sent[vm] / 1e9:.3f} GB per averaging round, {r:.2f} times the bytes of averaging "
            f"{parameters} parameters, while {len(once)} other VMs sent them once: its counters count each byte twice (a "
            "synthetic and an accelerated card) and are halved."
            for vm, r in found.items()
        ]
    found: dict[str, float] = {}
    for vm in sent:
        others = [v for v in sent if v != vm]
        if not others:
            continue
        ratio = _ratio(sent[vm], [sent[v] for v in others])
        back = _ratio(received[vm], [received[v] for v in others])
        if _TWICE[0] <= ratio <= _TWICE[1] and _TWICE[0] <= back <= _TWICE[1]:
            found[vm] = ratio
    least = min(sent.values(), default=0.0)
    above = {vm: n / least for vm, n in sent.items() if least > 0 and n >= _TWICE[0] * least}
    if not found and above:
        return {}, [
            f"{', '.join(above)} sent {min(above.values()):.2f} to {max(above.values()):.2f} times the bytes of the VM "
            "that sent least: their counters count each byte twice, or that VM did not fully participate; without the "
            "model's parameters nothing is halved."
        ]
    return found, [
        f"{bees[vm].shown}: {vm} sent and received {r:.2f} times the other VMs' bytes per epoch: its counters count each "
        "byte twice (a synthetic and an accelerated card) and are halved."
        for vm, r in found.items()
    ]


def _around(nic: Nic, values: np.ndarray, e: EpochRecord) -> float:
    """Bytes of an averaging round, including one second on both sides for the truncated clock."""
    return _in(nic, values, e.ended_s - e.comm_s - _CUT_S, e.ended_s + _CUT_S)


def _round_bytes(nic: Nic, values: np.ndarray, e: EpochRecord) -> float:
    """Bytes of an averaging round minus continuous traffic, estimated from the rest of the epoch."""
    size, rest_s = _around(nic, values, e), e.calc_s - 2 * _CUT_S
    if rest_s <= _CUT_S:
        return size
    rest = _in(nic, values, e.began_s + _CUT_S, e.ended_s - e.comm_s - _CUT_S)
    return max(size - rest / rest_s * (e.comm_s + 2 * _CUT_S), 0.0)


def _ratio(own: float, others: Sequence[float]) -> float:
    middle = statistics.median(others)
    return own / middle if middle > 0 else 0.0


def halved(nic: Nic) -> Nic:
    """Halve doubled counters."""
    return replace(nic, sent=nic.sent / 2, received=nic.received / 2)


def egress_columns(vm: str, bees: Mapping[str, Bee], spans: Sequence[Span]) -> dict[str, list[Any]]:
    """Return columns of `egress`, with each span's bytes split equally over the other VMs present at its end."""
    rows: list[tuple[Any, ...]] = []
    nic = bees[vm].nic
    totals: dict[tuple[int, str], tuple[float, float, Span]] = {}
    for span in spans if nic is not None else ():
        assert nic is not None
        size, seconds, _ = totals.get((span.epoch, span.phase), (0.0, 0.0, span))
        size += _in(nic, nic.sent, span.began_s, span.ended_s)
        totals[span.epoch, span.phase] = (size, seconds + span.ended_s - span.began_s, span)
    for (epoch, phase), (size, seconds, span) in totals.items():
        others = [name for name in bees if name != vm and bees[name].steps] or [n for n in bees if n != vm]
        there = [name for name in others if bees[name].last_s >= span.ended_s - 2] or others
        share, rest = divmod(round(size), len(there)) if there else (0, 0)
        for n, name in enumerate(there):
            rows.append((vm, epoch, name, phase, seconds, share + (n < rest)))
    names = ("vm", "epoch", "dst_address", "phase", "seconds", "bytes")
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def ingress_rows(
    vm: str, nic: Nic, spans: Sequence[Span], loads: Sequence[tuple[float, float]] = ()
) -> list[IngressRecord]:
    """Return received minus sent bytes by epoch: averaging receives as much as it sends, so the rest is data.

    Bytes received during `loads` are peers' state, not data. Epoch 0 covers the time before the first step (or a whole
    log without steps).
    """
    beyond = nic.received - nic.sent
    for began_s, ended_s in loads:
        beyond = np.where((nic.at_s > began_s) & (nic.at_s <= ended_s + 1), 0.0, beyond)
    totals: dict[int, float] = {}
    for span in spans:
        epoch = {"joining": 0, "leaving": span.epoch + 1}.get(span.phase, span.epoch)
        totals[epoch] = totals.get(epoch, 0.0) + _in(nic, beyond, span.began_s, span.ended_s)
    return [IngressRecord(vm, epoch, max(round(size), 0), 0) for epoch, size in totals.items()]
