"""Checks of the traffic: bytes that do not fit the parameters and the number of peers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.audit.evidence import Evidence, percent
from analysis.audit.findings import Finding
from experiments.averaging.methods import METHOD_KEYS, method_of
from experiments.averaging.model_shapes import Shapes
from experiments.averaging.records import AveragingMethod, region_of
from metrics.epochs.throughput import measured
from metrics.readable import size
from metrics.traffic import traffic

# In the paper's logs averaging sends 2 % more than the parameters themselves (chunk headers, TCP/IP).
OVERHEAD = 1.02
# In the paper's logs the ratio is 0.96 to 1.02. Below 0.9 peers did not average all parameters (lost parts, sparse
# or 8-bit compression) or the counter has gaps. Above 1.15 there were retries or other traffic on the card, or the
# counter counts twice.
FLOOR, ROOF = 0.90, 1.15
# Allowance for a VM's reports to the DHT: 18 kB/s in our own runs with two peers and short steps. With a model of a
# few thousand parameters they are most of the traffic.
CONTROL_BYTES_PER_S = 50_000
# In all-to-all averaging a VM receives what it sends, and training data in addition: less means a faulty counter.
RECEIVED_FLOOR = 0.90


def _method(e: Evidence) -> AveragingMethod:
    """The run's averaging method. Imported logs have no experiment, so the default applies: flat, FP16."""
    swarm = e.run.meta.document.get("swarm", {})
    return method_of(**{key: swarm[key] for key in METHOD_KEYS if key in swarm})


def _expected_bytes(e: Evidence, vm: str, peers: Sequence[str], parameters: int) -> float:
    """Bytes that the VM must send in one averaging round among `peers`: its share of the gradients, plus 2 %."""
    method = _method(e)
    region = {name: region_of(e.run.terms.locations.get(name, name)) for name in peers}
    share = method.exchange.peer_share([*region.values()], region[vm])
    in_fp16 = float(share) * parameters * 2 * OVERHEAD
    return in_fp16 * method.compression.gradient_bytes(_averaged_as(e), parameters) / (2 * parameters)


def _averaged_as(e: Evidence) -> str | Shapes | None:
    """What determines how gradients are compressed: the model's name, or the shapes that the run's task had."""
    facts = (e.run.meta.document.get("task") or {}).get("facts")
    if facts is None:
        return e.model
    return tuple((tuple(shape), count) for shape, count in facts["shapes"])


def _sent(e: Evidence) -> tuple[dict[str, float], dict[str, list[list[str]]]]:
    """Full-scale bytes that each VM sent to its peers in the measured epochs, and the peers of each epoch."""
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
    """Compare a VM's measured egress per epoch with what averaging all parameters among the peers requires."""
    if e.baseline or not measured(e.run.study) or len(e.run.vms) < 2:
        return []
    parameters = e.parameters
    if parameters is None:
        sentence = f"The number of parameters of {e.model or 'the model'} is unknown, so the bytes cannot be checked."
        return [e.finding("bytes", "note", sentence, "parameters", None)]
    sent, groups = _sent(e)
    how = _method(e).compression.wording
    found: list[Finding] = []
    for vm, epochs in sorted(groups.items()):
        bytes_sent = sent.get(vm)
        wanted = math.fsum(_expected_bytes(e, vm, peers, parameters) for peers in epochs) / len(epochs)
        if bytes_sent is None or not wanted:
            continue
        mean = bytes_sent / len(epochs)
        ratio = mean / wanted
        control = CONTROL_BYTES_PER_S * (e.epoch_s or 0.0)
        if ratio >= FLOOR and mean <= ROOF * wanted + control:
            continue
        sentence = (
            f"{vm} sent {size(mean)} per epoch, {ratio:.2f} times the {size(wanted)} that averaging "
            f"{parameters / 1e6:.1f} M parameters {how} among {max(map(len, epochs))} peers requires."
        )
        found.append(
            e.finding(
                "bytes", "doubt", sentence, "egress_bytes_per_epoch", mean, wanted, len(epochs), e.file(vm)
            )
        )
    return found


def received_fits(e: Evidence) -> list[Finding]:
    """Compare the bytes that a VM received with those it sent, over the whole log."""
    if e.baseline:
        return []
    found: list[Finding] = []
    for vm, noted in e.noted("nic").items():
        sent, received = noted.get("sent_bytes"), noted.get("received_bytes")
        if not sent or received is None or received >= RECEIVED_FLOOR * sent:
            continue
        sentence = (
            f"{vm} received {size(received)}, {percent(1 - received / sent)} less than the {size(sent)} it sent. "
            "Averaging receives what it sends, and data comes in addition, so the counter is incomplete."
        )
        found.append(e.finding("bytes", "doubt", sentence, "received_bytes", received, sent, file=e.file(vm)))
    return found


def destinations(e: Evidence) -> list[Finding]:
    """Report bytes by destination that were split equally, which matters if prices differ by destination."""
    places = {row.location for row in e.run.vms}
    how = e.run.meta.logs.egress_destinations
    if not how or e.baseline or len(places) < 2:
        return []
    sentence = f"Bytes by destination were not measured ({how}): egress dollars between {len(places)} places depend on the split."
    return [e.finding("destinations", "note", sentence, "places", len(places))]
