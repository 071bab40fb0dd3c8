"""The choices for each sample before it is sent: how many of its first operations run next to the storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.pipeline.offload.sample_profile import Floats, SampleProfile

NONE = "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """Run the first `ops` operations next to the storage and compress the result with `codec`. 0: send the sample as stored.

    `on_client`, `on_server`: the operations after which the values are kept there for later passes, 0: as stored, None: they
    are not.
    """

    ops: int
    codec: str = NONE
    on_client: int | None = None
    on_server: int | None = None

    @property
    def uses_server(self) -> bool:
        """Whether the sample needs the server next to the storage."""
        return self.ops > 0 or self.on_server is not None


@dataclass(frozen=True)
class Codec:
    """A lossless codec of the values after `ops` operations.

    `ratio`: compressed bytes / bytes, one for each sample or for all; likewise seconds of a sample: `write_s` on the
    server, `read_s` on the client.
    """

    name: str
    ops: int
    ratio: Floats | float
    write_s: Floats | float
    read_s: Floats | float


@dataclass(frozen=True)
class Choices:
    """c choices of n samples; the first is to send a sample as it is stored.

    All arrays are (n, c): bytes that are sent, CPU seconds on the server (with its speed) and those left for the client.
    """

    names: tuple[Choice, ...]
    sent_bytes: Floats
    server_s: Floats
    client_s: Floats

    @property
    def samples(self) -> int:
        """n."""
        return len(self.sent_bytes)

    @property
    def offloads(self) -> npt.NDArray[np.bool_]:
        """(c,): choices with operations next to the storage."""
        return np.array([choice.ops > 0 for choice in self.names])

    def index(self, choice: Choice) -> int:
        """The column of a choice. Raises ValueError if there is none."""
        return self.names.index(choice)


def choices_of(
    profile: SampleProfile, codecs: Sequence[Codec] = (), speed: Sequence[float] | float = 1.0
) -> Choices:
    """Return the choices of a profile with times.

    `speed`: the server's seconds / the client's, of each operation or of all. Raises ValueError without times, for a
    speed that is not above 0, and as `check_codecs` does.
    """
    if profile.op_s is None:
        raise ValueError("the profile has no times")
    check_codecs(codecs, len(profile.ops))
    n, m = profile.op_s.shape
    ratios = np.broadcast_to(np.asarray(speed, dtype=float), (m,))
    if not (np.isfinite(ratios) & (ratios > 0)).all():
        raise ValueError(f"the server's speed {speed} is not above 0")
    done_s = np.column_stack([np.zeros(n), np.cumsum(profile.op_s, axis=1)])
    server_s = np.column_stack([np.zeros(n), np.cumsum(profile.op_s * ratios, axis=1)])
    client_s = np.maximum(done_s[:, -1:] - done_s, 0.0)
    client_s[:, -1] = 0.0
    names = [Choice(k) for k in range(m + 1)]
    columns = [profile.sizes], [server_s], [client_s]
    for codec in codecs:
        names.append(Choice(codec.ops, codec.name))
        for found, values in zip(
            columns,
            (
                profile.size_bytes[:, codec.ops - 1] * codec.ratio,
                server_s[:, codec.ops] + codec.write_s,
                client_s[:, codec.ops] + codec.read_s,
            ),
            strict=True,
        ):
            found.append(values[:, None])
    sent, server, client = (np.hstack(found) for found in columns)
    return Choices(tuple(names), sent, server, client)


def check_codecs(codecs: Sequence[Codec], ops: int) -> None:
    """Raises ValueError for names that are not unique, and for a codec that follows none of the `ops` operations."""
    names = [codec.name for codec in codecs]
    if NONE in names or len(set(names)) < len(names):
        raise ValueError(f"the codecs {', '.join(names)} must have different names, none of them {NONE}")
    for codec in codecs:
        if not 1 <= codec.ops <= ops:
            raise ValueError(
                f"the codec {codec.name} follows {codec.ops} operations, of which there are 1 to {ops}"
            )
