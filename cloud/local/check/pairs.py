"""Compare the emulated network with its network file, measured from inside for every pair of places."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud.local.check import probe
from cloud.local.host.guardian import write_json
from cloud.local.options import LocalOptions
from cloud.local.provider import LocalCloud
from cloud.networks import Network, vm_limit
from cloud.networks.tuning import window_factor
from cloud.networks.windows import default_window_bytes
from cloud.provider import InvalidRequestError, LaunchRequest, Offer, TransientError

_READY_S = 30.0
_STREAM_S = 4.0
_GAP_S = 1.0  # between rounds, so that packets in flight arrive
_LEAD_S = 0.5
_PAYLOAD_SHARE = 1448 / 1500  # of a full packet: a VM's limit counts whole packets, a stream only its payload


@dataclass(frozen=True)
class CheckRow:
    """One ordered pair of places; rates are converted back to the network's own scale."""

    source: str
    target: str
    expected_rtt_s: float
    rtt_s: float
    # The file's stream (kernel windows: window / round trip), or the VM's limit if that is lower.
    expected_bps: float
    bps: float  # one stream, data in one direction
    both_bps: float | None  # one connection with data in both directions at once; None: not in the sample

    @property
    def worst_error(self) -> float:
        """The largest relative deviation of the measured from the expected values."""
        errors = [self.rtt_s / self.expected_rtt_s - 1, self.bps / self.expected_bps - 1]
        errors += [] if self.both_bps is None else [self.both_bps / self.expected_bps - 1]
        return max(map(abs, errors))


def check_network(run_folder: Path, options: LocalOptions, places: Sequence[str]) -> list[CheckRow]:
    """Start two VMs in each place (location), measure every ordered pair and end the VMs.

    Takes about 20 s plus 4 s per place. Raises InvalidRequestError (no namespaces, unknown place) and TransientError (the
    probes did not answer).
    """
    network, limit_bps = Network.load(options.network), options.vm_limit_bps or vm_limit()
    window_bytes = None
    if options.windows == "kernel":
        window_bytes = default_window_bytes() * window_factor(options.network_tuning)
    pairs = list(itertools.product(places, places))
    expected = {pair: network.path(*pair) for pair in pairs}
    vms = {place: [f"p{k}-1", f"p{k}-2"] for k, place in enumerate(places)}
    cloud = LocalCloud.start(run_folder, options)
    try:
        if cloud.mode != "namespaces":
            raise InvalidRequestError(
                "this machine does not allow creating namespaces, so there is no distance to check"
            )
        for place, names in vms.items():
            for name in names:
                offer = Offer(place, "probe", "", False, None, "")
                config = {"listen_address": ""}
                cloud.request(LaunchRequest(name, offer, "cloud.local.check.probe:main", config))
        _await(cloud, "ready", _READY_S)
        address = {vm.vm: vm.address or "" for vm in cloud.observe()}
        plans, length_s = _plans(pairs, vms, address)
        for name, plan in plans.items():
            write_json(Path(cloud.collect(name)) / "plan.json", plan)
        found = _await(cloud, "done", length_s + _READY_S)
    finally:
        cloud.close()
    rows: list[CheckRow] = []
    factor = options.bytes_scale / options.time_scale
    for k, pair in enumerate(pairs):
        path = expected[pair]
        both = found.get(f"b{k}", found.get(f"b{pairs.index((pair[1], pair[0]))}/back"))
        rows.append(
            CheckRow(
                *pair,
                expected_rtt_s=path.rtt_s,
                rtt_s=found[f"r{k}"] * options.time_scale,
                expected_bps=min(
                    path.stream_bps if window_bytes is None else window_bytes * 8 / path.rtt_s,
                    limit_bps * _PAYLOAD_SHARE,
                ),
                bps=found[f"s{k}"] * factor,
                both_bps=None if both is None else both * factor,
            )
        )
    return rows


def _plans(
    pairs: list[tuple[str, str]], vms: dict[str, list[str]], address: dict[str, str]
) -> tuple[dict[str, list[dict[str, object]]], float]:
    """Plan what each VM measures when. Returns the plans by VM, and the total duration in seconds."""
    plans: dict[str, list[dict[str, object]]] = {name: [] for names in vms.values() for name in names}
    begin_s = at_s = time.time() + _LEAD_S

    def plan(do: str, source: str, target: str, key: str) -> None:
        task: dict[str, object] = {
            "at_s": at_s,
            "do": do,
            "to": address[target],
            "key": key,
            "seconds": _STREAM_S,
        }
        plans[source].append(task)

    for k, (source, target) in enumerate(pairs):
        plan("rtt", vms[source][0], vms[target][1 if source == target else 0], f"r{k}")
    at_s += 7 * 0.3 * len(vms) + _GAP_S  # a VM measures its round trips one after another, up to 0.3 s each
    owner = {name: place for place, names in vms.items() for name in names}
    for batch in probe.rounds(pairs, vms):
        for source, target in batch:
            plan("flow", source, target, f"s{pairs.index((owner[source], owner[target]))}")
        at_s += _STREAM_S + _GAP_S
    # data in both directions on one connection: each place with the next, all at the same time
    sample = list(itertools.combinations(vms, 2))
    for batch in probe.rounds(sample, {place: names[:1] for place, names in vms.items()})[:2]:
        for source, target in batch:
            plan("both", source, target, f"b{pairs.index((owner[source], owner[target]))}")
        at_s += _STREAM_S + _GAP_S
    return plans, at_s - begin_s


def _await(cloud: LocalCloud, phase: str, timeout_s: float) -> dict[str, float]:
    """Wait until all probes are in a phase and return their results by key: round trips (s), rates (bits/s)."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = cloud.observe()
        for vm in seen:
            if vm.state == "failed":
                raise TransientError(f"{vm.vm}: {vm.cause}; see {cloud.collect(vm.vm)}/console.log")
        if all(vm.status.get("phase") == phase for vm in seen):
            break
        if time.monotonic() > deadline:
            late = [vm.vm for vm in seen if vm.status.get("phase") != phase]
            raise TransientError(
                f"the probes {', '.join(late)} are not {phase} after {timeout_s:.0f} s; try again"
            )
        time.sleep(0.1)
    found: dict[str, float] = {}
    for vm in seen:
        for result in vm.status.get("results", []):
            found[result["key"]] = result.get("rtt_s", result.get("bps"))
            if "back_bps" in result:
                found[f"{result['key']}/back"] = result["back_bps"]
    return found
