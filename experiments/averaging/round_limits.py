"""Timeout of an averaging round. Pure."""

from __future__ import annotations

_TIMES_EXPECTED = 4.0  # the paper's slowest round, the second of NLP B-8, took 1.9 times the expected time
_SECOND_ATTEMPT = 2.0  # times the expected round


def averaging_timeout_s(
    longest_s: float, comm_s: float, matchmaking_s: float, chunk_timeout_s: float
) -> float:
    """Return the timeout for all attempts of a round together. All arguments are wall seconds of the same clock.

    It is four times the expected communication `comm_s` (matchmaking included), but long enough for a round in which a
    peer disappears: detecting that takes two chunk timeouts, and a second attempt follows. At most `longest_s`.
    """
    after_silence_s = 2.0 * chunk_timeout_s + matchmaking_s + _SECOND_ATTEMPT * comm_s
    return min(longest_s, max(_TIMES_EXPECTED * comm_s, after_silence_s))
