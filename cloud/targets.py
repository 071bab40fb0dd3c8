"""The kinds of targets that a run's peers run on; code asks a target for its properties instead of comparing its name.

A run is started on LOCAL or SKY (`--on`). The emulated cloud becomes LOOPBACK if this machine allows no network
namespaces. IMPORTED stands for logs of runs that others made. `name` is the run's meta key `target`. Imports no other
package of orch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_PIP = ".venv/bin/python -m pip install -e"  # in a clone of orch
_PEER_PACKAGES = ("ray", "hivemind", "torch", "webdataset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of target. The defaults are those of the emulated cloud."""

    name: str
    # Shown next to a figure: of an emulated run, of any other run, and of one whose records do not say.
    marks: tuple[str, str, str]
    provider: str = ""  # "module:class" of its provider; "": no run can be started there
    trace: str = ""  # the folder of its provider in a run's folder
    packages: tuple[str, ...] = ()  # needed on this machine to start a run there
    install: str = ""  # the command that installs them, in a clone of orch
    # VMs are paid for and outlive this machine: current prices, price ceilings, labels and credentials apply.
    rents: bool = False
    on_this_host: bool = True  # the peers share this machine, whose load may distort their figures
    emulates_distance: bool = True  # False: figures are not ranked or compared with those of the paper
    from_logs: bool = False  # imported: others ran it, and orch measured nothing
    why_null: str = "the run's records do not say"  # why a property of what it ran on is null

    def mark(self, emulated: bool | None) -> str:
        """Return what a run on this target ran on, in a word or two; `emulated` None: unknown."""
        return self.marks[2 if emulated is None else 0 if emulated else 1]


def skypilot_install(clouds: Iterable[str] = ()) -> str:
    """Return the command that installs orch for rented VMs: on AWS, Google and these clouds."""
    extras = dict.fromkeys(("aws", "gcp", *clouds))
    return f"{_PIP} '.[local,sky]' 'skypilot[{','.join(extras)}]'"


LOCAL = Target(
    name="local",
    marks=("emulated", "not emulated", "unknown"),
    provider="cloud.local:LocalCloud",
    trace="cloud",
    packages=_PEER_PACKAGES,
    install=f"{_PIP} '.[local]'",
)
LOOPBACK = Target(name="loopback", marks=("loopback", "loopback", "loopback"), emulates_distance=False)
SKY = Target(
    name="sky",
    marks=("rented, padded", "rented", "unknown"),
    provider="cloud.sky:SkyCloud",
    trace="sky",
    packages=("skypilot", *_PEER_PACKAGES),
    install=skypilot_install(),
    rents=True,
    on_this_host=False,
    why_null="rented VMs have no host that orch could measure",
)
IMPORTED = Target(
    name="imported",
    marks=("logs", "logs", "logs"),
    on_this_host=False,
    from_logs=True,
    why_null="the run was imported from logs",
)
UNKNOWN = Target(name="", marks=LOCAL.marks)
"""The target of a run whose records do not name one."""

TARGETS = {target.name: target for target in (LOCAL, LOOPBACK, SKY, IMPORTED)}


def target_of(name: str | None) -> Target:
    """Return the target of a run's meta key `target`; UNKNOWN if there is none or it is from a later version."""
    return TARGETS.get(name or "", UNKNOWN)
