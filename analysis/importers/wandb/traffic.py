"""Whole-card byte counters as egress and ingress rows, and counters that count every byte twice. Pure."""

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
_CUT_S = 1.0  # clocks are cut to whole seconds


def averaging_bytes(parameters: int, peers: int) -> float:
    """What one VM sends in one averaging: 2(n-1)/n x parameters in FP16, and 2 % around it (the study's logs)."""
    return 2 * (peers - 1) / peers * parameters * _FP16_BYTES * _OVERHEAD


def _in(nic: Nic, values: np.ndarray, began_s: float, ended_s: float) -> float:
    low, high = np.searchsorted(nic.at_s, [began_s, ended_s], side="right")
    return float(values[low:high].sum())


def doubled(
    bees: Mapping[str, Bee], accounts: Mapping[str, Account], parameters: int | None
) -> tuple[dict[str, float], list[str]]:
    """({VM whose counters count twice: by which ratio}, sentences).

    A machine with a synthetic and an accelerated card for the same wire counts each byte on both. In an
    averaging it then sends near twice what one sends, and receives as much, while its peers send it near once;
    without known parameters, twice its peers' median. What goes out all the time (acknowledgements of the data
    that comes in) is taken off. A ratio that is off for all alike is some other setting (no compression, say),
    and so may be one of most VMs where the parameters are not known: only said.
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
                f"All VMs sent {low:.2f} to {high:.2f} times the bytes of an FP16 averaging of {parameters} "
                "parameters: gradients were compressed otherwise, or every counter counts twice; nothing is halved."
            ]
        return found, [
            f"{bees[vm].shown}: {vm} sent {sent[vm] / 1e9:.3f} GB an averaging, {r:.2f} times what an averaging of "
            f"{parameters} parameters sends, while {len(once)} other VMs sent it once: its counters count each "
            "byte twice (a synthetic and an accelerated card); they are halved."
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
            f"{', '.join(above)} sent {min(above.values()):.2f} to {max(above.values()):.2f} times the bytes of the "
            "VM that sent least: their counters count each byte twice, or that one took no full part; without the "
            "model's parameters nothing is halved."
        ]
    return found, [
        f"{bees[vm].shown}: {vm} sent and received {r:.2f} times the other VMs' bytes an epoch: its counters "
        "count each byte twice (a synthetic and an accelerated card); they are halved."
        for vm, r in found.items()
    ]


def _around(nic: Nic, values: np.ndarray, e: EpochRecord) -> float:
    """Bytes of an averaging with the clock's cut second on both sides."""
    return _in(nic, values, e.ended_s - e.comm_s - _CUT_S, e.ended_s + _CUT_S)


def _round_bytes(nic: Nic, values: np.ndarray, e: EpochRecord) -> float:
    """Bytes of an averaging less what passes at all times, by the rest of the epoch."""
    size, rest_s = _around(nic, values, e), e.calc_s - 2 * _CUT_S
    if rest_s <= _CUT_S:
        return size
    rest = _in(nic, values, e.began_s + _CUT_S, e.ended_s - e.comm_s - _CUT_S)
    return max(size - rest / rest_s * (e.comm_s + 2 * _CUT_S), 0.0)


def _ratio(own: float, others: Sequence[float]) -> float:
    middle = statistics.median(others)
    return own / middle if middle > 0 else 0.0


def halved(nic: Nic) -> Nic:
    """The counters of one card of the two."""
    return replace(nic, sent=nic.sent / 2, received=nic.received / 2)


def egress_columns(vm: str, bees: Mapping[str, Bee], spans: Sequence[Span]) -> dict[str, list[Any]]:
    """Columns of `egress`: each span's bytes split equally over the other VMs that were there at its end."""
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
    """What came in beyond what went out, by epoch: averaging brings as much as it takes, the rest is data.

    What came in during `loads` is the others' state, not data.

    Epoch 0 is what came before the first step (or all of a log without steps).
    """
    beyond = nic.received - nic.sent
    for began_s, ended_s in loads:
        beyond = np.where((nic.at_s > began_s) & (nic.at_s <= ended_s + 1), 0.0, beyond)
    totals: dict[int, float] = {}
    for span in spans:
        epoch = {"joining": 0, "leaving": span.epoch + 1}.get(span.phase, span.epoch)
        totals[epoch] = totals.get(epoch, 0.0) + _in(nic, beyond, span.began_s, span.ended_s)
    return [IngressRecord(vm, epoch, max(round(size), 0), 0) for epoch, size in totals.items()]
