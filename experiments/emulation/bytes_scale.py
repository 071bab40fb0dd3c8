"""Choice of an emulated run's bytes_scale and of the number of parts of a round. Pure.

The scale has two bounds. It must be large enough for the host to keep up (`host_load`). It must be small enough for
constants that are not scaled: yamux's window of 256 KiB and Hivemind's timeout for one part (`chunk_timeout_s`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.averaging.records import PART_BYTES
from experiments.emulation.host_load import (
    NEARLY_ALL,
    SWITCH_S_PER_GB,
    HostLoad,
    Round,
    host_load,
    smallest_scale,
)

VALIDATED_SCALE = (
    100.0  # no figure changed at it, whatever the host's load; the paper's runs were compared at it
)
SLOWEST_STREAM_BPS = 0.7e6  # below, yamux's window (256 KiB, unscaled) is larger than the bytes in flight
MIN_PARAMETERS = 10_000  # the scaled size must hold the small network that is actually trained
MIN_PART_BYTES = 4096
PARTS_PER_TIMEOUT = 4  # parts on the slowest path that must fit into the timeout for one
CHUNK_TIMEOUT_S, LEAST_CHUNK_TIMEOUT_S = 20.0, 5.0


def chunk_timeout_s(time_scale: float) -> float:
    """Return how long a peer waits for the next part of another, in seconds on this machine."""
    return max(LEAST_CHUNK_TIMEOUT_S, CHUNK_TIMEOUT_S / time_scale)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of a round before scaling. Seconds are on this machine."""

    peers: int
    parameters: int
    bytes_per_value: float
    slowest_bps: float  # of one stream on the slowest pair
    vm_bps: float  # of all streams of one VM together
    transfer_s: float
    epoch_s: float
    time_scale: float
    parts: int | None = None  # as set in the experiment
    switch_s_per_gb: float = SWITCH_S_PER_GB
    sent_values: int | None = None  # values sent for one peer's gradients; None: one per parameter
    largest_scale: float | None = None  # at which the model's shapes can be emulated; None: no limit

    @property
    def stream_bps(self) -> float:
        """Bandwidth of the slowest stream while all streams of a VM are busy."""
        return min(self.slowest_bps, self.vm_bps / max(1, self.peers - 1))

    def sent_bytes(self, scale: float) -> float:
        """Return the bytes to each other peer, in the scatter or the gather phase."""
        values = self.parameters if self.sent_values is None else self.sent_values
        return max(1, round(values / scale)) * self.bytes_per_value / self.peers

    def parts_at(self, scale: float) -> int:
        """Return the number of parts that a peer sends to each other peer in a round."""
        return self.parts or parts_of(self.peers, self.sent_bytes(scale), scale)[0]

    def load(self, scale: float, cores: int) -> HostLoad:
        """Return the expected load of the host."""
        n = self.peers
        sent = 2 * n * (n - 1) * self.sent_bytes(scale)
        parts = self.parts_at(scale)
        return host_load(
            Round(n, sent, parts, self.transfer_s, self.epoch_s, self.time_scale, self.switch_s_per_gb),
            cores,
        )

    def part_s(self, scale: float) -> float:
        """Return the transfer seconds of one part on the slowest pair."""
        bits = math.ceil(self.sent_bytes(scale) / self.parts_at(scale)) * 8
        return bits * scale / (self.stream_bps * self.time_scale)


WARNING = "warning: "  # prefix of a reason that makes figures doubtful


@dataclass(frozen=True, slots=True)
class BytesScale:
    """The chosen scale, the expected load of the host, and the reasons."""

    scale: float
    load: HostLoad
    reasons: tuple[str, ...]


def bytes_scale(traffic: Traffic, cores: int, given: float | None, given_by: str = "as given") -> BytesScale:
    """Choose the scale for a host. `given`: the scale set by the experiment or required by its windows; it is kept."""
    fast = max(1.0, traffic.stream_bps * traffic.time_scale / SLOWEST_STREAM_BPS)
    fits = max(1.0, traffic.parameters / MIN_PARAMETERS)  # small models cannot be scaled down much
    if traffic.largest_scale is not None:
        fits = min(fits, traffic.largest_scale)
    most = max(1.0, math.floor(min(fast, fits)))
    least = smallest_scale(lambda scale: traffic.load(scale, cores), most)
    if given is not None:
        scale = given
        reasons = [f"bytes_scale {scale:g}: {given_by}"]
    else:
        scale = min(max(VALIDATED_SCALE, float(least or 1)), most)
        count = "1 peer" if traffic.peers == 1 else f"{traffic.peers} peers"
        needed = f"at least {least:g}" if least else "no scale keeps the load under 50 %"
        reasons = [
            f"bytes_scale {scale:g}: {VALIDATED_SCALE:g} is validated, {needed} for {count} on {cores} cores, "
            f"at most {fast:.0f} (slowest stream {traffic.stream_bps / 1e6:.3g} Mb/s) "
            f"and {fits:.0f} ({traffic.parameters} parameters{'' if traffic.largest_scale is None else ' in their shapes'})"
        ]
    load = traffic.load(scale, cores)
    reasons.append(
        f"host busy: {_percent(load.epoch)} expected ({cores} cores; {_percent(load.averaging)} during transfers, "
        f"the switch {_percent(load.switch)} of its one core)"
    )
    reasons += _warnings(traffic, scale, fast, load)
    return BytesScale(float(scale), load, tuple(reasons))


def parts_of(peers: int, sent_bytes: float, scale: float) -> tuple[int, str]:
    """Return the number of parts that a peer sends to each other peer, with the reason.

    `sent_bytes`: to one peer, after scaling.
    """
    own = max(1, math.ceil(sent_bytes * scale / PART_BYTES))
    most = max(48, 1600 // peers**2)  # every part costs CPU time, however small it is
    parts = max(1, min(own, most, int(sent_bytes // MIN_PART_BYTES)))
    if parts == own:
        return parts, "as many as Hivemind uses at full scale"
    if parts == most:
        return parts, f"Hivemind's own {own} would overload this host"
    return parts, f"a part has at least {MIN_PART_BYTES} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _warnings(traffic: Traffic, scale: float, fast: float, load: HostLoad) -> Sequence[str]:
    found: list[str] = []
    if not load.under_half:
        found.append(
            f"{WARNING}at bytes_scale {scale:g} the expected load of this host is 50 % or more: packets may be late, and the run "
            "is then marked host_contended"
        )
    elif load.averaging > NEARLY_ALL:
        found.append(
            f"note: averaging may take longer than the network alone would cause: during transfers this host is expected to be "
            f"{_percent(load.averaging)} busy, estimated to about 20 %; more cores would help"
        )
    if scale > fast:
        found.append(
            f"{WARNING}bytes_scale {scale:g} is above {fast:.0f}: the slowest stream will not reach its rate"
        )
    wait_s, limit_s = PARTS_PER_TIMEOUT * traffic.part_s(scale), chunk_timeout_s(traffic.time_scale)
    if wait_s > limit_s:
        found.append(
            f"{WARNING}{PARTS_PER_TIMEOUT} parts take {wait_s:.0f} s on the slowest stream, and the timeout for one is "
            f"{limit_s:g} s: averaging may fail"
        )
    return found
