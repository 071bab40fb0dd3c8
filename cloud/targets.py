"""What peers of a run run on: one record each, asked for its properties instead of its name.

A run is started on LOCAL or SKY (`--on`); the emulated cloud becomes LOOPBACK where this machine allows no network
namespaces; IMPORTED are logs of runs that others made. `name` is the run's meta key `target`. Imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

_PEER_PACKAGES = ("ray", "hivemind", "torch", "webdataset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The defaults are those of the emulated cloud."""

    name: str
    marks: tuple[
        str, str, str
    ]  # beside a figure: of an emulated run, of another one, of one that does not tell
    provider: str = ""  # "module:class" that makes its VMs; "": no run is started there
    trace: str = ""  # the folder that its provider has in a run's folder
    packages: tuple[str, ...] = ()  # that this machine needs to start a run there
    rents: bool = (
        False  # VMs are paid for: prices of today, ceilings, labels, credentials; they outlive this machine
    )
    on_this_host: bool = True  # the peers share this machine, whose load may falsify their figures
    has_distance: bool = True  # False: no figure is ranked, or judged by the study's
    from_logs: bool = False  # others ran it, and orch measured nothing
    why_null: str = "the run's records do not tell"  # why something of what it ran on is null

    def mark(self, emulated: bool | None) -> str:
        """What a run here ran on, in a word or two."""
        return self.marks[2 if emulated is None else 0 if emulated else 1]


LOCAL = Target(
    name="local",
    marks=("emulated", "not emulated", "unknown"),
    provider="cloud.local:LocalCloud",
    trace="cloud",
    packages=_PEER_PACKAGES,
)
LOOPBACK = Target(name="loopback", marks=("loopback", "loopback", "loopback"), has_distance=False)
SKY = Target(
    name="sky",
    marks=("rented, padded", "rented", "unknown"),
    provider="cloud.sky:SkyCloud",
    trace="sky",
    packages=("skypilot", *_PEER_PACKAGES),
    rents=True,
    on_this_host=False,
    why_null="rented VMs have no host of ours",
)
IMPORTED = Target(
    name="imported",
    marks=("logs", "logs", "logs"),
    on_this_host=False,
    from_logs=True,
    why_null="these are somebody's logs",
)
UNKNOWN = Target(name="", marks=LOCAL.marks)
"""Of a run whose records do not name its target."""

TARGETS = {target.name: target for target in (LOCAL, LOOPBACK, SKY, IMPORTED)}


def target_of(name: str | None) -> Target:
    """The target of a run's meta key `target`; UNKNOWN for none, or one of a later version."""
    return TARGETS.get(name or "", UNKNOWN)
