"""How long a round may take before it is given up; pure."""

from __future__ import annotations

_TIMES_EXPECTED = 4.0  # the study's slowest round, NLP B-8's second, took 1.9 times what is expected
_SECOND_ATTEMPT = 2.0  # times the expected round


def averaging_timeout_s(
    longest_s: float, comm_s: float, matchmaking_s: float, chunk_timeout_s: float
) -> float:
    """Seconds for all attempts of a round together; all arguments in wall seconds of the same clock.

    Four times the expected communication `comm_s` (matchmaking included), but enough for a round that lost a peer
    without a word: its silence lasts two chunk time-outs, then a second attempt follows. At most `longest_s`.
    """
    after_silence_s = 2.0 * chunk_timeout_s + matchmaking_s + _SECOND_ATTEMPT * comm_s
    return min(longest_s, max(_TIMES_EXPECTED * comm_s, after_silence_s))
