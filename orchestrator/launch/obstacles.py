"""Obstacles to a launch: records with a code, and the verdict on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cloud.targets import TARGETS
from orchestrator.errors import RefusedError, UsageError


class ObstacleGroup(StrEnum):
    """Where an obstacle is removed; the value is its heading."""

    EXPERIMENT = "in the experiment"
    MONEY = "prices and limits in dollars"
    MACHINE = "on this machine"


class ObstacleCode(StrEnum):
    """Why a launch is impossible."""

    # any target
    TOO_MANY_PEERS = "too_many_peers"
    NO_SCALES = "no_scales"  # the step time or the shapes that the emulation needs are unknown
    TASK = "task"  # it cannot be built
    REQUIREMENTS = "requirements"  # they would replace packages of the peer
    CHECKPOINT_PLACE = "checkpoint_place"  # nothing can be stored there
    # the emulated cloud
    EMULATION_NULL = "emulation_null"
    NETWORK_NONE = "network_none"
    ENDPOINT_NOT_FORWARDED = "endpoint_not_forwarded"
    SHARD_NAMES = "shard_names"
    STORE_PLACE = "store_place"
    # rented VMs
    OWN_PLACE = "own_place"
    CLOUD_NOT_RENTED = "cloud_not_rented"
    STORE_UNREACHABLE = "store_unreachable"
    STORE_KEYS = "store_keys"
    MODEL_DATA = "model_data"
    FILE_MOUNT = "file_mount"
    # money
    VM_PRICE_UNKNOWN = "vm_price_unknown"
    DOLLAR_LIMIT = "dollar_limit"  # budget_usd or max_usd_per_h cannot be kept, or allows no VM
    # this machine
    SECRET_VALUES = "secret_values"
    CLOUD_KEYS = "cloud_keys"  # the cloud's keys would go to another store
    PACKAGES = "packages"
    TASK_PACKAGES = (
        "task_packages"  # the emulated peers share this environment, which lacks requirements of the task
    )
    COMPILER = "compiler"  # the emulated peers share this machine, which lacks what swarm.compile needs
    CREDENTIALS = "credentials"


_GROUPS: Mapping[ObstacleCode, ObstacleGroup] = {
    ObstacleCode.VM_PRICE_UNKNOWN: ObstacleGroup.MONEY,
    ObstacleCode.DOLLAR_LIMIT: ObstacleGroup.MONEY,
    ObstacleCode.SECRET_VALUES: ObstacleGroup.MACHINE,
    ObstacleCode.CLOUD_KEYS: ObstacleGroup.MACHINE,
    ObstacleCode.PACKAGES: ObstacleGroup.MACHINE,
    ObstacleCode.TASK_PACKAGES: ObstacleGroup.MACHINE,
    ObstacleCode.COMPILER: ObstacleGroup.MACHINE,
    ObstacleCode.CREDENTIALS: ObstacleGroup.MACHINE,
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One obstacle: its code, and a sentence with a remedy that does not repeat the experiment's name."""

    code: ObstacleCode
    text: str

    @property
    def group(self) -> ObstacleGroup:
        """Where it is removed."""
        return _GROUPS.get(self.code, ObstacleGroup.EXPERIMENT)

    def as_dict(self) -> dict[str, str]:
        """Return plain JSON types."""
        return {"code": self.code.value, "text": self.text}


def of_error(code: ObstacleCode, name: str, error: Exception) -> Obstacle:
    """Make an obstacle of an error whose message may start with the experiment's name."""
    return Obstacle(code, str(error).removeprefix(f"{name}: "))


def verdict(on: str, against: Sequence[Obstacle]) -> str:
    """Say in a few words whether an experiment can be launched on a target."""
    where = "on rented VMs" if TARGETS[on].rents else "on this machine"
    if not against:
        return f"can be launched {where}"
    count = f"{len(against)} obstacle{'s' if len(against) > 1 else ''}"
    if all(obstacle.group is ObstacleGroup.MACHINE for obstacle in against):
        return f"can be launched {where}, but not yet from here: {count}"
    return f"cannot be launched {where} as it is: {count}"


def verdict_lines(name: str, on: str, against: Sequence[Obstacle]) -> list[str]:
    """Format the verdict, followed by every obstacle under the heading of its group."""
    lines = [f"{name} {verdict(on, against)}"]
    for group in ObstacleGroup:
        texts = [obstacle.text for obstacle in against if obstacle.group is group]
        lines += [f"  {group}:", *(f"  - {text}" for text in texts)] if texts else []
    return lines


def refusal(name: str, on: str, against: Sequence[Obstacle]) -> RefusedError | UsageError:
    """Return the error with all obstacles: RefusedError if money is among them, otherwise UsageError."""
    of_money = any(obstacle.group is ObstacleGroup.MONEY for obstacle in against)
    return (RefusedError if of_money else UsageError)("\n".join(verdict_lines(name, on, against)))
