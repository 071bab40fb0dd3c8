"""Bytes that peers send each other in an epoch, and what makes them uncertain. Pure.

A pair carries 2 / n of a gradient in whole packets, acknowledgements of the same amount received, and control traffic:
reports of progress and matchmaking. Each step of a peer is one report, which costs bytes to every other peer; the record
that peers fetch has an entry for each of them, so a report's bytes grow with their number. Matchmaking is once a round.
docs/prediction.md has the sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.planning.constants import constants
from metrics.epochs.scaling import PACKET_PER_LOAD

PACKETS, RETRANSMISSIONS, CONTROL = "packet headers", "retransmissions", "control traffic"
SOURCES = (PACKETS, RETRANSMISSIONS, CONTROL)

_NORMAL_90 = 1.645  # standard deviations from the mean to the 95 % quantile
_HEADER = 52  # bytes of IPv4 and TCP with timestamps
_SMALL_PACKET, _JUMBO_FRAME = 1460, 9001  # of Google Cloud by default, and of AWS inside a region
# Reports a second of one peer: the fastest steps in the logs are 0.276 s, and a peer reports once the last report is sent.
_MOST_REPORTS_PER_S = 1 / 0.276


@dataclass(frozen=True, slots=True)
class PairBytes:
    """Bytes of one directed pair in an epoch."""

    payload: float  # of gradients, as encoded
    control: float

    @property
    def total(self) -> float:
        """With headers and acknowledgements."""
        return self.payload * whole_packets() + self.control


def control_bytes(peers: int, reports: float) -> float:
    """Return the control traffic of one directed pair in an epoch. `reports`: of a peer in an epoch."""
    known = constants()
    report = known["report_bytes"].value + known["report_bytes_per_peer"].value * peers
    return report * reports + known["round_bytes"].value


def reports(target_batch_size: int, step_samples: int, calc_s: float) -> float:
    """Return how often a peer reports in an epoch: once a step, if steps are not too fast.

    `step_samples`: of one step of all peers together, each with all its accelerators.
    """
    return min(target_batch_size / step_samples, calc_s * _MOST_REPORTS_PER_S)


def whole_packets() -> float:
    """Return the bytes of packets of 1500 bytes, and of acknowledgements of as many received, over their payload."""
    return PACKET_PER_LOAD + constants()["ack_share"].value


@dataclass(frozen=True, slots=True)
class ByteDraws:
    """Simulated runs: bytes over payload, and control traffic over what is expected of it."""

    packets: np.ndarray
    control: np.ndarray

    def of(self, pair: PairBytes) -> np.ndarray:
        """Return a pair's bytes in each simulated run."""
        return pair.payload * self.packets + pair.control * self.control


def byte_draws(random: np.random.Generator, count: int, varied: Sequence[str] = SOURCES) -> ByteDraws:
    """Draw `count` runs; sources not `varied` have their expected value.

    Headers are of packets of 1500 bytes; at least, of the frames of 9001 bytes that some clouds have inside a region; at
    most, of 1460 bytes (another cloud's default) and an acknowledgement for each second packet.
    """
    known = constants()
    expected = whole_packets()
    packets = np.full(count, expected)
    if PACKETS in varied:
        small = _SMALL_PACKET - _HEADER
        least = _JUMBO_FRAME / (_JUMBO_FRAME - _HEADER) + known["ack_share"].value
        most = (_SMALL_PACKET + _HEADER / 2) / small
        packets = _split_normal(random, count, expected, least, most)
    if RETRANSMISSIONS in varied:
        packets = packets + known["round_spread"].value * random.standard_normal(count)
    control = np.ones(count)
    if CONTROL in varied:
        least = 1 - _NORMAL_90 * known["control_spread"].value
        control = _split_normal(random, count, 1.0, least, known["own_report_factor"].value)
    return ByteDraws(np.maximum(1.0, packets), np.maximum(0.0, control))


def _split_normal(
    random: np.random.Generator, count: int, value: float, low: float, high: float
) -> np.ndarray:
    """Draw from two halves of normal distributions around `value`, whose 5 and 95 % quantiles are `low` and `high`."""
    side = random.standard_normal(count)
    return value + np.where(side < 0, value - low, high - value) / _NORMAL_90 * side


def shown() -> Mapping[str, tuple[str, str]]:
    """Return (value, source) of each source of uncertainty."""
    known = constants()
    report, more = known["report_bytes"], known["report_bytes_per_peer"]
    return {
        PACKETS: (
            f"1500 bytes for 1448 of payload, acknowledgements {100 * known['ack_share'].value:.2g} %",
            f"packets of {_SMALL_PACKET} to {_JUMBO_FRAME} bytes, as clouds have; acknowledgements: "
            f"{known['ack_share'].source}",
        ),
        RETRANSMISSIONS: (
            f"none, spread {100 * known['round_spread'].value:.2g} % of a round",
            known["round_spread"].source,
        ),
        CONTROL: (
            f"{report.value / 1e3:.2g} kB + {more.value / 1e3:.2g} kB a peer for each step and pair, "
            f"{known['round_bytes'].value / 1e6:.2g} MB a round and pair",
            report.source,
        ),
    }
