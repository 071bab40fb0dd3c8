"""Limits of the streams of an emulated run, with the resulting bytes_scale and expected rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from cloud.networks import NO_PATH_MODEL, Network, path_model, vm_limit
from cloud.networks.tuning import window_factor
from cloud.networks.windows import default_window_bytes, kernel_bytes_scale
from experiments.schema.fields import NO_NETWORK
from experiments.schema.models import Emulation, ExperimentSpec


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """Limit of the streams of an emulated run."""

    windows: Literal["paced", "kernel", ""]  # "": no emulated network
    slowest_bps: float  # of one stream on the slowest pair of peers, at full scale
    bytes_scale: float | None  # required by the kernel's window; None: any
    window_bytes: float | None  # of a stream, at full scale; None: the switch limits streams
    reason: str


def windows_of(emulation: Emulation, network_tuning: str) -> Literal["paced", "kernel"]:
    """Return `emulation.windows`, with auto resolved."""
    if emulation.windows != "auto":
        return emulation.windows
    return "kernel" if network_tuning == "wan" else "paced"


def stream_limit(spec: ExperimentSpec, emulation: Emulation) -> StreamLimit:
    """Determine the limit for the peers of an experiment, in their preferred places. Raises NetworkError."""
    windows = windows_of(emulation, spec.network_tuning)
    if emulation.network == NO_NETWORK:
        reason = "network none: the streams' rates are unknown, so a VM's own sending limit is used"
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
            windows, slowest_bps, None, None, f"windows paced: the switch limits each stream to {carries}"
        )
    window_bytes = default_window_bytes()
    scale = kernel_bytes_scale()
    reason = (
        f"windows kernel: the switch only adds delay and limits VMs, the VMs' TCP windows limit streams; the paper's hosts had "
        f"{window_bytes / 1e6:.2f} MB, which corresponds to TCP's largest unscaled window (64 KiB) at bytes_scale {scale:.1f}"
    )
    if spec.network_tuning == "wan":
        window_bytes *= window_factor(spec.network_tuning)
        reason += f"; network_tuning wan: {window_bytes / 1e6:.0f} MB"
    held_s = model.hold_s * (streams - 1)
    rtts_s = [network.path(*pair).rtt_s for pair in pairs]
    slowest_bps = min((window_bytes * 8 / (rtt_s + held_s) for rtt_s in rtts_s), default=vm_limit())
    return StreamLimit(windows, slowest_bps, scale, window_bytes, reason)
