"""Random numbers of a sample: the same for every worker, order and restart."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


@dataclass(frozen=True, slots=True)
class Randomness:
    """What determines the random numbers of one sample: the run's seed, the pass over the data, the sample's key."""

    seed: int
    pass_number: int  # 0 for the first pass over the data
    key: str

    def generator(self, op: str) -> np.random.Generator:
        """Return the generator of the operation named `op`, always in the same state.

        Philox (Salmon et al., SC 2011) is used because its 128-bit key can be the hash itself: a generator takes
        microseconds to make, and those of different samples are independent.
        """
        # A key has surrogates if the name in the tar is not UTF-8.
        text = f"{self.seed}\0{self.pass_number}\0{self.key}\0{op}".encode("utf-8", "surrogatepass")
        key = int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
        return np.random.Generator(np.random.Philox(key=key))
