"""How long a pass over the data set takes, and what it costs, if each sample is sent as chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.pipeline.offload.choices import Choices

Assignment = npt.NDArray[np.intp]
"""(n,): the column of each sample's choice."""
BOUND_WORDS = {
    "trainer": "the trainer",
    "client": "the client's CPU",
    "server": "the server's CPU",
    "network": "the network",
}
"""What `PassTime.bound` is in a sentence."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What a pass runs on. Raises ValueError unless the bandwidth and the client's cores are above 0, the rest 0 or more."""

    trainer_s: float  # a pass, if it never waits
    bandwidth_bps: float  # to the client
    client_cores: float
    storage_cores: float

    def __post_init__(self) -> None:
        for name, value, least in (
            ("trainer_s", self.trainer_s, 0),
            ("storage_cores", self.storage_cores, 0),
            ("bandwidth_bps", self.bandwidth_bps, 1e-9),
            ("client_cores", self.client_cores, 1e-9),
        ):
            if not least <= value < math.inf:
                raise ValueError(f"{name} is {value:g}; it must be {'above 0' if least else '0 or more'}")


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars of a second of all that is rented, and of a byte. The server is rented if it is used, and bytes then go
    through it: from the store to the server as they are stored, and on to the client as they are sent."""

    usd_per_s: float
    store_to_client_usd: float  # a byte, without a server
    store_to_server_usd: float = 0.0  # a byte
    server_to_client_usd: float = 0.0  # a byte
    server_usd_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PassTime:
    """A pass and what bounds it: the trainer, the client's CPU, the server's, the network. It takes the longest.

    `server_cpu_s`: of a pass, on all of the server's cores. inf seconds: the server has no core.
    """

    t_g_s: float
    t_cc_s: float
    t_cs_s: float
    t_net_s: float
    sent_bytes: float
    offloaded: int  # samples
    server_cpu_s: float

    @property
    def seconds(self) -> float:
        """Of the pass (Wang et al., section 3.2)."""
        return max(self.t_g_s, self.t_cc_s, self.t_cs_s, self.t_net_s)

    @property
    def bound(self) -> str:
        """What takes longest: trainer, client, server or network; the first of equals."""
        times = {"trainer": self.t_g_s, "client": self.t_cc_s, "server": self.t_cs_s, "network": self.t_net_s}
        return max(times, key=lambda name: times[name])

    @property
    def uses_server(self) -> bool:
        """Whether the server is rented, and all bytes go through it."""
        return self.offloaded > 0


def pass_time(choices: Choices, chosen: Assignment, machines: Machines) -> PassTime:
    """The pass with these choices."""
    rows = np.arange(choices.samples)
    sent = math.fsum(choices.sent_bytes[rows, chosen])
    server_s = math.fsum(choices.server_s[rows, chosen])
    client_s = math.fsum(choices.client_s[rows, chosen])
    offloaded = int(np.count_nonzero(choices.offloads[chosen]))
    cores = machines.storage_cores
    return PassTime(
        machines.trainer_s,
        client_s / machines.client_cores,
        server_s / cores if cores else math.inf if offloaded else 0.0,
        8 * sent / machines.bandwidth_bps,
        sent,
        offloaded,
        server_s,
    )


def usd(found: PassTime, store_bytes: float, prices: Prices) -> float:
    """Dollars of a pass. `store_bytes`: that leave the store, all samples as they are stored unless some are cached."""
    if not found.uses_server:
        return prices.usd_per_s * found.seconds + prices.store_to_client_usd * store_bytes
    return (
        (prices.usd_per_s + prices.server_usd_per_s) * found.seconds
        + prices.store_to_server_usd * store_bytes
        + prices.server_to_client_usd * found.sent_bytes
    )


BILL_WORDS = {
    "rented": "all that is rented",
    "server": "the server",
    "store_to_client": "store to client",
    "store_to_server": "store to server",
    "server_to_client": "server to client",
}
"""The parts of `usd` in words."""


def usd_parts(found: PassTime, store_bytes: float, prices: Prices) -> dict[str, float]:
    """`usd` by part; they add up to it."""
    used = found.uses_server
    return {
        "rented": prices.usd_per_s * found.seconds,
        "server": prices.server_usd_per_s * found.seconds if used else 0.0,
        "store_to_client": 0.0 if used else prices.store_to_client_usd * store_bytes,
        "store_to_server": prices.store_to_server_usd * store_bytes if used else 0.0,
        "server_to_client": prices.server_to_client_usd * found.sent_bytes if used else 0.0,
    }
