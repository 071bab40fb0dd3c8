"""What limits a stream of an emulated run, and what follows for its scale and its expected rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from cloud.networks import NO_PATH_MODEL, Network, path_model, vm_limit
from cloud.networks.tuning import widening
from cloud.networks.windows import default_window_bytes, kernel_bytes_scale
from experiments.schema.fields import NO_NETWORK
from experiments.schema.models import Emulation, ExperimentSpec


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """How streams are limited."""

    windows: Literal["paced", "kernel", ""]  # "": no network is emulated
    slowest_bps: float  # of one stream on the slowest pair of peers, at full size
    bytes_scale: float | None  # that the kernel's window asks for; None: free
    window_bytes: float | None  # of a stream, at full size; None: the switch paces
    reason: str


def windows_of(emulation: Emulation, network_tuning: str) -> Literal["paced", "kernel"]:
    """`emulation.windows`, with auto resolved."""
    if emulation.windows != "auto":
        return emulation.windows
    return "kernel" if network_tuning == "wan" else "paced"


def stream_limit(spec: ExperimentSpec, emulation: Emulation) -> StreamLimit:
    """For the peers of an experiment, in their first places. Raises NetworkError."""
    windows = windows_of(emulation, spec.network_tuning)
    if emulation.network == NO_NETWORK:
        reason = "network none: nothing is known of the streams, a VM's own sending limit is counted"
        return StreamLimit("", vm_limit(), None, None, reason)
    network = Network.load(emulation.network)
    where = [group.alternatives[0].infra for group in spec.peers for _ in range(min(group.count, 2))]
    pairs = [(a, b) for (i, a), (k, b) in product(enumerate(where), repeat=2) if i != k]
    model, streams = path_model(emulation.path_model), max(1, spec.peer_count - 1)
    if windows == "paced":
        carries = (
            "the network file's rate" if model is NO_PATH_MODEL else f"the rate of path model {model.name}"
        )
        slowest_bps = min((model.carried_bps(network, *pair, streams) for pair in pairs), default=vm_limit())
        return StreamLimit(
            windows, slowest_bps, None, None, f"windows paced: the switch holds each stream to {carries}"
        )
    window_bytes = default_window_bytes()
    scale = kernel_bytes_scale()
    reason = (
        f"windows kernel: the switch only delays and limits VMs, the VMs' TCP windows limit streams; the study's hosts had "
        f"{window_bytes / 1e6:.2f} MB, which TCP's largest unscaled window (64 KiB) stands for at bytes_scale {scale:.1f}"
    )
    if spec.network_tuning == "wan":
        window_bytes *= widening(spec.network_tuning)
        reason += f"; network_tuning wan: {window_bytes / 1e6:.0f} MB"
    held_s = model.hold_s * (streams - 1)
    rtts_s = [network.path(*pair).rtt_s for pair in pairs]
    slowest_bps = min((window_bytes * 8 / (rtt_s + held_s) for rtt_s in rtts_s), default=vm_limit())
    return StreamLimit(windows, slowest_bps, scale, window_bytes, reason)
