"""What happens when a sample cannot be decoded: the run fails, or the sample is left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.peer.config import PeerConfigError
from experiments.pipeline.errors import BadSampleError, PipelineError

_ALL_BAD = 100  # samples: with so many at the start the pipeline is wrong, not the data
_REPORT_EVERY = 100


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Bad samples that were left out."""

    what: str  # "samples" or "held-out samples"
    count: int
    first: BadSampleError

    def __str__(self) -> str:
        named = f"{self.count} bad {self.what}" if self.count > 1 else f"1 bad {self.what[:-1]}"
        return f"{named} left out; the first: {self.first}"


class BadSamples:
    """Applies `PeerConfig.bad_samples` to the results of decoding, in one thread."""

    def __init__(self, policy: str, tell: Callable[[LeftOut], None], what: str = "samples") -> None:
        """`tell` gets the count, again when it has changed. Raises PeerConfigError."""
        if policy not in ("fail", "skip"):
            raise PeerConfigError(f"bad_samples: {policy!r} is not one of fail, skip")
        self._skip, self._tell, self._what = policy == "skip", tell, what
        self._first: BadSampleError | None = None
        self._reported = 0
        self._any_good = False
        self._read = 0  # bad samples, those of later passes included
        self._seen: set[tuple[str, str]] = set()  # shard and key
        self._in_a_row = 0  # since the last good sample
        self._good_pass = 0  # of the last good sample

    @property
    def count(self) -> int:
        """Bad samples so far; one that is bad in each pass over the data counts once."""
        return len(self._seen)

    def good(self, at_pass: int = 0) -> None:
        """Note a sample that could be decoded. `at_pass`: pass over the share."""
        self._any_good = True
        self._in_a_row, self._good_pass = 0, max(self._good_pass, at_pass)

    def bad(self, error: BadSampleError, at_pass: int = 0) -> None:
        """Count a bad sample.

        Raises `error` if bad samples are not skipped, PipelineError if all samples are bad: those at the start, or those
        of a whole pass, after the share has changed.
        """
        if not self._skip:
            raise error
        self._read, self._in_a_row = self._read + 1, self._in_a_row + 1
        self._seen.add((error.shard, error.key))
        self._first = self._first or error
        if self._read >= _ALL_BAD:
            self.check_any_good()
        if self._in_a_row >= _ALL_BAD and at_pass > self._good_pass + 1:
            raise PipelineError(
                f"the last {self._in_a_row} {self._what} are all bad, so the pipeline does not fit the data; "
                f"one of them: {error}"
            )
        if self.count >= self._reported + _REPORT_EVERY:
            self.report()

    def check_any_good(self) -> None:
        """Raise PipelineError if there was no good sample so far."""
        if not self._any_good:
            raise PipelineError(
                f"the first {self._read} {self._what} are all bad, so the pipeline does not fit the data; "
                f"the first of them: {self._first}"
            )

    def report(self) -> None:
        """Tell the count if it has changed."""
        if self._first is not None and self.count > self._reported:
            self._reported = self.count
            self._tell(LeftOut(self._what, self.count, self._first))
