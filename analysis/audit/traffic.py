"""Bytes that do not fit the parameters and the peers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.audit.evidence import Evidence, amount, percent
from analysis.audit.findings import Finding
from experiments.averaging.methods import METHOD_KEYS, method_of
from experiments.averaging.records import AveragingMethod, region_of
from metrics.epochs.throughput import measured
from metrics.traffic import traffic

# Hivemind's averaging costs 2 % beyond the parameters themselves (chunk headers, TCP/IP), in
# the study's logs.
OVERHEAD = 1.02
# In the study's logs the ratio is 0.96 to 1.02. Less than 0.9: peers averaged less than all parameters (lost
# parts, sparse or 8-bit compression) or the counter missed seconds. More than 1.15: retries, other traffic on the
# card, or a counter that counts twice.
FLOOR, ROOF = 0.90, 1.15
# A VM's reports to the DHT, 18 kB/s in our own runs with two peers and short steps: beside a model of a few
# thousand parameters they are most of what is sent.
CONTROL_BYTES_PER_S = 50_000
# All-to-all averaging brings a VM what it takes, and the training data comes on top: receiving less is a fault of the counter.
RECEIVED_FLOOR = 0.90


def _method(e: Evidence) -> AveragingMethod:
    """Imported logs, which have no experiment, are of the defaults: flat averaging in FP16."""
    swarm = e.run.meta.document.get("swarm", {})
    return method_of(**{key: swarm[key] for key in METHOD_KEYS if key in swarm})


def _takes(e: Evidence, vm: str, peers: Sequence[str], parameters: int) -> float:
    """Bytes that the VM sends in one averaging among `peers`: its share of the gradients, + 2 %."""
    method = _method(e)
    region = {name: region_of(e.run.terms.locations.get(name, name)) for name in peers}
    share = method.exchange.peer_share([*region.values()], region[vm])
    in_fp16 = float(share) * parameters * 2 * OVERHEAD
    return in_fp16 * method.compression.gradient_bytes(e.model, parameters) / (2 * parameters)


def _sent(e: Evidence) -> tuple[dict[str, float], dict[str, list[list[str]]]]:
    """Bytes at study scale that each VM sent to its peers in the measured epochs, and the peers in each of them."""
    chosen = measured(e.run.study)
    numbers = {epoch.epoch for epoch in chosen}
    names = {row.vm for row in e.run.vms}
    flows = [f for f in e.run.flows if f.epoch in numbers and f.phase not in ("joining", "leaving")]
    sent: dict[str, float] = {}
    for row in traffic(flows, e.run.study, e.run.terms.scales, names):
        if row.dst in names:
            sent[row.src] = sent.get(row.src, 0.0) + row.bytes
    groups: dict[str, list[list[str]]] = {}
    for epoch in chosen:
        for p in epoch.peers:
            groups.setdefault(p.vm, []).append([peer.vm for peer in epoch.peers])
    return sent, groups


def egress_fits(e: Evidence) -> list[Finding]:
    """Measured egress of a VM in an epoch against what averaging all parameters among the peers takes."""
    if e.baseline or not measured(e.run.study) or len(e.run.vms) < 2:
        return []
    parameters = e.parameters
    if parameters is None:
        sentence = (
            f"The parameters of {e.model or 'the model'} are unknown: whether the bytes fit cannot be said."
        )
        return [e.finding("bytes", "note", sentence, "parameters", None)]
    sent, groups = _sent(e)
    how = _method(e).compression.wording
    found: list[Finding] = []
    for vm, epochs in sorted(groups.items()):
        bytes_sent = sent.get(vm)
        wanted = math.fsum(_takes(e, vm, peers, parameters) for peers in epochs) / len(epochs)
        if bytes_sent is None or not wanted:
            continue
        mean = bytes_sent / len(epochs)
        ratio = mean / wanted
        control = CONTROL_BYTES_PER_S * (e.epoch_s or 0.0)
        if ratio >= FLOOR and mean <= ROOF * wanted + control:
            continue
        sentence = (
            f"{vm} sent {amount(mean)} an epoch; averaging {parameters / 1e6:.1f} M parameters {how} among "
            f"{max(map(len, epochs))} peers takes {amount(wanted)}: {ratio:.2f} times that."
        )
        found.append(
            e.finding(
                "bytes", "doubt", sentence, "egress_bytes_per_epoch", mean, wanted, len(epochs), e.file(vm)
            )
        )
    return found


def received_fits(e: Evidence) -> list[Finding]:
    """Bytes that a VM received against those it sent, over the whole log."""
    if e.baseline:
        return []
    found: list[Finding] = []
    for vm, noted in e.noted("nic").items():
        sent, received = noted.get("sent_bytes"), noted.get("received_bytes")
        if not sent or received is None or received >= RECEIVED_FLOOR * sent:
            continue
        sentence = (
            f"{vm} received {amount(received)} and sent {amount(sent)}: averaging brings what it takes, and data "
            f"comes on top, so {percent(1 - received / sent)} less cannot be all it received."
        )
        found.append(e.finding("bytes", "doubt", sentence, "received_bytes", received, sent, file=e.file(vm)))
    return found


def destinations(e: Evidence) -> list[Finding]:
    """Bytes by destination that were split, not measured: it matters where prices differ by destination."""
    places = {row.location for row in e.run.vms}
    how = e.run.meta.logs.egress_destinations
    if not how or e.baseline or len(places) < 2:
        return []
    sentence = f"Bytes by destination were not measured ({how}): dollars of egress between {len(places)} places rest on it."
    return [e.finding("destinations", "note", sentence, "places", len(places))]
