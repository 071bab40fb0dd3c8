"""By how much an emulated run's bytes are shrunk, and into how many parts a round is cut. Pure.

Between two bounds: the host must keep up (`host_load`), and what does not shrink with the bytes must stay small beside
them: yamux's window of 256 KiB, and Hivemind's patience for one part (`chunk_timeout_s`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.emulation.host_load import (
    NEARLY_ALL,
    SWITCH_S_PER_GB,
    HostLoad,
    Round,
    host_load,
    least_scale,
)

PROVED = 100.0  # nothing moved at it, on hosts of any load; the study's runs were compared at it
SLOWEST_STREAM_BPS = 0.7e6  # below, yamux's window (256 KiB, unscaled) is larger than what is in flight
MIN_PARAMETERS = 10_000  # the small network that really learns must fit into the scaled size
MIN_PART_BYTES = 4096
HIVEMIND_PART_BYTES = 2**19  # its default; few large parts leave the link idle between them
PARTS_WAITED_FOR = 4  # of the slowest path, within the time-out for one
CHUNK_TIMEOUT_S, LEAST_CHUNK_TIMEOUT_S = 20.0, 5.0


def chunk_timeout_s(time_scale: float) -> float:
    """How long a peer waits for another's next part, on this machine's clock."""
    return max(LEAST_CHUNK_TIMEOUT_S, CHUNK_TIMEOUT_S / time_scale)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a round moves and how fast, before anything is shrunk; seconds are this machine's."""

    peers: int
    parameters: int
    bytes_per_value: float
    slowest_bps: float  # of one stream on the slowest pair
    vm_bps: float  # of all streams of one VM together
    transfer_s: float
    epoch_s: float
    time_scale: float
    parts: int | None = None  # as the experiment gives them
    switch_s_per_gb: float = SWITCH_S_PER_GB
    sent_values: int | None = None  # of one peer's gradients; None: each parameter is one
    largest_scale: float | None = None  # at which the model's shapes can be kept; None: any

    @property
    def stream_bps(self) -> float:
        """What the slowest stream has while all of a VM's streams are busy."""
        return min(self.slowest_bps, self.vm_bps / max(1, self.peers - 1))

    def sent_bytes(self, scale: float) -> float:
        """To each other peer: scatter or gather."""
        values = self.parameters if self.sent_values is None else self.sent_values
        return max(1, round(values / scale)) * self.bytes_per_value / self.peers

    def parts_at(self, scale: float) -> int:
        """A peer sends each other peer in a round."""
        return self.parts or parts_of(self.peers, self.sent_bytes(scale), scale)[0]

    def load(self, scale: float, cores: int) -> HostLoad:
        """What that asks of the host."""
        n = self.peers
        sent = 2 * n * (n - 1) * self.sent_bytes(scale)
        parts = self.parts_at(scale)
        return host_load(
            Round(n, sent, parts, self.transfer_s, self.epoch_s, self.time_scale, self.switch_s_per_gb),
            cores,
        )

    def part_s(self, scale: float) -> float:
        """How long one part takes on the slowest pair."""
        bits = math.ceil(self.sent_bytes(scale) / self.parts_at(scale)) * 8
        return bits * scale / (self.stream_bps * self.time_scale)


WARNING = "warning: "  # the level before a reason of the scales: figures may be doubtful


@dataclass(frozen=True, slots=True)
class BytesScale:
    """The choice, what it asks of the host, and why."""

    scale: float
    load: HostLoad
    reasons: tuple[str, ...]


def bytes_scale(traffic: Traffic, cores: int, given: float | None, given_by: str = "as given") -> BytesScale:
    """The scale for so many cores; `given`: the experiment's own, or what its windows ask for, which is kept."""
    fast = max(1.0, traffic.stream_bps * traffic.time_scale / SLOWEST_STREAM_BPS)
    fits = max(1.0, traffic.parameters / MIN_PARAMETERS)  # small models have little to shrink
    if traffic.largest_scale is not None:
        fits = min(fits, traffic.largest_scale)
    most = max(1.0, math.floor(min(fast, fits)))
    least = least_scale(lambda scale: traffic.load(scale, cores), most)
    if given is not None:
        scale = given
        reasons = [f"bytes_scale {scale:g}: {given_by}"]
    else:
        scale = min(max(PROVED, float(least or 1)), most)
        crowd = "1 peer" if traffic.peers == 1 else f"{traffic.peers} peers"
        needed = f"at least {least:g}" if least else "none keeps it under half busy"
        reasons = [
            f"bytes_scale {scale:g}: {PROVED:g} is proved, {needed} for {crowd} on {cores} cores, "
            f"at most {fast:.0f} (slowest stream {traffic.stream_bps / 1e6:.3g} Mb/s) "
            f"and {fits:.0f} ({traffic.parameters} parameters{'' if traffic.largest_scale is None else ' in their shapes'})"
        ]
    load = traffic.load(scale, cores)
    reasons.append(
        f"host busy: {_percent(load.epoch)} expected ({cores} cores; {_percent(load.averaging)} while parts travel, "
        f"the switch {_percent(load.switch)} of its one core)"
    )
    reasons += _warnings(traffic, scale, fast, load)
    return BytesScale(float(scale), load, tuple(reasons))


def parts_of(peers: int, sent_bytes: float, scale: float) -> tuple[int, str]:
    """Parts that a peer sends each other peer, and why so many. `sent_bytes`: to one peer, after the scale."""
    own = max(1, math.ceil(sent_bytes * scale / HIVEMIND_PART_BYTES))
    most = max(48, 1600 // peers**2)  # each costs CPU time, however small it is
    parts = max(1, min(own, most, int(sent_bytes // MIN_PART_BYTES)))
    if parts == own:
        return parts, "as many as Hivemind cuts at full size"
    if parts == most:
        return parts, f"Hivemind's own {own} would keep this host too busy"
    return parts, f"a part has at least {MIN_PART_BYTES} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _warnings(traffic: Traffic, scale: float, fast: float, load: HostLoad) -> Sequence[str]:
    found: list[str] = []
    if not load.under_half:
        found.append(
            f"{WARNING}bytes_scale {scale:g} does not keep this host under half busy: it may be late, and a run that was is "
            "marked host_contended"
        )
    elif load.averaging > NEARLY_ALL:
        found.append(
            f"note: averaging may take longer than the network makes it: while parts travel this host is expected to be "
            f"{_percent(load.averaging)} busy, and that is reckoned to some 20 %; more cores would help"
        )
    if scale > fast:
        found.append(
            f"{WARNING}bytes_scale {scale:g} is above {fast:.0f}: the slowest stream will not keep its rate"
        )
    wait_s, limit_s = PARTS_WAITED_FOR * traffic.part_s(scale), chunk_timeout_s(traffic.time_scale)
    if wait_s > limit_s:
        found.append(
            f"{WARNING}{PARTS_WAITED_FOR} parts take {wait_s:.0f} s on the slowest stream and a peer waits {limit_s:g} s for one: "
            "averaging may be given up"
        )
    return found
